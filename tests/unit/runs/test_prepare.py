"""Prompts that open a thinking block are marked, so that an unclosed one has no answer."""

from __future__ import annotations

from pathlib import Path

from tests.helpers.nano import fresh_model

from broaden import tasks
from broaden.models.tokenizer import ChatTokenizer
from broaden.runs.prepare import encode


def tokenizer(folder: Path, ending: str) -> ChatTokenizer:
    fresh_model(folder)
    path = folder / "tokenizer_config.json"
    path.write_text(
        path.read_text().replace('<|assistant|>{% endif %}"', f'<|assistant|>{ending}{{% endif %}}"')
    )
    return ChatTokenizer.from_folder(folder, config={"eos_token_id": 100})


def test_an_opened_think_block_is_noted(tmp_path: Path) -> None:
    problems = tasks.get("countdown").problems("train", None, 2, 0)
    for ending, expected in (("", None), ("<think>", True), ("<think>\\n", True), ("<think></think>", None)):
        prompts = encode(tokenizer(tmp_path / str(len(ending)), ending), problems)
        assert [p.problem.extra.get("thinking") for p in prompts] == [expected] * 2
    closed = "<think>hm</think><answer>" + " + ".join(map(str, problems[0].extra["numbers"])) + "</answer>"
    task, thinking = tasks.get("countdown"), encode(tokenizer(tmp_path / "x", "<think>"), problems)[0].problem
    assert task.judge(thinking, closed.replace("</think>", ""), "length").reason == "truncated"
    assert task.judge(thinking, closed, "stop").answer is not None
