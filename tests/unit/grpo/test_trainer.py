"""The GRPO trainer on a toy with the real engine: learning, exact resume, invariances, gates, telemetry."""

from __future__ import annotations

import dataclasses
import gc
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from tests.helpers.grpo_toy import EOS, SPEC, VOCAB, ToyHost, center, even_first, host, prompts

from broaden.engines import ScriptedEngine, TorchEngine
from broaden.errors import ConfigError, DivergedError
from broaden.es.schedule import batch_indices as es_batch_indices
from broaden.grpo import trainer as grpo_trainer
from broaden.grpo.minibatch import batch_indices, micro_batches, minibatches
from broaden.grpo.policy import Leaves, Policy
from broaden.grpo.rollouts import Rollouts, collect, packed
from broaden.grpo.settings import PRESETS, GrpoSettings, differences, preset
from broaden.grpo.trainer import Update, optimizer_for, train
from broaden.models.optimizer import AdamW, Weights
from broaden.records import Completion, Verdict

BASE = GrpoSettings(
    updates=4, prompts=4, group=4, max_new_tokens=3, minibatch=None, kl=0.0, learning_rate=0.02, micro_batch=5
)


def change(**values: Any) -> GrpoSettings:
    return dataclasses.replace(BASE, **values)


def run(
    settings: GrpoSettings,
    weights: Weights,
    where: ToyHost,
    *,
    start: int = 0,
    optimizer: AdamW | None = None,
    **kw: Any,
) -> list[dict[str, Any]]:
    optimizer = optimizer or optimizer_for(weights, settings)
    records = train(SPEC, weights, where, settings, run_seed=3, optimizer=optimizer, start_step=start, **kw)
    return [r.values for r in records]


def sampled(settings: GrpoSettings, weights: Weights) -> Rollouts:
    where = host()
    return collect(where, weights, range(4), settings.group, settings.sampling, run_seed=3, step=0)


class Spy(AdamW):
    """Keeps the gradients it is given and leaves the weights alone."""

    def step(self, weights: Weights, gradients: Any, lr: float, scale: float = 1.0) -> None:
        self.seen = {n: g.clone() for n, g in gradients.items()}


def gradient(settings: GrpoSettings, rollouts: Rollouts, reference: Weights | None = None) -> Weights:
    weights = center()
    spy = Spy(weights)
    Update(SPEC, weights, rollouts, settings, 3, 0).run(spy, reference)
    return spy.seen


def test_it_learns_and_its_null_does_not() -> None:
    settings = change(updates=12, prompts=8, group=8)
    learned = run(settings, center(), host())
    null = run(dataclasses.replace(settings, control="permuted_advantages"), center(), host())
    gain = [np.mean([v["reward"] for v in values[-3:]]) - values[0]["reward"] for values in (learned, null)]
    assert gain[0] > 0.3
    assert gain[1] < 0.5 * gain[0]


@pytest.mark.parametrize("cut", [1, 3])
def test_interrupted_and_resumed_is_bit_equal(cut: int) -> None:
    settings = change(kl=0.01, minibatch=2, inner=2)
    straight, resumed, reference = center(), center(), center()
    run(settings, straight, host(), reference=reference)

    optimizer = optimizer_for(resumed, settings)
    records = train(SPEC, resumed, host(), settings, run_seed=3, optimizer=optimizer, reference=reference)
    for _ in range(cut):
        next(records)
    records.close()
    weights = {n: w.clone() for n, w in resumed.items()}
    again = optimizer_for(weights, settings)
    again.load({n: t.clone() for n, t in optimizer.state().items()})
    run(settings, weights, host(), start=cut, optimizer=again, reference=reference)
    assert all(torch.equal(straight[n], weights[n]) for n in straight)
    assert not torch.equal(straight["model.norm.weight"], reference["model.norm.weight"])


