"""Text to ids and back: template, BOS, stop tokens, padding."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import transformers
from tests.helpers.tiny import BOS, EOS, SPECIAL, TEMPLATE, tiny_folder

from broaden.errors import ModelError, UsageError
from broaden.models.tokenizer import ChatTokenizer
from broaden.records import Message

USER, ASSISTANT = SPECIAL.index("<u>"), SPECIAL.index("<a>")
A = len(SPECIAL)  # id of "a"


def tokenizer(folder: Path, **options: Any) -> ChatTokenizer:
    return ChatTokenizer.from_folder(
        tiny_folder(folder, template=options.pop("template", TEMPLATE)), **options
    )


def test_a_chat_becomes_template_and_generation_prompt(tmp_path: Path) -> None:
    tok = tokenizer(tmp_path)
    expected = (BOS, USER, A, A + 1, ASSISTANT)
    assert tok.encode_chat((Message("user", "ab"),)) == expected
    assert tok.encode_chat([{"role": "user", "content": "ab"}]) == expected
    assert tok.render((Message("user", "ab"),)) == "<s><u>ab<a>"


def test_the_ids_are_those_of_transformers(tmp_path: Path) -> None:
    tok = tokenizer(tmp_path)
    messages = [{"role": "user", "content": "What is 2+2?\n"}]
    loaded = transformers.AutoTokenizer.from_pretrained(str(tmp_path), local_files_only=True)
    theirs = loaded.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
    assert list(tok.encode_chat(messages)) == theirs


def test_a_doubled_bos_is_written_once(tmp_path: Path) -> None:
    tok = tokenizer(tmp_path, template="<s>" + TEMPLATE)
    assert tok.encode_chat((Message("user", "a"),)) == (BOS, USER, A, ASSISTANT)


def test_no_bos_is_added_where_the_template_has_none(tmp_path: Path) -> None:
    tok = tokenizer(tmp_path, template=TEMPLATE.removeprefix("<s>"))
    assert tok.encode_chat((Message("user", "a"),)) == (USER, A, ASSISTANT)
    assert tok.encode("a") == (A,)


def test_decoding_leaves_out_special_tokens_and_keeps_spaces(tmp_path: Path) -> None:
    tok = tokenizer(tmp_path)
    text = "a  b , c .\n <x>"
    assert tok.decode(tok.encode(text)) == text
    assert tok.decode((BOS, *tok.encode(text), EOS)) == text


@pytest.mark.parametrize(
    ("generation_config", "config", "expected"),
    [
        ({}, {}, {EOS}),
        ({"eos_token_id": EOS}, {}, {EOS}),
        ({"eos_token_id": [7, 9]}, {"eos_token_id": 11}, {EOS, 7, 9}),
        ({"eos_token_id": 7}, {}, {EOS, 7}),
        ({}, {"eos_token_id": 11}, {EOS, 11}),
        ({}, {"eos_token_id": [0]}, {EOS, 0}),
    ],
)
def test_stop_tokens_are_the_union(
    tmp_path: Path, generation_config: dict[str, Any], config: dict[str, Any], expected: set[int]
) -> None:
    assert tokenizer(tmp_path, generation_config=generation_config, config=config).eos_ids == expected


def test_pad_is_the_tokenizers_then_generation_configs_then_eos(tmp_path: Path) -> None:
    assert tokenizer(tmp_path / "a").pad_id == EOS
    assert tokenizer(tmp_path / "b", generation_config={"pad_token_id": 5}).pad_id == 5
    folder = tiny_folder(tmp_path / "c")
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"pad_token": "<u>"}))
    assert ChatTokenizer.from_folder(folder, generation_config={"pad_token_id": 5}).pad_id == USER


def test_no_stop_token_at_all_is_refused(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path)
    path = folder / "tokenizer_config.json"
    values = json.loads(path.read_text())
    del values["eos_token"]
    path.write_text(json.dumps(values))
    with pytest.raises(ModelError, match="no end-of-sequence token"):
        ChatTokenizer.from_folder(folder)
    assert ChatTokenizer.from_folder(folder, generation_config={"eos_token_id": 8}).eos_ids == {8}


def test_no_chat_template_is_said_when_one_is_needed(tmp_path: Path) -> None:
    tok = tokenizer(tmp_path, template=None)
    assert tok.encode("ab") == (A, A + 1)
    with pytest.raises(ModelError, match="no chat template") as caught:
        tok.encode_chat((Message("user", "a"),))
    assert "chat_template.jinja" in caught.value.fix


def test_a_template_that_refuses_is_a_model_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"roles \[tool\]: no tools here"):
        tokenizer(tmp_path).encode_chat([{"role": "tool", "content": "x"}])


def test_a_prompt_does_not_change_overnight(tmp_path: Path) -> None:
    template = "{% if date_string is not defined %}{% set date_string = now() %}{% endif %}{{ date_string }}"
    assert tokenizer(tmp_path, template=template).render((Message("user", "a"),)) == "26 Jul 2024"


def test_ids_beyond_the_embedding_are_refused(tmp_path: Path) -> None:
    tok = tokenizer(tmp_path, vocab=10)
    assert tok.encode("ab") == (A, A + 1)
    with pytest.raises(UsageError, match="gives id 29, but the model's embedding has 10 rows"):
        tok.encode("z")


def test_it_travels_to_worker_processes(tmp_path: Path) -> None:
    tok = tokenizer(tmp_path)
    again = pickle.loads(pickle.dumps(tok))
    assert again.encode_chat((Message("user", "a"),)) == tok.encode_chat((Message("user", "a"),))
    assert again.eos_ids == tok.eos_ids
