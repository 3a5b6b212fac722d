"""The engine protocol: prompts and a sampling rule in, completions out; weights are written in place.

A sample depends on (request key, prompt, weights) only: never on what else was asked, in which order, in
how many slots or with how many members. `NUMERICS_VERSION` is raised whenever a kernel or a call shape
changes bits on purpose. Not here: how noise is written into the weights (`perturb`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from broaden.errors import UsageError
from broaden.records import Completion, Request, Sampling

NUMERICS_VERSION = 2

Weights = dict[str, torch.Tensor]
OnProgress = Callable[[int, int], None]


class Engine(Protocol):
    """What a population, an evaluation and a GRPO trainer sample from."""

    @property
    def members(self) -> int:
        """How many weight sets live in it at once."""

    def weights(self, member: int = 0) -> Weights:
        """Live contiguous views by canonical name, to be written in place."""

    def weights_changed(self) -> None:
        """Drop whatever was derived from older weights. Call it after every write."""

    def generate(
        self,
        requests: Sequence[Sequence[Request]],
        sampling: Sampling,
        on_progress: OnProgress | None = None,
    ) -> list[list[Completion]]:
        """Complete `requests[m]` with member m's weights, in the order asked.

        Args:
            on_progress: called with (finished completions, generated tokens) of this call so far.

        Raises:
            UsageError: before any compute: an empty prompt, a token outside the vocabulary, a prompt that
                leaves no room for `max_new_tokens`, a number of lists other than `members`.
            DivergedError: the weights give logits that are not finite.
        """

    def conditions(self) -> dict[str, Any]:
        """JSON: engine name, numerics version, torch, instruction set, threads, dtype, device, self-test."""


def check_requests(
    requests: Sequence[Sequence[Request]], sampling: Sampling, *, members: int, context: int, vocab: int
) -> None:
    """Refuse before any compute what could not be answered truthfully (nothing is ever cut).

    Args:
        context: most tokens a prompt and its completion may have together.
        vocab: token ids must be below it.

    Raises:
        UsageError: naming the member, the request and what would help.
    """
    if len(requests) != members:
        raise UsageError(f"expected {members} lists of requests (one a member), got {len(requests)}")
    if sampling.max_new_tokens < 1:
        raise UsageError(f"max_new_tokens must be at least 1, got {sampling.max_new_tokens}")
    if not 0.0 <= sampling.temperature < float("inf"):
        raise UsageError(f"temperature must be 0 (greedy) or positive and finite, got {sampling.temperature}")
    seen: set[tuple[int, ...]] = set()
    for member, asked in enumerate(requests):
        if member and asked is requests[member - 1]:
            continue
        for index, request in enumerate(asked):
            ids = request.prompt_ids
            if ids not in seen:
                seen.add(ids)
                _check_prompt(ids, sampling.max_new_tokens, context, vocab, f"{index} of member {member}")


def _check_prompt(ids: tuple[int, ...], new: int, context: int, vocab: int, where: str) -> None:
    if not ids:
        raise UsageError(
            f"request {where} has an empty prompt", "a prompt needs at least one token (a BOS will do)"
        )
    if len(ids) + new > context:
        raise UsageError(
            f"request {where}: prompt of {len(ids)} tokens + max_new_tokens {new} is more than "
            f"the context of {context}",
            f"lower max_new_tokens to {context - len(ids)}, or drop this prompt"
            if len(ids) < context
            else "shorten or drop this prompt",
        )
    if min(ids) < 0 or max(ids) >= vocab:
        bad = next(i for i in ids if not 0 <= i < vocab)
        raise UsageError(f"request {where} has token id {bad} outside the vocabulary of {vocab}")
