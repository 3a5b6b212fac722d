"""The whole way on the bundled model: train, eval, compare, replay, rescore, frontier, demo."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from tests.helpers.command import Command, Done, tree

from broaden.cli import run as broaden
from broaden.models.tensor_files import read_tensors
from broaden.perturb import center_hash
from broaden.store import SampleStore, read_jsonl

NANO = "bundled:countdown-nano"
CONFIG = """
name = "small"
[model]
source = "bundled:countdown-nano"
[task]
name = "countdown"
limit = 64
[checkpoint]
every = 2
[[stages]]
algo = "es"
updates = 3
members = 4
prompts = 16
sigma = 0.02
alpha = 0.02
max_new_tokens = 40
"""
EVAL = [
    "--task",
    "countdown",
    "--limit",
    "12",
    "--samples",
    "4",
    "--max-new-tokens",
    "40",
    "--temperature",
    "1",
]


def silently(*arguments: str | Path) -> None:
    """For module-wide fixtures, where nothing captures the output yet."""
    assert broaden([str(a) for a in arguments]) == 0


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of three updates in `run`, and evaluations of it and of its base."""
    place = tmp_path_factory.mktemp("place")
    (place / "small.toml").write_text(CONFIG)
    silently("train", place / "small.toml", "--out", place / "run")
    silently("eval", NANO, *EVAL, "--k", "1,2,4", "--out", place / "base")
    silently("eval", place / "run", *EVAL, "--out", place / "es")
    return place


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.chdir(tmp_path)
    return Command(capsys)


def is_interval(value: object) -> bool:
    return (
        isinstance(value, dict)
        and value.keys() == {"value", "low", "high"}
        and value["low"] <= value["value"] <= value["high"]
    )


def check_document(found: Mapping[str, Any], metrics: set[str], pairs: set[str]) -> None:
    """The layout that `eval`, `compare` and `demo` promise."""
    assert {"arms", "paired", "conditions"} <= found.keys()
    for name, arm in found["arms"].items():
        assert metrics <= arm.keys(), (name, sorted(arm))
        assert all(is_interval(arm[m]) for m in metrics), name
    assert found["paired"].keys() == pairs
    for pair in found["paired"].values():
        assert set(pair["pass@1"]) == {"value", "low", "high"}


# --- train --------------------------------------------------------------------------------------------------


def test_train_prints_one_object_and_leaves_a_run(command: Command, place: Path) -> None:
    done = command.ok("train", place / "small.toml", "seed=3", "--out", "run", "--json")
    found = done.json()
    assert found.keys() == {"run", "checkpoint", "step", "center_hash", "seconds"}
    assert (found["run"], found["step"]) == ("run", 3)
    assert center_hash(read_tensors(Path(found["checkpoint"]))) == found["center_hash"]
    assert "reward" in done.err  # the talk
    names = {p.name for p in Path("run").iterdir()}
    assert {"manifest.json", "config.toml", "records.jsonl", "seedlog.jsonl", "checkpoints"} <= names
    other = json.loads((place / "run" / "manifest.json").read_text())["center_hash"]
    assert other != found["center_hash"]  # another seed, another run


def test_train_without_json_says_what_comes_next(command: Command, place: Path) -> None:
    done = command.ok("train", place / "small.toml", "stages.0.updates=1")
    assert "broaden eval runs/small-seed0" in done.out
    assert Path("runs/small-seed0/checkpoints/step-000001").is_dir()


def test_training_twice_gives_the_same_bits_with_any_number_of_workers(command: Command, place: Path) -> None:
    expected = json.loads((place / "run" / "manifest.json").read_text())["center_hash"]
    for name, override in (("two", "population.workers=2"), ("serial", "population.kind=serial")):
        found = command.ok("train", place / "small.toml", override, "--out", name, "--json").json()
        assert found["center_hash"] == expected, override
        assert read_jsonl(Path(name) / "seedlog.jsonl") == read_jsonl(place / "run" / "seedlog.jsonl")


def test_a_finished_run_has_nothing_left_to_do(command: Command, place: Path) -> None:
    done = command.ok("train", "--resume", place / "run", "--json")
    assert "nothing left to do" in done.err
    assert done.json()["step"] == 3


def test_dry_run_prints_the_resolved_file_memory_and_budget_and_runs_nothing(
    command: Command, place: Path
) -> None:
    done = command.ok("train", place / "small.toml", "seed=7", "--dry-run")
    assert "seed = 7" in done.out
    assert "sigma = 0.02" in done.out
    assert "192 rollouts" in done.out
    found = command.ok("train", place / "small.toml", "--dry-run", "--json").json()
    assert found["config"]["stages"][0]["members"] == 4
    assert found["plan"]["stages"][0]["tokens"] == 3 * 4 * 16 * 40
    assert found["plan"]["stages"][0]["peak_bytes"] > 0
    assert tree(Path()) == set()


