"""Chat pairs become examples that end with the tokenizer's EOS."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from broaden.models import nano
from broaden.models.tokenizer import ChatTokenizer
from broaden.records import Message
from broaden.sft import ChatExamples


def test_pairs_are_packed_with_eos(tmp_path: Path) -> None:
    nano.write_folder(tmp_path)
    tokenizer = ChatTokenizer.from_folder(tmp_path, generation_config=nano.generation_config())
    source = ChatExamples(tokenizer, lambda epoch: [((Message("user", "a"),), "b" * (epoch + 1))])
    ids = nano.IDS
    for epoch in (0, 1, 1):
        batch = source(epoch).batch(np.array([0]))
        want = [ids["<|user|>"], ids["a"], ids["<|end|>"], ids["<|assistant|>"]]
        assert batch.ids_BT[0].tolist() == [*want, *[ids["b"]] * (epoch + 1), ids["<|end|>"]]
        assert batch.prompts_B.tolist() == [4]
