"""Continuous batching: which request sits in which row, bookkept in arrays.

Each member has `each` rows. A finished row is refilled at once from the member's queue, which is ordered by
prompt: distinct prompts are put through the model once, a chunk at a time, and copied into the rows of their
samples (all tokens but the last, which goes through the decode step like every later one); where each has one
sample and all fit at once, they go straight into their rows. When the queues have run dry, rows are compacted to
the runner's next multiple (16, packed products 4). Not here: arithmetic (`runner`).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from broaden.engines.base import OnProgress
from broaden.engines.runner import Cache, Ints, Runner, round_up
from broaden.kernels import strict
from broaden.records import Completion, Request, Sampling

PROGRESS_STEPS = 16


@dataclass(frozen=True, slots=True)
class Queue:
    """One member's requests in the order of their prompts."""

    prompts: list[tuple[int, ...]]  # distinct, first seen first
    order: Ints  # request index, by prompt
    prompt_of: Ints  # prompt of each entry of `order`
    keys: NDArray[np.uint64]  # key of each entry of `order`

    @classmethod
    def of(cls, requests: Sequence[Request]) -> Queue:
        """Group the requests by prompt, keeping the order in which prompts and requests came."""
        index: dict[tuple[int, ...], int] = {}
        of = np.array([index.setdefault(r.prompt_ids, len(index)) for r in requests], np.int64)
        order = np.argsort(of, kind="stable")
        keys = np.array([r.key for r in requests], np.uint64)
        return cls(list(index), order, of[order], keys[order])

    def share(self, part: int, parts: int) -> Queue:
        """The part-th of `parts` runs of entries of about equal number (prompts that it has no part in go)."""
        low, high = part * len(self.order) // parts, (part + 1) * len(self.order) // parts
        of = self.prompt_of[low:high]
        first, last = (int(of[0]), int(of[-1]) + 1) if len(of) else (0, 0)
        return Queue(self.prompts[first:last], self.order[low:high], of - first, self.keys[low:high])


class Results:
    """What has been generated, by entry of the queues: filled in compiled code, read out once."""

    def __init__(self, queues: Sequence[Queue], sampling: Sampling) -> None:
        counts = [len(q.order) for q in queues]
        self.offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
        total, new = int(self.offsets[-1]), sampling.max_new_tokens
        self.tokens = np.empty((total, new), np.int32)
        self.logprobs = np.empty((total, new if sampling.logprobs else 0), np.float32)
        self.entropies = np.empty((total, new if sampling.entropy else 0), np.float32)
        self.lengths, self.stopped = np.zeros(total, np.int64), np.zeros(total, np.bool_)
        self.sampling = sampling

    def completions(self, member: int) -> list[Completion]:
        """In the order of the member's queue."""
        return [self._completion(i) for i in range(self.offsets[member], self.offsets[member + 1])]

    def _completion(self, i: int) -> Completion:
        n = self.lengths[i]
        return Completion(
            tuple(self.tokens[i, :n].tolist()),
            "stop" if self.stopped[i] else "length",
            tuple(self.logprobs[i, :n].tolist()) if self.sampling.logprobs else None,
            tuple(self.entropies[i, :n].tolist()) if self.sampling.entropy else None,
        )


@dataclass(frozen=True, slots=True)
class Rows:
    """What each row is doing, [rows] each: request and position are -1 where it is free."""

    request: Ints  # entry of the queues, member-major
    position: Ints  # of the token to be fed next
    ids: Ints  # that token
    count: Ints  # tokens generated so far
    key: NDArray[np.uint64]

    @classmethod
    def free(cls, rows: int) -> Rows:
        """Nothing seated."""
        return cls(
            np.full(rows, -1, np.int64), np.full(rows, -1, np.int64), np.zeros(rows, np.int64),
            np.zeros(rows, np.int64), np.zeros(rows, np.uint64),
        )  # fmt: skip

    def moved(self, source: Ints, target: Ints, rows: int) -> Rows:
        """The source rows at their target places among `rows`."""
        new = Rows.free(rows)
        new.request[target], new.position[target] = self.request[source], self.position[source]
        new.ids[target], new.count[target], new.key[target] = (
            self.ids[source],
            self.count[source],
            self.key[source],
        )
        return new


