"""How the C library keeps freed memory: one setting, for processes that are ours.

glibc gives every thread an arena of its own and keeps what was freed there. Lanes and autograd free hundreds of
megabytes in threads that do not ask again; with one arena for all of them the next phase takes that room (measured:
210 MiB of an ES update of SmolLM2 on two threads). Commands and workers call this at their start; importing broaden
as a library does not.
"""

from __future__ import annotations

import ctypes
import sys

M_ARENA_MAX = -8  # malloc.h


def one_arena() -> bool:
    """Limit glibc to one arena; False where the C library has no such setting."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        return bool(ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1))
    except (OSError, AttributeError):
        return False
