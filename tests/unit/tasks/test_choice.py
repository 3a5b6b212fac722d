"""Letters in boxes; CommonsenseQA rows; GPQA from a protected zip made here, with invented questions."""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from pathlib import Path

import pytest
from tests.helpers.data import data_path

from broaden.errors import DataError, UsageError
from broaden.records import Problem, Verdict
from broaden.tasks import get, load_problems
from broaden.tasks.choice import shuffled

OPTIONS = ["bank", "library", "department store", "mall", "new york"]


def judge(response: str, gold: str = "B", options: list[str] | None = None) -> Verdict:
    extra = {"letters": list("ABCDE"), "options": OPTIONS if options is None else options}
    return get("commonsenseqa").judge(Problem("p", "commonsenseqa", (), gold, extra), response, "stop")


@pytest.mark.parametrize(
    "box",
    ["B", "(B)", "[B]", "B.", "B)", "(B).", r"\text{B}", r"\text{(B)}", r"\textbf{B}", r"\mathrm{B}", "**B**",
    "$B$", "b", "B: library", "B. library",
     "B) the library of a town", "(B) library", "B - library", r"\text{B: library}", "B library", "Answer: B",
     "Option B", "the answer is B", "library",
     r"\text{Option } B", "B:  Library."],
)  # fmt: skip
def test_letters(box: str) -> None:
    assert judge(rf"\boxed{{{box}}}").reason == "correct"
    assert judge(rf"\boxed{{{box}}}", gold="A").reason == "wrong"


@pytest.mark.parametrize(
    "box",
    ["All of the above", "a reduction in pressure", "A bank robbery", "Both", "B, C", "B and C", "B or C",
    "A B", "BA", "F", "", "none", "B: bank", "1",
     "bank or library", "Because", "C: or D"],
)  # fmt: skip
def test_no_single_letter(box: str) -> None:
    assert judge(rf"\boxed{{{box}}}").reason == "unparseable"


def test_last_box_and_missing_box() -> None:
    assert judge(r"first \boxed{C}, hence \boxed{B}").reason == "correct"
    assert judge("**B**").reason == "no_answer"
    assert judge("ANSWER: $B$").reason == "no_answer"


def test_rewards_and_ballots() -> None:
    assert [judge(rf"\boxed{{{x}}}").reward for x in ("B", "C", "zebra")] == [1.0, 0.1, 0.0]
    assert {judge(rf"\boxed{{{x}}}").ballot for x in ("B", "(B)", "B: library", "library")} == {"B"}
    assert judge(r"\boxed{library}").borderline


def test_a_gold_outside_the_options_is_never_right() -> None:
    said = judge(r"\boxed{F}", gold="F")
    assert (said.reason, said.score) == ("gold_unparseable", None)


def test_commonsenseqa_both_shapes(tmp_path: Path) -> None:
    original = {
        "id": "q1",
        "answerKey": "B",
        "question": {"stem": "Where?", "choices": [{"label": "A", "text": "x"}, {"label": "B", "text": "y"}]},
    }
    hub = {
        "id": "q2",
        "answerKey": "A",
        "question": "Who?",
        "choices": {"label": ["A", "B"], "text": ["x", "y"]},
    }
    unanswered = {
        "id": "q3",
        "answerKey": "",
        "question": "Who?",
        "choices": {"label": ["A", "B"], "text": ["x", "y"]},
    }
    file = tmp_path / "dev.jsonl"
    file.write_text("\n".join(map(json.dumps, (original, hub, unanswered))))
    found = load_problems("commonsenseqa", "dev", file)
    assert [(p.id, p.gold) for p in found.problems] == [("q1", "B"), ("q2", "A")]
    assert found.problems[0].messages[0].content.startswith("Where?\n\nA. x\nB. y\n\n")
    assert found.bad[0].reason == "there is no answer key"


def test_commonsenseqa_whole() -> None:
    found = load_problems("commonsenseqa", data=data_path("commonsenseqa"))
    assert (found.rows, len(found.problems)) == (1221, 1221)


ROWS = [
    {"Record ID": f"rec{i}", "Question": f"Invented question {i}?", "Correct Answer": f"right {i}",
    "Incorrect Answer 1": "one", "Incorrect Answer 2": "two",
     "Incorrect Answer 3": "three", "Canary String": "canary"} for i in range(12)
]  # fmt: skip


