"""Reading rows: formats, broken lines, folders, names; options and registry; nothing heavy is imported."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from broaden.errors import DataError, MissingFileError, UsageError
from broaden.tasks import get, load_problems, names
from broaden.tasks.files import find, read
from broaden.tasks.hub import from_hub


def rows(path: Path) -> list[dict[str, object]]:
    return [row for _, row in read(path)]


def test_formats(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    wanted = [{"a": "1"}, {"a": "2"}]
    (tmp_path / "x.jsonl").write_text('{"a": "1"}\n\n{"a": "2"}\n')
    (tmp_path / "x.json").write_text(json.dumps(wanted))
    (tmp_path / "lines.json").write_text('{"a": "1"}\n{"a": "2"}\n')
    (tmp_path / "wrapped.json").write_text(json.dumps({"data": wanted}))
    (tmp_path / "x.csv").write_text("a\n1\n2\n")
    pq.write_table(pa.Table.from_pylist(wanted), tmp_path / "x.parquet")
    for name in ("x.jsonl", "x.json", "lines.json", "wrapped.json", "x.csv", "x.parquet"):
        assert rows(tmp_path / name) == wanted


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.jsonl", b'{"a": 1}\n{"a": \n', "line 2"),
        ("x.jsonl", b'{"a": 1}\n[1]\n', "line 2"),
        ("x.json", b'[{"a": 1}, 3]', "row 1"),
        ("x.json", b"3", "list of objects was expected"),
        ("x.json", b"{" * 100_000, "line 1"),
        ("x.parquet", b"PAR1 nonsense", "Parquet"),
        ("x.csv", b"a,b\n1,2,3\n", "row 0"),
        ("x.csv", b"a\n\xff\xfe\n", "UTF-8"),
        ("x.txt", b"a", "suffix"),
        ("x.jsonl", b"", "empty"),
    ],
)
def test_broken_files_are_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        rows(tmp_path / name)


def test_find(tmp_path: Path) -> None:
    (tmp_path / "test.jsonl").write_text("{}")
    (tmp_path / "own.json").write_text("{}")
    assert find(tmp_path, "test").name == "test.jsonl"
    assert find(tmp_path, "test", ("own.json",)).name == "own.json"
    assert find(tmp_path / "own.json", "test").name == "own.json"
    with pytest.raises(MissingFileError, match=r"it holds own.json, test.jsonl"):
        find(tmp_path, "train")
    with pytest.raises(MissingFileError):
        find(tmp_path / "none", "train")


def test_every_task_has_a_version_and_a_title() -> None:
    assert {
        "countdown",
        "gsm8k",
        "math500",
        "aime24",
        "aime25",
        "amc23",
        "deepscaler",
        "commonsenseqa",
        "gpqa",
        "hotpotqa",
        "mbpp",
    } <= set(names())
    for name in names():
        task = get(name)
        assert task.name == name
        assert task.version
        assert task.title
    with pytest.raises(UsageError, match="no task"):
        get("nope")


def test_unknown_options_and_limits_are_refused() -> None:
    with pytest.raises(UsageError, match="no option 'colour'"):
        load_problems("countdown", limit=1, colour="red")
    with pytest.raises(UsageError, match="limit"):
        load_problems("countdown", limit=0)


def test_without_data_and_without_the_extra() -> None:
    if "datasets" in sys.modules:
        pytest.skip("datasets is installed")
    with pytest.raises(UsageError, match="--data"):
        list(from_hub("gsm8k", "openai/gsm8k", "test"))
    with pytest.raises(UsageError, match="read from a file"):
        list(from_hub("math", "", "test"))


def test_tasks_import_nothing_heavy() -> None:
    code = (
        "import sys, broaden.tasks as t, broaden.tasks.verify, broaden.tasks.audit, broaden.tasks.check, "
        "broaden.tasks.custom, broaden.tasks.gym\n"
        "[t.get(n) for n in t.names()]\n"
        "print([m for m in ('torch', 'transformers', 'vllm', 'ray', 'sympy', 'math_verify') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
