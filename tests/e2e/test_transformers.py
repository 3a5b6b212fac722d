"""A trained checkpoint is an ordinary model folder: transformers loads it and writes the same greedy text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from tests.helpers.nano import es_config

from broaden import runs, tasks
from broaden.cli import run as broaden
from broaden.models.checkpoint import load_model
from broaden.records import Sample
from broaden.store import SampleStore

NEW_TOKENS = 48
PROBLEMS = 10


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """After two updates of the bundled model."""
    stages = [{"updates": 2, "max_new_tokens": NEW_TOKENS}]
    config = es_config("bundled:countdown-nano", stages=stages)
    return runs.train(config, tmp_path_factory.mktemp("run") / "run").checkpoint


@pytest.fixture(scope="module")
def ours(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Sequence[Sample]:
    """What `broaden eval --greedy` stores."""
    out = tmp_path_factory.mktemp("samples") / "greedy"
    code = broaden(
        ["eval", str(checkpoint), "--task", "countdown", "--limit", str(PROBLEMS), "--greedy",
         "--max-new-tokens", str(NEW_TOKENS), "--out", str(out)]
    )  # fmt: skip
    assert code == 0
    return SampleStore(out).read().samples


def test_the_same_greedy_text(checkpoint: Path, ours: Sequence[Sample]) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(checkpoint)
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    problems = tasks.load_problems("countdown", "test", limit=PROBLEMS).problems
    assert [s.problem_id for s in ours] == [p.id for p in problems]
    for problem, sample in zip(problems, ours, strict=True):
        chat = [{"role": m.role, "content": m.content} for m in problem.messages]
        prompt = tokenizer.apply_chat_template(
            chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        with torch.no_grad():
            (ids,) = model.generate(**prompt, do_sample=False, max_new_tokens=NEW_TOKENS)
        written = ids[prompt["input_ids"].shape[1] :]
        assert tuple(written.tolist()) == sample.token_ids
        assert tokenizer.decode(written, skip_special_tokens=True) == sample.text
    assert len({s.text for s in ours}) > 1


def test_the_same_weights(checkpoint: Path) -> None:
    from transformers import AutoModelForCausalLM

    theirs = AutoModelForCausalLM.from_pretrained(checkpoint).state_dict()
    base = load_model("bundled:countdown-nano").weights
    weights = load_model(checkpoint).weights
    assert all(torch.equal(theirs[name], tensor) for name, tensor in weights.items())
    assert all(not torch.equal(base[name], tensor) for name, tensor in weights.items())
