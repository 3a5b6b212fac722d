"""The own decode path: equal to transformers, the same bits however it is asked, refusals, live weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from tests.helpers.peers import CONFIGS, peer

from broaden.engines import TorchEngine, packing, prove, self_test
from broaden.engines import compiled as compiled_module
from broaden.engines.scheduler import Queue, _close, _fill
from broaden.engines.selftest import SPEC, fill
from broaden.engines.torch_engine import Kernels, packs
from broaden.errors import DivergedError, ExactnessError, ModelError, UsageError
from broaden.models.spec import ModelSpec
from broaden.records import Completion, Request, Sampling
from broaden.seeds import numpy_generator, stream

KERNELS: tuple[Kernels, ...] = ("compiled", "portable", "device")
FULL = Sampling(temperature=1.0, max_new_tokens=14, logprobs=True, entropy=True)


def requests(count: int, vocab: int = SPEC.vocab, longest: int = 90, seed: int = 0) -> list[Request]:
    """Requests over count // 2 + 1 prompts of 1 to `longest` tokens."""
    random = numpy_generator(stream(seed, "requests"))
    prompts = [
        tuple(random.integers(0, vocab, random.integers(1, longest)).tolist()) for _ in range(count // 2 + 1)
    ]
    return [Request(prompts[i % len(prompts)], stream(seed, "request", i)) for i in range(count)]


def engine(
    members: int = 1, spec: ModelSpec = SPEC, eos: Sequence[int] = (0,), **options: Any
) -> TorchEngine:
    """A small engine with keyed random weights, another set for each member."""
    made = TorchEngine(spec, eos, members=members, **options)
    for member in range(members):
        fill(made, member, member)
    return made


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("name", CONFIGS)
def test_greedy_text_and_logprobs_equal_transformers(name: str, kernels: Kernels) -> None:
    spec, weights, model = peer(name)
    made = TorchEngine(spec, [], kernels=kernels)
    assert set(made.weights()) == set(weights)
    for tensor_name, view in made.weights().items():
        view.copy_(weights[tensor_name])
    asked = requests(12, spec.vocab, 80)
    sampling = Sampling(temperature=0.0, max_new_tokens=20, logprobs=True, entropy=True)
    for request, answer in zip(asked, made.generate([asked], sampling)[0], strict=True):
        ids = torch.tensor([request.prompt_ids + answer.token_ids])
        with torch.no_grad():
            logp = model(ids).logits[0, len(request.prompt_ids) - 1 : -1].log_softmax(-1)
        assert logp.argmax(-1).tolist() == list(answer.token_ids)
        np.testing.assert_allclose(answer.logprobs, logp.amax(-1).numpy(), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(answer.entropy, -(logp.exp() * logp).sum(-1).numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kernels", KERNELS)
def test_sampled_tokens_equal_transformers_and_the_rule(kernels: Kernels) -> None:
    """Each sampled token is the inverse CDF of transformers' logits at the keyed uniform."""
    from tests.unit.engines.test_sampling import uniform_reference

    spec, weights, model = peer("qwen3")
    made = TorchEngine(spec, [], kernels=kernels)
    for tensor_name, view in made.weights().items():
        view.copy_(weights[tensor_name])
    asked = requests(10, spec.vocab, 40)
    for request, answer in zip(asked, made.generate([asked], Sampling(0.8, 16))[0], strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([request.prompt_ids + answer.token_ids])).logits[0].double().numpy()
        for t, token in enumerate(answer.token_ids):
            z = logits[len(request.prompt_ids) - 1 + t] / 0.8
            cdf = np.cumsum(np.exp(z - z.max()))
            target = uniform_reference(request.key, t) * cdf[-1]
            assert (
                (cdf[token - 1] if token else 0.0) - 1e-5 * cdf[-1] <= target <= cdf[token] + 1e-5 * cdf[-1]
            )


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_else_is_asked_changes_no_bit(kernels: Kernels, dtype: torch.dtype) -> None:
    asked = requests(64)
    made = engine(kernels=kernels, dtype=dtype)
    answers = made.generate([asked], FULL)[0]
    assert made.generate([asked], FULL)[0] == answers
    for count in (1, 7, 16):
        assert made.generate([asked[:count]], FULL)[0] == answers[:count]
    order = np.random.default_rng(0).permutation(64)
    shuffled = made.generate([[asked[i] for i in order]], FULL)[0]
    assert shuffled == [answers[i] for i in order]
    assert len({a.token_ids for a in answers}) > 50


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("slots", [16, 32, 256])
def test_slots_change_no_bit(kernels: Kernels, dtype: torch.dtype, slots: int) -> None:
    asked = requests(50)
    assert engine(kernels=kernels, dtype=dtype, slots=slots).generate([asked], FULL) == engine(
        kernels=kernels, dtype=dtype, slots=64
    ).generate([asked], FULL)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("batch", [1, 2, 5])
def test_members_together_equal_members_alone(kernels: Kernels, dtype: torch.dtype, batch: int) -> None:
    lists = [requests(20 + 9 * m, seed=m) for m in range(5)]
    lists[3] = []
    together = engine(5, kernels=kernels, dtype=dtype, batch=batch, slots=16).generate(lists, FULL)
    for member, asked in enumerate(lists):
        alone = engine(kernels=kernels, dtype=dtype)
        fill(alone, 0, member)
        assert alone.generate([asked], FULL)[0] == together[member]


def test_threads_change_no_bit() -> None:
    asked = [requests(40, seed=m) for m in range(3)]
    one = engine(3, threads=1).generate(asked, FULL)
    assert engine(3, threads=2).generate(asked, FULL) == one
    assert engine(1, threads=3).generate(asked[:1], FULL) == engine(1, threads=1).generate(asked[:1], FULL)


def test_packed_weights_change_no_bit_and_are_made_anew_in_every_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(packing, "_exact", {})
    asked, options = requests(40), {"dtype": torch.bfloat16, "threads": 2}
    plain, packed = engine(packed=False, **options), engine(packed=True, **options)
    first = plain.generate([asked], FULL)
    assert packed.generate([asked], FULL) == first
    assert list(packing._exact.values()) == [True] * 5
    for made in (plain, packed):
        fill(made, 0, 1)
    second = plain.generate([asked], FULL)
    assert packed.generate([asked], FULL) == second != first


def test_weights_are_not_packed_where_that_would_change_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.randn((48, 32), generator=torch.Generator().manual_seed(0)).bfloat16()
    monkeypatch.setattr(packing, "_exact", {})
    assert packing.pack(weight.float()) is None
    assert packing.pack(weight) is not None
    product = packing.product
    monkeypatch.setattr(packing, "_exact", {})
    monkeypatch.setattr(packing, "product", lambda x, packed: product(x, packed) + 2.0**-6)
    assert packing.pack(weight) is None
    monkeypatch.undo()
    monkeypatch.setattr(packing, "_exact", {(48, 32): False})
    assert packing.pack(weight) is None


@pytest.mark.parametrize(
    ("parameters_per_layer", "new", "batch", "dtype", "expected"),
    [(64, 32, 1, torch.bfloat16, True), (64, 31, 1, torch.bfloat16, False), (64, 32, 2, torch.bfloat16, False),
     (64, 32, 1, torch.float32, False), (1, 32, 1, torch.bfloat16, False)],
)  # fmt: skip
def test_when_weights_are_packed(
    parameters_per_layer: int, new: int, batch: int, dtype: torch.dtype, expected: bool
) -> None:
    spec = dataclasses.replace(SPEC, layers=parameters_per_layer)
    assert packs(spec, dtype, batch, new) is expected


def test_long_prompts_in_pieces_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = requests(20, longest=100)
    whole = engine().generate([asked], FULL)
    monkeypatch.setattr(compiled_module, "PROMPT_ROWS", 32)
    assert engine().generate([asked], FULL) == whole


def test_the_two_kernels_agree_up_to_rounding() -> None:
    asked = requests(32)
    a, b = (engine(kernels=k).generate([asked], FULL)[0] for k in KERNELS[:2])
    assert [x.token_ids for x in a] == [x.token_ids for x in b]
    np.testing.assert_allclose(_joined(a), _joined(b), rtol=1e-4, atol=1e-5)


def _joined(answers: Sequence[Completion]) -> list[float]:
    return [value for a in answers for value in a.logprobs or ()]


@pytest.mark.parametrize("kernels", KERNELS)
def test_weights_are_live_and_nothing_is_kept(kernels: Kernels) -> None:
    """Other weights give other answers, the old weights the old ones: no key or value survives a call."""
    made, asked = engine(kernels=kernels), requests(8, longest=100)
    before = made.generate([asked], FULL)
    saved = {n: w.clone() for n, w in made.weights().items()}
    fill(made, 0, 1)
    made.weights_changed()
    changed = made.generate([asked], FULL)
    assert all(
        a.token_ids != b.token_ids for a, b in zip(before[0], changed[0], strict=True) if len(a.token_ids) > 3
    )
    for name, view in made.weights().items():
        assert view.is_contiguous()
        view.copy_(saved[name])
    made.weights_changed()
    assert made.generate([asked], FULL) == before


def test_every_weight_reaches_the_answer() -> None:
    """Live views cover the model: changing any one tensor changes some log-probability."""
    spec, weights, _ = peer("qwen3-tied-bias")
    made, asked = TorchEngine(spec, []), requests(4, spec.vocab, 30)
    for name, view in made.weights().items():
        view.copy_(weights[name])
    assert sum(v.numel() for v in made.weights().values()) == spec.parameters
    before = made.generate([asked], FULL)
    for name, view in made.weights().items():
        if name.endswith("k_proj.bias"):
            continue  # softmax does not see a bias of the keys before a norm in general, but may
        view.mul_(1.5)
        assert made.generate([asked], FULL) != before, name
        view.copy_(weights[name])
    assert made.generate([asked], FULL) == before


@pytest.mark.parametrize("kernels", KERNELS)
def test_diverged_weights_are_an_error(kernels: Kernels) -> None:
    made = engine(kernels=kernels)
    made.weights()["model.norm.weight"][3] = float("nan")
    with pytest.raises(DivergedError, match="not finite"):
        made.generate([requests(3)], FULL)


def test_context_refusals_name_the_request() -> None:
    made = engine(max_context=64)
    asked = [Request((1,) * 50, 0), Request((1,) * 51, 1)]
    with pytest.raises(UsageError, match=r"request 1 of member 0: prompt of 51 tokens.*context of 64"):
        made.generate([asked], FULL)
    assert len(made.generate([asked[:1]], FULL)[0][0].token_ids) <= 14
    assert made.context == 64
    assert engine(max_context=10_000).context == SPEC.max_positions


@pytest.mark.parametrize("kernels", KERNELS)
def test_a_context_shorter_than_a_bucket(kernels: Kernels) -> None:
    """It holds just the prompts and their completions, as runs set it."""
    asked = requests(20, longest=15)
    short = engine(kernels=kernels, max_context=28).generate([asked], FULL)
    assert short == engine(kernels=kernels).generate([asked], FULL)


def test_few_cache_bytes_mean_fewer_slots() -> None:
    asked = requests(40)
    tight, roomy = engine(cache_bytes=1), engine()
    queue = Queue.of(asked)
    assert (tight._slots([queue], 14, 1), roomy._slots([queue], 14, 1)) == (16, 64)
    assert tight.generate([asked], FULL) == roomy.generate([asked], FULL)


def test_unsupported_models_and_kernels() -> None:
    with pytest.raises(ModelError, match="gpt2"):
        TorchEngine(ModelSpec.from_config({"model_type": "gpt2"}), [])
    with pytest.raises(UsageError, match="float16"):
        TorchEngine(SPEC, [], dtype=torch.float16, kernels="compiled")
    assert not TorchEngine(SPEC, [], dtype=torch.float16).compiled


def test_progress_ends_at_the_totals() -> None:
    seen: list[tuple[int, int]] = []
    asked = [requests(40), requests(30)]
    answers = engine(2, slots=16).generate(asked, FULL, lambda c, t: seen.append((c, t)))
    assert seen[-1] == (70, sum(len(c.token_ids) for a in answers for c in a))
    assert seen == sorted(seen)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_self_test_passes_here(kernels: Kernels, dtype: torch.dtype) -> None:
    report = self_test(dtype=dtype, kernels=kernels)
    assert (report.ok, report.comparisons, report.differences) == (True, 7, ())
    report.require()


def test_self_test_notices(monkeypatch: pytest.MonkeyPatch) -> None:
    """A product whose bits depend on the number of rows is caught."""
    plain = compiled_module.Product.into

    def by_rows(self: compiled_module.Product, x: torch.Tensor, y: torch.Tensor) -> None:
        plain(self, x, y)
        y.mul_(1.0 + 1e-6 * x.shape[0])

    monkeypatch.setattr(compiled_module.Product, "into", by_rows)
    report = self_test(kernels="compiled")
    assert not report.ok
    with pytest.raises(ExactnessError, match="not batch-invariant"):
        report.require()


def test_proof_is_part_of_the_conditions() -> None:
    made = engine()
    assert made.conditions()["self_test"] is None
    report = prove(made)
    assert made.conditions()["self_test"] == report.to_json()
    assert made.conditions()["numerics"] == 2


def test_few_rows_are_packed_products_alone() -> None:
    """With packed weights a step takes rows in fours down to the last; the answers are those of sixteens."""
    seen: dict[bool, list[int]] = {}
    asked, answers = requests(21, longest=20), {}
    for packed in (False, True):
        made = engine(eos=range(0, 112, 8), dtype=torch.bfloat16, packed=packed)
        runner, rows = made._runner, seen.setdefault(packed, [])

        def watched(*given: Any, make: Any = runner, rows: list[int] = rows) -> Any:
            found = make(*given)
            logits = found.logits
            found.logits = lambda ids, *more: rows.append(len(ids)) or logits(ids, *more)
            return found

        made._runner = watched  # type: ignore[method-assign]
        answers[packed] = made.generate([asked], Sampling(1.0, 40, logprobs=True))
    assert answers[True] == answers[False]
    assert set(seen[False]) == {16, 32}
    assert set(seen[True]) == {4, 8, 12, 16, 20, 24}
    assert seen[True] == sorted(seen[True], reverse=True)


def test_where_rows_go_when_they_are_fewer() -> None:
    rows = np.array([1, 2, 5, 9, 11])
    assert _fill(rows, 8).tolist() == [1, 2, 5, 0, 3]
    two = np.array([3, 4, 9, 15])
    assert _close(two, 8, 4, np.array([2, 2])).tolist() == [0, 1, 4, 5]
