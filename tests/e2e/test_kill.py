"""However a run ends, `--resume` ends it with the bits of the uninterrupted one, and nothing is left behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.helpers.command import Command, command_line, environment

from broaden.cli import run as broaden
from broaden.seeds import numpy_generator, stream

UPDATES = 20
CONFIG = f"""
name = "small"
[model]
source = "bundled:countdown-nano"
[task]
name = "countdown"
limit = 64
[checkpoint]
every = 1
[[stages]]
algo = "es"
updates = {UPDATES}
members = 4
prompts = 16
sigma = 0.02
alpha = 0.01
max_new_tokens = 40
"""
PATIENCE = 240.0  # machines are shared
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("config") / "small.toml"
    path.write_text(CONFIG)
    return path


@pytest.fixture(scope="module")
def whole(config: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The hash of twenty updates without interruption, in one process."""
    out = tmp_path_factory.mktemp("whole") / "run"
    assert broaden(["train", str(config), "--out", str(out)]) == 0
    lines = (out / "seedlog.jsonl").read_text().splitlines()
    hashes = [json.loads(line)["line"]["center_hash"] for line in lines]
    assert len(set(hashes)) == UPDATES  # every update moved the weights
    return str(hashes[-1])


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


class Running:
    """A command in a process of its own, to be hurt."""

    def __init__(self, arguments: list[str], log: Path, program: list[str] | None = None) -> None:
        self.log = log
        with log.open("w") as file:
            self.process = subprocess.Popen(
                program or command_line(arguments),
                stdout=file,
                stderr=file,
                env=environment(),
                cwd=log.parent,
            )

    def wait_until(self, ready: Callable[[], bool]) -> None:
        """Poll often: what is waited for may last milliseconds."""
        end = time.monotonic() + PATIENCE
        while not ready():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < end, self.log.read_text()
            time.sleep(0.001)

    def children(self) -> list[int]:
        """Process ids of the workers."""
        found = []
        for status in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                if int(status.read_text().rpartition(")")[2].split()[1]) == self.process.pid:
                    found.append(int(status.parent.name))
        return found

    def end(self, number: int) -> int:
        """Send a signal and wait; returns the exit code."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """Starts commands; whatever still runs at the end of the test is killed."""
    started: list[Running] = []

    def run(*arguments: object, program: list[str] | None = None) -> Running:
        started.append(Running([str(a) for a in arguments], tmp_path / f"log-{len(started)}", program))
        return started[-1]

    yield run
    for one in started:
        one.process.kill()
        one.process.wait(PATIENCE)


def updates(run: Path) -> int:
    """Whole lines in the seed log."""
    path = run / "seedlog.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def gone(pids: list[int]) -> bool:
    return not any(Path(f"/proc/{pid}/cmdline").exists() and is_worker(pid) for pid in pids)


def is_worker(pid: int) -> bool:
    """Is it (still) one of ours? Ids are used again, and a zombie is no process any more."""
    try:
        return b"broaden.population.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def wait_for(condition: Callable[[], bool], seconds: float = 30.0) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def left_in_shared_memory() -> set[str]:
    place = Path("/dev/shm")
    return {p.name for p in place.glob("broaden-*")} if place.is_dir() else set()


def resumed(command: Command, run: Path) -> str:
    """Resume to the end; the center's hash."""
    found = command.ok("train", "--resume", run, "--json").json()
    assert found["step"] == UPDATES
    log = [json.loads(x)["step"] for x in (run / "seedlog.jsonl").read_text().splitlines()]
    assert log == list(range(UPDATES))
    return str(found["center_hash"])