def test_stages_shorthand_keeps_the_files_settings(command: Command, place: Path) -> None:
    found = command.ok("train", place / "small.toml", "--stages", "es:5", "--dry-run", "--json").json()
    assert [(s["updates"], s["sigma"]) for s in found["config"]["stages"]] == [(5, 0.02)]


# --- eval ---------------------------------------------------------------------------------------------------


def test_eval_prints_one_object_and_stores_what_it_was_made_of(command: Command) -> None:
    done = command.ok("eval", NANO, *EVAL, "--k", "1,4", "--out", "e", "--json")
    found = done.json()
    check_document(found, {"pass@1", "pass@4", "maj@4", "entropy", "truncated", "distinct", "length"}, set())
    assert list(found["arms"]) == ["countdown-nano"]
    arm, conditions = found["arms"]["countdown-nano"], found["conditions"]
    assert (arm["problems"], arm["samples"]) == (12, 4)
    told = {
        k: conditions[k]
        for k in ("task", "samples", "temperature", "max_new_tokens", "seed", "split", "dtype")
    }
    assert told == {"task": "countdown", "samples": 4, "temperature": 1.0, "max_new_tokens": 40, "seed": 0,
                    "split": "test", "dtype": "float32"}  # fmt: skip
    assert {"engine", "torch", "device", "threads"} <= conditions["engine"].keys()
    assert "pass@1" in done.err
    assert json.loads(Path("e/summary.json").read_text()) == found
    samples = SampleStore(Path("e")).read().samples
    assert len(samples) == 48
    right = sum(s.verdict.score or 0.0 for s in samples)
    assert arm["pass@1"]["value"] == pytest.approx(right / 48)


def samples_of(folder: str | Path) -> list[tuple[str, int, tuple[int, ...]]]:
    return [(s.problem_id, s.sample, s.token_ids) for s in SampleStore(Path(folder)).read().samples]


def test_the_same_seed_draws_the_same_samples_and_another_others(command: Command, place: Path) -> None:
    command.ok("eval", NANO, *EVAL, "--workers", "2", "--out", "again")
    command.ok("eval", NANO, *EVAL, "--seed", "1", "--out", "other")
    command.ok("eval", NANO, *EVAL, "--limit", "6", "--out", "fewer")
    first = samples_of(place / "base")
    assert samples_of("again") == first
    assert samples_of("fewer") == first[:24]
    others = samples_of("other")
    assert [s[:2] for s in others] == [s[:2] for s in first]
    assert sum(a != b for a, b in zip(others, first, strict=True)) > len(first) // 2


