from __future__ import annotations

from dataclasses import dataclass

import pytest

from broaden.errors import MetricError
from broaden.ledger import (
    Budget,
    EsPlan,
    Flops,
    GrpoPlan,
    ModelSize,
    attention_flops,
    es_full,
    grpo_full,
    match_members,
    plan_es,
    plan_eval,
    plan_grpo,
    plan_sft,
    sft_full,
)
from broaden.ledger.memory import human, kv_bytes_per_token

SIZE = ModelSize(1000, layers=2, width=8)


def test_budgets_add() -> None:
    total = Budget(1, 10, 1.0, 2.0, 0.5) + Budget(2, 20, 3.0, 4.0, 1.0)
    assert total == Budget(3, 30, 4.0, 6.0, 1.5)
    assert Budget.from_json(total.to_json()) == total
    assert set(total.to_json()) == {"updates", "tokens", "flops_paper", "flops_full", "seconds"}


def test_attention_is_a_sum_over_positions() -> None:
    by_hand = sum(2 * (2 * 8 * position) * 2 for position in range(6, 6 + 4))  # 4 tokens after 5
    assert attention_flops(SIZE, 5, 4) == by_hand
    assert attention_flops(ModelSize(1000), 5, 4) == 0.0


def test_es_shares_a_prompts_prefill_among_samples() -> None:
    got = es_full(SIZE, updates=3, members=4, prompts=5, samples=2, prompt_tokens=7, response_tokens=11)
    assert got.prefill == 2 * 1000 * 3 * 4 * 5 * 7
    assert got.decode == 2 * 1000 * 3 * 4 * 5 * 2 * 11
    prompts, responses = attention_flops(SIZE, 0, 7), attention_flops(SIZE, 7, 11)
    assert got.attention == 60 * prompts + 120 * responses
    assert got.total == got.prefill + got.decode + got.attention
    twice = es_full(
        SIZE, updates=3, members=4, prompts=5, samples=2, prompt_tokens=7, response_tokens=11, antithetic=True
    )
    assert twice.total == 2 * got.total


def test_grpo_attention_counts_each_pass() -> None:
    arguments = {"updates": 1, "prompts": 1, "group": 1, "prompt_tokens": 3, "response_tokens": 2}
    rollout = attention_flops(SIZE, 0, 3) + attention_flops(SIZE, 3, 2)
    for kl, old, passes in ((False, False, 3), (True, False, 4), (True, True, 5)):
        got = grpo_full(SIZE, **arguments, kl=kl, old_pass=old)  # type: ignore[arg-type]
        assert got.attention == rollout + passes * attention_flops(SIZE, 0, 5)


def test_flops_add_and_sft() -> None:
    assert sft_full(ModelSize(1000), sequences=2, tokens=10).total == 6 * 1000 * 20
    assert (Flops(decode=1.0) + Flops(decode=2.0, prefill=3.0)) == Flops(prefill=3.0, decode=3.0)
    with pytest.raises(MetricError, match="negative"):
        es_full(SIZE, updates=1, members=-1, prompts=1, prompt_tokens=1, response_tokens=1)


def test_plans_count_tokens() -> None:
    es = EsPlan(
        members=8, prompts=4, updates=2, prompt_tokens=10, response_tokens=5, samples=3, antithetic=True
    )
    assert es.budget(SIZE).tokens == 2 * 16 * 4 * 3 * 5
    assert es.paper(SIZE) == 2 * 1000 * es.budget(SIZE).tokens
    grpo = GrpoPlan(group=8, prompts=4, updates=2, prompt_tokens=10, response_tokens=5)
    assert grpo.budget(SIZE).tokens == 2 * 4 * 8 * 5
    free = EsPlan(members=8, prompts=4, updates=2, prompt_tokens=0, response_tokens=0)
    with pytest.raises(MetricError, match="costs nothing"):
        match_members(free, grpo, SIZE)


