"""Which tensors are perturbed, how and under which keys: `Selection`, `LowRank` and `NoiseSpec`.

Canonical names are the Hugging Face ones, whatever an engine fuses or shards. Not here: noise or weights.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import translate
from typing import Any

import torch

from broaden.errors import UsageError
from broaden.perturb.noise import check_sigma
from broaden.seeds import stream

Weights = Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Selection:
    """A parameterisation by name patterns: perturb what an `include` matches and no `exclude` does.

    Patterns are shell globs over canonical names (`*` also crosses dots), e.g. `model.layers.*.mlp.*`.
    The default perturbs every tensor ("full").
    """

    include: tuple[str, ...] = ("*",)
    exclude: tuple[str, ...] = ()

    @property
    def rank(self) -> int:
        """0: noise of full rank."""
        return 0

    def select(self, names: Iterable[str]) -> tuple[str, ...]:
        """The selected names, in the order given.

        Raises:
            UsageError: a pattern matches no name, or nothing is left.
        """
        known = tuple(names)
        included = set().union(*(_matches(pattern, known, "include") for pattern in self.include))
        excluded = set().union(*(_matches(pattern, known, "exclude") for pattern in self.exclude))
        chosen = tuple(name for name in known if name in included and name not in excluded)
        if not chosen:
            raise UsageError(
                f"include {list(self.include)} without {list(self.exclude)} leaves none of {len(known)} tensors",
                fix="widen include or narrow exclude",
            )
        return chosen

    def to_json(self) -> dict[str, list[str]]:
        """Plain dict for a seed log; `from_json` is its inverse."""
        return {"include": list(self.include), "exclude": list(self.exclude)}

    @classmethod
    def from_json(cls, data: Mapping[str, Sequence[str]]) -> Selection:
        """Inverse of `to_json`. Raises UsageError on other keys."""
        if set(data) != {"include", "exclude"}:
            raise UsageError(f"a parameterisation has the keys include and exclude, not {sorted(data)}")
        return cls(tuple(data["include"]), tuple(data["exclude"]))


FULL = Selection()


@dataclass(frozen=True, slots=True)
class LowRank:
    """A parameterisation of rank r: matrices get sigma / sqrt(r) A B^T (see `lowrank`), tensors of another
    number of dimensions (norms, biases) full noise as ever.

    Args:
        rank: r, from 1 to the smaller side of every selected matrix.
        selection: which tensors are perturbed.

    Raises:
        UsageError: rank is below 1.
    """

    rank: int
    selection: Selection = FULL

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise UsageError(f"a rank is at least 1, got {self.rank}", fix="rank = 1, or full-rank noise")

    def select(self, names: Iterable[str]) -> tuple[str, ...]:
        """See `Selection.select`."""
        return self.selection.select(names)

    def to_json(self) -> dict[str, Any]:
        """Plain dict for a seed log: the selection's, and the rank."""
        return {**self.selection.to_json(), "rank": self.rank}


Parameterisation = Selection | LowRank


def parameterisation_from_json(data: Mapping[str, Any]) -> Parameterisation:
    """Inverse of `to_json` of either. Raises UsageError where the keys are neither's."""
    if "rank" not in data:
        return Selection.from_json(data)
    patterns = Selection.from_json({key: value for key, value in data.items() if key != "rank"})
    if isinstance(data["rank"], bool) or not isinstance(data["rank"], int):
        raise UsageError(f"the rank of a parameterisation is a whole number, not {data['rank']!r}")
    return LowRank(data["rank"], patterns)


def check_rank(shapes: Mapping[str, Sequence[int]], names: Iterable[str], rank: int) -> None:
    """Raises UsageError where `rank` is above the smaller side of a matrix among the names."""
    for name in names:
        if len(shapes[name]) == 2 and rank > min(shapes[name]):
            raise UsageError(
                f"rank {rank} is above the smaller side of {name} {tuple(shapes[name])}",
                fix=f"rank = {min(shapes[name])} or less, or exclude that tensor",
            )


def _matches(pattern: str, names: Sequence[str], role: str) -> set[str]:
    found = set(filter(re.compile(translate(pattern)).match, names))
    if not found:
        near = difflib.get_close_matches(pattern, names, n=3, cutoff=0.3) or sorted(names)[:3]
        raise UsageError(
            f"{role} pattern {pattern!r} matches none of {len(names)} tensors",
            fix=f"use names such as {', '.join(near)}",
        )
    return found


@dataclass(frozen=True, slots=True)
class NoiseSpec:
    """Everything that decides the noise of one ES step, for any member.

    Args:
        run_seed: the run's one seed.
        step: number of the update, from 0.
        sigma: standard deviation of the perturbation, in units of the weights; 0 perturbs nothing.
        names: canonical names of the perturbed tensors (see `Selection`); order does not matter.
        rank: of a matrix's noise (see `LowRank`); 0: full.

    Raises:
        UsageError: sigma is negative or not finite, step or rank is negative, names are empty or repeat.
    """

    run_seed: int
    step: int
    sigma: float
    names: tuple[str, ...]
    rank: int = 0

    def __post_init__(self) -> None:
        check_sigma(self.sigma)
        if self.rank < 0:
            raise UsageError(f"a rank is 0 (full) or more, got {self.rank}")
        if self.step < 0:
            raise UsageError(f"a step is counted from 0, got {self.step}")
        if not self.names:
            raise UsageError(
                "a noise specification names no tensor", fix="take the names from Selection.select"
            )
        if len(set(self.names)) != len(self.names):
            raise UsageError(
                f"tensor names repeat: {sorted({n for n in self.names if self.names.count(n) > 1})[:3]}"
            )

    def key(self, member: int, name: str) -> int:
        """64-bit key of one member's noise in one tensor: stream(run_seed, "noise", step, member, name)."""
        return self._key(member, name)

    def factor_keys(self, member: int, name: str) -> tuple[int, int]:
        """Keys of the factors A and B of one member's matrix: `key`'s stream with one more part, "A" or "B"."""
        return self._key(member, name, "A"), self._key(member, name, "B")

    def factored(self, weights: Weights) -> tuple[str, ...]:
        """The perturbed names whose noise is A B^T: matrices, where there is a rank.

        Raises UsageError where the rank is above a matrix's smaller side.
        """
        if not self.rank:
            return ()
        check_rank({name: weights[name].shape for name in self.names}, self.names, self.rank)
        return tuple(name for name in self.names if weights[name].dim() == 2)

    def _key(self, member: int, *parts: str) -> int:
        if member < 0:
            raise UsageError(f"members are counted from 0, got {member}")
        return stream(self.run_seed, "noise", self.step, member, *parts)
