"""Three ES updates, by hash. Literal where only noise, update and a scripted engine take part; by (torch version,
instruction set) where the torch engine does, since matrix products round differently elsewhere.

A changed literal means that old runs no longer replay: raise NOISE_VERSION, or NUMERICS_VERSION for the engine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import pytest
import torch
from tests.helpers.letters import letters

from broaden import tasks
from broaden.engines import NUMERICS_VERSION, ScriptedEngine
from broaden.es import EsSettings, train
from broaden.models.checkpoint import load_model
from broaden.models.sources import resolve
from broaden.perturb import center_hash
from broaden.population import LocalPopulation, Prompt
from broaden.population.host import HostSettings, build_host
from broaden.records import Request, Sampling

SCRIPTED = "5d262da11974dad163f13c6105638510ca8271753206623faea9246a85f4295a"
TORCH: dict[tuple[str, str, int], str] = {
    ("2.13.0", "AVX512", 2): "28086e874735f99fc385af63fe8ea3195f74f849837d7b9ee557cc00d95ea456",
}
SETTINGS = EsSettings(updates=3, members=6, prompts=8, sigma=0.02, alpha=0.01, sampling=Sampling(1.0, 40))


def prompts(task: str, limit: int = 16) -> list[Prompt]:
    tokenizer = load_model("bundled:countdown-nano").tokenizer
    found = tasks.get(task).problems("train", None, limit, 0)
    return [Prompt(p, tokenizer.encode_chat(p.messages)) for p in found]


def script(weights: dict[str, torch.Tensor], request: Request, sampling: Sampling) -> Sequence[int]:
    """Characters that depend on the request's key and, through a weight's bits, on the member."""
    bits = weights["w"].numpy().tobytes()
    digest = hashlib.blake2b(bits + request.key.to_bytes(8, "little"), digest_size=12).digest()
    return [1 + b % 95 for b in digest]


def test_a_scripted_run_has_this_hash_everywhere() -> None:
    engine = ScriptedEngine(script, shapes={"w": (7, 9), "v": (5,)}, members=3)
    tokenizer = load_model("bundled:countdown-nano").tokenizer
    population = LocalPopulation(engine, tokenizer, tasks.get(letters()), prompts(letters()))
    center = {"w": torch.linspace(-1, 1, 63).reshape(7, 9), "v": torch.ones(5)}
    origin = {n: t.clone() for n, t in center.items()}
    for _ in train(center, origin, 16, population, SETTINGS, run_seed=3):
        pass
    assert center_hash(center) == SCRIPTED


def instruction_set() -> str:
    return str(torch.backends.cpu.get_cpu_capability())


def test_a_run_of_the_bundled_model_has_this_hash_here() -> None:
    folder = resolve("bundled:countdown-nano")
    center = load_model(folder).weights
    origin = {n: t.clone() for n, t in center.items()}
    host = build_host(HostSettings(str(folder), "countdown", members=6, max_context=80), prompts("countdown"))
    for _ in train(center, origin, 16, host, SETTINGS, run_seed=3):
        pass
    key = (torch.__version__.split("+")[0], instruction_set(), NUMERICS_VERSION)
    found = center_hash(center)
    if key not in TORCH:
        pytest.skip(f"no golden hash for torch, instruction set and numerics {key}; here it is {found}")
    assert found == TORCH[key]
