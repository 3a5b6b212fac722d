"""vLLM as a peer: driven by lines of JSON, here with a stand-in for the other environment's interpreter."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from broaden.bench import vllm_host
from broaden.bench.harness import Settings
from broaden.cli import run
from broaden.errors import UsageError

ANSWERS = """
opening = json.loads(sys.stdin.readline())
assert sys.argv[1].endswith("vllm_peer.py") and os.environ["OMP_NUM_THREADS"] == "3", sys.argv
assert "PYTHONPATH" not in os.environ
print(json.dumps({"conditions": {"vllm": "9.9", "opening": opening}}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    lengths = [asked["new"] if not asked["stops"] else 1 for _ in asked["prompts"]]
    print(json.dumps({"lengths": lengths, "cpu": 0.5}), flush=True)
"""
FAILS = """
sys.stdin.readline()
sys.exit("ModuleNotFoundError: No module named 'vllm'")
"""


def interpreter(folder: Path, body: str) -> Path:
    path = folder / "python"
    path.write_text(f"#!{sys.executable}\nimport json, os, sys\n{body}")
    path.chmod(0o755)
    return path


def test_both_forms_are_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "here")
    settings = Settings(3, rounds=2, peer_python=interpreter(tmp_path, ANSWERS))
    done = []

    def ours() -> float:
        done.append(sum(i * i for i in range(10_000)))
        return 20.0

    prepacked, live = vllm_host.rows(settings, tmp_path, ours, [(1, 2, 3), (4,)], 7, ())
    assert (prepacked["what"], live["what"]) == ("vLLM 9.9, prepacked", "vLLM 9.9, live weights")
    assert prepacked["opening"] == {
        "model": str(tmp_path), "dtype": "bfloat16", "context": 10, "rows": 2, "prepack": True,
    }  # fmt: skip
    assert live["opening"]["prepack"] is False
    assert len(done) == 2 * (1 + 2)  # a warm-up and two rounds against each
    assert live["ratio"] == pytest.approx(live["ours"] / live["peer"])
    assert live["peer_cpu_seconds"] == 0.5
    assert live["cpu_ratio"] == pytest.approx(20.0 / live["cpu_seconds"] / (14 / 0.5), rel=0.5)


def test_the_peer_counts_what_it_generated(tmp_path: Path) -> None:
    python = interpreter(tmp_path, ANSWERS)
    with vllm_host.Vllm(python, tmp_path, vllm_host.LIVE, threads=3, context=9, rows=2) as peer:
        assert peer.side([(1,), (2,)], 7, ())() == 14.0
        assert peer.side([(1,), (2,)], 7, (5,))() == 2.0
        assert peer.lengths == [7, 7, 1, 1]
    assert peer.process.returncode is not None


def test_without_an_interpreter_there_are_no_rows(tmp_path: Path) -> None:
    assert vllm_host.rows(Settings(1), tmp_path, lambda: 1.0, [(1,)], 2, ()) == []


def test_an_environment_without_vllm_is_an_error_that_says_so(tmp_path: Path) -> None:
    settings = Settings(1, peer_python=interpreter(tmp_path, FAILS))
    with pytest.raises(UsageError, match=r"ended \(prepacked\): ModuleNotFoundError: No module named 'vllm'"):
        vllm_host.rows(settings, tmp_path, lambda: 1.0, [(1,)], 2, ())
    settings = Settings(1, peer_python=tmp_path / "none")
    with pytest.raises(UsageError, match="does not run"):
        vllm_host.rows(settings, tmp_path, lambda: 1.0, [(1,)], 2, ())


def test_random_weights_are_no_folder(tmp_path: Path) -> None:
    settings = Settings(1, peer_python=interpreter(tmp_path, ANSWERS))
    with pytest.raises(UsageError, match="random weights only"):
        vllm_host.rows(settings, None, lambda: 1.0, [(1,)], 2, ())


def test_it_is_refused_where_it_is_no_peer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "noise", "--quick", "--peer-python", str(tmp_path / "python")]) == 2
    assert "generate benches, not noise" in capsys.readouterr().err
