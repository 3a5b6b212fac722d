"""Where Countdown problems come from: an exact solver, a keyed order of all problems, and the split rule.

The space of problems (multisets of numbers x targets) is walked in a keyed pseudo-random order, so that
there are no duplicates, `limit` is a prefix, and nothing has to be stored. Not here: judging answers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from hashlib import blake2b
from itertools import combinations_with_replacement, islice
from math import comb, gcd
from typing import Any

from broaden import seeds
from broaden.errors import UsageError

Value = tuple[int, int]  # numerator, positive denominator, in lowest terms
Step = tuple[Fraction, str, Fraction, Fraction]
"""One step of a solution: left, operator, right, result."""


@dataclass(frozen=True, slots=True)
class Ranges:
    """Which problems exist: how many numbers, from what range, to which targets (all ends included).

    `sums` keeps the problems that adding all the numbers solves; they are left out by default, since a model
    that always adds would be rewarded for it.
    """

    count: int = 3
    low: int = 1
    high: int = 30
    target_low: int = 1
    target_high: int = 99
    sums: bool = False

    def __post_init__(self) -> None:
        if not 2 <= self.count <= 5:
            raise UsageError(f"countdown: count must be 2 to 5, got {self.count}", "set count=3 or count=4")
        if not 0 <= self.low <= self.high <= 10_000:
            raise UsageError(f"countdown: 0 <= low <= high <= 10000 expected, got {self.low}..{self.high}")
        if not 0 <= self.target_low <= self.target_high <= 100_000:
            raise UsageError(
                "countdown: 0 <= target_low <= target_high <= 100000 expected, got "
                f"{self.target_low}..{self.target_high}"
            )


DEFAULT = Ranges()
LISTED = 20_000
"""Up to so many multisets a split is listed whole: that takes about a second."""
HARD = Ranges(count=4)
BUCKETS: dict[str, range] = {
    "warmup": range(50), "train": range(50, 80), "probe": range(80, 85), "test": range(85, 100), "hard": range(100),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Key:
    """A problem's identity: its sorted numbers and its target."""

    numbers: tuple[int, ...]
    target: int

    def __str__(self) -> str:
        return f"{','.join(map(str, self.numbers))}->{self.target}"


def bucket(key: Key | str) -> int:
    """0..99: the first eight bytes of BLAKE2b of "3,7,12->22", big-endian, modulo 100."""
    return int.from_bytes(blake2b(str(key).encode(), digest_size=8).digest(), "big") % 100


def split_of(key: Key) -> str:
    """The split that a problem of DEFAULT shape belongs to: warmup, train, probe or test."""
    at = bucket(key)
    return next(name for name, buckets in BUCKETS.items() if at in buckets)


def ranges_for(split: str, options: Mapping[str, Any]) -> Ranges:
    """The ranges of a split with the caller's changes. Raises UsageError on an unknown split."""
    if split not in BUCKETS:
        raise UsageError(f"countdown has no split {split!r}", f"its splits are: {', '.join(BUCKETS)}")
    given = {k: v for k, v in options.items() if v is not None and k != "prompt"}
    changes: dict[str, Any] = {k: bool(v) if k == "sums" else int(v) for k, v in given.items()}
    return replace(HARD if split == "hard" else DEFAULT, **changes)


def generate(split: str, ranges: Ranges, limit: int | None, seed: int) -> Iterator[Key]:
    """Every solvable problem of the split once, in an order keyed by `seed`; stops after `limit`."""
    width = ranges.high - ranges.low + 1
    multisets = comb(width + ranges.count - 1, ranges.count)
    targets = ranges.target_high - ranges.target_low + 1
    space = multisets * targets
    if limit is None and (space > 3_000_000 or (ranges.count > 3 and multisets > 1000)):
        raise UsageError(
            f"countdown: {space} candidate problems are too many to list them all", "give --limit"
        )
    wanted = BUCKETS[split]
    order = seeds.stream(seed, "split", "countdown", split)
    keys = _listed(ranges, wanted, order) if multisets <= LISTED else _walked(ranges, wanted, order, space)
    yield from keys if limit is None else islice(keys, limit)


