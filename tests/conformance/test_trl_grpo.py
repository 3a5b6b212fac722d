"""GRPO against TRL's GRPOTrainer on the same batch: advantages, loss and gradients in fp32, each aggregation.

TRL is a test-only extra (`pip install "broaden[peers]"`); without it the file is skipped.
"""

from __future__ import annotations

import dataclasses
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from broaden.grpo.advantage import group_advantages
from broaden.grpo.loss import row_weights, token_losses
from broaden.grpo.policy import Policy
from broaden.grpo.rollouts import Rollouts, packed
from broaden.grpo.settings import GrpoSettings, preset
from broaden.models import nano
from broaden.models.init import random_weights
from broaden.models.optimizer import Weights
from broaden.models.spec import ModelSpec
from broaden.population.base import Prompt
from broaden.records import Completion, Message, Problem, Verdict

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    trl = pytest.importorskip("trl", reason="TRL is in the peers extra")

pytestmark = pytest.mark.filterwarnings("ignore")  # TRL's and its dependencies' own

GROUP, LIMIT = 4, 9
SPEC = ModelSpec.from_config(nano.config())
REWARDS = [1.0, 0.0, 0.1, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0]
LENGTHS = [3, 9, 5, 1, 4, 4, 2, 7, 9, 6, 2, 8]
RNG = np.random.Generator(np.random.Philox(key=7))
COMPLETIONS = [tuple(int(t) for t in RNG.integers(20, 60, size=n)) for n in LENGTHS]
PROMPTS = [(98, 40 + i, 41, 42)[: 3 + i % 2] for i in range(3)]
WEIGHTS, REFERENCE, OLD = random_weights(SPEC, 1), random_weights(SPEC, 1), random_weights(SPEC, 1)
for _n, _w in REFERENCE.items():
    _w += 0.01 * torch.from_numpy(RNG.standard_normal(tuple(_w.shape), dtype="float32"))
    OLD[_n] += 0.01 * torch.from_numpy(RNG.standard_normal(tuple(_w.shape), dtype="float32"))


def rollouts() -> Rollouts:
    completions = [Completion(c, "stop", (0.0,) * len(c), (0.0,) * len(c)) for c in COMPLETIONS]
    prompts = [Prompt(Problem(str(i), "x", (Message("user", ""),), ""), p) for i, p in enumerate(PROMPTS)]
    return packed(prompts, completions, tuple(Verdict("wrong", 0.0, r) for r in REWARDS), GROUP)


def ours(settings: GrpoSettings, off_policy: bool) -> tuple[np.ndarray, float, Weights]:
    """(advantages, loss, gradients) from the pure functions that the trainer calls."""
    batch, policy = rollouts(), Policy(SPEC, settings.temperature)
    rows = np.arange(len(REWARDS))
    groups = [int(g) for g in batch.groups_R]
    advantage_R = group_advantages(REWARDS, groups, scale=settings.scale, eps=settings.scale_eps).values_R
    leaves = {n: w.clone().requires_grad_(True) for n, w in WEIGHTS.items()}
    logp_N, entropy_N, _ = policy.logprobs(leaves, batch, rows)
    old_N = policy.scan(OLD, batch, rows)[0] if off_policy else logp_N.detach()
    reference_N = policy.scan(REFERENCE, batch, rows)[0] if settings.kl else None
    row_N = np.repeat(rows, batch.lengths_R)
    weights_R = row_weights(batch.lengths_R, settings.aggregation, settings.max_new_tokens)
    advantage_N = torch.from_numpy(advantage_R[row_N]).float()
    out = token_losses(logp_N, old_N, reference_N, advantage_N, entropy_N, settings.loss())
    loss = (torch.from_numpy(weights_R[row_N]).float() * out.loss_N).sum()
    grads = torch.autograd.grad(loss, list(leaves.values()))
    return advantage_R, float(loss.detach()), dict(zip(leaves, grads, strict=True))


def state(weights: Weights) -> Weights:
    """For load_state_dict: transformers names the tied head too."""
    return {**weights, "lm_head.weight": weights["model.embed_tokens.weight"]}


def llama(folder: Path) -> Any:
    """The model as TRL likes it: loaded from a folder (it loads its reference from there again)."""
    nano.write_folder(folder)
    model = transformers.LlamaForCausalLM(transformers.AutoConfig.from_pretrained(folder))
    model.load_state_dict(state(WEIGHTS))
    model.save_pretrained(folder)
    return transformers.LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)


