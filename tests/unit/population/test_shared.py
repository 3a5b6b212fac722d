"""The shared center: one memory, no name, and never more than there is room for."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

from broaden.errors import StoreError
from broaden.population import shared


def center() -> dict[str, torch.Tensor]:
    return {"a": torch.arange(6.0).view(2, 3), "b": torch.tensor([7.0]), "c": torch.zeros(130)}


def test_what_is_written_is_read_through_another_mapping() -> None:
    entries, total = shared.layout(center())
    assert [e.offset for e in entries] == [0, 64, 128]
    assert total == 128 + 192
    with shared.shared_file(total) as file:
        ours = shared.map_center(file.fileno(), entries, total, write=True)
        for name, tensor in center().items():
            ours[name].copy_(tensor)
        theirs = shared.map_center(file.fileno(), entries, total)
        assert all(torch.equal(theirs[n], t) for n, t in center().items())
        theirs["a"].fill_(9.0)  # private: the writer's memory stays as it is
        assert torch.equal(ours["a"], center()["a"])


def test_the_file_has_no_name_that_could_be_left_behind() -> None:
    before = {p: set(os.listdir(p)) for p in ("/dev/shm", tempfile.gettempdir()) if os.path.isdir(p)}
    with shared.shared_file(1000):
        for place, names in before.items():
            assert not {n for n in set(os.listdir(place)) - names if n.startswith("broaden-")}


def test_shared_memory_that_is_too_small_gives_way_to_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places: list[str | None] = []
    real = tempfile.TemporaryFile

    def temporary(*, prefix: str, dir: str | None) -> Any:
        places.append(dir)
        return real(prefix=prefix, dir=dir or tmp_path)

    def full_at_first(descriptor: int, offset: int, size: int) -> None:
        if len(places) == 1:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(shared.tempfile, "TemporaryFile", temporary)
    monkeypatch.setattr(shared.os, "access", lambda *_: True)
    monkeypatch.setattr(shared.os, "posix_fallocate", full_at_first)
    with shared.shared_file(10) as file:
        assert os.fstat(file.fileno()).st_size == 40
    assert places == ["/dev/shm", None]


def test_no_room_anywhere_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, offset: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shared.os, "posix_fallocate", full)
    with pytest.raises(StoreError, match="no room for the 4,000 bytes"):
        shared.shared_file(1000)