def _listed(ranges: Ranges, wanted: range, order: int) -> list[Key]:
    """A small space: every multiset is solved once, and the problems are sorted by a keyed hash."""
    keys = [
        key
        for numbers in combinations_with_replacement(range(ranges.low, ranges.high + 1), ranges.count)
        for target in sorted(n for n, d in reachable(numbers) if d == 1)
        if _in_range(key := Key(numbers, target), ranges) and bucket(key) in wanted
    ]
    secret = order.to_bytes(8, "little")
    return sorted(keys, key=lambda key: blake2b(str(key).encode(), digest_size=16, key=secret).digest())


def _walked(ranges: Ranges, wanted: range, order: int, space: int) -> Iterator[Key]:
    """A large space: candidates in a keyed pseudo-random order, the unsolvable ones left out."""
    width = ranges.high - ranges.low + 1
    targets = ranges.target_high - ranges.target_low + 1
    permutation = _Permutation(space, order)
    for index in range(space):
        rank, offset = divmod(permutation(index), targets)
        key = Key(_unrank(rank, ranges.low, width, ranges.count), ranges.target_low + offset)
        if _in_range(key, ranges) and bucket(key) in wanted and solvable(key.numbers, key.target):
            yield key


def _in_range(key: Key, ranges: Ranges) -> bool:
    return ranges.target_low <= key.target <= ranges.target_high and (
        ranges.sums or sum(key.numbers) != key.target
    )


def display_order(key: Key, seed: int) -> list[int]:
    """The numbers in the order in which the prompt shows them: a keyed shuffle (Fisher-Yates)."""
    numbers = list(key.numbers)
    for i in range(len(numbers) - 1, 0, -1):
        j = seeds.stream(seed, "split", "countdown-display", str(key), i) % (i + 1)
        numbers[i], numbers[j] = numbers[j], numbers[i]
    return numbers


