"""Model folders in and out, against transformers and against every way of being unusable."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.helpers.tiny import tiny_config, tiny_folder, tiny_weights

from broaden.errors import BroadenError, MissingFileError, ModelError, StoreError, UsageError
from broaden.models import checkpoint, tensor_files
from broaden.models.checkpoint import fingerprint, load_model, save_model

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


def rewrite(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def set_config(folder: Path, **values: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


# --- in ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [True, False])
def test_the_center_is_fp32_and_a_tied_head_is_absent(tmp_path: Path, family: str, tied: bool) -> None:
    folder = tiny_folder(tmp_path / "m", family, tied=tied)
    model = load_model(folder)
    expected = tiny_weights(tiny_config(family, tied=tied))
    assert (HEAD in model.weights) is not tied
    assert set(model.weights) == set(expected)
    assert all(torch.equal(model.weights[n], expected[n]) for n in expected)
    assert model.parameters == sum(t.numel() for t in expected.values())
    assert model.source == str(folder)


@pytest.mark.parametrize(
    ("asked", "got"),
    [
        ("float32", torch.float32),
        ("bfloat16", torch.bfloat16),
        ("float16", torch.float16),
        ("auto", torch.bfloat16),
    ],
)
def test_weights_are_cast_once_to_what_is_asked(tmp_path: Path, asked: str, got: torch.dtype) -> None:
    folder = tiny_folder(tmp_path / "m", dtype=torch.bfloat16)
    model = load_model(folder, weights_dtype=asked)  # type: ignore[arg-type]
    stored = load_file(folder / "model.safetensors")
    assert all(torch.equal(t, stored[n].to(got)) and t.dtype == got for n, t in model.weights.items())


def test_loaded_weights_do_not_look_into_the_file(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "m")
    model = load_model(folder)
    before = {n: t.clone() for n, t in model.weights.items()}
    path = folder / "model.safetensors"
    with path.open("r+b") as file:  # in place, as a careless copy would
        file.seek(path.stat().st_size - 4096)
        file.write(b"\xff" * 4096)
    assert all(torch.equal(model.weights[n], before[n]) for n in before)


def test_an_equal_copy_of_a_tied_head_is_dropped_and_a_different_one_refused(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "m", tied=True)
    rewrite(folder, lambda t: t.update({HEAD: t[EMBEDDING].clone()}))
    assert HEAD not in load_model(folder).weights
    rewrite(folder, lambda t: t.update({HEAD: t[EMBEDDING] + 1}))
    with pytest.raises(ModelError, match=r"tied to the embedding, but lm_head\.weight differs"):
        load_model(folder)


def test_a_shared_tensor_stored_under_the_heads_name_is_the_embedding(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "m", tied=True)
    rewrite(folder, lambda t: t.update({HEAD: t.pop(EMBEDDING)}))
    weights = load_model(folder).weights
    assert torch.equal(weights[EMBEDDING], tiny_weights(tiny_config())[EMBEDDING])
    assert HEAD not in weights


def test_stored_rotary_frequencies_are_left_out(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "m")
    rewrite(folder, lambda t: t.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}))
    assert not any("inv_freq" in name for name in load_model(folder).weights)


# --- out and in again -------------------------------------------------------------------------------------


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("shard_bytes", [10**9, 8_000])
def test_round_trip(tmp_path: Path, tied: bool, shard_bytes: int) -> None:
    source = tiny_folder(tmp_path / "m", tied=tied)
    (source / "special_tokens_map.json").write_text('{"eos_token":   "</s>"}')  # odd spacing must survive
    model = load_model(source)
    save_model(model, tmp_path / "out", max_shard_bytes=shard_bytes)
    shards = sorted(p.name for p in (tmp_path / "out").glob("*.safetensors"))
    assert shards == ["model.safetensors"] if shard_bytes == 10**9 else len(shards) > 1
    again = load_model(tmp_path / "out")
    assert all(torch.equal(again.weights[n], model.weights[n]) for n in model.weights)
    assert set(again.weights) == set(model.weights)
    assert (HEAD in again.weights) is not tied
    carried = [p for p in source.iterdir() if p.suffix != ".safetensors"]
    assert len(carried) == 6
    assert all((tmp_path / "out" / p.name).read_bytes() == p.read_bytes() for p in carried)


@pytest.mark.parametrize("shard_bytes", [10**9, 8_000])
def test_transformers_loads_what_we_save_and_computes_the_same(tmp_path: Path, shard_bytes: int) -> None:
    import transformers

    source = tiny_folder(tmp_path / "m", "qwen3")
    save_model(load_model(source), tmp_path / "out", max_shard_bytes=shard_bytes)
    ids = torch.tensor([[0, 2, 5, 6, 7, 3]])
    logits = []
    for folder in (source, tmp_path / "out"):
        theirs, info = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
        assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
        logits.append(theirs(ids).logits)
    assert torch.equal(*logits)


def test_new_weights_in_another_dtype_and_the_config_says_so(tmp_path: Path) -> None:
    model = load_model(tiny_folder(tmp_path / "m"))
    moved = {n: t + 0.125 for n, t in model.weights.items()}
    save_model(model, tmp_path / "out", moved, "bfloat16")
    stored = load_file(tmp_path / "out" / "model.safetensors")
    assert all(torch.equal(stored[n], moved[n].to(torch.bfloat16)) for n in moved)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config == model.config | {"dtype": "bfloat16"}


def test_an_fp32_master_is_not_rounded_by_a_config_that_says_bfloat16(tmp_path: Path) -> None:
    import transformers

    model = load_model(tiny_folder(tmp_path / "m", dtype=torch.bfloat16))
    moved = {n: t + 2.0**-20 for n, t in model.weights.items()}
    save_model(model, tmp_path / "out", moved)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert torch.equal(theirs.model.norm.weight, moved["model.norm.weight"])


def test_slices_of_a_fused_buffer_are_saved_as_tensors_of_their_own(tmp_path: Path) -> None:
    model = load_model(tiny_folder(tmp_path / "m"))
    flat = torch.cat([t.flatten() for t in model.weights.values()])
    views, at = {}, 0
    for name, tensor in model.weights.items():
        views[name] = flat[at : at + tensor.numel()].view(tensor.shape)
        at += tensor.numel()
    save_model(model, tmp_path / "out", views)
    again = load_model(tmp_path / "out").weights
    assert all(torch.equal(again[n], t) for n, t in model.weights.items())


def test_saved_files_are_readable_as_any_new_file_is(tmp_path: Path) -> None:
    save_model(load_model(tiny_folder(tmp_path / "m")), tmp_path / "out")
    modes = {p.stat().st_mode & 0o777 for p in (tmp_path / "out").iterdir()}
    assert len(modes) == 1


def test_saving_other_tensors_or_nan_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    model = load_model(tiny_folder(tmp_path / "m"))
    short = dict(model.weights)
    del short["model.norm.weight"]
    with pytest.raises(ModelError, match=r"differ in model\.norm\.weight"):
        save_model(model, tmp_path / "out", short)
    with pytest.raises(ModelError, match=r"differ in model\.norm\.weight"):
        save_model(model, tmp_path / "out", model.weights | {"model.norm.weight": torch.ones(3)})
    big = model.weights | {"model.norm.weight": torch.full((32,), 1e6)}
    with pytest.raises(ModelError, match=r"1 of .* tensors hold NaN or infinite"):
        save_model(model, tmp_path / "out", big, "float16")
    assert not (tmp_path / "out").exists()


def test_a_full_disk_is_a_store_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_model(tiny_folder(tmp_path / "m"))

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tensor_files, "save_file", full)
    with pytest.raises(StoreError, match="No space left on device"):
        save_model(model, tmp_path / "out")


# --- fingerprint ------------------------------------------------------------------------------------------


def test_the_fingerprint_follows_content_not_place(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "m")
    first = load_model(folder).fingerprint
    assert len(first) == 64
    shutil.copytree(folder, tmp_path / "copy")
    (tmp_path / "copy" / "README.md").write_text("not part of it")
    assert fingerprint(tmp_path / "copy") == first
    (tmp_path / "copy" / "chat_template.jinja").write_text("{{ messages }}")
    assert fingerprint(tmp_path / "copy") != first
    rewrite(folder, lambda t: t["model.norm.weight"].add_(2.0**-20))
    assert fingerprint(folder) != first


def test_files_are_hashed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tiny_folder(tmp_path / "m")
    first = fingerprint(folder)

    def never(*_: object) -> None:
        raise AssertionError("hashed again")

    monkeypatch.setattr(checkpoint.hashlib, "file_digest", never)
    assert fingerprint(folder) == first


# --- what cannot be used ----------------------------------------------------------------------------------


def break_missing(folder: Path) -> None:
    for name in ("model.norm.weight", "model.layers.1.mlp.up_proj.weight"):
        rewrite(folder, lambda t, name=name: t.pop(name))


def break_unexpected(folder: Path) -> None:
    rewrite(folder, lambda t: t.update({"model.layers.7.mlp.up_proj.weight": torch.ones(2, 3)}))


def break_shape(folder: Path) -> None:
    rewrite(folder, lambda t: t.update({"model.norm.weight": torch.ones(31)}))


def break_nan(folder: Path) -> None:
    rewrite(folder, lambda t: t["model.layers.0.mlp.up_proj.weight"][3, 4:5].fill_(float("nan")))


def break_inf(folder: Path) -> None:
    rewrite(folder, lambda t: t["model.norm.weight"][:1].fill_(-float("inf")))


def break_integers(folder: Path) -> None:
    rewrite(folder, lambda t: t.update({"model.norm.weight": torch.ones(32, dtype=torch.int8)}))


def break_truncated(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def break_pickle(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({}))


def break_no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def break_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


def break_tokenizer_json(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}")


def break_config_json(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def break_config_list(folder: Path) -> None:
    (folder / "config.json").write_text("[]")


def break_config_key(folder: Path) -> None:
    path = folder / "config.json"
    path.write_text(path.read_text().replace('"hidden_size"', '"hidden_sice"'))


def break_eos_outside(folder: Path) -> None:
    (folder / "generation_config.json").write_text('{"eos_token_id": [1, 4096]}')


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            break_missing,
            r"2 missing \(model\.layers\.1\.mlp\.up_proj\.weight 48×32, model\.norm\.weight 32\)",
        ),
        (break_unexpected, r"1 unexpected \(model\.layers\.7\.mlp\.up_proj\.weight 2×3\)"),
        (break_shape, r"1 of another shape \(model\.norm\.weight: expected 32, found 31\)"),
        (
            break_nan,
            r"1 of 20 tensors hold NaN or infinite values \(model\.layers\.0\.mlp\.up_proj\.weight\)",
        ),
        (break_inf, r"1 of 20 tensors hold NaN or infinite values \(model\.norm\.weight\)"),
        (break_integers, r"expected floating-point weights, found torch\.int8 in model\.norm\.weight"),
        (break_truncated, r"model\.safetensors is not a whole safetensors file"),
        (break_pickle, r"pickle only \(pytorch_model\.bin\)"),
        (
            break_no_weights,
            r"no weights in .*: expected model\.safetensors or its index; it holds chat_template",
        ),
        (break_tokenizer, r"no tokenizer in .*: expected one of tokenizer\.json"),
        (break_tokenizer_json, r"transformers .* cannot read the tokenizer"),
        (break_config_json, r"config\.json is not readable JSON"),
        (break_config_list, r"config\.json must hold a JSON object, not list"),
        (break_config_key, r"config has no hidden_size"),
        (break_eos_outside, r"end-of-sequence ids \[4096\] lie outside the model's vocabulary of 96"),
    ],
)
def test_an_unusable_folder_is_a_users_error_with_a_fix(
    tmp_path: Path, damage: Callable[[Path], None], message: str
) -> None:
    folder = tiny_folder(tmp_path / "m")
    damage(folder)
    with pytest.raises(ModelError, match=message) as caught:
        load_model(folder)
    assert caught.value.exit_code == 2
    assert caught.value.fix
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_an_untied_config_without_a_head_misses_it(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "m", tied=True)
    set_config(folder, tie_word_embeddings=False)
    with pytest.raises(ModelError, match=r"1 missing \(lm_head\.weight 96×32\)"):
        load_model(folder)


def test_no_config_names_what_the_folder_holds(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(MissingFileError, match=r"no config\.json .* it holds notes\.txt") as caught:
        load_model(tmp_path)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda f: next(f.glob("model-00002*")).unlink(),
            r"names \d+ shards, 1 are not there: model-00002-of-",
        ),
        (lambda f: (f / "model.safetensors.index.json").write_text("{}"), r"has no readable weight_map"),
        (
            lambda f: (f / "model.safetensors.index.json").write_text(
                '{"weight_map": {"a": "../m/x.safetensors"}}'
            ),
            r"must name files of its own folder",
        ),
    ],
)
def test_damaged_shards(tmp_path: Path, damage: Callable[[Path], None], message: str) -> None:
    save_model(load_model(tiny_folder(tmp_path / "m")), tmp_path / "out", max_shard_bytes=8_000)
    damage(tmp_path / "out")
    with pytest.raises(ModelError, match=message):
        load_model(tmp_path / "out")


def test_an_index_that_lists_more_than_its_shards_hold(tmp_path: Path) -> None:
    save_model(load_model(tiny_folder(tmp_path / "m")), tmp_path / "out", max_shard_bytes=8_000)
    index = tmp_path / "out" / "model.safetensors.index.json"
    value = json.loads(index.read_text())
    value["weight_map"]["model.extra.weight"] = min(value["weight_map"].values())
    index.write_text(json.dumps(value))
    with pytest.raises(ModelError, match=r"lists tensors that its shards do not hold: model\.extra\.weight"):
        load_model(tmp_path / "out")


def test_an_unknown_dtype_is_refused(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "m")
    with pytest.raises(UsageError, match="float32, bfloat16, float16, auto; got 'int8'"):
        load_model(folder, weights_dtype="int8")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="got 'int8'"):
        save_model(load_model(folder), tmp_path / "out", dtype="int8")  # type: ignore[arg-type]


# --- other architectures ----------------------------------------------------------------------------------


def test_another_architecture_is_carried_as_it_is(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "m", weights={"transformer.wte.weight": torch.ones(96, 8)}, tied=False)
    set_config(folder, model_type="gpt2", architectures=["GPT2LMHeadModel"])
    model = load_model(folder)
    assert model.spec.family == "other"
    save_model(model, tmp_path / "out")
    assert torch.equal(
        load_file(tmp_path / "out" / "model.safetensors")["transformer.wte.weight"], torch.ones(96, 8)
    )


def test_optimiser_states_go_through_the_same_files(tmp_path: Path) -> None:
    state = {"m.a": torch.ones(3), "t": torch.tensor(4)}
    assert tensor_files.write_tensors(tmp_path, state, "optimizer") == ["optimizer.safetensors"]
    again = tensor_files.read_tensors(tmp_path, "optimizer")
    assert torch.equal(again["m.a"], state["m.a"])
    assert int(again["t"]) == 4
    with pytest.raises(BroadenError, match=r"no moments\.safetensors"):
        tensor_files.read_tensors(tmp_path, "moments")
