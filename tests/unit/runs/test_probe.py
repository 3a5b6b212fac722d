"""Probes on own and held-out problems: written once, with their overlap, and the warning that coverage narrows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tests.helpers.letters import letters
from tests.helpers.nano import Watching, es_config, fresh_model

from broaden import runs
from broaden.runs.probe import Line, narrowed
from broaden.store import read_jsonl


def line(correct: np.ndarray, n: int = 8) -> Line:
    return {"n": [n] * len(correct), "c": correct.tolist()}


def test_narrowing_needs_both_changes_beyond_their_intervals() -> None:
    diffuse = np.full(200, 2)
    sharp = np.where(np.arange(200) % 2 == 0, 8, 0)  # half of the problems always, the rest never
    found = narrowed(line(diffuse), line(sharp), 8)
    assert found is not None
    assert found[0].value == 0.25
    assert found[1].value == -0.5
    assert narrowed(line(sharp), line(diffuse), 8) is None  # broadens
    assert narrowed(line(diffuse), line(diffuse + 2), 8) is None  # Pass@1 alone rises
    assert narrowed(line(diffuse), line(diffuse - 2), 8) is None  # both fall
    assert narrowed(line(diffuse), line(sharp), 1) is None  # Pass@1 is no coverage


def test_held_out_tasks_are_probed_and_overlap_is_said(tmp_path: Path) -> None:
    model = fresh_model(tmp_path / "model")
    probe = {
        "every": 2, "limit": 4, "samples": 2, "split": "train",
        "held_out": [{"task": "countdown", "split": "probe", "limit": 3}],
    }  # fmt: skip
    config = es_config(model, task={"name": letters(), "limit": 20}, stages=[{"updates": 2}], probe=probe)
    watching = Watching()
    runs.train(config, tmp_path / "run", watcher=watching)
    lines = read_jsonl(tmp_path / "run" / "probes.jsonl")
    assert [(x["step"], x["set"], x["overlap"]) for x in lines] == [
        (0, "letters/train", 4), (0, "countdown/probe", 0), (2, "letters/train", 4), (2, "countdown/probe", 0),
    ]  # fmt: skip
    assert {"pass@1", "pass@2", "maj@2", "entropy"} <= set(lines[0]["metrics"])
    assert any("4 of 4 probe problems of letters/train are trained on" in n for n in watching.notes)
    runs.resume(tmp_path / "run")
    assert read_jsonl(tmp_path / "run" / "probes.jsonl") == lines
