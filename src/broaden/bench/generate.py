"""`broaden bench generate` and `generate-ragged`: decoding against transformers' `generate`.

generate: SmolLM2-135M, 64 (or 256) prompts of 40 ids each, 128 forced tokens, bfloat16, temperature 1 (equal
prompts, so the peer pads nothing). generate-ragged: chat prompts of unequal length with the model's own stop token
and up to 512 new tokens; where only random weights are at hand, one id in 97 stops, which gives skewed lengths too.
The rate counts generated tokens up to and with the stop token, so what a side computes for rows that have ended is
its own loss. `of_ceiling` relates our rate to the products of decode steps alone, measured in the same run;
`of_products` is the share of our time that these and the prompts' products would take.
Peer: see `subjects.Peer`; with `--peer-python` also vLLM (`vllm_host`), whose ratios are `rows` of the result.
"""

from __future__ import annotations

import statistics

import torch

from broaden.bench import vllm_host
from broaden.bench.harness import Result, Settings, alternate, compared
from broaden.bench.machine import ceiling
from broaden.bench.subjects import Peer, Subject, engine_for, lengths_text, smollm2, token_prompts
from broaden.engines.compiled import PROMPT_ROWS
from broaden.records import Message, Request, Sampling
from broaden.seeds import stream

STOP_EVERY = 97
TOPICS = (
    "the sea", "a railway station", "bread", "winter", "the number seven", "a lighthouse", "old maps", "rain",
    "a market", "clocks", "the moon", "a violin", "tea", "a long bridge", "snow", "honey",
)  # fmt: skip
ASKS = (
    "Answer with one word: is {} older than you?",
    "Name three things that belong to {}.",
    "Explain {} to a child in two sentences.",
    "Write a long story about {}.",
)


def fixed(settings: Settings, prompts: int = 64) -> Result:
    """Forced lengths."""
    length, new = (40, 128) if not settings.quick else (20, 8)
    subject = smollm2(settings.quick)
    asked = token_prompts(subject.spec, prompts if not settings.quick else 16, length)
    return _run(settings, subject, asked, (), new)


def ragged(settings: Settings, prompts: int = 64) -> Result:
    """Real stopping."""
    subject = smollm2(settings.quick)
    if subject.folder is None or settings.quick:
        asked = token_prompts(subject.spec, 16 if settings.quick else prompts, 20)
        asked = [p[: 8 + i % 12] for i, p in enumerate(asked)]
        stops = frozenset(range(0, subject.spec.vocab, 5 if settings.quick else STOP_EVERY))
    else:
        asked = [subject.tokenizer.encode_chat([Message("user", text)]) for text in texts(prompts)]
        stops = subject.tokenizer.eos_ids
    return _run(settings, subject, asked, stops, 64 if settings.quick else 512)


def texts(count: int) -> list[str]:
    """Questions whose answers are short and long, mixed."""
    every = [ask.format(topic) for topic in TOPICS for ask in ASKS]
    return [every[i % len(every)] for i in range(count)]


def _run(
    settings: Settings,
    subject: Subject,
    prompts: list[tuple[int, ...]],
    eos: tuple[int, ...] | frozenset[int],
    new: int,
) -> Result:
    longest = max(len(p) for p in prompts)
    engine = engine_for(
        subject, eos=eos, dtype=torch.bfloat16, threads=settings.threads, context=longest + new
    )
    peer = Peer(subject, torch.bfloat16, eos)
    lengths: dict[str, list[int]] = {"ours": [], "peer": []}
    seed = [0]

    def ours() -> float:
        seed[0] += 1
        asked = [Request(p, stream(seed[0], "bench", i)) for i, p in enumerate(prompts)]
        answers = engine.generate([asked], Sampling(1.0, new))[0]
        lengths["ours"] += [len(a.token_ids) for a in answers]
        return float(sum(len(a.token_ids) for a in answers))

    def theirs() -> float:
        answers = peer.generate(prompts, new, 1.0)
        lengths["peer"] += [len(a) for a in answers]
        return float(sum(len(a) for a in answers))

    with torch.random.fork_rng():
        torch.manual_seed(0)
        others = vllm_host.rows(settings, subject.folder, ours, prompts, new, sorted(eos))
        pair = alternate(ours, theirs, settings.rounds_or(3))
    brief, threads = (0.2 if settings.quick else 2.0), settings.threads
    top = ceiling(subject.spec, torch.bfloat16, len(prompts), threads, brief)
    prefill = ceiling(subject.spec, torch.bfloat16, PROMPT_ROWS * threads, threads, brief, head=False)
    result = compared(pair, "tokens/s", {
        **subject.conditions, "peer": peer.conditions, "prompts": len(prompts), "prompt_tokens": longest,
        "max_new_tokens": new, "lengths_ours": lengths_text(lengths["ours"]),
        "lengths_peer": lengths_text(lengths["peer"]), "slots": engine.slots, "ceiling": top,
        "prompt_ceiling": prefill,
    })  # fmt: skip
    result.conditions["of_ceiling"] = statistics.median(r.rate for r in pair.ours) / top
    prompt_seconds = sum(map(len, prompts)) / prefill
    result.conditions["of_products"] = statistics.median(
        (prompt_seconds + r.work / top) / r.seconds for r in pair.ours
    )
    if others:
        result.conditions.update(rows=others, vllm_ratio=others[0]["ratio"])
    return result
