"""Selections by pattern and the noise specification."""

from __future__ import annotations

import pytest

from broaden.errors import UsageError
from broaden.perturb import FULL, NoiseSpec, Selection
from broaden.seeds import stream

NAMES = (
    "model.embed_tokens.weight",
    "model.layers.0.self_attn.q_proj.weight",
    "model.layers.0.mlp.up_proj.weight",
    "model.layers.1.mlp.up_proj.weight",
    "model.norm.weight",
)


def test_full_selects_everything_in_order():
    assert FULL.select(NAMES) == NAMES


def test_include_and_exclude():
    chosen = Selection(("*.mlp.*", "*norm*"), ("*layers.1.*",)).select(NAMES)
    assert chosen == (NAMES[2], NAMES[4])


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        (Selection(("*.mlp.*", "*.lora_A.*")), r"include pattern '\*\.lora_A\.\*' matches none of 5"),
        (Selection(exclude=("*.bias",)), r"exclude pattern '\*\.bias' matches none"),
        (Selection(("*.mlp.*",), ("*up_proj*",)), "leaves none of 5"),
        (Selection(()), "leaves none of 5"),
    ],
)
def test_a_pattern_that_selects_nothing_is_an_error(selection, message):
    with pytest.raises(UsageError, match=message):
        selection.select(NAMES)


def test_the_error_names_near_misses():
    with pytest.raises(UsageError, match=r"model\.norm\.weight"):
        Selection(("model.norms.weight",)).select(NAMES)


def test_json_round_trip_and_unknown_keys():
    selection = Selection(("a*",), ("ab",))
    assert Selection.from_json(selection.to_json()) == selection
    with pytest.raises(UsageError, match="rank"):
        Selection.from_json({"include": ["*"], "exclude": [], "rank": []})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1, -1, 0.1, ("a",)), "step"),
        ((1, 0, 0.1, ()), "no tensor"),
        ((1, 0, 0.1, ("a", "b", "a")), "repeat.*a"),
    ],
)
def test_a_bad_specification_is_an_error(arguments, message):
    with pytest.raises(UsageError, match=message):
        NoiseSpec(*arguments)


def test_the_key_is_the_named_stream():
    spec = NoiseSpec(7, 3, 0.1, ("w",))
    assert spec.key(5, "w") == stream(7, "noise", 3, 5, "w")
    with pytest.raises(UsageError, match="members"):
        spec.key(-1, "w")
