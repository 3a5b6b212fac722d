"""What may still be taken: the system's figure, the control groups' limits, or what was said."""

from __future__ import annotations

from pathlib import Path

import pytest

from broaden.errors import UsageError
from broaden.ledger.available import VARIABLE, available, held


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A system with 1,000 kB free, of which this process holds 30 kB."""
    monkeypatch.delenv(VARIABLE, raising=False)
    write(tmp_path / "proc/meminfo", "MemTotal: 9000 kB\nMemAvailable:    1000 kB\n")
    write(tmp_path / "proc/self/status", "VmRSS: 50 kB\nRssAnon:\t  30 kB\n")
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_system(root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    assert available(root=root) == 1_024_000
    assert available(10, root) == 1_024_010
    assert available(10**9, root) == 1_024_000 + 30 * 1024
    assert held(root) == 30 * 1024
    assert available(5, tmp_path_factory.mktemp("elsewhere")) is None


def test_the_tightest_control_group_counts_without_its_page_cache(root: Path) -> None:
    write(root / "proc/self/cgroup", "0::/outer/inner\n")
    write(root / "sys/fs/cgroup/outer/memory.max", "900000\n")
    write(root / "sys/fs/cgroup/outer/memory.current", "500000\n")
    write(root / "sys/fs/cgroup/outer/memory.stat", "anon 1\ninactive_file 100000\n")
    write(root / "sys/fs/cgroup/outer/inner/memory.max", "max\n")
    assert available(root=root) == 500_000
    write(root / "sys/fs/cgroup/outer/inner/memory.max", "700\n")
    write(root / "sys/fs/cgroup/outer/inner/memory.current", "1000\n")
    assert available(root=root) == 0


@pytest.mark.parametrize(
    ("said", "size"), [("100000", 100_000), ("1.5 MiB", 1_572_864), ("2k", 2048), ("1B", 1)]
)
def test_what_is_said_holds(root: Path, monkeypatch: pytest.MonkeyPatch, said: str, size: int) -> None:
    monkeypatch.setenv(VARIABLE, said)
    assert available(7, root) == size


def test_nonsense_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "much")
    with pytest.raises(UsageError, match="no size"):
        available()