@pytest.mark.parametrize("aggregation", ["sequence", "token", "constant"])
@pytest.mark.parametrize("micro_batch", [1, 2, 8])
def test_gradient_does_not_depend_on_micro_batches(aggregation: str, micro_batch: int) -> None:
    settings = change(aggregation=aggregation, kl=0.1, entropy_bonus=0.01, micro_batch=16)
    rollouts, reference = sampled(settings, center()), center(2)
    whole = gradient(settings, rollouts, reference)
    parts = gradient(dataclasses.replace(settings, micro_batch=micro_batch), rollouts, reference)
    for n, g in whole.items():
        # fp32 sums in another order: a few units in the last place of the largest entry
        torch.testing.assert_close(parts[n], g, rtol=1e-5, atol=2e-6 * float(g.abs().max() + 1e-3))


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_gradient_is_that_of_a_direct_computation(temperature: float) -> None:
    """Independent: whole rows through transformers, the loss written out row by row."""
    import transformers

    settings = change(kl=0.1, kl_estimator="k3", temperature=temperature)
    weights, reference = center(), center(2)
    rollouts = sampled(settings, weights)
    got = gradient(settings, rollouts, reference)

    config = transformers.LlamaConfig(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=32, rms_norm_eps=1e-6, tie_word_embeddings=True, pad_token_id=0,
    )  # fmt: skip

    def model(of: Weights) -> Any:
        m = transformers.LlamaForCausalLM(config)
        m.load_state_dict({**of, "lm_head.weight": of["model.embed_tokens.weight"]})
        return m

    def row(m: Any, i: int) -> torch.Tensor:
        ids = torch.from_numpy(
            rollouts.rows.flat[rollouts.rows.starts[i] : rollouts.rows.starts[i + 1]]
        ).long()
        p = int(rollouts.rows.prompts[i])
        logits = m(ids[None]).logits[0, p - 1 : -1] / temperature
        return logits.log_softmax(-1).gather(1, ids[p:, None])[:, 0]

    policy, other = model(weights), model(reference)
    rewards = np.array(rollouts.rewards, float).reshape(4, 4)
    std = rewards.std(1, keepdims=True)
    advantages = np.where(
        std > 0, (rewards - rewards.mean(1, keepdims=True)) / np.where(std > 0, std, 1), 0
    ).ravel()
    loss = torch.zeros(())
    for i in range(16):
        logp = row(policy, i)
        ref = row(other, i).detach()
        k3 = torch.exp(ref - logp) - (ref - logp) - 1
        ratio = torch.exp(logp - logp.detach())
        loss = loss + (-ratio * float(advantages[i]) + 0.1 * k3).mean() / 16
    loss.backward()
    for n, p in policy.named_parameters():
        torch.testing.assert_close(got[n], p.grad, rtol=1e-4, atol=1e-6)


def test_on_policy_the_ratio_is_one_and_sampler_and_trainer_agree() -> None:
    (values,) = run(change(updates=1), center(), host())
    assert values["optimizer_steps"] == 1
    assert values["ratio_max"] == 1.0
    assert values["clip_low"] == values["clip_high"] == 0.0
    assert values["sampler_gap_max"] < 1e-5
    assert values["first_token_ratio"] == pytest.approx(1.0, abs=1e-5)


def test_sampler_gap_is_measured_at_other_temperatures_too() -> None:
    (values,) = run(change(updates=1, temperature=0.7), center(), host())
    assert values["ratio_max"] == 1.0
    assert values["sampler_gap_max"] < 1e-5


def test_a_second_minibatch_is_off_policy() -> None:
    (values,) = run(change(updates=1, minibatch=2, prompts=4), center(), host())
    assert values["optimizer_steps"] + values["skipped_steps"] == 2
    assert values["ratio_max"] > 1.0
    assert values["sampler_gap_max"] < 1e-5  # measured before the first step


@pytest.mark.parametrize("value", [0.0, 0.3, 1.0])
def test_equal_rewards_touch_nothing(value: float) -> None:
    weights = center()
    optimizer = optimizer_for(weights, BASE)
    values = run(BASE, weights, host(lambda text: value), optimizer=optimizer)
    assert [v["skipped_steps"] for v in values] == [1] * 4
    assert values[0]["informative"] == 0.0
    assert values[0]["loss"] is None
    assert values[0]["grad_norm"] is None
    assert optimizer.steps == 0
    assert all(torch.equal(weights[n], w) for n, w in center().items())


