"""Plain folders read without transformers: the same ids and texts as transformers', and only where that is sure."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers.tiny import tiny_folder

from broaden.models.plain_tokenizer import PlainTokenizer, compiled, plain_tokenizer
from broaden.models.sources import resolve
from broaden.models.tokenizer import ChatTokenizer

BUNDLED = resolve("bundled:countdown-nano")
OURS = plain_tokenizer(BUNDLED)
THEIRS: Any = transformers.AutoTokenizer.from_pretrained(str(BUNDLED), local_files_only=True)
TEXT = st.text(max_size=60) | st.lists(
    st.sampled_from(["<|end|>", "<|pad|>", "<unk>", "<|user|>", "12", " + ", "=", "\n", "é"])
).map("".join)


@given(TEXT)
@settings(max_examples=200)
def test_ids_are_those_of_transformers(text: str) -> None:
    assert OURS is not None
    theirs = THEIRS(text, add_special_tokens=False)["input_ids"]
    assert OURS(text, add_special_tokens=False, verbose=False)["input_ids"] == theirs


@given(st.lists(st.integers(0, len(THEIRS) - 1), max_size=40))
@settings(max_examples=200)
def test_texts_are_those_of_transformers(ids: list[int]) -> None:
    assert OURS is not None
    theirs = THEIRS.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    assert OURS.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False) == theirs


@given(
    st.lists(st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant"]), "content": TEXT}), min_size=1)
)  # fmt: skip
@settings(max_examples=50)
def test_chats_are_those_of_transformers(messages: list[dict[str, str]]) -> None:
    assert OURS is not None
    theirs = THEIRS.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert OURS.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) == theirs


def test_named_tokens_are_those_of_transformers() -> None:
    assert OURS is not None
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        assert getattr(OURS, name) == getattr(THEIRS, name)


@pytest.mark.parametrize(
    "template",
    [
        "{{ eos_token }}{% for m in messages %}\n  {% if loop.last %}{{ m | tojson }}{% endif %}\n{% endfor %} x\n",
        "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{{ m.content | trim }}{% endfor %}",
        "{{ tools is none }}{{ bos_token is defined }}{{ date_string }}{{ messages | tojson(indent=2) }}",
    ],
)
def test_templates_are_rendered_as_transformers_does(template: str) -> None:
    messages = [{"role": "user", "content": " <b>é & </b>"}, {"role": "user", "content": "2"}]
    assert OURS is not None
    ours = PlainTokenizer(OURS.tokenizer, OURS.named, template)
    names = {"date_string": "26 Jul 2024"}
    theirs = THEIRS.apply_chat_template(
        messages, chat_template=template, tokenize=False, add_generation_prompt=True, **names
    )
    assert ours.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **names) == theirs


def test_a_template_cannot_reach_out_of_its_sandbox() -> None:
    with pytest.raises(Exception, match="unsafe"):
        compiled("{{ messages.__class__.__mro__ }}").render(messages=[])


def config(**changes: Any) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        path = folder / "tokenizer_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return edit


def padded(folder: Path) -> None:
    path = folder / "tokenizer.json"
    data = json.loads(path.read_text())
    data["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    path.write_text(json.dumps(data))


@pytest.mark.parametrize(
    "edit",
    [
        config(tokenizer_class="LlamaTokenizer"), config(add_prefix_space=True), config(eos_token="no such token"),
        config(unheard_of=1), config(extra_special_tokens=["<x>"]), config(eos_token={"content": "</s>"}),
        config(chat_template="{{ strftime_now('%d') }}"), config(chat_template="{% generation %}{% endgeneration %}"),
        lambda folder: (folder / "special_tokens_map.json").write_text("{}"), padded,
    ],
    ids=["class", "prefix", "no token", "unknown key", "extra", "token object", "date", "marks", "map", "truncation"],
)  # fmt: skip
def test_what_is_not_plain_is_left_to_transformers(tmp_path: Path, edit: Callable[[Path], object]) -> None:
    folder = tiny_folder(tmp_path)
    assert isinstance(plain_tokenizer(folder), PlainTokenizer)
    edit(folder)
    assert plain_tokenizer(folder) is None


def test_transformers_is_asked_where_a_folder_is_not_plain(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path)
    assert isinstance(ChatTokenizer.from_folder(folder).backend, PlainTokenizer)
    config(extra_special_tokens=["<u>"])(folder)
    other = ChatTokenizer.from_folder(folder)
    assert not isinstance(other.backend, PlainTokenizer)
    assert other.encode("ab") == ChatTokenizer.from_folder(tiny_folder(tmp_path / "plain")).encode("ab")