@dataclass(frozen=True)
class Shape:
    layers: int = 2
    hidden: int = 16
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 4
    ffn: int = 32
    vocab: int = 100


def test_memory_of_es_has_no_optimiser() -> None:
    plan = plan_es(Shape(), 5000, members_at_once=3, slots=6, context=64, dtype="bfloat16")
    assert plan.always == {
        "master (fp32)": 20_000,
        "anchor theta_0 (fp32)": 20_000,
        "working copies (1 x 3)": 30_000,
    }
    assert kv_bytes_per_token(Shape(), "bfloat16") == 2 * 2 * 2 * 4 * 2
    assert plan.phases["rollout"]["KV cache"] == 6 * 64 * 64
    assert plan.phases["rollout"]["logits"] == 2 * 4 * 6 * 100
    rollout = sum(plan.phases["rollout"].values())
    assert plan.peak == 70_000 + max(rollout, 8 * 1600)
    assert "packed weights" not in plan.phases["rollout"]
    packed = plan_es(Shape(), 5000, members_at_once=3, slots=6, context=64, dtype="bfloat16", packed=2)
    assert packed.phases["rollout"] == {**plan.phases["rollout"], "packed weights": 20_000}
    two = plan_es(Shape(), 5000, members_at_once=3, slots=6, context=64, dtype="bfloat16", workers=2)
    assert two.phases["rollout"]["KV cache"] == 2 * 6 * 64 * 64
    assert two.always["working copies (2 x 3)"] == 60_000
    assert two.always["copy that worker processes read (fp32)"] == 20_000


def test_memory_of_grpo_and_eval() -> None:
    plan = plan_grpo(Shape(), 5000, slots=4, context=64, micro_batch=2)
    assert plan.always["AdamW moments (fp32)"] == 40_000
    assert plan.always["working copy"] == 20_000
    assert plan.always["anchor theta_0 (fp32)"] == 20_000
    assert plan.phases["training"]["weights cast for the passes"] == 0
    width = 4 * 16 + 2 * 6 * 4 + 4 * 32
    assert plan.phases["training"]["activations"] == 128 * 2 * width * 4
    assert plan.phases["training"]["logits and their gradient"] == 3 * 4 * 128 * 100
    less = plan_grpo(Shape(), 5000, slots=4, context=64, micro_batch=2, checkpointing=True)
    assert less.peak < plan.peak
    half = plan_grpo(
        Shape(),
        5000,
        slots=4,
        context=64,
        micro_batch=2,
        dtype="bfloat16",
        compute="bfloat16",
        stage_start=True,
    )
    assert half.always["working copy"] == 10_000
    assert half.always["reference (fp32)"] == 20_000
    assert half.phases["training"]["weights cast for the passes"] == 10_000
    assert half.phases["training"]["activations"] == plan.phases["training"]["activations"] // 2
    warm = plan_sft(Shape(), 5000, micro_batch=2, context=64, noisy=True)
    assert sum(warm.always.values()) == 5000 * (4 + 8 + 4 + 4)
    assert warm.phases["training"] == plan.phases["training"]
    assert plan_eval(Shape(), 5000, slots=4, context=64).always == {"weights": 20_000}
    with pytest.raises(MetricError):
        plan_eval(Shape(), 5000, slots=0, context=64)


def test_the_table_is_aligned_and_ends_with_the_peak() -> None:
    plan = plan_es(Shape(), 134_515_008, members_at_once=1, slots=64, context=512, dtype="bfloat16")
    lines = plan.table().splitlines()
    assert len({len(line) for line in lines}) == 1
    assert lines[0].startswith("always")
    assert lines[0].endswith("513 MiB")
    assert "peak" in lines[-1]


def test_human_sizes() -> None:
    assert [human(n) for n in (10, 2048, 1023 * 1024, 5 * 1024**3, 3 * 1024**4)] == [
        "10 B",
        "2 KiB",
        "1023 KiB",
        "5 GiB",
        "3 TiB",
    ]
