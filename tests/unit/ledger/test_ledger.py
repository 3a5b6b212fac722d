from __future__ import annotations

from dataclasses import dataclass, replace

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
from broaden.ledger.memory import (
    PROCESS,
    TOKENIZER,
    WORKER,
    Decoding,
    human,
    kv_bytes_per_token,
    with_self_test,
)

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


DRAWN = Decoding(rows=20, prompts=5, prompt=70, new=60, slots=64, dtype="bfloat16", members=3)
TOKEN = 2 * 2 * 2 * 4 * 2  # keys and values, layers, heads, width, bytes
WIDTH = 3 * 16 + 2 * 6 * 4 + 3 * 32  # h, x, delta; q, k, v, mixed; gate, up, act


def test_decoding_by_hand() -> None:
    """20 rows are 32 seats; 130 positions are three tiles of 64, a prefix of 69 tokens two."""
    assert kv_bytes_per_token(Shape(), "bfloat16") == TOKEN
    assert DRAWN.seats(Shape()) == 32
    assert DRAWN.rollout(Shape(), 5000) == {
        "KV cache": 32 * 192 * TOKEN,
        "KV cache of prompts": 5 * 128 * TOKEN,
        "completions": 3 * 20 * 60 * (8 + 4),
    }
    assert DRAWN.kept(Shape(), 5000) == {
        "working copies": 3 * 5000 * 2,
        "decoding: activations and logits": (32 * (WIDTH + 100) + 352 * WIDTH) * 2,  # 5 x 69 prompt tokens
    }


def test_decoding_in_lanes_batches_and_few_slots() -> None:
    one = replace(DRAWN, members=1)
    assert replace(one, slots=16).seats(Shape()) == 16
    assert (
        replace(one, lanes=2).rollout(Shape(), 5000)["KV cache"] == 2 * one.rollout(Shape(), 5000)["KV cache"]
    )
    together = replace(DRAWN, batch=3).rollout(Shape(), 5000)
    assert together["KV cache"] == 3 * one.rollout(Shape(), 5000)["KV cache"]
    direct = replace(one, rows=20, prompts=20).rollout(Shape(), 5000)
    assert direct["KV cache of prompts"] == 0  # one sample each: straight into their rows
    twice = replace(DRAWN, packed=True, lanes=2).rollout(Shape(), 5000)
    assert twice["packed weights"] == 2 * 5000 * 2  # three members on two threads
    low = replace(one, batch=4, factors=7)
    assert low.kept(Shape(), 5000)["factors of low-rank members (16 bit)"] == 14
    long = replace(one, rows=10_000, prompts=1, slots=4096, prompt=60, new=100_000)  # 1,564 tiles of 64
    assert long.seats(Shape()) == (2 << 30) // ((1564 + 1) * 64 * TOKEN) // 16 * 16
    with pytest.raises(MetricError):
        replace(one, rows=0)


def test_memory_of_es_has_no_optimiser() -> None:
    kept, rollout = (sum(x.values()) for x in (DRAWN.kept(Shape(), 5000), DRAWN.rollout(Shape(), 5000)))
    base = PROCESS + TOKENIZER * 100
    assert plan_es(Shape(), 5000, DRAWN).peak == base + 20_000 + kept + rollout
    assert plan_es(Shape(), 5000, DRAWN, low_memory=True, theta_0=True).peak == base + kept + rollout
    assert plan_es(Shape(), 5000, DRAWN, theta_0=True).peak == base + 40_000 + kept + rollout
    two = plan_es(Shape(), 5000, DRAWN, workers=2)  # they read the master itself
    assert two.peak == base + 2 * (WORKER + TOKENIZER * 100) + 20_000 + 2 * (kept + rollout)
    assert plan_es(Shape(), 5000, None).peak == base + 20_000
    there = plan_es(Shape(), 5000, DRAWN, on_device=True)
    assert (there.peak, there.device_peak) == (base + 20_000, kept + rollout)