class _Permutation:
    """A keyed bijection of 0..size-1: a four-round Feistel network over the next even bit length, walked
    until it lands inside (at most four tries on average)."""

    def __init__(self, size: int, key: int) -> None:
        self.size = size
        self.half = max(1, ((size - 1).bit_length() + 1) // 2)
        self.mask = (1 << self.half) - 1
        self.key = key.to_bytes(8, "little")

    def __call__(self, index: int) -> int:
        while True:
            left, right = index >> self.half, index & self.mask
            for turn in range(4):
                raw = blake2b(
                    right.to_bytes(16, "little") + bytes((turn,)), digest_size=8, key=self.key
                ).digest()
                left, right = right, left ^ (int.from_bytes(raw, "little") & self.mask)
            index = (left << self.half) | right
            if index < self.size:
                return index


def _unrank(rank: int, low: int, width: int, count: int) -> tuple[int, ...]:
    """The rank-th sorted multiset of `count` numbers from low..low+width-1, in lexicographic order."""
    out: list[int] = []
    smallest = 0
    for left in range(count - 1, -1, -1):
        for value in range(smallest, width):
            block = comb(width - value + left - 1, left)
            if rank < block:
                out.append(low + value)
                smallest = value
                break
            rank -= block
    return tuple(out)


def solvable(numbers: tuple[int, ...], target: int) -> bool:
    """Whether some expression over all of the sorted numbers has exactly the value `target`."""
    return (target, 1) in reachable(numbers)


@lru_cache(maxsize=1 << 16)
def reachable(numbers: tuple[int, ...]) -> frozenset[Value]:
    """Every value of an expression that uses each of the sorted numbers exactly once."""
    if len(numbers) == 1:
        return frozenset({(numbers[0], 1)})
    out: set[Value] = set()
    for left, right in _partitions(numbers):
        for a, b in reachable(left):
            for c, d in reachable(right):
                bd = b * d
                out.add(_lowest(a * d + c * b, bd))
                out.add(_lowest(a * d - c * b, bd))
                out.add(_lowest(c * b - a * d, bd))
                out.add(_lowest(a * c, bd))
                if c:
                    out.add(_lowest(a * d, b * c))
                if a:
                    out.add(_lowest(c * b, d * a))
    return frozenset(out)


def _lowest(n: int, d: int) -> Value:
    if d < 0:
        n, d = -n, -d
    g = gcd(n, d)
    return (n // g, d // g)


def _partitions(numbers: tuple[int, ...]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Both halves of every way to divide the numbers in two (the first number stays left; no repeats)."""
    rest = numbers[1:]
    seen: set[tuple[tuple[int, ...], tuple[int, ...]]] = set()
    for mask in range((1 << len(rest)) - 1):
        left = (numbers[0], *(n for i, n in enumerate(rest) if mask >> i & 1))
        right = tuple(n for i, n in enumerate(rest) if not mask >> i & 1)
        seen.add((left, right))
    return sorted(seen)


def solutions(
    numbers: tuple[int, ...] | list[int], target: int, limit: int = 1000
) -> list[tuple[str, tuple[Step, ...]]]:
    """Expressions that reach the target, with their steps in order of evaluation; deterministic, without repeats.

    Every expression uses each number exactly once; `+` and `*` are written once (larger operand first).
    """
    out: dict[str, tuple[Step, ...]] = {}
    for text, value, steps, _ in _trees(tuple(sorted(numbers))):
        if value == target and text not in out:
            out[text] = steps
            if len(out) == limit:
                break
    return list(out.items())


_Tree = tuple[str, Fraction, tuple[Step, ...], int]


@lru_cache(maxsize=512)
def _trees(numbers: tuple[int, ...]) -> tuple[_Tree, ...]:
    """(text, value, steps, precedence of the root) of every expression tree over the numbers."""
    if len(numbers) == 1:
        return ((str(numbers[0]), Fraction(numbers[0]), (), 3),)
    out: list[_Tree] = []
    for left, right in _partitions(numbers):
        for a in _trees(left):
            for b in _trees(right):
                big, small = (a, b) if a[1] >= b[1] else (b, a)
                out.append(_join(big, "+", small))
                out.append(_join(big, "*", small))
                for x, y in ((a, b), (b, a)):
                    out.append(_join(x, "-", y))
                    if y[1] != 0:
                        out.append(_join(x, "/", y))
    return tuple(out)


def _join(a: _Tree, operator: str, b: _Tree) -> _Tree:
    rank = 1 if operator in "+-" else 2
    left = f"({a[0]})" if a[3] < rank else a[0]
    right = (
        f"({b[0]})"
        if b[3] < rank or (b[3] == rank and operator in "-/") or (b[3] == rank and rank == 2)
        else b[0]
    )
    x, y = a[1], b[1]
    value = x + y if operator == "+" else x - y if operator == "-" else x * y if operator == "*" else x / y
    return (f"{left} {operator} {right}", value, (*a[2], *b[2], (x, operator, y, value)), rank)


_PROMPT_NUMBERS = re.compile(r"\[([0-9, ]{3,120})\]")
_PROMPT_TARGET = re.compile(
    r"(?:equals?(?:\s+to)?|target(?:\s+of|\s+is|:)?)\s+\$?([0-9]{1,6})\b", re.IGNORECASE
)


def numbers_in_prompt(text: str) -> tuple[tuple[int, ...], int] | None:
    """Numbers and target as a published prompt states them ("Using the numbers [3, 7, 12], ... equals 22")."""
    numbers = _PROMPT_NUMBERS.search(text[:5000])
    target = _PROMPT_TARGET.search(text[:5000])
    found = re.findall(r"[0-9]+", numbers.group(1)) if numbers else []
    if target is None or not 2 <= len(found) <= 16:
        return None
    return tuple(int(n) for n in found), int(target.group(1))
