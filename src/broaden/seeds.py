"""Randomness has a name, not a number: every random draw has a keyed stream.

`stream(7, "noise", step, member, tensor_name)` is a 64-bit key: the first eight bytes of BLAKE2b over
an unambiguous encoding of its parts. Neighbouring run seeds, steps and members give unrelated keys,
and no arithmetic is ever done on a seed. Not here: the generators that turn a key into numbers
(`perturb.noise` for weights, `engines.sampling` for tokens); `numpy_generator` serves the rest.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

Part = int | str
MASK_64 = (1 << 64) - 1


def encode(parts: tuple[Part, ...]) -> bytes:
    """Type-tagged, length-prefixed encoding: ("a", "b") and ("ab",), 1 and "1" all differ."""
    out = bytearray()
    for part in parts:
        if isinstance(part, bool) or not isinstance(part, (int, str)):
            raise TypeError(f"a stream's parts are int or str, not {type(part).__name__}")
        tag, raw = (b"i", str(part).encode()) if isinstance(part, int) else (b"s", part.encode())
        out += tag + len(raw).to_bytes(4, "little") + raw
    return bytes(out)


def stream(run_seed: int, name: str, *parts: Part) -> int:
    """Key of the named stream: an integer in [0, 2**64).

    Args:
        run_seed: the run's one seed.
        name: what the numbers are for ("noise", "sample", "order", "bootstrap", ...).
        parts: whatever distinguishes this draw: step, member, problem id, sample index, tensor name.
    """
    digest = hashlib.blake2b(encode((run_seed, name, *parts)), digest_size=8, person=b"broaden-stream1")
    return int.from_bytes(digest.digest(), "little")


def numpy_generator(key: int) -> np.random.Generator:
    """A NumPy generator (Philox) for a key: shuffles, bootstraps and problem generators."""
    import numpy as np

    return np.random.Generator(np.random.Philox(key=key & MASK_64))
