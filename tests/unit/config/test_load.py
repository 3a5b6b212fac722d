"""Configuration: precedence, errors that name the key, and the way to TOML and back."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from broaden.config import EsStage, GrpoStage, build_config, config_hash, diff, load_config, to_toml
from broaden.config.presets import GRPO
from broaden.errors import ConfigError, MissingFileError


def es(**changes: object) -> dict[str, object]:
    return {"stages": [{"algo": "es", **changes}]}


def test_preset_below_file_below_command_line() -> None:
    config = build_config(es(preset="nano", sigma=0.02), ("stages.0.alpha=0.1",))
    stage = config.stages[0]
    assert isinstance(stage, EsStage)
    assert (stage.sigma, stage.alpha, stage.prompts) == (0.02, 0.1, 256)


def test_the_papers_preset() -> None:
    stage = build_config(es(preset="paper-easy")).stages[0]
    assert isinstance(stage, EsStage)
    assert (stage.members, stage.prompts, stage.sigma, stage.alpha, stage.updates, stage.temperature) == (
        32, 64, 1.5e-3, 2.5e-4, 234, 0.0,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["paper", "trl", "verl", "dapo", "dr", "nano"])
def test_grpo_presets_fill_a_stage_and_survive_the_way_to_toml(name: str) -> None:
    """`minibatch` of the whole batch included, which TOML has no null for."""
    config = build_config({"stages": [{"algo": "grpo", "preset": name, "learning_rate": 0.5}]})
    stage = config.stages[0]
    assert isinstance(stage, GrpoStage)
    stated = {k: v for k, v in GRPO[name].items() if k not in ("learning_rate", "minibatch")}
    assert {k: getattr(stage, k) for k in stated} == stated
    assert (stage.minibatch or None, stage.learning_rate) == (GRPO[name]["minibatch"], 0.5)
    assert build_config(tomllib.loads(to_toml(config))) == config
    bare = build_config({"stages": [{"algo": "grpo", "minibatch": None}]})
    assert build_config(tomllib.loads(to_toml(bare))) == bare


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (es(sigmaa=1), "did you mean 'sigma'"),
        (es(members=0), "stages.0.members"),
        (es(preset="nope"), "has no preset 'nope'"),
        (es(sigma_schedule="linear"), "needs sigma_end"),
        (es(sigma_end=0.1), "sigma_end = 0.1"),
        (es(precision="bf16_inplace", decay=0.1), "bf16_inplace"),
        ({"stages": []}, "stages"),
        ({**es(), "nonsense": 1}, "nonsense: unknown key"),
        ({"stages": [{"algo": "ppo"}]}, "ppo"),
    ],
)
def test_bad_values_are_named(data: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError, match=r"configuration|preset") as caught:
        build_config(data)
    assert text in str(caught.value)


@pytest.mark.parametrize("override", ["novalue", "stages.7.sigma=1", "name.x=1"])
def test_bad_overrides_are_named(override: str) -> None:
    with pytest.raises(ConfigError, match="override"):
        build_config({**es(), "name": "x"}, (override,))


def test_stages_shorthand_keeps_a_stages_settings() -> None:
    config = build_config(es(sigma=0.5), stages="es:7,sft:3")
    assert [(s.algo, s.updates) for s in config.stages] == [("es", 7), ("sft", 3)]
    first = config.stages[0]
    assert isinstance(first, EsStage)
    assert first.sigma == 0.5
    with pytest.raises(ConfigError, match="ALGO:UPDATES"):
        build_config(es(), stages="es")


def test_toml_round_trip_and_hash() -> None:
    config = build_config(es(preset="nano"), ("task.options.low=2",))
    again = build_config(tomllib.loads(to_toml(config)))
    assert again == config
    assert config_hash(again) == config_hash(config)
    other = build_config(es(preset="nano", alpha=0.1))
    assert config_hash(other) != config_hash(config)
    assert "alpha" in diff(config, other)


def test_what_cannot_change_a_result_is_not_hashed() -> None:
    base = build_config(es())
    assert config_hash(build_config({**es(), "population": {"workers": 4}, "name": "x"})) == config_hash(base)


def test_missing_and_broken_files(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match="no configuration file"):
        load_config(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("a = = 1")
    with pytest.raises(ConfigError, match="not TOML"):
        load_config(tmp_path / "bad.toml")