class Schedule:
    """Runs the queues of one batch of members to their ends."""

    def __init__(
        self, runner: Runner, queues: Sequence[Queue], sampling: Sampling, eos: NDArray[np.bool_], slots: int
    ) -> None:
        self.runner, self.queues, self.sampling, self.eos = runner, queues, sampling, eos
        self.results = Results(queues, sampling)
        members, longest = len(queues), max((len(p) for q in queues for p in q.prompts), default=1)
        most = max(len(q.order) for q in queues)
        self.multiple = runner.row_multiple
        self.each = min(round_up(most, self.multiple), slots)
        self.chunk = max(1, min(max(len(q.prompts) for q in queues), self.each))
        self.cache = runner.cache(members * self.each, longest + sampling.max_new_tokens)
        self.direct = all(len(q.prompts) == len(q.order) <= self.each for q in queues)
        self.prefix = None if self.direct else runner.cache(members * self.chunk, longest - 1)
        self.rows = Rows.free(members * self.each)
        self.next = self.results.offsets[:-1].copy()
        self.end = self.results.offsets[1:].copy()
        self.loaded = np.zeros(members, np.int64)  # prompts [loaded - chunk, loaded) are in the prefix cache
        self.first = np.zeros(members, np.int64)
        self.prompt_of = np.concatenate([q.prompt_of for q in queues]).astype(np.int64)
        self.keys = np.concatenate([q.keys for q in queues])
        self.prompt_length, self.last_token, self.prompt_start = _prompt_arrays(queues)

    def run(self, report: OnProgress, stop: threading.Event) -> None:
        """Generate everything, reporting (completions, tokens) so far; `stop` ends it early."""
        finished = tokens = step = 0
        while not stop.is_set():
            self._admit()
            rows = np.flatnonzero(self.rows.request >= 0)
            if not len(rows):
                return
            rows = self._compact(rows)
            done = self._step(rows)
            finished, tokens, step = finished + done, tokens + len(rows), step + 1
            if step % PROGRESS_STEPS == 0 or finished == len(self.keys):
                report(finished, tokens)

    def _step(self, rows: Ints) -> int:
        """One token for each occupied row; returns how many completions it finished."""
        r, out = self.rows, self.results
        logits = self.runner.logits(r.ids, r.position, self.cache)
        drawn = self.runner.sample(logits, rows, self.sampling, r.key, r.count)
        return _advance(
            rows, drawn.tokens, drawn.logprobs, drawn.entropies, self.eos, self.sampling.max_new_tokens,
            r.request, r.position, r.ids, r.count,
            out.tokens, out.logprobs, out.entropies, out.lengths, out.stopped,
        )  # fmt: skip

    def _admit(self) -> None:
        """Fill free rows from the queues, loading prompts as they come up."""
        if not (self.next < self.end).any():
            return
        if self.prefix is None:
            for member, queue in enumerate(self.queues):
                self._seat(member, queue)
            return
        r, size = self.rows, len(self.rows.request)
        while True:
            wanting = np.zeros(len(self.queues), np.bool_)
            source, target, length = (
                np.empty(size, np.int64),
                np.empty(size, np.int64),
                np.empty(size, np.int64),
            )
            n = _plan(
                self.each, self.chunk, self.next, self.end, self.first, self.loaded, self.prompt_of,
                self.keys, self.prompt_start, self.prompt_length, self.last_token,
                r.request, r.position, r.ids, r.count, r.key, wanting, source, target, length,
            )  # fmt: skip
            if n:
                self.runner.copy(self.prefix, self.cache, source[:n], target[:n], length[:n])
            if not wanting.any():
                return
            for member in np.flatnonzero(wanting):
                self._load(int(member), self.prefix)

    def _seat(self, member: int, queue: Queue) -> None:
        """Put all of a member's prompts straight into its rows: each has one sample, and nothing sits there yet."""
        r, first, count = self.rows, int(self.next[member]), len(queue.order)
        if not count:
            return
        at = slice(member * self.each, member * self.each + count)
        prompts = [queue.prompts[i] for i in queue.prompt_of]
        self.runner.prompts(member, [p[:-1] for p in prompts], self.cache, range(at.start, at.stop))
        r.request[at], r.key[at] = np.arange(first, first + count), self.keys[first : first + count]
        r.position[at] = [len(p) - 1 for p in prompts]
        r.ids[at], r.count[at] = [p[-1] for p in prompts], 0
        self.next[member] = self.end[member]

    def _load(self, member: int, prefix: Cache) -> None:
        """Put the member's next chunk of prompts (all but their last tokens) into its prefix slots."""
        low = int(self.loaded[member])
        prompts = [p[:-1] for p in self.queues[member].prompts[low : low + self.chunk]]
        at = member * self.chunk
        self.runner.prompts(member, prompts, prefix, range(at, at + len(prompts)))
        self.first[member], self.loaded[member] = low, low + len(prompts)

    def _compact(self, rows: Ints) -> Ints:
        """Shrink to the fewest rows a member that hold what is running and waiting; returns the occupied rows."""
        members = len(self.queues)
        running = np.bincount(rows // self.each, minlength=members)
        each = round_up(int((running + self.end - self.next).max()), self.multiple)
        if each >= self.each:
            return rows
        target = _fill(rows, each) if members == 1 else _close(rows, self.each, each, running)
        moving = target != rows
        source = rows[moving]
        self.runner.copy(self.cache, self.cache, source, target[moving], self.rows.position[source])
        self.rows, self.each = self.rows.moved(rows, target, members * each), each
        return target


def _fill(rows: Ints, each: int) -> Ints:
    """New places of one member's rows below `each`: only those beyond move, into the gaps."""
    target, beyond = rows.copy(), rows >= each
    target[beyond] = np.setdiff1d(np.arange(each), rows)[: beyond.sum()]
    return target


def _close(rows: Ints, before: int, each: int, running: Ints) -> Ints:
    """New places of several members' rows, `before` rows each until now: in their order, without gaps."""
    ranks = np.arange(len(rows)) - np.repeat(np.cumsum(running) - running, running)
    return rows // before * each + ranks


def _prompt_arrays(queues: Sequence[Queue]) -> tuple[Ints, Ints, Ints]:
    """(length, last token) of every prompt, member-major, and where each member's prompts start."""
    prompts = [p for q in queues for p in q.prompts]
    length = np.array([len(p) for p in prompts], np.int64)
    last = np.array([p[-1] for p in prompts], np.int64)
    counts = np.array([len(q.prompts) for q in queues], np.int64)
    return length, last, np.cumsum(counts) - counts


@strict
def _plan(
    each: int, chunk: int, head: Ints, end: Ints, first: Ints, loaded: Ints, prompt_of: Ints,
    keys: NDArray[np.uint64], prompt_start: Ints, prompt_length: Ints, last_token: Ints,
    request: Ints, position: Ints, ids: Ints, count: Ints, key: NDArray[np.uint64],
    wanting: NDArray[np.bool_], source: Ints, target: Ints, length: Ints,
) -> int:  # fmt: skip
    """Seat waiting requests in free rows while their prompts are loaded; returns how many copies that needs."""
    n = 0
    for member in range(head.shape[0]):
        for row in range(member * each, (member + 1) * each):
            if request[row] >= 0:
                continue
            if head[member] >= end[member]:
                break
            entry = head[member]
            prompt = prompt_of[entry]
            if prompt >= loaded[member]:
                wanting[member] = True
                break
            at = prompt_start[member] + prompt
            source[n], target[n] = member * chunk + prompt - first[member], row
            length[n] = prompt_length[at] - 1
            request[row], key[row] = entry, keys[entry]
            position[row], ids[row], count[row] = length[n], last_token[at], 0
            head[member] += 1
            n += 1
    return n


@strict
def _advance(
    rows: Ints, tokens: Ints, logprobs: NDArray[np.float32], entropies: NDArray[np.float32],
    eos: NDArray[np.bool_], most: int, request: Ints, position: Ints, ids: Ints, count: Ints,
    out_tokens: NDArray[np.int32], out_logprobs: NDArray[np.float32], out_entropies: NDArray[np.float32],
    lengths: Ints, stopped: NDArray[np.bool_],
) -> int:  # fmt: skip
    """Store each row's token, move on by one position, and free the rows that ended; returns how many did."""
    finished = 0
    for row in rows:
        at, n, token = request[row], count[row], tokens[row]
        out_tokens[at, n] = token
        if out_logprobs.shape[1]:
            out_logprobs[at, n] = logprobs[row]
        if out_entropies.shape[1]:
            out_entropies[at, n] = entropies[row]
        ids[row], count[row], position[row] = token, n + 1, position[row] + 1
        if eos[token] or n + 1 == most:
            lengths[at], stopped[at] = n + 1, eos[token]
            request[row], position[row] = -1, -1
            finished += 1
    return finished
