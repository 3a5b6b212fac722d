"""Tensors in and out of safetensors files: one file, or shards with an index as the Hugging Face hub has them.

A dictionary of tensors by name goes in and comes out; optimiser states are saved the same way. Never
pickle. Not here: what the tensors mean (`checkpoint`), atomic commits (the store renames the folder).
"""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from broaden.errors import ModelError, StoreError

MAX_SHARD_BYTES = 5_000_000_000


def index_name(stem: str) -> str:
    """Name of the index of a sharded set: `model.safetensors.index.json`."""
    return f"{stem}.safetensors.index.json"


def tensor_files(folder: Path, stem: str = "model") -> list[Path]:
    """The safetensors files of a set: `<stem>.safetensors`, or the shards that its index names ([]: neither).

    Raises:
        ModelError: the index cannot be read, or names a shard that is not there.
    """
    single = folder / f"{stem}.safetensors"
    if single.is_file():
        return [single]
    index = folder / index_name(stem)
    if not index.is_file():
        return []
    names = sorted(set(_weight_map(index).values()))
    absent = [name for name in names if not (folder / name).is_file()]
    if absent:
        raise ModelError(
            f"{index.name} in {folder} names {len(names)} shards, {len(absent)} are not there: {listed(absent)}",
            "download the missing shards again",
        )
    return [folder / name for name in names]


def read_tensors(
    folder: Path, stem: str = "model", dtype: torch.dtype | None = None
) -> dict[str, torch.Tensor]:
    """All tensors of a set, on the CPU, in memory of their own; floating ones cast to `dtype` where given.

    Raises:
        ModelError: no such set, a damaged file, or an index and shards that disagree.
    """
    return _read(folder, stem, lambda tensor: _owned(tensor, dtype))


def map_tensors(folder: Path, stem: str = "model") -> dict[str, torch.Tensor]:
    """The same in their stored types, over the mapped files: pages are read when used and can be dropped again.

    Not to be written. Files that are replaced or removed later change nothing; one that is overwritten in place does
    (`InPlaceGuard` notices).
    """
    return _read(folder, stem, lambda tensor: tensor)


class InPlaceGuard:
    """Notices when a file of a mapped set is written in place: what was read from it then is no longer what it was."""

    def __init__(self, folder: Path, stem: str = "model") -> None:
        self._stamps: list[tuple[Path, int, tuple[int, int]]] = []
        for path in tensor_files(folder, stem):
            handle = os.open(path, os.O_RDONLY)
            weakref.finalize(self, os.close, handle)
            self._stamps.append((path, handle, _stamp(handle)))

    def check(self) -> None:
        """Raises ModelError where a file has another size or time than at first."""
        for path, handle, stamp in self._stamps:
            if _stamp(handle) != stamp:
                raise ModelError(
                    f"{path} was overwritten while its weights were in use",
                    "put the file back and resume; write new weights elsewhere, or replace the file by a rename",
                )


def _stamp(handle: int) -> tuple[int, int]:
    status = os.fstat(handle)
    return status.st_size, status.st_mtime_ns


def _read(folder: Path, stem: str, take: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, torch.Tensor]:
    files = tensor_files(folder, stem)
    if not files:
        raise ModelError(
            f"no {stem}.safetensors and no {index_name(stem)} in {folder}",
            "give a folder that holds safetensors files",
        )
    out: dict[str, torch.Tensor] = {}
    for path in files:
        try:
            with safe_open(str(path), framework="pt", device="cpu") as file:
                for name in file.keys():  # noqa: SIM118 (not a dictionary)
                    out[name] = take(file.get_tensor(name))
        except (SafetensorError, OSError) as error:
            raise ModelError(
                f"{path} is not a whole safetensors file: {error}", "download or copy the file again"
            ) from error
    index = folder / index_name(stem)
    if files[0].name != f"{stem}.safetensors":
        absent = sorted(set(_weight_map(index)) - set(out))
        if absent:
            raise ModelError(
                f"{index.name} in {folder} lists tensors that its shards do not hold: {listed(absent)}",
                "download the shards again",
            )
    return out


def write_tensors(
    folder: Path,
    tensors: Mapping[str, torch.Tensor],
    stem: str = "model",
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> list[str]:
    """Write a set into an existing folder, sharded where it is larger than `max_shard_bytes`.

    Returns the names of the files written.

    Raises:
        StoreError: the disk is full or the folder cannot be written.
    """
    plain = {name: _plain(tensors[name]) for name in sorted(tensors)}
    shards = _shards({name: t.numel() * t.element_size() for name, t in plain.items()}, max_shard_bytes)
    if len(shards) == 1:
        names = [f"{stem}.safetensors"]
    else:
        names = [f"{stem}-{i:05d}-of-{len(shards):05d}.safetensors" for i in range(1, len(shards) + 1)]
    try:
        for file, members in zip(names, shards, strict=True):
            _save({m: plain[m] for m in members}, folder / file)
        if len(shards) > 1:
            weight_map = {m: file for file, members in zip(names, shards, strict=True) for m in members}
            total = sum(t.numel() * t.element_size() for t in plain.values())
            index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
            (folder / index_name(stem)).write_text(json.dumps(index, indent=2) + "\n")
            names.append(index_name(stem))
    except (SafetensorError, OSError) as error:
        raise StoreError(
            f"could not write tensors into {folder}: {error}",
            "free some space or choose another folder; what was saved before is intact",
        ) from error
    return names


def listed(names: Iterable[str], most: int = 5) -> str:
    """The first few names and how many more there are."""
    all_names = list(names)
    more = f" and {len(all_names) - most} more" if len(all_names) > most else ""
    return ", ".join(all_names[:most]) + more


def _owned(tensor: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    """A copy that no longer looks into the file (another process may replace it)."""
    target = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
    return tensor.to(target, copy=True).contiguous()


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous CPU tensor whose storage is its own elements only, over the same memory where that is possible."""
    plain = tensor.detach().to("cpu").contiguous()
    if plain.untyped_storage().nbytes() == plain.numel() * plain.element_size():
        return plain
    raw = plain.view(-1).view(torch.uint8).numpy()
    return torch.from_numpy(raw).view(plain.dtype).view(plain.shape)


def _save(tensors: dict[str, torch.Tensor], path: Path) -> None:
    """One file, readable as any new file is (safetensors makes it private to the user)."""
    path.touch()
    mode = path.stat().st_mode
    save_file(tensors, str(path), metadata={"format": "pt"})
    path.chmod(mode)


def _shards(sizes: Mapping[str, int], limit: int) -> list[list[str]]:
    """Names cut into runs of at most `limit` bytes, in order (a larger tensor has a shard to itself)."""
    shards: list[list[str]] = [[]]
    used = 0
    for name, size in sizes.items():
        if shards[-1] and used + size > limit:
            shards.append([])
            used = 0
        shards[-1].append(name)
        used += size
    return shards


def _weight_map(index: Path) -> dict[str, str]:
    try:
        weight_map = json.loads(index.read_text())["weight_map"]
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise ModelError(
            f"{index} has no readable weight_map: {error}", "download the index again"
        ) from error
    if not isinstance(weight_map, dict) or any("/" in str(v) for v in weight_map.values()):
        raise ModelError(
            f"the weight_map of {index} must name files of its own folder", "download the index again"
        )
    return {str(k): str(v) for k, v in weight_map.items()}
