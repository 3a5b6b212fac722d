"""kill -9 in ES->GRPO and GRPO->ES, on either side of the boundary: resumed, the final hash is the whole run's."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path

import pytest
from tests.helpers.command import Command, command_line, environment

from broaden.seeds import numpy_generator, stream

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

HALF = 6
PATIENCE = 120.0
HEAD = """
name = "sequence"
[model]
source = "bundled:countdown-nano"
[task]
name = "countdown"
limit = 200
[checkpoint]
every = 2
"""
STAGES = {
    "es": f"""
[[stages]]
algo = "es"
preset = "nano"
updates = {HALF}
members = 4
prompts = 16
""",
    "grpo": f"""
[[stages]]
algo = "grpo"
preset = "nano"
updates = {HALF}
prompts = 16
group = 4
kl = 0.01
reference = "stage_start"
""",
}


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


def records(run: Path) -> int:
    path = run / "records.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def kill_after(config: Path, run: Path, updates: int, delay: float, low_memory: bool) -> None:
    """Start the run in a process of its own and kill it some time after so many updates."""
    with (run.parent / f"{run.name}.log").open("w") as log:
        arguments = ["train", str(config), f"low_memory={str(low_memory).lower()}", "--out", str(run)]
        process = subprocess.Popen(
            command_line(arguments), stdout=log, stderr=log, env=environment(), cwd=run.parent
        )
        end = time.monotonic() + PATIENCE
        while records(run) < updates and process.poll() is None and time.monotonic() < end:
            time.sleep(0.001)
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        process.wait(PATIENCE)
    assert records(run) >= updates


@pytest.mark.parametrize("order", [("es", "grpo"), ("grpo", "es")])
def test_a_killed_sequence_resumes_to_the_same_hash(
    command: Command, tmp_path: Path, order: tuple[str, str]
) -> None:
    config = tmp_path / "sequence.toml"
    config.write_text(HEAD + "".join(STAGES[name] for name in order))
    whole = command.ok("train", config, "--out", tmp_path / "whole", "--json").json()
    for after in (HALF - 1, HALF, HALF + 1, 2):  # before, at and behind the boundary, and early
        run = tmp_path / f"run-{after}"
        delay = float(numpy_generator(stream(after, "kill", *order)).uniform(0.0, 0.1))
        kill_after(config, run, after, delay, low_memory=after in (HALF, 2))
        found = command.ok("train", "--resume", run, "--json").json()
        assert (found["step"], found["center_hash"]) == (2 * HALF, whole["center_hash"])
        steps = [json.loads(x)["step"] for x in (run / "records.jsonl").read_text().splitlines()]
        assert steps == list(range(2 * HALF))
