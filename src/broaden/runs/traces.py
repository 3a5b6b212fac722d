"""Training pairs of a warm-start stage: the task's traces, tokenised afresh each epoch."""

from __future__ import annotations

from collections.abc import Callable

from broaden.config import SftStage
from broaden.errors import ConfigError, UsageError
from broaden.models.rows import Examples
from broaden.models.tokenizer import ChatTokenizer
from broaden.runs.prepare import Prepared
from broaden.tasks.countdown_traces import Trace, TraceMixture, TraceSettings


def trace_source(prepared: Prepared, stage: SftStage, seed: int) -> Callable[[int], Examples]:
    """A function of the epoch that gives the packed pairs. Raises ConfigError for a task without traces."""
    if prepared.task.name != "countdown":
        raise ConfigError(
            f"an sft stage trains on traces, and task {prepared.task.name!r} has none",
            "task.name = 'countdown'",
        )
    mixture = TraceMixture(prepared.loaded.problems, TraceSettings.of(stage.traces), seed)
    tokenizer = prepared.model.tokenizer

    def epoch(number: int) -> Examples:
        return Examples.of(pair(tokenizer, trace) for trace in mixture(number))

    return epoch


def trace_lengths(prepared: Prepared, stage: SftStage, seed: int, problems: int = 256) -> list[int]:
    """Tokens of the pairs of the first so many problems, in epoch 0: for a plan."""
    few = prepared.loaded.problems[:problems]
    tokenizer = prepared.model.tokenizer
    pairs = (pair(tokenizer, trace) for trace in TraceMixture(few, TraceSettings.of(stage.traces), seed)(0))
    return [len(prompt) + len(completion) for prompt, completion in pairs]


def pair(tokenizer: ChatTokenizer, trace: Trace) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Prompt ids and completion ids, the completion ending with the tokenizer's own EOS."""
    eos = tokenizer.backend.eos_token_id
    if eos is None:
        raise UsageError("the tokenizer names no EOS token to end a trace with", "set eos_token")
    return tokenizer.encode_chat(trace.messages), (*tokenizer.encode(trace.completion), int(eos))
