"""Every file in configs/ passes a dry run on a machine that has neither the models nor the data, and adds up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.helpers.command import ROOT, Command

FILES = sorted((ROOT / "configs").rglob("*.toml"))
PAPER = {"qwen2.5-1.5b": 1_543_714_304, "llama-3.2-3b": 3_212_749_824, "qwen2.5-7b": 7_615_616_512,
         "r1-distill-1.5b": 1_777_088_000}  # fmt: skip
METHODS = {"es": ["es"], "grpo": ["grpo"], "es-grpo": ["es", "grpo"], "grpo-es": ["grpo", "es"]}


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Commands with an empty cache, so that nothing that a developer has fetched helps."""
    monkeypatch.setenv("BROADEN_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return Command(capsys)


def planned(command: Command, file: Path, *more: str) -> dict[str, Any]:
    return command.ok("train", file, "--dry-run", "--json", "--tokens-per-second", "1000", *more).json()


@pytest.mark.parametrize("file", FILES, ids=lambda f: f"{f.parent.name}/{f.name}")
def test_every_configuration_can_be_planned(command: Command, file: Path) -> None:
    found = planned(command, file)
    plan = found["plan"]
    assert len(plan["stages"]) == len(found["config"]["stages"]) >= 1
    for stage in plan["stages"]:
        assert stage["peak_bytes"] > 4 * plan["parameters"]
        assert stage["tokens"] > 0
        assert stage["flops_full"] > 0
        assert stage["seconds"] == pytest.approx(stage["flops_full"] / (2 * plan["parameters"] * 1000))
        assert stage["algo"] == "sft" or stage["rollouts"] > 0
        assert ("trl" in stage["differs"]) == ("verl" in stage["differs"]) == (stage["algo"] == "grpo")
    assert f"`{file.name}`" in file.parent.joinpath("README.md").read_text()


def test_the_papers_models_and_methods_are_all_there() -> None:
    easy = {f"{model}-{m}.toml" for model in ("qwen2.5-1.5b", "llama-3.2-3b", "qwen2.5-7b") for m in METHODS}
    assert {f.name for f in FILES if f.parent.name == "easy"} == easy
    assert {f.name for f in FILES if f.parent.name == "hard"} == {
        f"r1-distill-1.5b-{m}.toml" for m in METHODS
    }


@pytest.mark.parametrize(
    "file", [f for f in FILES if f.parent.name in ("easy", "hard")], ids=lambda f: f.stem
)
def test_the_papers_settings(command: Command, file: Path) -> None:
    found = planned(command, file)
    config, plan = found["config"], found["plan"]
    model, method = next((m, file.stem.removeprefix(f"{m}-")) for m in PAPER if file.stem.startswith(m))
    easy = file.parent.name == "easy"
    updates, limit = (234, 2048) if easy else (630, 8192)
    assert plan["parameters"] == PAPER[model]
    assert [s["algo"] for s in config["stages"]] == METHODS[method]
    assert sum(s["updates"] for s in config["stages"]) == updates
    assert {s["updates"] for s in config["stages"]} == {updates // len(METHODS[method])}
    assert config["task"]["name"] == ("gsm8k" if easy else "deepscaler")
    for stage in config["stages"]:
        assert (stage["prompts"], stage["max_new_tokens"]) == (64, limit)
        if stage["algo"] == "es":
            assert (stage["members"], stage["sigma"], stage["alpha"]) == (32, 1.5e-3, 2.5e-4)
            assert stage["temperature"] == (0.0 if easy else 0.6)
        else:
            assert (stage["group"], stage["minibatch"], stage["minibatch_unit"]) == (8, 32, "prompts")
            assert (stage["kl"], stage["learning_rate"], stage["temperature"]) == (0.001, 1e-6, 1.0)
            assert (stage["micro_batch"], stage["reference"]) == (2, "theta_0")
    # N = 4G, D = B: both halves of a sequence cost the same on the paper's ledger
    assert len({s["flops_paper"] / s["updates"] for s in plan["stages"]}) == 1
    assert plan["by_shape"] is True
    assert any("assumed" in note for note in plan["notes"])
