"""Compiled kernels over the cores: a range of independent rows shared out to threads.

Rows do not meet, so the number of threads cannot change a bit. Numba's own parallel loops are not used: their
workqueue layer aborts when two threads enter it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import torch

SMALLEST = 16  # rows worth a thread
_pool: ThreadPoolExecutor | None = None
_owner = 0
_lock = threading.Lock()


def over_rows(rows: int, kernel: Callable[[int, int], None], smallest: int = SMALLEST) -> None:
    """Call kernel(first, last) on ranges that cover 0 .. rows, side by side in torch's number of threads."""
    threads = min(torch.get_num_threads(), -(-rows // smallest))
    if threads <= 1:
        kernel(0, rows)
        return
    cuts = [rows * i // threads for i in range(threads + 1)]
    waiting = [_threads().submit(kernel, a, b) for a, b in pairwise(cuts[1:])]
    kernel(cuts[0], cuts[1])
    for done in waiting:
        done.result()


def _threads() -> ThreadPoolExecutor:
    """One pool a process (a forked child makes its own)."""
    global _pool, _owner
    with _lock:
        if _pool is None or _owner != os.getpid():
            _pool, _owner = ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="rows"), os.getpid()
        return _pool
