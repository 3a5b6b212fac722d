"""Named settings, each with its source. Precedence: preset, then file, then command line."""

from __future__ import annotations

from typing import Any

from broaden.errors import ConfigError

# arXiv 2608.27351, settings table: N = 32, mini-batch 64, sigma = 1.5e-3, alpha = 2.5e-4, one response a prompt.
_PAPER_ES: dict[str, Any] = {
    "members": 32, "prompts": 64, "samples": 1, "sigma": 1.5e-3, "alpha": 2.5e-4,
    "shaping": "zscore", "estimator": "one_point",
}  # fmt: skip

GRPO: dict[str, dict[str, Any]] = {
    # arXiv 2608.27351: unit of the minibatch, KL estimator and gradient clipping are not stated there (ours).
    "paper": {
        "prompts": 64, "group": 8, "temperature": 1.0, "max_new_tokens": 2048,
        "minibatch": 32, "minibatch_unit": "prompts", "inner": 1, "micro_batch": 2,
        "scale": "population", "scale_eps": 0.0, "aggregation": "sequence", "clip_low": 0.2, "clip_high": 0.2,
        "kl": 0.001, "kl_estimator": "k3", "kl_gradient": "value", "learning_rate": 1e-6, "schedule": "constant",
    },
    # TRL 1.16 GRPOConfig: loss_type "dapo", beta 0, scale_rewards "group" (sample deviation + 1e-4), HF's linear
    # schedule, gradient norm 1; use_bias_correction_kl multiplies the KL estimate by the ratio.
    "trl": {
        "group": 8, "temperature": 1.0, "max_new_tokens": 512, "minibatch": None, "inner": 1,
        "scale": "sample", "scale_eps": 1e-4, "aggregation": "token", "clip_low": 0.2, "clip_high": 0.2,
        "kl": 0.0, "kl_estimator": "k3", "kl_gradient": "ratio", "mask_truncated": False,
        "learning_rate": 1e-6, "schedule": "linear", "learning_rate_end": 0.0, "clip": 1.0,
    },
    # verl's generated ppo_trainer.yaml: token-mean loss, dual clip at 3, no KL loss, weight decay 0.01; batches of
    # 1,024 prompts in minibatches of 256 prompts. It has no default group (rollout.n is 1), so none is stated.
    "verl": {
        "prompts": 1024, "temperature": 1.0, "max_new_tokens": 512,
        "minibatch": 256, "minibatch_unit": "prompts", "inner": 1,
        "scale": "sample", "scale_eps": 1e-6, "aggregation": "token", "clip_low": 0.2, "clip_high": 0.2,
        "dual_clip": 3.0, "kl": 0.0, "entropy_bonus": 0.0, "mask_truncated": False, "learning_rate": 1e-6,
        "schedule": "constant", "warmup": 0, "weight_decay": 0.01, "clip": 1.0,
    },
    # DAPO (arXiv 2503.14476): clip-higher, token mean, no KL, overlong filtering, 16 steps of 512 responses.
    # Its dynamic sampling (drawing again until every group is informative) is not part of it here.
    "dapo": {
        "prompts": 512, "group": 16, "temperature": 1.0, "minibatch": 512, "minibatch_unit": "responses", "inner": 1,
        "scale": "sample", "scale_eps": 1e-6, "aggregation": "token", "clip_low": 0.2, "clip_high": 0.28,
        "kl": 0.0, "mask_truncated": True, "learning_rate": 1e-6, "schedule": "constant", "warmup": 20,
    },
    # Dr. GRPO (arXiv 2503.20783): no deviation, no length normalisation, no KL.
    "dr": {
        "group": 8, "temperature": 1.0, "minibatch": None, "inner": 1,
        "scale": "none", "aggregation": "constant", "clip_low": 0.2, "clip_high": 0.2,
        "kl": 0.0, "learning_rate": 1e-6, "schedule": "constant",
    },
    # The bundled model's: chosen on the probe split by dev/tune_demo.py, see dev/LOG.md.
    "nano": {
        "prompts": 256, "group": 8, "minibatch": None, "learning_rate": 1e-3, "kl": 0.0, "temperature": 1.0,
        "max_new_tokens": 48,
    },
}  # fmt: skip

PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "es": {
        "paper-easy": {**_PAPER_ES, "updates": 234, "temperature": 0.0, "max_new_tokens": 2048},
        "paper-hard": {**_PAPER_ES, "updates": 630, "temperature": 0.6, "max_new_tokens": 8192},
        # The bundled model's: chosen on the probe split by dev/tune_demo.py, see dev/LOG.md.
        "nano": {"members": 32, "prompts": 256, "sigma": 0.01, "alpha": 0.012, "temperature": 1.0,
                 "max_new_tokens": 48},
    },
    "sft": {},
    "grpo": GRPO,
}  # fmt: skip


def apply_presets(data: dict[str, Any]) -> dict[str, Any]:
    """The raw config with every stage's preset filled in below the stage's own keys."""
    stages = data.get("stages")
    if not isinstance(stages, list):
        return data
    return {**data, "stages": [_filled(s) if isinstance(s, dict) else s for s in stages]}


def _filled(stage: dict[str, Any]) -> dict[str, Any]:
    name = stage.get("preset")
    if name is None:
        return stage
    known = PRESETS.get(str(stage.get("algo")), {})
    if name not in known:
        raise ConfigError(
            f"stage {stage.get('algo')!r} has no preset {name!r}", f"one of {sorted(known)}, or no preset"
        )
    return {**known[name], **stage}