def test_all_truncated_and_masked_is_skipped() -> None:
    """Completions never end, and truncated ones are masked: nothing is left, nothing moves, nothing is NaN."""
    engine = Endless()
    weights = center()
    values = run(change(mask_truncated=True, updates=1), weights, host(engine=engine))
    assert values[0]["truncated"] == 1.0
    assert (values[0]["masked"], values[0]["skipped_steps"]) == (16, 1)
    assert all(torch.equal(weights[n], w) for n, w in center().items())


class Endless(ScriptedEngine):
    """Even or odd first tokens by key, no EOS; log-probabilities and entropy of a uniform sampler."""

    def __init__(self) -> None:
        shapes = {n: tuple(w.shape) for n, w in center().items()}
        super().__init__(lambda w, request, s: [1 + request.key % 10] * 9, {EOS}, shapes=shapes)

    def generate(self, requests: Any, sampling: Any, on_progress: Any = None) -> list[list[Completion]]:
        plain = dataclasses.replace(sampling, logprobs=False, entropy=False)
        answers = super().generate(requests, plain, on_progress)
        return [
            [
                dataclasses.replace(c, logprobs=(-2.3,) * len(c.token_ids), entropy=(2.3,) * len(c.token_ids))
                for c in row
            ]
            for row in answers
        ]


def hand_made(rewards: list[float | None], truncated: list[bool]) -> Rollouts:
    completions = [
        Completion((2, 4, EOS), "length" if cut else "stop", (-1.0,) * 3, (1.0,) * 3) for cut in truncated
    ]
    verdicts = tuple(
        Verdict("crashed", None, None) if r is None else Verdict("wrong", float(r == 1.0), r) for r in rewards
    )
    return packed(prompts(1), completions, verdicts, len(rewards))


def test_masked_rows_stay_in_the_baseline_and_leave_the_denominator() -> None:
    settings = change(mask_truncated=True)
    rollouts = hand_made([1.0, 0.0, 0.0, 0.0], [False, False, True, True])
    update = Update(SPEC, center(), rollouts, settings, 3, 0)
    assert update.advantage_R == pytest.approx([3**0.5, -(3**-0.5), -(3**-0.5), -(3**-0.5)])
    assert update.live_R.tolist() == [True, True, False, False]
    two = hand_made([1.0, 0.0], [False, False])
    masked, alone = gradient(settings, rollouts), gradient(settings, two)
    # the same two rows: advantages (sqrt 3, -1/sqrt 3) against (1, -1) on equal texts: sums 2/sqrt(3) against 0
    direction = gradient(settings, hand_made([1.0, 0.0, 0.0, 0.0], [False, True, True, True]))
    for n in masked:
        torch.testing.assert_close(alone[n], torch.zeros_like(alone[n]), rtol=0, atol=1e-6)
        torch.testing.assert_close(masked[n], direction[n] / 3, rtol=1e-4, atol=1e-6)


def test_unscored_rows_are_masked_and_counted() -> None:
    rollouts = hand_made([1.0, 0.0, None, None], [False] * 4)
    update = Update(SPEC, center(), rollouts, BASE, 3, 0)
    assert update.advantage_R.tolist() == [1.0, -1.0, 0.0, 0.0]
    assert update.live_R.tolist() == [True, True, False, False]
    assert update.values(1)["unscored"] == 2
    assert update.values(1)["masked"] == 0


def test_bfloat16_compute_keeps_a_float32_master() -> None:
    weights = center()
    values = run(change(compute="bfloat16", updates=2), weights, host())
    assert {w.dtype for w in weights.values()} == {torch.float32}
    assert values[0]["sampler_gap_max"] > 1e-4  # the gap shows the trainer's other precision
    assert values[0]["sampler_gap"] < 0.05


