"""A wheel built from the tree works outside the checkout."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--quiet",
        "--wheel-dir",
        str(folder),
        str(ROOT),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode and "hatchling" in done.stderr:
        pytest.skip("the build backend (hatchling) cannot be fetched here")
    assert done.returncode == 0, done.stderr
    return next(folder.glob("broaden-*.whl"))


@pytest.mark.slow
@pytest.mark.network
def test_the_wheel_holds_the_package_and_its_data(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    source = ROOT / "src"
    ours = {
        str(p.relative_to(source))
        for p in (source / "broaden").rglob("*")
        if p.is_file() and "__pycache__" not in p.parts
    }
    assert ours <= names
    assert {"broaden/py.typed", "broaden/models/bundled/countdown-nano/model.safetensors"} <= names
    assert not any(name.startswith(("tests/", "docs/", "scripts/")) for name in names)


@pytest.mark.slow
@pytest.mark.network
def test_the_wheel_runs_outside_the_checkout(wheel: Path, tmp_path: Path) -> None:
    home = tmp_path / "venv"
    venv.create(home, with_pip=False)
    python = home / "bin" / "python"
    # The dependencies are borrowed from this environment; broaden itself comes out of the wheel.
    site = home / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
    (site / "borrowed.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    install = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(python),
        "install",
        "--quiet",
        "--no-deps",
        str(wheel),
    ]
    done = subprocess.run(install, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    program = (
        "import broaden, sys; print(broaden.__file__); from broaden.models.checkpoint import load_model; "
    )
    program += "print(load_model('bundled:countdown-nano').spec.family)"
    done = subprocess.run(
        [str(python), "-c", program], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr
    where, family = done.stdout.split()
    assert Path(where).is_relative_to(home)
    assert family == "llama"
    command = [str(home / "bin" / "broaden"), "models", "ls", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    assert "bundled:countdown-nano" in done.stdout
