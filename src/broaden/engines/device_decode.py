"""Decode steps that stay on a device: a window of WINDOW tokens a row between two looks of the host.

A step feeds every row its last token, draws the next from the host's uniform number and moves on by one position. It
knows nothing of ends: the host looks at a window's tokens and drops what follows a row's last one, so a row that has
ended costs at most the rest of its window, and a free row runs along on position 0 .. WINDOW - 1 of its own slot. All
inputs and results of a step are tensors that stay where they are, so it can be recorded (`graphs`). Not here: which
request sits in which row (`device_schedule`), the arithmetic (`portable`, `fused`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from broaden.engines.fused import Arithmetic, arithmetic_for
from broaden.engines.graphs import Steps, steps_for
from broaden.engines.portable import PortableRunner
from broaden.engines.runner import CAPACITY_MULTIPLE, Cache, Floats, Ints, round_up
from broaden.errors import DivergedError
from broaden.records import Sampling

WINDOW = 8


@dataclass(frozen=True, slots=True)
class Drawn:
    """A window's results, [WINDOW, rows] each."""

    tokens: Ints
    logprobs: Floats
    entropies: Floats
    finite: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class State:
    """What steps read and write, made once for the most rows there may be."""

    ids: Tensor  # int64 [rows]: the token to be fed
    positions: Tensor  # int64 [rows]: its position
    uniforms: Tensor  # float64 [WINDOW, rows]
    step: Tensor  # int64 [1]: step of the window
    tokens: Tensor  # int64 [WINDOW, rows]
    scores: Tensor  # float32 [3, WINDOW, rows]: log-probability, entropy, 1 where logits are finite

    @classmethod
    def allocate(cls, rows: int, device: torch.device) -> State:
        """Zeros."""

        def new(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        return cls(
            new(rows), new(rows), new(WINDOW, rows, dtype=torch.float64), new(1), new(WINDOW, rows),
            new(3, WINDOW, rows, dtype=torch.float32),
        )  # fmt: skip


class DeviceDecoder:
    """Windows of decode steps for a range of members; keeps its cache, its state and its recordings between calls."""

    def __init__(
        self, runner: PortableRunner, steps: Steps | None = None, arithmetic: Arithmetic | None = None
    ) -> None:
        self.runner, self.device = runner, runner.device
        self.steps = steps_for(runner.device) if steps is None else steps
        self.arithmetic = arithmetic_for(runner.device) if arithmetic is None else arithmetic
        self.cache = Cache(*(torch.zeros(1, 0, 1, 0, 1, device=self.device) for _ in range(2)))
        self.state = State.allocate(0, self.device)

    @property
    def members(self) -> int:
        """Members in the batch; rows are member-major."""
        return self.runner.members

    def make_room(self, slots: int, positions: int) -> None:
        """A cache of so many slots whose sequences may grow to so many positions, and a window beyond."""
        wanted = round_up(positions + WINDOW, CAPACITY_MULTIPLE)
        have, capacity = self.cache.keys.shape[1], self.cache.keys.shape[3]
        if have < slots or capacity < wanted:
            self.steps.forget()
            self.cache = Cache(
                *(torch.zeros(1, 0, 1, 0, 1, device=self.device) for _ in range(2))
            )  # freed first
            self.cache = self.runner.cache(slots, wanted)
            self.state = State.allocate(slots, self.device)

    def window(self, ids: Ints, positions: Ints, uniforms: NDArray[np.float64], sampling: Sampling) -> Drawn:
        """WINDOW steps of every row.

        Args:
            ids, positions: [rows], what is fed first and where (free rows: 0 and 0).
            uniforms: [WINDOW, rows].

        Raises:
            UsageError: more rows than `make_room` was asked for.
        """
        rows, state = len(ids), self.state
        for there, here in ((state.ids, ids), (state.positions, positions)):
            there[:rows].copy_(torch.from_numpy(here))
        state.uniforms[:, :rows].copy_(torch.from_numpy(uniforms))
        state.step.zero_()
        length = self.cache.keys.shape[3]
        if not self.arithmetic.exact_lengths:
            length = bucket(int(positions.max()) + WINDOW, length)
        name = (rows, length, sampling.temperature, sampling.logprobs, sampling.entropy)
        step = partial(self._step, rows, length, sampling)
        for _ in range(WINDOW):
            self.steps.run(name, step)
        scores = state.scores[:, :, :rows].cpu().numpy()
        return Drawn(state.tokens[:, :rows].cpu().numpy(), scores[0], scores[1], scores[2] > 0)

    def _step(self, rows: int, length: int, sampling: Sampling) -> None:
        """Feed, draw, store, move on."""
        state, spec = self.state, self.runner.spec
        ids, positions = state.ids[:rows], state.positions[:rows]
        # a row that ended on the last position there is runs on: it must not leave the tables
        at = positions.clamp(max=min(length, len(self.runner.cos)) - 1)
        index = (ids.view(self.members, -1) + self._first_rows(spec.vocab)).view(-1)
        drawn = self.arithmetic.draw(
            self.arithmetic.decode(self.runner, index, at, self.cache, length),
            state.uniforms[:, :rows].index_select(0, state.step).squeeze(0),
            sampling,
        )
        scores = torch.stack((drawn.logprobs, drawn.entropies, drawn.finite.float()))
        state.tokens[:, :rows].index_copy_(0, state.step, drawn.tokens[None])
        state.scores[:, :, :rows].index_copy_(1, state.step, scores[:, None])
        ids.copy_(drawn.tokens)
        positions.add_(1)
        state.step.add_(1)

    def _first_rows(self, vocab: int) -> Tensor:
        """Where each member's embedding starts: int64 [members, 1]."""
        return torch.arange(self.members, device=self.device)[:, None] * vocab


def bucket(positions: int, capacity: int) -> int:
    """Cached positions that a window looks at: 64, 128, 192, 256, 384, 512, 768, 1024, .. up to the capacity.

    Few lengths mean few recordings; a length is at most half as long again as needed beyond 192.
    """
    length = CAPACITY_MULTIPLE
    while length < positions:
        power = 1 << (length.bit_length() - 1)
        length += power if length == power and power < 2 * CAPACITY_MULTIPLE else power // 2
    return min(length, capacity)


def require_finite(drawn: Drawn, live: NDArray[np.bool_]) -> None:
    """Raises DivergedError where a token that counts came from logits that are not finite."""
    if not drawn.finite[live].all():
        raise DivergedError("the model's logits are not finite: its weights have diverged")
