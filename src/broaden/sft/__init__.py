"""Supervised warm start: cross-entropy on completions."""

from broaden.models.rows import Examples
from broaden.sft.chat import ChatExamples
from broaden.sft.trainer import SftSettings, optimizer_for, train

__all__ = ["ChatExamples", "Examples", "SftSettings", "optimizer_for", "train"]
