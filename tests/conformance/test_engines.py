"""One suite over every engine: order, EOS, lengths, refusals, determinism, live weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.helpers.tiny import tiny_config, tiny_folder

from broaden.engines import Engine, ScriptedEngine, TorchEngine, build_engine
from broaden.engines.sampling import uniform
from broaden.errors import UsageError
from broaden.models.spec import ModelSpec
from broaden.records import Request, Sampling
from broaden.seeds import numpy_generator, stream

VOCAB, EOS, CONTEXT = 96, (1, 7, 20, 33, 46), 64
SAMPLING = Sampling(temperature=1.0, max_new_tokens=12, logprobs=True, entropy=True)
ENGINES = (
    "torch",
    "torch-portable",
    "torch-device",
    "torch-batched",
    "torch-bfloat16",
    "generate",
    "generate-gpt2",
    "scripted",
)


def script(weights: dict[str, torch.Tensor], request: Request, sampling: Sampling) -> list[int]:
    """Keyed pseudo-random ids shifted by a weight: a stand-in for a model."""
    shift = int(weights["w"].sum())
    key = np.uint64(request.key)
    return [int(uniform(key, t) * VOCAB + sum(request.prompt_ids) + shift) % VOCAB for t in range(99)]


def gpt2_folder(folder: Path) -> Path:
    """A folder of an architecture without an own decode path (only its config is read)."""
    from transformers import GPT2Config

    GPT2Config(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=CONTEXT).save_pretrained(folder)
    return folder


def make(kind: str, folder: Path, members: int) -> Engine:
    """An engine with keyed random weights in every member."""
    made: Engine
    if kind == "scripted":
        made = ScriptedEngine(script, EOS, shapes={"w": (3,)}, members=members, context=CONTEXT, vocab=VOCAB)
    elif kind.startswith("generate"):
        place = gpt2_folder(folder) if kind.endswith("gpt2") else tiny_folder(folder, vocab_size=VOCAB)
        made = build_engine("generate", ModelSpec.from_config({"model_type": "gpt2"}), EOS, folder=place,
                            members=members, device="cpu", max_context=CONTEXT)  # fmt: skip
    else:
        made = TorchEngine(
            ModelSpec.from_config(tiny_config()), EOS, members=members, max_context=CONTEXT,
            dtype=torch.bfloat16 if kind == "torch-bfloat16" else torch.float32, batch=3 if "batched" in kind else None,
            kernels="portable" if kind == "torch-portable" else "device" if kind == "torch-device" else "auto",
        )  # fmt: skip
    for member in range(members):
        write(made, member, member)
    return made


def write(engine: Engine, member: int, seed: int) -> None:
    """Write keyed random weights into a member."""
    for name, view in engine.weights(member).items():
        drawn = numpy_generator(stream(seed, "conformance", name)).standard_normal(
            tuple(view.shape), "float32"
        )
        offset = 1.0 if "norm" in name or "ln_" in name else 0.0
        view.copy_(torch.from_numpy(drawn) * (10.0 if name == "w" else 0.2) + offset)
    engine.weights_changed()


def asked(count: int, seed: int = 0) -> list[Request]:
    """Requests over a third as many prompts of 1 to 30 tokens."""
    random = numpy_generator(stream(seed, "asked"))
    prompts = [
        tuple(random.integers(0, VOCAB, random.integers(1, 30)).tolist()) for _ in range(count // 3 + 1)
    ]
    return [Request(prompts[i % len(prompts)], stream(seed, "key", i)) for i in range(count)]


@pytest.fixture(params=ENGINES)
def build(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[int], Engine]:
    return lambda members: make(request.param, tmp_path / "model", members)


def test_protocol(build: Callable[[int], Engine]) -> None:
    engine = build(2)
    assert engine.members == 2
    assert set(engine.weights(0)) == set(engine.weights(1))
    conditions = engine.conditions()
    assert {"engine", "numerics", "members"} <= set(conditions)


def test_completions_are_whole(build: Callable[[int], Engine]) -> None:
    engine, requests = build(1), asked(40)
    (answers,) = engine.generate([requests], SAMPLING)
    assert len(answers) == 40
    assert {a.finish for a in answers} == {"stop", "length"}
    for answer in answers:
        n = len(answer.token_ids)
        assert 1 <= n <= 12
        assert all(t not in EOS for t in answer.token_ids[:-1])
        assert (answer.finish == "stop") == (answer.token_ids[-1] in EOS)
        assert answer.finish == "stop" or n == 12
        assert answer.logprobs is not None
        assert answer.entropy is not None
        assert len(answer.logprobs) == len(answer.entropy) == n
        assert all(value <= 0 for value in answer.logprobs)
        assert all(value >= 0 for value in answer.entropy)
    (plain,) = engine.generate([requests], Sampling(1.0, 12))
    assert [a.token_ids for a in plain] == [a.token_ids for a in answers]
    assert all(a.logprobs is None and a.entropy is None for a in plain)


def test_same_request_same_answer(build: Callable[[int], Engine]) -> None:
    engine, requests = build(1), asked(40)
    (answers,) = engine.generate([requests], SAMPLING)
    assert engine.generate([requests], SAMPLING)[0] == answers
    assert engine.generate([requests[::-1]], SAMPLING)[0][::-1] == answers
    for count in (1, 7):
        assert engine.generate([requests[:count]], SAMPLING)[0] == answers[:count]
    other = [Request(r.prompt_ids, r.key ^ 1) for r in requests]
    different = engine.generate([other], SAMPLING)[0]
    assert sum(a.token_ids != b.token_ids for a, b in zip(answers, different, strict=True)) > 30


def test_members_are_independent(build: Callable[[int], Engine]) -> None:
    lists = [asked(20), asked(9, seed=1), asked(20)]
    together = build(3).generate(lists, SAMPLING)
    for member, requests in enumerate(lists):
        alone = build(1)
        write(alone, 0, member)
        assert alone.generate([requests], SAMPLING)[0] == together[member]
    assert together[0] != together[2]


def test_weights_are_live(build: Callable[[int], Engine]) -> None:
    engine, requests = build(1), asked(20)
    before = engine.generate([requests], SAMPLING)
    write(engine, 0, 5)
    assert engine.generate([requests], SAMPLING) != before
    write(engine, 0, 0)
    assert engine.generate([requests], SAMPLING) == before


def test_no_global_generator(build: Callable[[int], Engine]) -> None:
    engine, requests = build(1), asked(5)
    state = torch.random.get_rng_state()
    first = engine.generate([requests], SAMPLING)
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.manual_seed(99)
    assert engine.generate([requests], SAMPLING) == first


def test_progress_and_empty_lists(build: Callable[[int], Engine]) -> None:
    engine, seen = build(2), list[tuple[int, int]]()
    assert engine.generate([[], []], SAMPLING) == [[], []]
    answers = engine.generate([asked(20), []], SAMPLING, lambda c, t: seen.append((c, t)))
    assert answers[1] == []
    assert seen[-1] == (20, sum(len(a.token_ids) for a in answers[0]))
    assert seen == sorted(seen)


@pytest.mark.parametrize(
    ("requests", "sampling", "message"),
    [
        ([[Request((), 0)]], SAMPLING, "empty prompt"),
        ([[Request((2,), 0), Request((2,) * 53, 0)]], SAMPLING, "request 1 of member 0: prompt of 53 tokens"),
        ([[Request((VOCAB,), 0)]], SAMPLING, "outside the vocabulary"),
        ([[Request((-1,), 0)]], SAMPLING, "outside the vocabulary"),
        ([[], []], SAMPLING, "expected 1 lists"),
        ([[Request((2,), 0)]], Sampling(1.0, 0), "max_new_tokens"),
        ([[Request((2,), 0)]], Sampling(-1.0, 4), "temperature"),
        ([[Request((2,), 0)]], Sampling(float("nan"), 4), "temperature"),
    ],
)
def test_refusals_before_any_compute(
    build: Callable[[int], Engine], requests: list[list[Request]], sampling: Sampling, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        build(1).generate(requests, sampling)
