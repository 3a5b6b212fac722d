"""A run is its log: replay from the lines alone gives the run's weights, and says so when it does not."""

from __future__ import annotations

import json

import pytest
import torch

from broaden.errors import DataError, ExactnessError, UsageError
from broaden.perturb import (
    NoiseSpec,
    Selection,
    apply_update,
    center_hash,
    log_line,
    replay,
)

RUN_SEED = 21
SELECTION = Selection(("layers.*",))


def start():
    generator = torch.Generator().manual_seed(2)
    return {"layers.0": torch.randn(40, 7, generator=generator), "norm": torch.ones(7)}


def run(steps=4, decay=0.01):
    center, anchor, lines = start(), start(), []
    for step in range(3, 3 + steps):
        spec = NoiseSpec(RUN_SEED, step, 1.5e-3, SELECTION.select(center))
        members, coefficients, scale = [0, 1, 2], [0.1 + step / 3, -1 / 3, 1e-3], 2.5e-4 / 3
        apply_update(
            center, spec, members, coefficients, scale, decay=decay, anchor=anchor if decay else None
        )
        lines.append(
            log_line(
                spec,
                members,
                coefficients,
                scale,
                selection=SELECTION,
                alpha=2.5e-4,
                estimator="one_point",
                shaping="z_score",
                decay=decay,
                anchor="start" if decay else None,
                center_hash=center_hash(center),
            )
        )
    return center, [json.loads(json.dumps(line, allow_nan=False)) for line in lines]


@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_replay_through_json_rebuilds_the_weights(decay):
    final, lines = run(decay=decay)
    center = start()
    steps = list(replay(center, lines, start() if decay else None, RUN_SEED, threads=2))
    assert [step for step, _ in steps] == [3, 4, 5, 6]
    assert steps[-1][1] == center_hash(final) == center_hash(center)
    assert len({h for _, h in steps}) == 4


def test_replay_can_stop_at_any_step():
    _, lines = run()
    center = start()
    for step, _ in replay(center, lines, start(), RUN_SEED):
        if step == 4:
            break
    assert center_hash(center) == lines[1]["center_hash"]


def test_a_line_holds_what_the_format_promises():
    line = run(steps=1)[1][0]
    assert set(line) == {
        "step", "members", "coefficients", "scale", "sigma", "alpha", "estimator", "shaping", "parameterisation",
        "decay", "anchor", "precision", "noise", "center_hash",
    }  # fmt: skip
    assert line["parameterisation"] == {"include": ["layers.*"], "exclude": []}
    assert line["coefficients"] == [0.1 + 3 / 3, -1 / 3, 1e-3]
    assert line["precision"] == "fp32_master"
    assert len(json.dumps(line)) < 1000


@pytest.mark.parametrize("damage", ["coefficient", "member", "scale", "seed", "start", "sign of decay"])
def test_a_difference_is_an_error_that_names_the_step(damage):
    _, lines = run()
    center, seed = start(), RUN_SEED
    if damage == "coefficient":
        lines[1]["coefficients"][0] *= 1 + 1e-6
    elif damage == "member":
        lines[1]["members"][0] = 5
    elif damage == "scale":
        lines[1]["scale"] *= -1
    elif damage == "seed":
        seed += 1
    elif damage == "start":
        center["norm"][0] = 1.0000001
    else:
        lines[1]["decay"] = 0.0
    step = 3 if damage in ("seed", "start") else 4
    with pytest.raises(ExactnessError, match=f"step {step} "):
        list(replay(center, lines, start(), seed))


def test_logs_that_cannot_be_replayed_say_why():
    _, lines = run()
    with pytest.raises(DataError, match="from step 3 to step 5"):
        list(replay(start(), [lines[0], lines[2]], start(), RUN_SEED))
    with pytest.raises(UsageError, match="decays toward 'start'"):
        list(replay(start(), lines, None, RUN_SEED))
    for change, error, message in [
        ({"noise": "other/9"}, UsageError, "other/9"),
        ({"precision": "bf16_inplace"}, UsageError, "bf16_inplace"),
        ({"surprise": 1}, DataError, "surprise"),
    ]:
        with pytest.raises(error, match=message):
            list(replay(start(), [{**lines[0], **change}], start(), RUN_SEED))
    with pytest.raises(DataError, match="sigma"):
        list(replay(start(), [{k: v for k, v in lines[0].items() if k != "sigma"}], start(), RUN_SEED))


def test_a_line_with_unequal_lengths_is_refused():
    with pytest.raises(UsageError, match="2 members but 1"):
        log_line(
            NoiseSpec(1, 0, 0.1, ("w",)), [0, 1], [1.0], 0.1, selection=Selection(), alpha=1.0,
            estimator="one_point", shaping="none", center_hash="",
        )  # fmt: skip
