"""Every bench runs at its quick size, or says why it cannot; its command prints the object."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
from pathlib import Path

import pytest

from broaden.bench import machine, registry
from broaden.bench.harness import Result, Settings
from broaden.cli import run
from broaden.models.spec import ModelSpec

PEERS = {"grpo-update": "trl", "eval": "lm_eval"}
SAME_WORK = {"generate-256", "es-update-64"}  # quick sizes are those of the bench they repeat
PROCESSES = {"memory", "population-lowrank", "scale"}


def check(result: Result) -> None:
    assert result.skipped is None, result.skipped
    assert result.ours is not None
    assert result.peer is not None
    assert result.ratio is not None
    assert min(result.ours, result.peer, result.ratio) > 0
    assert result.ratio == pytest.approx(result.ours / result.peer)
    json.dumps(result.to_json(), allow_nan=False)
    assert {"torch", "isa", "threads", "load_average", "busy", "peer"} <= set(result.conditions)


@pytest.mark.parametrize("name", [
    pytest.param(n, marks=[pytest.mark.slow] if n in PROCESSES else []) for n in registry.names()
    if n not in {"score", *PEERS, *SAME_WORK}
])  # fmt: skip
def test_a_quick_run(name: str) -> None:
    if name == "memory" and not Path("/proc/self/status").exists():
        pytest.skip("no /proc here")
    threads = 2 if name.startswith("processes") else 1
    result = registry.run(registry.find(name), Settings(threads, quick=True, rounds=1))
    check(result)
    seen = result.conditions
    if name == "noise":
        assert seen["bits_equal"] is True
        assert seen["backends"] == ["numba", "torch"]
        assert [row["ratio"] is None for row in seen["rows"]] == [False] * 4 + [True] * 4
    if name == "generate-ragged":
        shortest, _, longest = (int(n) for n in seen["lengths_ours"].split(" / "))
        assert shortest < longest
    if name == "scale":
        assert 0 < seen["bytes_a_member"] < 1024
        assert seen["simulated"]["1"] == pytest.approx(1.0)
    if name == "population-lowrank":
        assert 1.0 < seen["held_ratio"] < 1.3
        assert seen["memory_ratio"] > 0
        assert set(seen["memory_mib"]) == {"low_rank", "model", "serial"}
    if name == "es-update":
        assert 0.0 < seen["outside_rollouts"] < 1.0
    if name == "memory":
        assert seen["whole_process"]["trained"] > 0


@pytest.mark.parametrize("name", sorted(PEERS))
@pytest.mark.slow
def test_a_quick_run_against_an_installed_peer(name: str) -> None:
    result = registry.run(registry.find(name), Settings(1, quick=True, rounds=1))
    if importlib.util.find_spec(PEERS[name]) is None:
        assert result.skipped is not None
        pytest.skip(result.skipped)
    check(result)


@pytest.mark.parametrize("name", sorted(PEERS))
def test_a_missing_peer_is_a_reason(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    result = registry.run(registry.find(name), Settings(1, quick=True))
    assert "pip install 'broaden[peers]'" in str(result.skipped)
    assert result.ratio is None


def test_missing_data_is_a_reason(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["bench", "score", "--quick", "--json", "--out", str(tmp_path)]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["ratio"] is None
    assert "--data" in said["skipped"]
    assert json.loads((tmp_path / "score.json").read_text()) == said
    assert "| score |" in (tmp_path / "table.md").read_text()


def test_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "ls", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)["benches"]
    assert [b["name"] for b in said] == list(registry.names())


def test_an_unknown_name_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "fly"]) == 2
    assert "broaden bench ls" in capsys.readouterr().err


def test_the_ceiling_counts_every_product() -> None:
    spec = ModelSpec(
        "llama", layers=2, hidden=64, heads=4, kv_heads=2, head_dim=32, ffn=96, vocab=50, tied=True
    )
    assert machine.products(spec) == [(256, 64), (64, 128), (192, 64), (64, 96)] * 2 + [(50, 64)]
    matrices = [s for s in spec.shapes().values() if len(s) == 2]
    assert sum(map(math.prod, machine.products(spec))) == sum(map(math.prod, matrices))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_machine_is_described_without_names_of_it() -> None:
    said = machine.conditions(1)
    assert said["cpu"]
    assert "/" not in json.dumps({k: v for k, v in said.items() if k != "commit"})
