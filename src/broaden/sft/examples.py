"""Which training pairs a warm-start step sees: endless shuffled batches.

Not here: packing and padding (`models.rows`), tokenising (`chat`), the traces themselves (`tasks`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from broaden.errors import DataError
from broaden.models.rows import Batch, Examples
from broaden.seeds import numpy_generator, stream

ExampleSource = Examples | Callable[[int], Examples]


class Feed:
    """Endless shuffled batches: batch s holds places [s B, (s + 1) B) of the epochs' orders laid end to end.

    The order of epoch e is the permutation keyed by `stream(run_seed, "order", e)`. Every batch is full and
    every example of an epoch is seen once. A source may be a function of the epoch (traces drawn afresh);
    it must give the same number of examples each time. Batch s is a function of (run seed, s) alone.
    """

    def __init__(self, source: ExampleSource, run_seed: int, batch: int) -> None:
        self._source = source
        self._run_seed = run_seed
        self._batch = batch
        self._epochs: dict[int, tuple[Examples, np.ndarray]] = {}
        self.size = len(self._epoch(0)[0])

    def _epoch(self, epoch: int) -> tuple[Examples, np.ndarray]:
        if epoch not in self._epochs:
            examples = self._source if isinstance(self._source, Examples) else self._source(epoch)
            order = numpy_generator(stream(self._run_seed, "order", epoch)).permutation(len(examples))
            self._epochs = {e: kept for e, kept in self._epochs.items() if e >= epoch - 1}
            self._epochs[epoch] = (examples, order)
        return self._epochs[epoch]

    def parts(self, step: int) -> list[tuple[Examples, np.ndarray]]:
        """Batch `step` as (examples, rows): one part, or more where it reaches over an epoch's end."""
        out = []
        place, left = step * self._batch, self._batch
        while left:
            epoch, offset = divmod(place, self.size)
            examples, order = self._epoch(epoch)
            if len(examples) != self.size:
                raise DataError(
                    f"epoch {epoch} has {len(examples)} examples, epoch 0 had {self.size}",
                    "let the example source give the same number every epoch",
                )
            rows = order[offset : offset + left]
            out.append((examples, rows))
            place, left = place + len(rows), left - len(rows)
        return out

    def micro_batches(self, step: int, size: int) -> list[Batch]:
        """Batch `step` cut into micro-batches of at most `size` rows of like length (less padding)."""
        out = []
        for examples, rows in self.parts(step):
            by_length = rows[np.argsort(examples.starts[rows + 1] - examples.starts[rows], kind="stable")]
            out += [examples.batch(by_length[a : a + size]) for a in range(0, len(rows), size)]
        return out