def csv_text(rows: list[dict[str, str]]) -> str:
    lines = [",".join(rows[0])] + [",".join(f'"{v}"' for v in r.values()) for r in rows]
    return "\n".join(lines) + "\n"


def protected_zip(path: Path, name: str, text: str, password: bytes) -> None:
    """A ZipCrypto archive (zipfile reads but does not write them)."""
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ 0xEDB88320 if value & 1 else value >> 1
        table.append(value)
    keys = [0x12345678, 0x23456789, 0x34567890]

    def update(byte: int) -> None:
        keys[0] = (keys[0] >> 8) ^ table[(keys[0] ^ byte) & 0xFF]
        keys[1] = ((keys[1] + (keys[0] & 0xFF)) * 134775813 + 1) & 0xFFFFFFFF
        keys[2] = (keys[2] >> 8) ^ table[(keys[2] ^ (keys[1] >> 24)) & 0xFF]

    def encrypt(data: bytes) -> bytes:
        out = bytearray()
        for byte in data:
            mixed = keys[2] | 2
            out.append(byte ^ ((mixed * (mixed ^ 1)) >> 8 & 0xFF))
            update(byte)
        return bytes(out)

    for byte in password:
        update(byte)
    raw = text.encode()
    crc = zlib.crc32(raw)
    body = encrypt(bytes(11) + bytes([crc >> 24]) + raw)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(name, body)
    data = bytearray(buffer.getvalue())
    for signature, flags, crc_at, size_at in ((b"PK\x03\x04", 6, 14, 22), (b"PK\x01\x02", 8, 16, 24)):
        at = data.index(signature)
        data[at + flags] |= 1
        data[at + crc_at : at + crc_at + 4] = crc.to_bytes(4, "little")
        data[at + size_at : at + size_at + 4] = len(raw).to_bytes(4, "little")
    path.write_bytes(bytes(data))


def test_gpqa_from_the_protected_zip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "dataset.zip"
    protected_zip(file, "dataset/gpqa_diamond.csv", csv_text(ROWS), b"secret")
    monkeypatch.delenv("GPQA_PASSWORD", raising=False)
    with pytest.raises(UsageError, match="protected"):
        load_problems("gpqa", data=file)
    monkeypatch.setenv("GPQA_PASSWORD", "wrong")
    with pytest.raises(UsageError, match="could not be read"):
        load_problems("gpqa", data=file)
    monkeypatch.setenv("GPQA_PASSWORD", "secret")
    found = load_problems("gpqa", data=file)
    assert [p.id for p in found.problems] == [r["Record ID"] for r in ROWS]
    for i, p in enumerate(found.problems):
        assert p.extra["options"]["ABCD".index(p.gold)] == f"right {i}"
        assert p.extra["private"] is True
    assert len({p.gold for p in found.problems}) > 1
    with pytest.raises(UsageError, match="no split"):
        load_problems("gpqa", "main", file)
    assert [p.name for p in tmp_path.iterdir()] == ["dataset.zip"]


def test_gpqa_shuffle_is_stored_and_keyed(tmp_path: Path) -> None:
    file = tmp_path / "gpqa_diamond.csv"
    file.write_text(csv_text(ROWS))
    first = load_problems("gpqa", data=file)
    assert first == load_problems("gpqa", data=file)
    other = load_problems("gpqa", data=file, seed=1)
    assert [p.extra["options"] for p in first.problems] != [p.extra["options"] for p in other.problems]
    assert other.problems[0].extra["shuffle_seed"] == 1
    assert load_problems("gpqa", data=file, limit=3).problems == first.problems[:3]


def test_gpqa_wrong_rows(tmp_path: Path) -> None:
    file = tmp_path / "gpqa_diamond.csv"
    file.write_text(
        csv_text([ROWS[0], {**ROWS[1], "Incorrect Answer 2": "right 1"}, {**ROWS[2], "Question": " "}])
    )
    assert [b.id for b in load_problems("gpqa", data=file).bad] == ["rec1", "rec2"]
    file.write_text("Question,Answer\nq,a\n")
    with pytest.raises(DataError, match="Correct Answer"):
        load_problems("gpqa", data=file)


def test_shuffled_reaches_every_order_evenly() -> None:
    counts: dict[tuple[int, ...], int] = {}
    for key in range(2400):
        order = tuple(shuffled(4, key))
        counts[order] = counts.get(order, 0) + 1
    assert set(counts.values()) == {100}
    assert len(counts) == 24