def kill_and_resume(
    start: Callable[..., Running],
    command: Command,
    config: Path,
    run: Path,
    workers: int,
    moment: int,
    *more: str,
) -> str:
    """kill -9 after a keyed random number of updates and a keyed random delay."""
    draw = numpy_generator(stream(moment, "kill", workers))
    after, delay = int(draw.integers(1, UPDATES // 2)), float(draw.uniform(0.0, 0.1))
    running = start("train", config, f"population.workers={workers}", *more, "--out", run)
    running.wait_until(lambda: updates(run) >= after)
    time.sleep(delay)
    children = running.children()
    assert len(children) == (workers if workers > 1 else 0)
    assert running.end(signal.SIGKILL) == -signal.SIGKILL, running.log.read_text()
    assert wait_for(lambda: gone(children)), "workers outlived their parent"
    return resumed(command, run)


def test_a_killed_run_resumes_to_the_same_hash(
    start: Callable[..., Running], command: Command, config: Path, tmp_path: Path, whole: str
) -> None:
    before = left_in_shared_memory()
    assert kill_and_resume(start, command, config, tmp_path / "run", 2, moment=0) == whole
    assert left_in_shared_memory() <= before


def test_a_killed_run_in_low_memory_leaves_no_file_and_resumes_to_the_same_hash(
    start: Callable[..., Running], command: Command, config: Path, tmp_path: Path, whole: str
) -> None:
    run = tmp_path / "run"
    before = left_in_shared_memory()
    assert kill_and_resume(start, command, config, run, 2, 0, "low_memory=true") == whole
    assert left_in_shared_memory() <= before
    assert not list(run.glob("broaden-*"))


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("moment", range(1, 7))
def test_a_run_killed_at_random_moments_resumes_to_the_same_hash(
    start: Callable[..., Running], command: Command, config: Path, tmp_path: Path, whole: str, workers: int, moment: int
) -> None:  # fmt: skip
    assert kill_and_resume(start, command, config, tmp_path / "run", workers, moment) == whole


@pytest.mark.slow
def test_a_run_killed_again_and_again_gets_there(
    start: Callable[..., Running], command: Command, config: Path, tmp_path: Path, whole: str
) -> None:
    run = tmp_path / "run"
    arguments: list[object] = ["train", config, "--out", run]
    for after in (3, 7, 11, 15):
        running = start(*arguments)
        running.wait_until(lambda after=after: updates(run) >= after)
        assert running.end(signal.SIGKILL) == -signal.SIGKILL
        arguments = ["train", "--resume", run]
    assert resumed(command, run) == whole


# Dies by its own hand in the middle of the write of checkpoint number {step}, at one of several places.
SUICIDE = """
import os, signal
from pathlib import Path
from broaden.runs import checkpoints
from broaden.store import commit as module

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

real_save, real_rename = checkpoints.save_model, os.rename
def save(model, folder, *rest):
    if not folder.name.startswith(".partial-step-{step:06d}"):
        return real_save(model, folder, *rest)
    if "{place}" == "first byte":
        die()
    real_save(model, folder, *rest)
    if "{place}" == "half the weights":
        weights = folder / "model.safetensors"
        os.truncate(weights, weights.stat().st_size // 2)
        die()
    if "{place}" == "before the state":
        die()

def rename(source, target):
    at = Path(target).name == "step-{step:06d}"
    if at and "{place}" == "before the rename":
        die()
    real_rename(source, target)
    if at and "{place}" == "after the rename":
        die()

checkpoints.save_model, os.rename = save, rename
from broaden.cli import main
main()
"""
PLACES = ["first byte", "half the weights", "before the state", "before the rename", "after the rename"]


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_a_run_killed_inside_a_checkpoint_write_resumes_to_the_same_hash(
    start: Callable[..., Running], command: Command, config: Path, tmp_path: Path, whole: str, place: str
) -> None:
    run = tmp_path / "run"
    program = [
        sys.executable,
        "-c",
        SUICIDE.format(step=5, place=place),
        "train",
        str(config),
        "--out",
        str(run),
    ]
    running = start(program=program)
    assert running.process.wait(PATIENCE) == -signal.SIGKILL, running.log.read_text()
    partial = list((run / "checkpoints").glob(".partial-*"))
    assert bool(partial) == (place != "after the rename")
    assert (run / "checkpoints/step-000005").exists() == (place == "after the rename")
    assert updates(run) == 5
    done = command.ok("train", "--resume", run)
    assert ("an interrupted write, ignored and removed" in done.err) == (place != "after the rename")
    assert f"center hash {whole}" in done.out
    assert not list(run.rglob(".partial-*"))


@pytest.mark.slow
def test_a_run_killed_while_a_checkpoint_is_being_written_by_chance(
    start: Callable[..., Running], command: Command, config: Path, tmp_path: Path, whole: str
) -> None:
    run = tmp_path / "run"
    running = start("train", config, "--out", run)
    running.wait_until(lambda: updates(run) >= 4 and any((run / "checkpoints").glob(".partial-step-*")))
    assert running.end(signal.SIGKILL) == -signal.SIGKILL
    assert resumed(command, run) == whole


@pytest.mark.parametrize(
    ("number", "workers"),
    [(signal.SIGTERM, 2), pytest.param(signal.SIGINT, 2, marks=pytest.mark.slow),
     pytest.param(signal.SIGINT, 1, marks=pytest.mark.slow), pytest.param(signal.SIGTERM, 1, marks=pytest.mark.slow)],
)  # fmt: skip
def test_an_interrupted_run_says_how_to_resume(
    start: Callable[..., Running], command: Command, config: Path, tmp_path: Path, whole: str, number: int, workers: int
) -> None:  # fmt: skip
    run = tmp_path / "run"
    before = left_in_shared_memory()
    running = start("train", config, f"population.workers={workers}", "checkpoint.every=0", "--out", run)
    running.wait_until(lambda: updates(run) >= 2)
    children = running.children()
    assert running.end(number) == 130, running.log.read_text()
    said = " ".join(running.log.read_text().split())
    assert "interrupted; everything up to the last update is saved" in said
    assert f"broaden train --resume {run}" in said
    assert "Traceback" not in said
    assert wait_for(lambda: gone(children), 5.0)
    assert left_in_shared_memory() <= before
    manifest = json.loads((run / "manifest.json").read_text())
    assert manifest["status"] == "interrupted"
    assert [p.name for p in (run / "checkpoints").iterdir()] == [f"step-{manifest['steps']:06d}"]
    assert resumed(command, run) == whole


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("delay", [0.0, 0.5, 1.5])
def test_an_interruption_before_the_first_update_is_an_interruption_too(
    start: Callable[..., Running], command: Command, config: Path, tmp_path: Path, whole: str, number: int, delay: float
) -> None:  # fmt: skip
    """From the moment at which torch is being loaded; before that it is Python that starts."""
    run = tmp_path / "run"
    running = start("train", config, "--out", run)
    running.wait_until(lambda: "libtorch" in Path(f"/proc/{running.process.pid}/maps").read_text())
    time.sleep(delay)
    assert running.end(number) == 130, running.log.read_text()
    assert "Traceback" not in running.log.read_text()
    if (run / "manifest.json").exists():
        assert resumed(command, run) == whole
    else:
        found = command.ok("train", config, "--out", run, "--json").json()
        assert found["center_hash"] == whole


@pytest.mark.slow
def test_a_worker_that_is_killed_costs_nothing(
    start: Callable[..., Running], config: Path, tmp_path: Path, whole: str
) -> None:
    run = tmp_path / "run"
    running = start("train", config, "population.workers=2", "--out", run)
    running.wait_until(lambda: updates(run) >= 3)
    os.kill(running.children()[0], signal.SIGKILL)
    assert running.process.wait(PATIENCE) == 0, running.log.read_text()
    assert f"center hash {whole}" in running.log.read_text()
