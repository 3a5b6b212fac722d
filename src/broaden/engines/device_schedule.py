"""Continuous batching around windows of decode steps: the bookkeeping of `scheduler` once every WINDOW tokens.

Each member has `each` rows, a power of two times 16 of them, so that few batch sizes are recorded. Between two windows
the host stores the tokens up to each row's end, seats waiting requests in free rows (distinct prompts are put through
the model once, a chunk at a time, and copied), and halves the rows when the queues have run dry and that suffices. Not
here: the steps (`device_decode`).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from broaden.engines.base import OnProgress
from broaden.engines.device_decode import WINDOW, DeviceDecoder, require_finite
from broaden.engines.graphs import on
from broaden.engines.runner import ROW_MULTIPLE, Floats, Ints, Runner
from broaden.engines.sampling import uniforms
from broaden.engines.scheduler import Queue, Results
from broaden.kernels import strict
from broaden.records import Sampling


class DeviceSchedule:
    """Runs the queues of one batch of members to their ends."""

    def __init__(
        self,
        decoder: DeviceDecoder,
        queues: Sequence[Queue],
        sampling: Sampling,
        eos: NDArray[np.bool_],
        slots: int,
    ) -> None:
        self.decoder, self.queues, self.sampling, self.eos = decoder, queues, sampling, eos
        self.results = Results(queues, sampling)
        members, longest = len(queues), max((len(p) for q in queues for p in q.prompts), default=1)
        self.each = min(batch_rows(max(len(q.order) for q in queues)), slots)
        self.chunk = max(1, min(max(len(q.prompts) for q in queues), self.each))
        decoder.make_room(members * self.each, longest + sampling.max_new_tokens)
        self.prefix = self.runner.cache(members * self.chunk, longest - 1)
        self._free(members * self.each)
        self.next, self.end = self.results.offsets[:-1].copy(), self.results.offsets[1:].copy()
        self.loaded, self.first = np.zeros(members, np.int64), np.zeros(members, np.int64)
        self.prompt_of = np.concatenate([q.prompt_of for q in queues]).astype(np.int64)
        self.keys = np.concatenate([q.keys for q in queues])

    @property
    def runner(self) -> Runner:
        """The arithmetic of prompts and copies."""
        return self.decoder.runner

    def run(self, report: OnProgress, stop: threading.Event) -> None:
        """Generate everything, reporting (completions, tokens) so far; `stop` ends it early."""
        finished = tokens = 0
        with on(self.decoder.device):
            while not stop.is_set():
                self._seat()
                if not (self.entry >= 0).any():
                    return
                self._compact()
                done, new = self._window()
                finished, tokens = finished + done, tokens + new
                report(finished, tokens)

    def _free(self, rows: int) -> None:
        """`rows` rows with nothing in them: entry -1, id and position 0."""
        self.entry = np.full(rows, -1, np.int64)
        self.ids, self.positions, self.counts = (np.zeros(rows, np.int64) for _ in range(3))

    def _window(self) -> tuple[int, int]:
        """WINDOW tokens of every row; returns (completions finished, tokens kept)."""
        keys = np.where(self.entry >= 0, self.keys[self.entry], np.uint64(0))
        numbers = np.zeros((WINDOW, len(keys)))
        for step in range(WINDOW):
            uniforms(keys, self.counts + step, numbers[step])
        drawn = self.decoder.window(self.ids, self.positions, numbers, self.sampling)
        live = np.zeros((WINDOW, len(keys)), np.bool_)
        out = self.results
        done = _store(
            drawn.tokens, drawn.logprobs, drawn.entropies, self.eos, self.sampling.max_new_tokens,
            self.entry, self.positions, self.ids, self.counts, live,
            out.tokens, out.logprobs, out.entropies, out.lengths, out.stopped,
        )  # fmt: skip
        require_finite(drawn, live)
        return done, int(live.sum())

    def _seat(self) -> None:
        """Fill free rows from the queues, loading prompts as they come up."""
        for member, queue in enumerate(self.queues):
            low = member * self.each
            free = low + np.flatnonzero(self.entry[low : low + self.each] < 0)
            while len(free) and self.next[member] < self.end[member]:
                entry = int(self.next[member])
                if self.prompt_of[entry] >= self.loaded[member]:
                    self._load(member)
                # entries whose prompts are loaded follow each other, as the queue is ordered by prompt
                ready = self.prompt_of[entry : self.end[member]] < self.loaded[member]
                count = min(len(free), len(ready) if ready.all() else int(ready.argmin()))
                self._place(member, queue, np.arange(entry, entry + count), free[:count])
                free, self.next[member] = free[count:], entry + count

    def _place(self, member: int, queue: Queue, entries: Ints, rows: Ints) -> None:
        """Seat entries of loaded prompts: all but a prompt's last token from the prefix, the last to be fed."""
        prompts = self.prompt_of[entries]
        lengths = np.array([len(queue.prompts[p]) - 1 for p in prompts], np.int64)
        source = member * self.chunk + prompts - self.first[member]
        self.runner.copy(self.prefix, self.decoder.cache, source, rows, lengths)
        self.entry[rows], self.positions[rows], self.counts[rows] = entries, lengths, 0
        self.ids[rows] = [queue.prompts[p][-1] for p in prompts]

    def _load(self, member: int) -> None:
        """Put the member's next chunk of prompts (all but their last tokens) into its prefix slots."""
        low = int(self.loaded[member])
        prompts = [p[:-1] for p in self.queues[member].prompts[low : low + self.chunk]]
        at = member * self.chunk
        self.runner.prompts(member, prompts, self.prefix, range(at, at + len(prompts)))
        self.first[member], self.loaded[member] = low, low + len(prompts)

    def _compact(self) -> None:
        """Halve the rows a member as long as what is running and waiting still fits."""
        members, rows = len(self.queues), np.flatnonzero(self.entry >= 0)
        running = np.bincount(rows // self.each, minlength=members)
        each = batch_rows(int((running + self.end - self.next).max()))
        if each >= self.each:
            return
        ranks = np.arange(len(rows)) - np.repeat(np.cumsum(running) - running, running)
        target = rows // self.each * each + ranks
        self.runner.copy(self.decoder.cache, self.decoder.cache, rows, target, self.positions[rows])
        moved = self.entry[rows], self.ids[rows], self.positions[rows], self.counts[rows]
        self._free(members * each)
        self.entry[target], self.ids[target], self.positions[target], self.counts[target] = moved
        self.each = each


def batch_rows(requests: int) -> int:
    """16, 32, 64, .. rows for so many requests."""
    rows = ROW_MULTIPLE
    while rows < requests:
        rows *= 2
    return rows


@strict
def _store(
    tokens: Ints, logprobs: Floats, entropies: Floats, eos: NDArray[np.bool_], most: int,
    entry: Ints, positions: Ints, ids: Ints, counts: Ints, live: NDArray[np.bool_],
    out_tokens: NDArray[np.int32], out_logprobs: Floats, out_entropies: Floats,
    lengths: Ints, stopped: NDArray[np.bool_],
) -> int:  # fmt: skip
    """Keep each row's tokens up to its end, mark them live, and free the rows that ended; returns how many did."""
    finished = 0
    for row in range(entry.shape[0]):
        at = entry[row]
        if at < 0:
            continue
        for step in range(tokens.shape[0]):
            n, token = counts[row], tokens[step, row]
            live[step, row] = True
            out_tokens[at, n] = token
            if out_logprobs.shape[1]:
                out_logprobs[at, n] = logprobs[step, row]
            if out_entropies.shape[1]:
                out_entropies[at, n] = entropies[step, row]
            ids[row], counts[row], positions[row] = token, n + 1, positions[row] + 1
            if eos[token] or n + 1 == most:
                lengths[at], stopped[at] = n + 1, eos[token]
                entry[row], positions[row], ids[row], counts[row] = -1, 0, 0, 0
                finished += 1
                break
    return finished