def theirs(folder: Path, off_policy: bool, **options: Any) -> tuple[np.ndarray, float, Weights]:
    """The same from GRPOTrainer: its own scoring, normalisation and loss on completions handed to it."""
    import datasets

    model = llama(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    args = trl.GRPOConfig(
        output_dir=str(folder / "out"), num_generations=GROUP, per_device_train_batch_size=len(REWARDS),
        max_completion_length=LIMIT, use_cpu=True, bf16=False, report_to="none", disable_dropout=True, **options,
    )  # fmt: skip

    def rollout(prompts: Any, trainer: Any) -> dict[str, Any]:
        ids = [list(PROMPTS[i // GROUP]) for i in range(len(REWARDS))]
        return {"prompt_ids": ids, "completion_ids": [list(c) for c in COMPLETIONS], "logprobs": None}

    trainer = trl.GRPOTrainer(
        model, reward_funcs=lambda completions, **_: REWARDS, args=args, processing_class=tokenizer,
        train_dataset=datasets.Dataset.from_dict({"prompt": ["a", "b", "c"]}), rollout_func=rollout,
    )  # fmt: skip
    if options.get("beta"):
        trainer.ref_model.load_state_dict(state(REFERENCE))
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    inputs = trainer._generate_and_score_completions([{"prompt": "a"}] * len(REWARDS))
    if off_policy:
        trainer.model.load_state_dict(state(OLD))
        inputs["old_per_token_logps"] = their_logps(trainer, inputs)
        trainer.model.load_state_dict(state(WEIGHTS))
    loss = trainer._compute_loss(trainer.model, inputs)
    loss.backward()
    grads = {n: p.grad for n, p in trainer.model.named_parameters()}
    return inputs["advantages"].numpy(), float(loss.detach()), grads


def their_logps(trainer: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
    mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
    keep = inputs["completion_ids"].shape[1]
    with torch.no_grad():
        return torch.as_tensor(trainer._get_per_token_logps_and_entropies(trainer.model, ids, mask, keep)[0])


CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("default", {}, {}),
    ("sequence", {"aggregation": "sequence"}, {"loss_type": "grpo"}),
    ("constant", {"aggregation": "constant"}, {"loss_type": "dr_grpo"}),
    ("no scaling", {"scale": "none"}, {"scale_rewards": "none"}),
    ("kl times ratio", {"kl": 0.3}, {"beta": 0.3}),
    ("kl as a value", {"kl": 0.3, "kl_gradient": "value"}, {"beta": 0.3, "use_bias_correction_kl": False}),
    ("clip-higher", {"clip_low": 0.1, "clip_high": 0.28}, {"epsilon": 0.1, "epsilon_high": 0.28}),
    ("dual clip", {"dual_clip": 1.3}, {"delta": 1.3}),
    ("temperature", {"temperature": 0.7}, {"temperature": 0.7}),
    ("entropy bonus", {"entropy_bonus": 0.05}, {"entropy_coef": 0.05}),
]


@pytest.mark.parametrize("off_policy", [False, True], ids=["on-policy", "off-policy"])
@pytest.mark.parametrize(("name", "here", "there"), CASES, ids=[c[0] for c in CASES])
def test_equals_trl(
    tmp_path: Path, name: str, here: dict[str, Any], there: dict[str, Any], off_policy: bool
) -> None:
    settings = dataclasses.replace(preset("trl", updates=1, max_new_tokens=LIMIT), **here)
    advantages, loss, grads = ours(settings, off_policy)
    want_advantages, want_loss, want_grads = theirs(tmp_path, off_policy, **there)
    np.testing.assert_allclose(advantages, want_advantages, rtol=1e-5, atol=1e-6)
    assert loss == pytest.approx(want_loss, rel=1e-5, abs=1e-6)
    for n, g in grads.items():
        # 1e-5 relative to the tensor's largest entry: two fp32 programs that sum in different orders
        scale = float(want_grads[n].abs().max())
        torch.testing.assert_close(g, want_grads[n], rtol=1e-5, atol=1e-5 * scale)


def test_preset_states_trls_defaults() -> None:
    config = trl.GRPOConfig(output_dir="x", use_cpu=True, bf16=False, report_to="none")
    settings = preset("trl", updates=1)
    assert (settings.group, settings.max_new_tokens) == (config.num_generations, config.max_completion_length)
    assert (settings.clip_low, settings.kl, settings.inner) == (
        config.epsilon,
        config.beta,
        config.num_iterations,
    )
    assert (settings.learning_rate, settings.clip) == (config.learning_rate, config.max_grad_norm)
    assert (settings.beta1, settings.beta2, settings.weight_decay) == (
        config.adam_beta1, config.adam_beta2, config.weight_decay,
    )  # fmt: skip
    assert (config.loss_type, config.scale_rewards, config.use_bias_correction_kl) == ("dapo", "group", True)
    assert settings.schedule == config.lr_scheduler_type
    assert settings.mask_truncated == config.mask_truncated_completions
