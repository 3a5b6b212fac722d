"""`ScriptedEngine`: completions from a function of (weights, request), for tests and dry runs; no arithmetic.

It obeys the protocol exactly (checks, EOS, length, order, live weights), so that trainers, populations and
evaluations can be tested with literal expectations. Not here: any model.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch

from broaden.engines.base import NUMERICS_VERSION, OnProgress, Weights, check_requests
from broaden.records import Completion, Request, Sampling

Script = Callable[[Weights, Request, Sampling], Sequence[int]]


class ScriptedEngine:
    """Answers each request with the ids that `script(weights, request, sampling)` returns.

    Args:
        script: must depend on its arguments only. Its ids are cut after the first EOS and at max_new_tokens.
        eos_ids: ids that end a completion.
        shapes: shapes of the (zero, float32) weights by name.
        members: weight sets.
        context: most tokens of prompt and completion together.
        vocab: prompt ids must be below it.
    """

    def __init__(
        self,
        script: Script,
        eos_ids: Collection[int] = (),
        *,
        shapes: Mapping[str, tuple[int, ...]] | None = None,
        members: int = 1,
        context: int = 1 << 20,
        vocab: int = 1 << 31,
    ) -> None:
        self.script, self.eos_ids = script, frozenset(eos_ids)
        self.context, self.vocab = context, vocab
        self._weights = [{n: torch.zeros(s) for n, s in (shapes or {}).items()} for _ in range(members)]
        self.changes = 0

    @property
    def members(self) -> int:
        """Weight sets held."""
        return len(self._weights)

    def weights(self, member: int = 0) -> Weights:
        """Live tensors by name."""
        return dict(self._weights[member])

    def weights_changed(self) -> None:
        """Counted in `changes`."""
        self.changes += 1

    def generate(
        self,
        requests: Sequence[Sequence[Request]],
        sampling: Sampling,
        on_progress: OnProgress | None = None,
    ) -> list[list[Completion]]:
        """See `Engine.generate`. A scripted token is certain: log-probability and entropy are 0."""
        check_requests(requests, sampling, members=self.members, context=self.context, vocab=self.vocab)
        out: list[list[Completion]] = []
        finished = tokens = 0
        for member, asked in enumerate(requests):
            out.append([])
            for request in asked:
                out[-1].append(self._complete(self._weights[member], request, sampling))
                finished, tokens = finished + 1, tokens + len(out[-1][-1].token_ids)
                if on_progress is not None:
                    on_progress(finished, tokens)
        return out

    def conditions(self) -> dict[str, Any]:
        """JSON: nothing but its name matters."""
        return {"engine": "scripted", "numerics": NUMERICS_VERSION, "members": self.members}

    def _complete(self, weights: Weights, request: Request, sampling: Sampling) -> Completion:
        ids: list[int] = []
        for token in self.script(weights, request, sampling):
            ids.append(int(token))
            if ids[-1] in self.eos_ids or len(ids) == sampling.max_new_tokens:
                break
        zeros = (0.0,) * len(ids)
        return Completion(
            tuple(ids),
            "stop" if ids and ids[-1] in self.eos_ids else "length",
            zeros if sampling.logprobs else None,
            zeros if sampling.entropy else None,
        )
