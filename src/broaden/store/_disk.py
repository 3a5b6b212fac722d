"""fsync and the one place where an OSError of writing becomes a StoreError."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from broaden.errors import StoreError


def fsync_path(path: Path) -> None:
    """Flush a file's or a directory's data to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def fsync_tree(folder: Path) -> None:
    """Flush every file under a folder, then every directory, deepest first."""
    for root, _, names in os.walk(folder, topdown=False):
        for name in names:
            fsync_path(Path(root) / name)
        fsync_path(Path(root))


@contextmanager
def writing(what: str, path: Path) -> Iterator[None]:
    """Turn an OSError into a StoreError that says what was being written, and what to do.

    A full disk is also recognised by its text: writers in other languages (safetensors) raise their own.
    """
    try:
        yield
    except StoreError:
        raise
    except Exception as error:
        if _disk_full(error):
            raise StoreError(
                f"no space left while writing {what} {path}",
                "free some space and resume: what was committed before is intact",
            ) from error
        if isinstance(error, OSError):
            raise StoreError(
                f"could not write {what} {path}: {error}",
                "check the folder and its permissions; what was committed before is intact",
            ) from error
        raise


def _disk_full(error: Exception) -> bool:
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return os.strerror(errno.ENOSPC) in str(error)
