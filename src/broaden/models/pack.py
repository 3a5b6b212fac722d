"""Token rows laid end to end, rows of one prompt sharing it: what a packed forward pass reads.

    [prompt a | completion a1 | completion a2 | ... | prompt b | completion b1 | ...]

A prompt stands once a group, so a group of G rows costs P + sum T_i positions, not G P + sum T_i; nothing is padded but
the tiles of attention (`Block`). A completion's last token predicts nothing and is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from broaden.models.logprobs import ROW_MULTIPLE
from broaden.models.rows import Examples

Ints = NDArray[np.int64]
SCORES = 1 << 20  # attention scores of one head in a block, at most (float32), where rows allow
ALIKE = 0.75  # rows of a block are at least this share of its longest


@dataclass(frozen=True, slots=True)
class Block:
    """B rows of attention. Query t of row b attends to keys 0 .. first_B[b] + t of its row.

    Attributes:
        queries_BT, keys_BK: places in the pack; -1 is padding.
        first_B: keys before each row's first query.
    """

    queries_BT: Ints
    keys_BK: Ints
    first_B: Ints


@dataclass(frozen=True, slots=True)
class Pack:
    """Rows as S places, a multiple of 16, that predict N tokens.

    Attributes:
        ids_S, positions_S: token ids and their positions (int64); position -1 is padding at the end.
        predict_N: the place whose hidden state predicts each completion token, row by row in the order given.
        targets_N: those tokens.
        starts_Q: where each run of places begins (Q + 1 numbers): a prompt, or a completion.
        prompts_Q: for a completion the number of its prompt's run, for a prompt -1.
        blocks: what attends to what.
    """

    ids_S: torch.Tensor
    positions_S: Ints
    predict_N: torch.Tensor
    targets_N: torch.Tensor
    starts_Q: Ints
    prompts_Q: Ints
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class _Span:
    """Queries at places start .. start + count; keys are `prefix` places from `prefix_start`, then the same."""

    start: int
    count: int
    prefix_start: int = 0
    prefix: int = 0


def pack(rows: Examples, at: Sequence[int] | Ints, groups_R: Ints | None = None) -> Pack:
    """Lay out rows `at`.

    Args:
        groups_R: rows with one number have the same prompt, which then stands once; None: every row has its own.
    """
    ids: list[NDArray[np.int32]] = []
    positions: list[Ints] = []
    predict: dict[int, Ints] = {}
    spans: list[_Span] = []
    owners: list[int] = []
    place = 0
    for members in _by_group(np.asarray(at, np.int64), groups_R):
        prompt, prompt_at, owner = int(rows.prompts[members[0]]), place, len(spans)
        begin = int(rows.starts[members[0]])
        ids.append(rows.flat[begin : begin + prompt])
        positions.append(np.arange(prompt))
        spans.append(_Span(place, prompt))
        owners.append(-1)
        place += prompt
        for row in members:
            begin, end = int(rows.starts[row]) + prompt, int(rows.starts[row + 1])
            count = end - begin - 1
            predict[int(row)] = np.concatenate(([prompt_at + prompt - 1], place + np.arange(count)))
            if count:
                ids.append(rows.flat[begin : end - 1])
                positions.append(prompt + np.arange(count))
                spans.append(_Span(place, count, prompt_at, prompt))
                owners.append(owner)
                place += count
    padding = -place % ROW_MULTIPLE
    return Pack(
        torch.from_numpy(np.concatenate([*ids, np.zeros(padding, np.int32)]).astype(np.int64)),
        np.concatenate([*positions, np.full(padding, -1)]).astype(np.int64),
        torch.from_numpy(np.concatenate([predict[int(r)] for r in at])),
        torch.from_numpy(np.concatenate([_completion(rows, int(r)) for r in at]).astype(np.int64)),
        np.array([*(span.start for span in spans), place]),
        np.array(owners),
        tuple(_blocks(spans)),
    )


def _completion(rows: Examples, row: int) -> NDArray[np.int32]:
    return rows.flat[rows.starts[row] + rows.prompts[row] : rows.starts[row + 1]]


def _by_group(at: Ints, groups_R: Ints | None) -> list[Ints]:
    """Rows of each group together, groups in the order of their first row."""
    if groups_R is None:
        return [at[i : i + 1] for i in range(len(at))]
    groups = groups_R[at]
    _, first = np.unique(groups, return_index=True)
    return [at[groups == groups[i]] for i in np.sort(first)]


def _blocks(spans: Sequence[_Span]) -> Iterator[Block]:
    """Spans of like lengths side by side, longest first, long ones cut into pieces of queries."""
    pieces = [p for span in spans for p in _pieces(span)]
    pieces.sort(key=lambda p: (p[0].prefix > 0, p[2] - p[1], p[0].prefix + p[2]), reverse=True)
    waiting: list[tuple[_Span, int, int]] = []
    most_queries = most_keys = 0
    for piece in pieces:
        span, start, end = piece
        queries, keys = end - start, span.prefix + end
        fits = (len(waiting) + 1) * max(most_queries, queries) * max(most_keys, keys) <= SCORES
        alike = queries >= ALIKE * most_queries and min(keys, most_keys) >= ALIKE * max(keys, most_keys)
        if waiting and not (fits and alike):
            yield _block(waiting)
            waiting, most_queries, most_keys = [], 0, 0
        waiting.append(piece)
        most_queries, most_keys = max(most_queries, queries), max(most_keys, keys)
    if waiting:
        yield _block(waiting)


def _pieces(span: _Span) -> list[tuple[_Span, int, int]]:
    """(span, first query, end) of pieces whose scores fit."""
    size = max(16, SCORES // (span.prefix + span.count))
    return [(span, a, min(a + size, span.count)) for a in range(0, span.count, size)]


def _block(pieces: Sequence[tuple[_Span, int, int]]) -> Block:
    queries = np.full((len(pieces), max(end - start for _, start, end in pieces)), -1, np.int64)
    keys = np.full((len(pieces), max(span.prefix + end for span, _, end in pieces)), -1, np.int64)
    first = np.zeros(len(pieces), np.int64)
    for b, (span, start, end) in enumerate(pieces):
        queries[b, : end - start] = span.start + np.arange(start, end)
        keys[b, : span.prefix] = span.prefix_start + np.arange(span.prefix)
        keys[b, span.prefix : span.prefix + end] = span.start + np.arange(end)
        first[b] = span.prefix + start
    return Block(queries, keys, first)
