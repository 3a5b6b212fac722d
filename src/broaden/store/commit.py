"""Atomic commit of a folder: it exists whole or not at all.

The writer fills a temporary sibling; its files and directories are flushed to the disk; one rename makes
it visible; the parent is flushed. A crash leaves only a `.partial-*` folder, which is ignored and cleaned.
Not here: what is written (the caller's writer).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

from broaden.errors import ExistsError
from broaden.store._disk import fsync_path, fsync_tree, writing

PARTIAL = ".partial-"


def commit(folder: Path, writer: Callable[[Path], None]) -> Path:
    """Write a folder atomically.

    Args:
        folder: the final place; must not exist yet.
        writer: called with an empty temporary folder on the same file system, to fill it.
    Returns:
        `folder`.
    Raises:
        ExistsError: the folder exists. StoreError: writing failed (disk full): then the temporary folder is
        removed and everything that was committed before is as it was. Other exceptions of the writer
        pass through after the same clean-up.
    """
    if folder.exists():
        raise ExistsError(
            f"{folder} exists already", "a commit never overwrites: remove it or choose another name"
        )
    temporary = folder.parent / f"{PARTIAL}{folder.name}-{os.getpid()}-{uuid4().hex[:8]}"
    try:
        with writing("the folder", folder):
            temporary.mkdir(parents=True)
            writer(temporary)
            fsync_tree(temporary)
            os.rename(temporary, folder)
            fsync_path(folder.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return folder


def is_free(folder: Path) -> bool:
    """Can output go here? Nothing is there, or a folder that holds at most the remains of interrupted writes."""
    if not folder.exists():
        return True
    return folder.is_dir() and all(p.name.startswith(PARTIAL) for p in folder.iterdir())


def clean_partial(parent: Path) -> list[str]:
    """Remove what interrupted commits left in `parent`; a message for each."""
    if not parent.is_dir():
        return []
    messages = []
    for path in sorted(parent.glob(f"{PARTIAL}*")):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
        messages.append(f"{path.name}: an interrupted write, ignored and removed")
    return messages


def write_text(path: Path, text: str) -> None:
    """Write a small file atomically (temporary, fsync, rename); replaces an existing one."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    """The same for bytes."""
    temporary = path.parent / f"{PARTIAL}{path.name}-{os.getpid()}-{uuid4().hex[:8]}"
    try:
        with writing("the file", path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(temporary, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
            fsync_path(path.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
