"""LoRA against PEFT on a small Llama in fp32: log-probabilities, gradients of the factors, and its reading our adapter.

PEFT is a test-only extra (`pip install "broaden[peers]"`); without it the file is skipped.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from broaden.config import GrpoStage
from broaden.models import nano
from broaden.models.decoder import forward, logits
from broaden.models.init import random_weights
from broaden.models.lora import Lora, LoraSettings
from broaden.models.optimizer import Weights
from broaden.models.spec import ModelSpec

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    peft = pytest.importorskip("peft", reason="PEFT is in the peers extra")

pytestmark = pytest.mark.filterwarnings("ignore")  # PEFT's and its dependencies' own

SPEC = ModelSpec.from_config(nano.config())
IDS = torch.tensor([[20 + (7 * i + 3 * j) % 40 for i in range(12)] for j in range(4)])
RANK, ALPHA = 3, 12.0


def factors() -> Lora:
    """With a B that is not zero, or A's gradient would be."""
    lora = Lora(random_weights(SPEC, 1), LoraSettings(RANK, ALPHA, GrpoStage().lora_targets), 4)
    generator = torch.Generator().manual_seed(2)
    for name in lora.names:
        b = lora.factors(name)[1]
        b.copy_(0.05 * torch.randn(b.shape, generator=generator))
    return lora


def llama(folder: Path) -> Any:
    nano.write_folder(folder)
    model = transformers.LlamaForCausalLM(transformers.AutoConfig.from_pretrained(folder))
    weights = random_weights(SPEC, 1)
    model.load_state_dict({**weights, "lm_head.weight": weights["model.embed_tokens.weight"]})
    return model.float().eval()


def mean_logprob(out: torch.Tensor) -> torch.Tensor:
    return out[:, :-1].log_softmax(-1).gather(2, IDS[:, 1:, None]).mean()


def merged(lora: Lora) -> Weights:
    weights = random_weights(SPEC, 1)
    lora.merge(weights)
    return {n: w.requires_grad_(n in lora.names) for n, w in weights.items()}


def test_logits_and_gradients_are_pefts(tmp_path: Path) -> None:
    lora = factors()
    modules = [n.removesuffix(".weight") for n in lora.names]
    settings = peft.LoraConfig(
        r=RANK, lora_alpha=ALPHA, target_modules=modules, lora_dropout=0.0, bias="none"
    )
    theirs = peft.get_peft_model(llama(tmp_path), settings)
    own = {n: p for n, p in theirs.named_parameters() if p.requires_grad}
    names = {n: n.removeprefix("base_model.model.").replace(".default.", ".") for n in own}
    assert set(names.values()) == set(lora.tensors)
    with torch.no_grad():
        for n, p in own.items():
            p.copy_(lora.tensors[names[n]])
    expected = theirs(IDS).logits
    mean_logprob(expected).backward()

    weights = merged(lora)
    got = logits(SPEC, weights, forward(SPEC, weights, IDS))
    mean_logprob(got).backward()
    # relative to the largest entry: x (W_0 + s B A) and x W_0 + s (x A) B round differently
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-5 * float(expected.detach().abs().max()))
    grads = lora.gradients({n: w.grad for n, w in weights.items() if w.grad is not None})
    for n, p in own.items():
        torch.testing.assert_close(grads[names[n]], p.grad, rtol=0, atol=1e-5 * float(p.grad.abs().max()))


def test_peft_reads_the_adapter(tmp_path: Path) -> None:
    lora = factors()
    lora.save(tmp_path / "adapter")
    theirs = peft.PeftModel.from_pretrained(llama(tmp_path / "model"), str(tmp_path / "adapter")).eval()
    weights = merged(lora)
    with torch.no_grad():
        expected, got = theirs(IDS).logits, logits(SPEC, weights, forward(SPEC, weights, IDS))
        plain = logits(SPEC, random_weights(SPEC, 1), forward(SPEC, random_weights(SPEC, 1), IDS))
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-5 * float(expected.abs().max()))
    assert float((plain - expected).abs().max()) > 0.1
