"""A sample of the bundled model does not depend on how many are asked for at once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from broaden import tasks
from broaden.engines import Engine, build_engine
from broaden.models.checkpoint import Model, load_model
from broaden.models.sources import resolve
from broaden.perturb import write_center
from broaden.records import Completion, Request, Sampling
from broaden.seeds import stream

SOURCE = "bundled:countdown-nano"
SAMPLING = Sampling(temperature=1.0, max_new_tokens=40, logprobs=True, entropy=True)


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model(SOURCE)


def engine(model: Model, slots: int | None = None) -> Engine:
    made = build_engine(
        "auto", model.spec, model.tokenizer.eos_ids, folder=resolve(SOURCE), device="cpu", slots=slots,
        max_context=96,
    )  # fmt: skip
    write_center(model.weights, made.weights(0))
    made.weights_changed()
    return made


@pytest.fixture(scope="module")
def requests(model: Model) -> list[Request]:
    """64 requests over 20 problems."""
    problems = tasks.load_problems("countdown", "test", limit=20).problems
    prompts = [model.tokenizer.encode_chat(p.messages) for p in problems]
    return [Request(prompts[i % 20], stream(0, "asked", i)) for i in range(64)]


def asked(engine: Engine, requests: list[Request], at_once: int) -> Iterator[Completion]:
    for start in range(0, len(requests), at_once):
        yield from engine.generate([requests[start : start + at_once]], SAMPLING)[0]


@pytest.mark.parametrize("slots", [None, 3])
def test_one_seven_or_sixty_four_at_once(model: Model, requests: list[Request], slots: int | None) -> None:
    """Ids, finish reasons, log-probabilities and entropies, bit for bit in fp32."""
    together = list(asked(engine(model), requests, 64))
    made = engine(model, slots)
    assert list(asked(made, requests, 1)) == together
    assert list(asked(made, requests, 7)) == together
    assert list(asked(made, requests[::-1], 64))[::-1] == together
    assert len({c.token_ids for c in together}) > 20
