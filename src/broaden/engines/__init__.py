"""Engines: prompts and a sampling rule in, completions out.

`TorchEngine` is the library's own decode path; `build_engine` chooses between it and `generate.GenerateEngine`
(any architecture of transformers, imported only when asked for); `ScriptedEngine` answers from a function.
"""

from __future__ import annotations

from broaden.engines.base import NUMERICS_VERSION, Engine, OnProgress, Weights
from broaden.engines.build import build_engine, choose_device
from broaden.engines.lowrank import SharesBase
from broaden.engines.scripted import ScriptedEngine
from broaden.engines.selftest import SelfTestReport, prove, self_test
from broaden.engines.torch_engine import TorchEngine

__all__ = [
    "NUMERICS_VERSION",
    "Engine",
    "OnProgress",
    "ScriptedEngine",
    "SelfTestReport",
    "SharesBase",
    "TorchEngine",
    "Weights",
    "build_engine",
    "choose_device",
    "prove",
    "self_test",
]