def test_the_self_test_counts_where_it_needs_more_than_what_comes_after_it() -> None:
    needed = 3 * 4 * (2 * (16 * (2 * 16 + 2 * 8) + 3 * 16 * 32) + 100 * 16)
    walk = with_self_test(plan_es(Shape(), 5000, None), Shape(), "float32")
    assert walk.phases["self-test"] == {"beyond the engine": needed}
    assert walk.peak == PROCESS + TOKENIZER * 100 + 20_000 + needed
    small = plan_es(Shape(), 5000, replace(DRAWN, members=1))
    later = sum(small.always.values()) - PROCESS - TOKENIZER * 100 - 20_000
    assert with_self_test(small, Shape(), "float32").phases["self-test"] == {
        "beyond the engine": max(0, needed - later)
    }
    assert with_self_test(plan_es(Shape(), 10**6, DRAWN), Shape(), "float32").phases["self-test"] == {
        "beyond the engine": 0
    }


def test_a_probe_has_an_engine_of_its_own() -> None:
    probe = replace(DRAWN, members=1, rows=64)
    plan, with_probe = plan_es(Shape(), 5000, DRAWN), plan_es(Shape(), 5000, DRAWN, probe=probe)
    kept = sum(probe.kept(Shape(), 5000).values())
    assert sum(with_probe.always.values()) == sum(plan.always.values()) + kept
    worst = max(sum(x.rollout(Shape(), 5000).values()) for x in (probe, DRAWN))
    assert with_probe.peak == sum(with_probe.always.values()) + worst


def test_memory_of_training() -> None:
    drawn = replace(DRAWN, members=1, dtype="float32")
    plan = plan_grpo(Shape(), 5000, drawn, micro_batch=2)
    assert plan.always["AdamW moments (fp32)"] == 40_000
    assert plan.always["working copies (1 x 1)"] == 20_000
    training, width = plan.phases["training"], 4 * 16 + 2 * 6 * 4 + 3 * 32
    assert training["activations"] == 2 * 130 * 2 * width * 4
    assert training["logits and their gradient"] == 2 * 4 * 260 * 100
    assert training["weights cast for the passes"] == 0
    grouped = plan_grpo(Shape(), 5000, drawn, micro_batch=4, group=4).phases["training"]
    assert grouped["activations"] == (70 + 4 * 60) * 2 * width * 4  # their prompt is passed once
    less = plan_grpo(Shape(), 5000, drawn, micro_batch=2, checkpointing=True)
    assert less.phases["training"]["activations"] < training["activations"]
    half = plan_grpo(Shape(), 5000, drawn, micro_batch=2, compute="bfloat16")
    assert half.phases["training"]["weights cast for the passes"] == 10_000
    assert half.phases["training"]["activations"] == training["activations"] // 2
    warm = plan_sft(Shape(), 5000, micro_batch=2, context=130, noisy=True)
    assert sum(warm.always.values()) == PROCESS + TOKENIZER * 100 + 5000 * (4 + 8 + 4)
    padded = 6 * 16 + 6 * 16 + 3 * 8 + 4 * 32
    assert warm.phases["training"]["activations"] == 2 * 130 * 2 * padded * 4
    assert warm.phases["training"]["logits and their gradient"] == 4 * 4 * 260 * 100


def test_memory_of_an_evaluation() -> None:
    drawn = replace(DRAWN, members=1, numbers=1)
    plan = plan_eval(Shape(), 5000, drawn, samples=100, workers=2)
    assert plan.always["weights that worker processes read (fp32)"] == 20_000
    assert plan.always["samples, as long as they may be"] == 100 * (60 * 40 + 1500)
    assert plan.phases["rollout"]["completions"] == 2 * 20 * 60 * (8 + 4 + 36)


def test_the_table_is_aligned_and_ends_with_the_peak() -> None:
    plan = plan_es(Shape(), 134_515_008, replace(DRAWN, members=1))
    lines = plan.table().splitlines()
    assert len({len(line) for line in lines}) == 1
    assert lines[0].startswith("always")
    assert lines[1].endswith("513 MiB")
    assert "peak" in lines[-1]


def test_human_sizes() -> None:
    assert [human(n) for n in (10, 2048, 1023 * 1024, 5 * 1024**3, 3 * 1024**4)] == [
        "10 B",
        "2 KiB",
        "1023 KiB",
        "5 GiB",
        "3 TiB",
    ]
