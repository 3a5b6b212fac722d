"""Group-relative policy optimisation over the library's own engine."""

from broaden.grpo.settings import PRESETS, GrpoSettings, preset
from broaden.grpo.trainer import optimizer_for, train

__all__ = ["PRESETS", "GrpoSettings", "optimizer_for", "preset", "train"]
