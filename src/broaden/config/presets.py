"""Named settings, each with its source. Precedence: preset, then file, then command line."""

from __future__ import annotations

from typing import Any

from broaden.errors import ConfigError

# arXiv 2608.27351, settings table: N = 32, mini-batch 64, sigma = 1.5e-3, alpha = 2.5e-4, one response a prompt.
_PAPER_ES: dict[str, Any] = {
    "members": 32, "prompts": 64, "samples": 1, "sigma": 1.5e-3, "alpha": 2.5e-4,
    "shaping": "zscore", "estimator": "one_point",
}  # fmt: skip

PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "es": {
        "paper-easy": {**_PAPER_ES, "updates": 234, "temperature": 0.0, "max_new_tokens": 2048},
        "paper-hard": {**_PAPER_ES, "temperature": 0.6, "max_new_tokens": 8192},
        # The bundled model's: chosen on the probe split, see dev/LOG.md.
        "nano": {"members": 32, "prompts": 256, "sigma": 0.01, "alpha": 0.006, "temperature": 1.0,
                 "max_new_tokens": 48},
    },
    "sft": {},
    "grpo": {"nano": {"prompts": 64, "group": 8, "minibatch": None, "learning_rate": 3e-4, "kl": 0.0,
                      "temperature": 1.0, "max_new_tokens": 48}},
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
