"""Token rows packed into flat arrays, and right-padded batches cut from them without a Python loop.

What the trainers differentiate: warm-start pairs and GRPO's rollouts alike. Not here: tokenising
(`tokenizer`), which rows when (`sft.examples`, `grpo.minibatch`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from broaden.errors import DataError

Pair = tuple[Sequence[int], Sequence[int]]


@dataclass(frozen=True, slots=True)
class Batch:
    """Right-padded rows. `lengths_B` counts real ids, `prompts_B` those that are the prompt."""

    ids_BT: torch.Tensor
    prompts_B: torch.Tensor
    lengths_B: torch.Tensor

    @property
    def completion_tokens(self) -> int:
        """Tokens that are trained: those after the prompt."""
        return int((self.lengths_B - self.prompts_B).sum())


@dataclass(frozen=True, slots=True)
class Examples:
    """E pairs (prompt, completion) in three arrays: all ids end to end, row starts, prompt lengths."""

    flat: np.ndarray
    starts: np.ndarray
    prompts: np.ndarray

    @classmethod
    def of(cls, pairs: Iterable[Pair]) -> Examples:
        """Pack pairs; a completion already ends with its EOS.

        Raises:
            DataError: an empty data set, or a pair whose prompt or completion is empty (named by its index).
        """
        flat: list[int] = []
        starts, prompts = [0], []
        for index, (prompt, completion) in enumerate(pairs):
            if not len(prompt) or not len(completion):
                raise DataError(
                    f"training pair {index} has {len(prompt)} prompt and {len(completion)} completion tokens",
                    "each needs one at least: remove the empty rows",
                )
            flat.extend(prompt)
            flat.extend(completion)
            starts.append(len(flat))
            prompts.append(len(prompt))
        if not prompts:
            raise DataError("the training data is empty", "give at least one (prompt, completion) pair")
        return cls(np.asarray(flat, np.int32), np.asarray(starts, np.int64), np.asarray(prompts, np.int64))

    def __len__(self) -> int:
        return len(self.prompts)

    def batch(self, rows: np.ndarray) -> Batch:
        """The rows asked for, padded on the right with 0 (which a causal model never sees)."""
        begin = self.starts[rows]
        lengths = self.starts[rows + 1] - begin
        columns = np.arange(int(lengths.max()))
        inside = columns < lengths[:, None]
        ids = np.where(inside, self.flat[np.where(inside, begin[:, None] + columns, 0)], 0)
        return Batch(
            torch.from_numpy(ids.astype(np.int64)),
            torch.from_numpy(self.prompts[rows]),
            torch.from_numpy(lengths),
        )


def predicting_positions(batch: Batch) -> torch.Tensor:
    """Bool B x T: position t is True where the token at t + 1 belongs to the completion."""
    columns = torch.arange(batch.ids_BT.shape[1])
    return (columns >= batch.prompts_B[:, None] - 1) & (columns < batch.lengths_B[:, None] - 1)
