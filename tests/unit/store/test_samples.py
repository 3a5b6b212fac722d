from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from tests.helpers.scripted_eval import Engine, Task, Tokenizer, problems

from broaden.errors import MissingFileError, ResumeError, StoreError
from broaden.evaluation import conditions, evaluate
from broaden.records import Message, Problem, Sample, SampleSet, Sampling, Verdict
from broaden.store import RunDir, SampleStore

T06 = Sampling(temperature=0.6, max_new_tokens=8)


def arm(samples: int = 4, seed: int = 7, **more: object) -> SampleSet:
    return evaluate(
        Engine(),
        Tokenizer(),
        Task(),
        problems(6),
        samples=samples,
        sampling=T06,
        seed=seed,
        chunk=2,
        **more,  # type: ignore[arg-type]
    )


def test_round_trip_keeps_every_field(tmp_path: Path) -> None:
    verdict = Verdict("correct", 1.0, 1.0, "½", "1/2", "v/2", borderline=True, note="n\n")
    unscored = Verdict("timeout", None, None)
    samples = (
        Sample("a", 0, 2**64 - 1, 5, (1, 2, 49151), "stop", "x\ny \ud7ff é", verdict, 0.1 + 0.2),
        Sample("a", 1, 0, 5, (), "length", "", unscored, None),
    )
    problem = Problem("a", "t", (Message("user", "q"),), "1/2", {"numbers": [1, 2], "tests": {"k": None}})
    data = SampleSet("t", (problem,), samples, {"temperature": 0.6})
    store = SampleStore(tmp_path / "s")
    store.write(data)
    assert store.read() == data
    with pytest.raises(StoreError, match="holds samples already"):
        store.write(data)


def test_a_killed_evaluation_goes_on_sample_by_sample(tmp_path: Path) -> None:
    store = RunDir.create(tmp_path / "run", {}, "").samples("base")
    header = conditions(Engine(), Task(), problems(6), samples=4, sampling=T06, seed=7)
    store.start("fake", problems(6), header)

    class Killed(Exception):
        pass

    def sink(new: list[Sample]) -> None:
        store.append(new)
        if len(store.read_samples()) >= 16:
            raise Killed

    with pytest.raises(Killed):
        arm(sink=sink)
    (store.path / ".partial-part-000002.parquet-1-a").write_bytes(b"PAR1 half")
    messages = store.start("fake", problems(6), header)
    assert messages == [".partial-part-000002.parquet-1-a: an interrupted write, ignored and removed"]
    assert len(store.read_samples()) == 16
    result = arm(existing=store.read_samples(), sink=store.append)
    assert result == arm()
    assert store.read() == result
    assert [p.name for p in sorted(store.path.glob("*.parquet"))] == [
        f"part-{i:06d}.parquet" for i in range(3)
    ]


def test_other_conditions_are_refused_with_a_diff(tmp_path: Path) -> None:
    store = SampleStore(tmp_path / "s")
    header = {"temperature": 0.6, "seed": 7, "samples": 4, "engine": {"threads": 1}}
    store.start("fake", problems(6), header)
    assert store.start("fake", problems(6), header) == []
    with pytest.raises(ResumeError, match=r"seed: 7 -> 8(.|\n)*temperature: 0\.6 -> 0\.7"):
        store.start("fake", problems(6), {**header, "temperature": 0.7, "seed": 8})
    with pytest.raises(ResumeError, match="problems: 6 -> 5"):
        store.start("fake", problems(5), header)
    with pytest.raises(ResumeError, match="task: fake -> other"):
        store.start("other", problems(6), header)
    with pytest.raises(ResumeError, match="samples: 4 -> 2"):
        store.start("fake", problems(6), {**header, "samples": 2})
    assert store.start("fake", problems(6), {**header, "engine": {"threads": 2}}) == [
        "s: resumed under other engine conditions"
    ]
    assert store.start("fake", problems(6), {**header, "samples": 8}) == []
    assert store.read().conditions["samples"] == 8


def test_disk_full_leaves_the_parts_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SampleStore(tmp_path / "s")
    data = arm()
    store.start("fake", data.problems, data.conditions)
    store.append(data.samples[:8])

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(StoreError, match="no space left"):
            store.append(data.samples[8:])
    assert store.read_samples() == list(data.samples[:8])
    store.append(data.samples[8:])
    store.append([])
    assert store.read() == data


def test_a_broken_part_is_named(tmp_path: Path) -> None:
    store = SampleStore(tmp_path / "s")
    store.write(arm())
    (store.path / "part-000001.parquet").write_bytes(b"nonsense")
    with pytest.raises(StoreError, match=r"part-000001\.parquet cannot be read"):
        store.read()
    with pytest.raises(MissingFileError, match=r"no header\.json"):
        SampleStore(tmp_path / "other").read()
