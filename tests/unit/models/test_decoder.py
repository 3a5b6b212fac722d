"""The full forward against transformers, its padding rule, its gradients."""

from __future__ import annotations

import pytest
import torch
from tests.helpers.peers import CONFIGS, peer

from broaden.errors import ModelError, UsageError
from broaden.models import decoder
from broaden.models.spec import ModelSpec


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_equal_transformers(name: str) -> None:
    spec, weights, model = peer(name)
    assert set(weights) == set(spec.shapes())
    assert all(tuple(weights[n].shape) == shape for n, shape in spec.shapes().items())
    ids = torch.randint(0, spec.vocab, (3, 100), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = model(ids).logits
        ours = decoder.logits(spec, weights, decoder.forward(spec, weights, ids))
    assert (ours - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_rotary_scaling_is_seen() -> None:
    """The llama3 comparison above would be empty if scaling changed nothing at these positions."""
    spec, weights, _ = peer("llama-llama3-rope")
    plain = ModelSpec(**{f: getattr(spec, f) for f in spec.__slots__ if f != "rope_scaling"})
    ids = torch.arange(90)[None] % spec.vocab
    a, b = (decoder.forward(s, weights, ids) for s in (spec, plain))
    assert (a - b).abs().max() > 1e-2


def test_padding_on_the_right_changes_nothing_before_it() -> None:
    spec, weights, _ = peer("qwen3")
    ids = torch.randint(0, spec.vocab, (2, 24), generator=torch.Generator().manual_seed(2))
    padded = torch.cat([ids, torch.zeros(2, 8, dtype=torch.long)], dim=1)
    short, long = decoder.forward(spec, weights, ids), decoder.forward(spec, weights, padded)
    torch.testing.assert_close(long[:, :24], short, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["llama-mqa-tied-bias", "qwen2", "qwen3-tied-bias"])
def test_gradients_equal_transformers(name: str) -> None:
    spec, weights, model = peer(name)
    ids = torch.randint(0, spec.vocab, (2, 12), generator=torch.Generator().manual_seed(3))
    model(ids).logits.float().log_softmax(-1)[:, :, 5].sum().backward()
    leaves = {n: w.clone().requires_grad_() for n, w in weights.items()}
    hidden = decoder.forward(spec, leaves, ids)
    decoder.logits(spec, leaves, hidden).log_softmax(-1)[:, :, 5].sum().backward()
    for tensor_name, parameter in model.named_parameters():
        expected, ours = parameter.grad, leaves[tensor_name].grad
        assert expected is not None
        assert ours is not None
        assert (ours - expected).abs().max() <= 1e-4 * expected.abs().max() + 1e-7, tensor_name


def test_recomputed_layers_give_the_same_bits() -> None:
    spec, weights, _ = peer("qwen2")
    ids = torch.randint(0, spec.vocab, (2, 12), generator=torch.Generator().manual_seed(4))
    grads = []
    for checkpoint_layers in (False, True):
        leaves = {n: w.clone().requires_grad_() for n, w in weights.items()}
        decoder.forward(spec, leaves, ids, checkpoint_layers=checkpoint_layers).square().sum().backward()
        grads.append({n: w.grad for n, w in leaves.items() if w.grad is not None})
    assert set(grads[0]) == set(grads[1]) == set(weights) - {"lm_head.weight"}
    assert all(torch.equal(grads[0][n], grads[1][n]) for n in grads[0])


def test_refusals() -> None:
    spec, weights, _ = peer("llama-gqa")
    with pytest.raises(UsageError, match="257 tokens"):
        decoder.forward(spec, weights, torch.zeros(1, 257, dtype=torch.long))
    other = ModelSpec.from_config({"model_type": "gpt2"})
    with pytest.raises(ModelError, match="gpt2"):
        decoder.forward(other, {}, torch.zeros(1, 1, dtype=torch.long))
