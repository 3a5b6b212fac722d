from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import broaden
from broaden.errors import StoreError
from broaden.store import _disk, clean_partial, commit, write_text
from broaden.store import commit as module_name

SOURCE = Path(broaden.__file__).parents[1]


def fill(folder: Path) -> None:
    (folder / "sub").mkdir()
    (folder / "a.bin").write_bytes(b"a" * 1000)
    (folder / "sub" / "b.bin").write_bytes(b"b" * 1000)


def names(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))


def test_a_commit_is_whole(tmp_path: Path) -> None:
    assert commit(tmp_path / "step-1", fill) == tmp_path / "step-1"
    assert names(tmp_path) == ["step-1", "step-1/a.bin", "step-1/sub", "step-1/sub/b.bin"]


def test_an_existing_folder_is_never_overwritten(tmp_path: Path) -> None:
    commit(tmp_path / "step-1", fill)
    with pytest.raises(StoreError, match="exists already"):
        commit(tmp_path / "step-1", lambda folder: None)
    assert (tmp_path / "step-1" / "a.bin").exists()


def test_everything_is_flushed_before_the_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    real, rename = os.fsync, os.rename
    monkeypatch.setattr(os, "fsync", lambda fd: (events.append(os.readlink(f"/proc/self/fd/{fd}")), real(fd)))
    monkeypatch.setattr(os, "rename", lambda a, b: (events.append("rename"), rename(a, b)))
    if not Path("/proc/self/fd").exists():
        pytest.skip("needs /proc to see which file is flushed")
    commit(tmp_path / "step-1", fill)
    before = events[: events.index("rename")]
    assert [Path(e).name for e in before if e.endswith(".bin")] == ["b.bin", "a.bin"]
    assert [Path(e).name for e in before[-2:]] != ["a.bin", "b.bin"]  # directories come last
    assert any(Path(e).name == "sub" for e in before)
    assert Path(before[-1]).name.startswith(".partial-step-1")
    assert events[events.index("rename") + 1 :] == [str(tmp_path)]


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        RuntimeError("I/O error: No space left on device (os error 28)"),
    ],
)
def test_disk_full_in_the_writer(tmp_path: Path, error: Exception) -> None:
    commit(tmp_path / "step-1", fill)

    def full(folder: Path) -> None:
        fill(folder)
        raise error

    with pytest.raises(StoreError, match="no space left"):
        commit(tmp_path / "step-2", full)
    assert names(tmp_path) == ["step-1", "step-1/a.bin", "step-1/sub", "step-1/sub/b.bin"]
    commit(tmp_path / "step-2", fill)


@pytest.mark.parametrize("where", ["fsync_tree", "rename"])
def test_disk_full_while_flushing_or_renaming(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    commit(tmp_path / "step-1", fill)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    target = sys.modules["broaden.store.commit"]
    with monkeypatch.context() as patch:
        patch.setattr(target, where, full) if where == "fsync_tree" else patch.setattr(os, "rename", full)
        with pytest.raises(StoreError, match="no space left"):
            commit(tmp_path / "step-2", fill)
    assert not [n for n in names(tmp_path) if "step-2" in n]
    assert (tmp_path / "step-1" / "a.bin").stat().st_size == 1000


def test_other_errors_pass_through_and_leave_nothing(tmp_path: Path) -> None:
    def wrong(folder: Path) -> None:
        fill(folder)
        raise KeyError("x")

    with pytest.raises(KeyError):
        commit(tmp_path / "step-1", wrong)
    assert names(tmp_path) == []


CHILD = """
import sys, time
from pathlib import Path
from broaden.store import commit
root = Path(sys.argv[1])

def fill(folder):
    for i in range(40):
        (folder / f"{i}.bin").write_bytes(bytes([i]) * 4096)
        time.sleep(0.001)

n = 0
print("ready", flush=True)
while True:
    commit(root / f"step-{n:06d}", fill)
    n += 1
"""


def test_killed_in_the_middle_every_folder_is_whole(tmp_path: Path) -> None:
    moments = random.Random(3)
    seen_partial = 0
    for attempt in range(6):
        root = tmp_path / str(attempt)
        root.mkdir()
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(root)],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(SOURCE)},
        )
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(0.05 + moments.random() * 0.2)
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        partial = [p for p in root.iterdir() if p.name.startswith(".partial-")]
        seen_partial += len(partial)
        messages = clean_partial(root)
        assert len(messages) == len(partial)
        assert all("ignored and removed" in m for m in messages)
        for folder in root.iterdir():
            assert sorted(p.name for p in folder.iterdir()) == sorted(f"{i}.bin" for i in range(40))
            assert all(p.stat().st_size == 4096 for p in folder.iterdir())
    assert seen_partial >= 1


def test_small_files_are_replaced_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "manifest.json"
    write_text(path, "old")
    write_text(path, "new")
    assert path.read_text() == "new"

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(StoreError, match="no space left"):
            write_text(path, "newer")
    assert path.read_text() == "new"
    assert names(tmp_path) == ["manifest.json"]
    assert clean_partial(tmp_path / "nowhere") == []


def test_permission_is_said_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(path: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(_disk, "fsync_path", denied)
    with pytest.raises(StoreError, match="could not write the folder"):
        commit(tmp_path / "step-1", fill)
    assert callable(module_name)