def test_passes_in_the_engines_working_copy_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """With several optimiser steps an update, the copy must follow the center from step to step."""
    found = []
    for borrowed in (True, False):
        if not borrowed:
            monkeypatch.setattr(grpo_trainer, "_room", lambda *_: None)
        weights = center()
        where = host(engine=TorchEngine(SPEC, {EOS}, dtype=torch.bfloat16))
        room = where.engine.weights(0)
        records = run(change(compute="bfloat16", updates=2, minibatch=2, inner=2), weights, where)
        if borrowed:  # the last leaves were the weights before the last of the update's four steps
            assert any(not torch.equal(room[n], w.bfloat16()) for n, w in weights.items())
        found.append((weights, [r["loss"] for r in records]))
    assert found[0][1] == found[1][1]
    assert all(torch.equal(found[0][0][n], found[1][0][n]) for n in found[0][0])


@pytest.mark.parametrize("compute", ["float32", "bfloat16"])
def test_the_sampler_knows_pi_old(monkeypatch: pytest.MonkeyPatch, compute: str) -> None:
    """Off-policy steps take it from the sampler after one micro-batch agreed; passing every row changes no bit."""
    passed: list[int] = []
    scan = Policy.scan

    def spy(self: Policy, weights: Weights, rollouts: Rollouts, rows: np.ndarray) -> Any:
        passed.append(len(rows))
        return scan(self, weights, rollouts, rows)

    monkeypatch.setattr(Policy, "scan", spy)
    found = []
    for trusting in (True, False):
        weights = center()
        where = host(engine=TorchEngine(SPEC, {EOS}, dtype=getattr(torch, compute)))
        if not trusting:
            monkeypatch.setattr(Update, "_old", lambda self, rows: self._scan(self.weights, rows))
        records = run(change(compute=compute, updates=3, minibatch=2), weights, where)
        assert all(r["sampler_gap_max"] == 0.0 and r["first_token_ratio"] == 1.0 for r in records)
        found.append((weights, [r["loss"] for r in records], [r["flops_full"] for r in records]))
    assert passed[:3] == [5, 5, 5]
    assert min(passed[3:]) > 5
    assert found[0][1:] == found[1][1:]
    assert all(torch.equal(found[0][0][n], found[1][0][n]) for n in found[0][0])


def test_another_precision_than_the_samplers_is_passed_whole() -> None:
    (values,) = run(change(compute="bfloat16", updates=1, minibatch=2), center(), host())
    assert values["sampler_gap_max"] > 1e-4


def test_nothing_of_an_optimiser_step_outlives_it() -> None:
    """Leaves and gradients go by reference counts alone: at large models a wait for the collector costs gigabytes."""
    weights = center()
    gc.collect()
    gc.disable()
    try:
        leaves = Leaves(weights, weights, torch.bfloat16)
        kept = [weakref.ref(leaves.weights[n]) for n in weights]
        logp = (
            Policy(SPEC, 1.0, torch.bfloat16)
            .logprobs(leaves.weights, sampled(BASE, weights), np.arange(4))
            .logp_N
        )
        logp.sum().backward()
        del leaves, logp
        assert all(r() is None for r in kept)
    finally:
        gc.enable()


def test_non_finite_weights_stop_before_the_step() -> None:
    weights = center()
    rollouts = sampled(BASE, weights)
    weights["model.norm.weight"].fill_(float("inf"))
    optimizer = optimizer_for(weights, BASE)
    with pytest.raises(DivergedError, match="update 0"):
        Update(SPEC, weights, rollouts, BASE, 3, 0).run(optimizer, None)
    assert optimizer.steps == 0


def test_flops_of_both_ledgers_by_hand() -> None:
    """One update with KL and two minibatches: policy, pi_old and reference passes over every row."""
    settings = change(updates=1, kl=0.01, minibatch=2)
    (values,) = run(settings, center(), host(), reference=center(), flops_per_token=10)
    tokens, prompt = values["tokens"], values["prompt_tokens"]
    assert prompt == sum(len(p.ids) for p in (host().prompts[i] for i in batch_indices(8, 4, 0, 3)))
    assert values["flops_paper"] == 40 * tokens
    rows = tokens + 4 * prompt  # each prompt again for each of its four responses
    assert values["flops_full"] == 10 * (tokens + prompt + 5 * rows)
    (free,) = run(change(updates=1), center(), host(), flops_per_token=10)
    assert free["flops_paper"] == 30 * free["tokens"]
    assert free["flops_full"] < 10 * (
        free["tokens"] + prompt + 3 * rows
    )  # rows without advantage cost nothing


