"""`broaden tasks` from the command line: one JSON object on stdout, exit codes, errors without a traceback."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from broaden.cli import run
from broaden.records import Problem, Sample, SampleSet
from broaden.store import SampleStore
from broaden.tasks import get


def call(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = run(["tasks", *map(str, arguments)])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_ls(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "ls", "--json")
    assert code == 0
    assert {"countdown", "gsm8k", "mbpp"} <= {t["name"] for t in json.loads(out)["tasks"]}
    assert call(capsys, "ls")[0] == 0


def test_show(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "show", "countdown", "--index", 2, "--json", "-o", "high=9")
    problem = json.loads(out)["problem"]
    assert code == 0
    assert max(problem["extra"]["numbers"]) <= 9
    code, out, _ = call(capsys, "show", "countdown")
    assert "Using the numbers [" in out


def test_check(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "train.jsonl"
    file.write_text('{"question": "q", "answer": "#### 1,000"}\n{"question": "r", "answer": "#### x"}\n')
    code, out, _ = call(
        capsys, "check", "gsm8k", "--split", "train", "--data", file, "--against", file, "--json"
    )
    said = json.loads(out)
    assert code == 0
    assert (said["rows"], said["bad"][0]["id"], said["overlap_count"]) == (2, "train/1", 1)
    assert "bad row train/1" in call(capsys, "check", "gsm8k", "--split", "train", "--data", file)[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("show", "nothing"), "no task 'nothing'"),
        (("show", "countdown", "-o", "colour=1"), "no option 'colour'"),
        (("show", "countdown", "-o", "colour"), "not key=value"),
        (("check", "gsm8k", "--data", "/nowhere.jsonl"), "no file or folder"),
        (("verify", "/nowhere.jsonl"), "no file"),
    ],
)
def test_mistakes_exit_2(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    code, out, err = call(capsys, *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert "Traceback" not in err


def test_a_row_without_gold_mark_and_a_broken_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "test.jsonl"
    file.write_text('{"question": "q", "answer": "1"}\n')
    code, _, err = call(capsys, "check", "gsm8k", "--data", file)
    assert code == 2
    assert "row 0" in err
    file.write_text('{"question": \n')
    code, _, err = call(capsys, "check", "gsm8k", "--data", file)
    assert code == 2
    assert "line 1" in err


def test_verify(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "cases.jsonl"
    good = {"id": "a", "task": "gsm8k", "gold": "5", "response": r"\boxed{5}", "verdict": True}
    bad = {"id": "b", "task": "gsm8k", "gold": "5", "response": r"\boxed{5}", "verdict": False}
    file.write_text(json.dumps(good) + "\n" + json.dumps({**bad, "contested": True}))
    code, out, err = call(capsys, "verify", file)
    assert code == 0
    assert json.loads(out) == {
        "cases": 2,
        "agree": 1,
        "disagree": ["b"],
        "timeouts": 0,
        "contested_disagree": ["b"],
    }
    assert "contested" in err
    file.write_text(json.dumps(good) + "\n" + json.dumps(bad))
    assert call(capsys, "verify", file, "--json")[0] == 1


def test_audit(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    problem = Problem("p", "countdown", (), "3", {"numbers": [1, 2], "target": 3})
    texts = ["<answer>1+2</answer>", "<answer>1*2</answer>"]
    samples = tuple(
        Sample("p", i, i, 1, (1,), "stop", t, get("countdown").judge(problem, t, "stop"))
        for i, t in enumerate(texts)
    )
    SampleStore(tmp_path / "s").write(SampleSet("countdown", (problem,), samples, {"samples": 2}))
    code, out, _ = call(capsys, "audit", tmp_path / "s", "--json")
    said = json.loads(out)
    assert (code, said["deciding"], said["differs"]) == (0, 1, 0)
    other = Problem("p", "countdown", (), "4", {"numbers": [1, 2], "target": 4})
    SampleStore(tmp_path / "t").write(SampleSet("countdown", (other,), samples, {"samples": 2}))
    code, out, _ = call(capsys, "audit", tmp_path / "t")
    assert code == 1
    assert "contradicted" in out
