"""The bundled model's folder: transformers reads it, the tokenizer is exact and short."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import transformers

from broaden.models import nano
from broaden.models.spec import ModelSpec
from broaden.models.tokenizer import ChatTokenizer
from broaden.records import Message
from broaden.tasks.countdown import PROMPT


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> ChatTokenizer:
    folder = tmp_path_factory.mktemp("nano")
    nano.write_folder(folder)
    generation = json.loads((folder / "generation_config.json").read_text())
    return ChatTokenizer.from_folder(folder, generation_config=generation, vocab=len(nano.TOKENS))


def test_prompt_ids_by_hand(tokenizer: ChatTokenizer) -> None:
    text = PROMPT.format(numbers="3, 12", target=22)
    tokens = [nano.TOKENS[i] for i in tokenizer.encode_chat([Message("user", text)])]
    head, comma, mid, tail = nano.PHRASES[:4]
    assert tokens == [
        "<|user|>", head, "3", comma, "1", "2", mid, "2", "2", tail, "<|end|>", "<|assistant|>",
    ]  # fmt: skip


def test_every_printable_text_comes_back(tokenizer: ChatTokenizer) -> None:
    text = "".join(map(chr, range(32, 127))) + "\n7 * 3 = 21\n<answer>(7 * 3) + 1</answer>"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer.encode("7 * 3 = 21\n")) == 7


def test_special_tokens(tokenizer: ChatTokenizer) -> None:
    assert tokenizer.eos_ids == {nano.IDS["<|end|>"]}
    assert tokenizer.pad_id == nano.IDS["<|pad|>"]
    assert tokenizer.bos_id is None


def test_config_is_a_small_llama_for_everyone(tmp_path: Path) -> None:
    nano.write_folder(tmp_path, heads=4, kv_heads=2)
    theirs = transformers.AutoConfig.from_pretrained(tmp_path)
    spec = ModelSpec.from_config(json.loads((tmp_path / "config.json").read_text()))
    assert (theirs.model_type, theirs.num_attention_heads, theirs.head_dim) == ("llama", 4, 32)
    assert (spec.family, spec.heads, spec.kv_heads, spec.tied, spec.vocab) == ("llama", 4, 2, True, 112)
    assert spec.parameters == 130368
    model = transformers.LlamaForCausalLM(theirs)
    assert sum(p.numel() for p in model.parameters()) == 130368