def test_an_engine_of_several_members_gives_the_same_rollouts() -> None:
    one, two = host(), host(engine=TorchEngine(SPEC, {EOS}, members=2))
    a, b = (
        collect(h, center(), [3, 1, 3], 4, BASE.sampling, run_seed=3, step=2) for h in (one, two)
    )  # fmt: skip
    assert a.rows.flat.tolist() == b.rows.flat.tolist()
    assert a.groups_R.tolist() == [0] * 4 + [1] * 4 + [2] * 4  # the same prompt twice is two groups
    assert a.logprobs_N.tolist() == b.logprobs_N.tolist()


def test_drift_and_learning_rate_are_recorded() -> None:
    settings = change(schedule="linear", warmup=2)
    values = run(settings, center(), host(), origin=center())
    assert [v["learning_rate"] for v in values] == pytest.approx([0.01, 0.015, 0.01, 0.005])
    assert 0 < values[0]["drift"] < values[3]["drift"]


def test_es_and_grpo_see_the_same_prompts() -> None:
    for step in range(7):
        assert batch_indices(10, 4, step, 9) == es_batch_indices(10, 4, step, 9)


def test_minibatches_cover_the_batch_once_and_keep_groups() -> None:
    groups = np.repeat(np.arange(5), 3)
    by_prompt = minibatches(groups, 2, "prompts", 1, 0, 0)
    assert [len(p) for p in by_prompt] == [6, 6, 3]
    assert sorted(np.concatenate(by_prompt)) == list(range(15))
    assert all(len(p) == 3 * len(set(groups[p])) for p in by_prompt)
    by_row = minibatches(groups, 4, "responses", 1, 0, 0)
    assert [len(p) for p in by_row] == [4, 4, 4, 3]
    assert sorted(np.concatenate(by_row)) == list(range(15))
    assert any(
        (a != b).any()
        for a, b in zip(by_row[:3], minibatches(groups, 4, "responses", 1, 0, 1)[:3], strict=True)
    )
    (whole,) = minibatches(groups, None, "prompts", 1, 0, 0)
    assert whole.tolist() == list(range(15))


def test_micro_batches_keep_groups_and_sort_by_length() -> None:
    lengths, groups = np.array([3, 1, 2, 1, 9]), np.array([0, 0, 1, 1, 0])
    rows = np.array([0, 1, 2, 3])
    assert [m.tolist() for m in micro_batches(rows, lengths, groups, 2)] == [[3, 2], [1, 0]]
    assert [m.tolist() for m in micro_batches(rows, lengths, groups, 3)] == [[3, 2, 1], [0]]


def test_paper_preset_makes_two_steps_an_update() -> None:
    assert preset("paper", updates=1).steps_per_update == 2
    assert preset("paper", updates=1, minibatch_unit="responses").steps_per_update == 16
    assert preset("dapo", updates=1).steps_per_update == 16
    assert preset("trl", updates=1).steps_per_update == 1


def test_presets_build_and_differ_as_printed() -> None:
    for name in PRESETS:
        assert differences(preset(name, updates=1), name) == {}
    here = differences(preset("paper", updates=1), "trl")
    assert here["scale"] == ("population", "sample")
    assert here["aggregation"] == ("sequence", "token")
    assert "group" not in here
    with pytest.raises(ConfigError, match="no GRPO preset"):
        preset("ppo", updates=1)


def test_kl_without_reference_is_refused() -> None:
    with pytest.raises(ConfigError, match="reference"):
        run(change(kl=0.1), center(), host())


@pytest.mark.parametrize(
    "values",
    [
        {"updates": -1},
        {"group": 1},
        {"temperature": 0.0},
        {"minibatch": 0},
        {"learning_rate": 0.0},
        {"clip_low": 1.5},
        {"schedule": "linear", "learning_rate_end": 1.0},
    ],
)
def test_refuses(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        change(**values)


def test_even_first_by_hand() -> None:
    assert [even_first(t) for t in ("2 3", "10", "3 2", "")] == [1.0, 1.0, 0.0, 0.0]
