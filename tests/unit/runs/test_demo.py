"""The demo's arms are the configurations in configs/demo, and its null arms are what they say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from broaden.config import load_config
from broaden.metrics import Ratio
from broaden.runs.demo import DemoSettings, config, folder_of, mean_of, null_configs, stages_of

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("arm", DemoSettings().arms)
def test_an_arm_is_its_file(arm: str) -> None:
    assert config(arm, DemoSettings()) == load_config(ROOT / "configs" / "demo" / f"{folder_of(arm)}.toml")


def test_sequences_split_the_budget_and_keep_it() -> None:
    stages = stages_of("es->grpo", DemoSettings(updates=7))
    assert [(s["algo"], s["updates"]) for s in stages] == [("es", 3), ("grpo", 4)]


def test_es_and_grpo_are_matched_by_the_papers_ledger() -> None:
    es, grpo = (config(a, DemoSettings()).stages[0] for a in ("es", "grpo"))
    assert (es.members, es.prompts) == (4 * grpo.group, grpo.prompts)  # type: ignore[union-attr]
    assert es.temperature == grpo.temperature == 1.0  # type: ignore[union-attr]


def test_the_papers_variant_is_greedy_for_es_alone() -> None:
    stages = stages_of("grpo->es", DemoSettings(greedy_es=True))
    assert [s.get("temperature") for s in stages] == [None, 0.0]


def test_nulls_walk_without_rewards_and_with_seeds_of_their_own() -> None:
    nulls = null_configs(DemoSettings(nulls=3))
    assert [c.stages[0].control for c in nulls.values()] == ["random_z"] * 3 + ["permuted_advantages"]  # type: ignore[union-attr]
    assert len({c.seed for c in nulls.values()}) == 4
    assert list(null_configs(DemoSettings(nulls=2, arms=("es",)))) == ["null-0", "null-1"]


def test_the_mean_of_walks_weighs_them_alike() -> None:
    walks = [{"pass@1": Ratio.mean(np.array([0.0, 1.0]))}, {"pass@1": Ratio.mean(np.array([1.0, 1.0]))}]
    assert mean_of(walks)["pass@1"].value == 0.75