def test_an_interrupted_evaluation_ends_as_the_uninterrupted_one(
    command: Command, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broaden.runs.arms.CHUNK_SAMPLES", 12)  # three problems a part
    real = SampleStore.append

    def dies(self: SampleStore, samples: Any) -> None:
        real(self, samples)
        raise KeyboardInterrupt

    monkeypatch.setattr(SampleStore, "append", dies)
    assert command("eval", NANO, *EVAL, "--k", "1,2,4", "--out", "e").code == 130
    assert len(list(Path("e").glob("part-*.parquet"))) == 1
    assert not Path("e/summary.json").exists()
    monkeypatch.setattr(SampleStore, "append", real)
    not_whole = command("compare", "e", place / "base")
    assert (not_whole.code, "12 of 48 samples" in not_whole.err) == (2, True)
    done = command.ok("eval", NANO, *EVAL, "--k", "1,2,4", "--out", "e")
    assert "12 of 48 samples are in e already" in done.err
    assert samples_of("e") == samples_of(place / "base")
    mine, theirs = (json.loads((Path(p) / "summary.json").read_text()) for p in ("e", place / "base"))
    assert mine == theirs
    drawn = [pq.read_table(p).num_rows for p in sorted(Path("e").glob("part-*.parquet"))]
    assert drawn == [12, 12, 12, 12]


def test_more_samples_draws_only_the_missing_ones(command: Command, place: Path) -> None:
    shutil.copytree(place / "base", "e")
    done = command.ok("eval", NANO, *EVAL, "--samples", "6", "--out", "e")
    assert "48 of 72 samples" in done.err
    assert len(samples_of("e")) == 72
    assert [s for s in samples_of("e") if s[1] < 4] == samples_of(place / "base")


def test_greedy_is_one_sample_at_temperature_0(command: Command) -> None:
    found = command.ok(
        "eval", NANO, "--task", "countdown", "--limit", "5", "--max-new-tokens", "40", "--greedy", "--json"
    ).json()
    assert (found["conditions"]["samples"], found["conditions"]["temperature"]) == (1, 0.0)
    assert "pass@1" in found["arms"]["countdown-nano"]
    assert Path("runs/eval-countdown-nano/countdown/summary.json").is_file()


def test_eval_dry_run_draws_nothing(command: Command) -> None:
    done = command.ok("eval", NANO, *EVAL, "--dry-run", "--json")
    assert done.json()["plan"]["samples"] == 48
    assert not list(Path().rglob("part-*"))


# --- compare, replay, rescore, frontier ---------------------------------------------------------------------


def test_compare_stored_evaluations(command: Command, place: Path) -> None:
    done = command.ok("compare", place / "base", place / "es", "--k", "1,4", "--json")
    found = done.json()
    check_document(found, {"pass@1", "pass@4", "maj@4", "entropy", "truncated", "distinct"}, {"es-base"})
    assert found["paired"]["es-base"].keys() >= {"progressions", "regressions", "mcnemar_p"}
    arms = {n: a["pass@1"]["value"] for n, a in found["arms"].items()}
    assert found["paired"]["es-base"]["pass@1"]["value"] == pytest.approx(arms["es"] - arms["base"])
    assert found["conditions"]["samples"] == 4
    assert found["conditions"]["by_arm"].keys() == {"base", "es"}
    assert "95 % interval" in done.err


def test_compare_a_model_with_itself_finds_no_difference(command: Command, place: Path) -> None:
    found = command.ok("compare", place / "base", place / "base", "--json").json()
    (pair,) = found["paired"].values()
    assert list(found["arms"]) == ["base#1", "base#2"]
    assert pair["pass@1"] == {"value": 0.0, "low": 0.0, "high": 0.0}
    assert (pair["progressions"], pair["regressions"], pair["mcnemar_p"]) == (0, 0, 1.0)


def test_compare_evaluates_models_and_runs_and_measures_drift(command: Command, place: Path) -> None:
    found = command.ok("compare", NANO, place / "run", *EVAL, "--out", "c", "--json").json()
    check_document(found, {"pass@1", "entropy", "drift"}, {"run-countdown-nano"})
    drifts = {n: a["drift"]["value"] for n, a in found["arms"].items()}
    logged = read_jsonl(place / "run" / "records.jsonl")[-1]["values"]["drift"]
    assert drifts == {"countdown-nano": 0.0, "run": pytest.approx(logged)}
    assert samples_of("c/run") == samples_of(place / "es")


def test_replay_rebuilds_a_logged_update(command: Command, place: Path) -> None:
    found = command.ok("replay", place / "run", "--step", "2", "--out", "at2", "--json").json()
    logged = read_jsonl(place / "run" / "seedlog.jsonl")[1]["line"]["center_hash"]
    assert (found["step"], found["checked"], found["center_hash"]) == (2, 2, logged)
    assert center_hash(read_tensors(Path("at2"))) == logged
    stored = read_tensors(place / "run" / "checkpoints" / "step-000002")
    assert center_hash(stored) == logged
    command.ok("eval", "at2", *EVAL, "--limit", "3")  # an ordinary model folder
    assert "hashes checked, all equal" in command.ok("replay", place / "run").out


def test_replay_of_an_edited_log_fails_with_exit_code_1(command: Command, place: Path) -> None:
    shutil.copytree(place / "run", "run")
    log = Path("run/seedlog.jsonl")
    lines = log.read_text().splitlines(keepends=True)
    line = json.loads(lines[1])
    line["line"]["coefficients"][0] += 0.5
    log.write_text(lines[0] + json.dumps(line) + "\n" + lines[2])
    done = command("replay", "run")
    assert done.code == 1
    assert "step 1" in done.err
    assert "Traceback" not in done.err


def test_rescore_judges_stored_text_again(command: Command, place: Path) -> None:
    (found,) = command.ok("rescore", place / "es", "--out", "rescored", "--json").json()["rescored"]
    assert (found["count"], found["changed"], found["differences"]) == (48, 0, [])
    assert samples_of("rescored") == samples_of(place / "es")
    shutil.copytree(place / "es", "edited")
    store = SampleStore(Path("edited"))
    kept = store.read_samples()
    (Path("edited") / "part-000000.parquet").unlink()
    store.append([type(s)(**{**{f: getattr(s, f) for f in s.__slots__}, "text": ""}) for s in kept])
    (edited,) = command.ok("rescore", "edited", "--json").json()["rescored"]
    assert edited["changed"] == sum(s.verdict.reason != "no_answer" for s in kept) > 0
    assert edited["score_after"] == 0.0


def test_frontier_over_temperatures(command: Command, place: Path) -> None:
    shape = ["--task", "countdown", "--limit", "8", "--samples", "4", "--max-new-tokens", "40"]
    arguments = ["frontier", NANO, place / "run", *shape, "--temperatures", "0.5,1.0", "--out", "f", "--json"]
    done = command.ok(*arguments)
    found = done.json()
    points = {(p.get("arm") or p["model"], p["temperature"]): p for p in found["frontier"]}
    assert points.keys() == {(m, t) for m in ("countdown-nano", "run") for t in (0.5, 1.0)}
    assert all(is_interval(p["pass@1"]) and is_interval(p["pass@k"]) for p in points.values())
    assert Path("f/frontier.png").stat().st_size > 1000
    before = {p: p.stat().st_mtime_ns for p in Path("f").rglob("*.parquet")}
    assert command.ok(*arguments).json()["frontier"] == found["frontier"]
    assert {p: p.stat().st_mtime_ns for p in Path("f").rglob("*.parquet")} == before


# --- demo ---------------------------------------------------------------------------------------------------

SMALL = ["--updates", "2", "--problems", "10", "--workers", "1", "--temperatures", "0.6,1.0", "--out", "demo"]
METRICS = {"pass@1", "pass@8", "pass@32", "maj@32", "entropy", "drift", "truncated"}


def no_sampling(*_: object, **__: object) -> None:
    raise AssertionError("samples were drawn again")


def check_demo(done: Done, arms: list[str], pairs: set[str]) -> dict[str, Any]:
    """What every demo leaves, whatever its arms."""
    found = done.json()
    check_document(found, METRICS, pairs)
    assert list(found["arms"]) == arms
    budgets = {name: arm["budget"] for name, arm in found["arms"].items()}
    for budget in budgets.values():
        assert budget.keys() == {"updates", "tokens", "flops_paper", "flops_full", "seconds"}
    assert budgets.pop("base")["updates"] == 0
    assert {b["updates"] for b in budgets.values()} <= {2}
    assert found["arms"]["base"]["drift"]["value"] == 0.0
    points = found["frontier"]
    assert [p["temperature"] for p in points if p["arm"] == "base"] == [0.6, 1.0]
    assert all(is_interval(p["pass@1"]) and is_interval(p["pass@k"]) for p in points)
    assert Path("demo/frontier.png").stat().st_size > 1000
    assert json.loads(Path("demo/summary.json").read_text())["arms"] == found["arms"]
    return found


def test_the_demo_in_miniature_and_again_from_its_stores(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["demo", *SMALL, "--arms", "es", "--nulls", "1", "--json"]
    done = command.ok(*arguments)
    found = check_demo(done, ["base", "es", "null"], {"es-base", "null-base", "es-null"})
    arms = found["arms"]
    assert arms["es"]["budget"]["tokens"] > 0 == arms["null"]["budget"]["tokens"]
    assert arms["null"]["drift"]["value"] == pytest.approx(arms["es"]["drift"]["value"], rel=0.1)
    assert len(found["nulls"]) == 1
    assert "paired over problems" in done.err

    before = {p: p.stat().st_mtime_ns for p in Path("demo").rglob("*.parquet")}
    monkeypatch.setattr("broaden.evaluation.sampling._draw", no_sampling)
    monkeypatch.setattr("broaden.es.trainer._evaluate", no_sampling)
    again = command.ok(*arguments).json()
    first, second = ({k: v for k, v in x.items() if k != "conditions"} for x in (found, again))
    assert first == second
    assert {p: p.stat().st_mtime_ns for p in Path("demo").rglob("*.parquet")} == before


@pytest.mark.slow
def test_the_demo_with_all_its_arms(command: Command) -> None:
    done = command.ok("demo", *SMALL, "--nulls", "1", "--json")
    trained = ["es", "grpo", "es->grpo", "grpo->es"]
    found = done.json()
    assert {f"{arm}-base" for arm in trained} | {"es-null"} <= found["paired"].keys()
    check_demo(done, list(found["arms"]), set(found["paired"]))
    assert list(found["arms"])[:5] == ["base", *trained]
    assert {"null", "null-grpo"} <= found["arms"].keys()


@pytest.mark.slow
def test_a_demo_without_nulls(command: Command) -> None:
    done = command.ok("demo", *SMALL, "--arms", "es", "--nulls", "0", "--json")
    check_demo(done, ["base", "es"], {"es-base"})
