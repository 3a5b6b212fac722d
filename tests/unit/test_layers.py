"""The light half of the package stays light, and the import contracts name real layers."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIGHT = ["errors", "records", "seeds", "config", "metrics", "ledger", "tasks", "store", "report"]
HEAVY = ["torch", "transformers", "vllm", "ray"]


def contracts() -> list[dict[str, object]]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return settings["tool"]["importlinter"]["contracts"]  # type: ignore[no-any-return]


def layer_names() -> set[str]:
    layers = next(c for c in contracts() if c["name"] == "layers")["layers"]
    assert isinstance(layers, list)
    return {name.strip(" ()") for layer in layers for name in layer.split("|")}


@pytest.mark.parametrize(
    "contract", [c for c in contracts() if c["name"] != "layers"], ids=lambda c: c["name"]
)
def test_a_contract_names_only_layers(contract: dict[str, list[str]]) -> None:
    named = [*contract["source_modules"], *contract["forbidden_modules"]]
    own = {name.removeprefix("broaden.") for name in named if name.startswith("broaden")}
    assert own <= layer_names()


@pytest.mark.parametrize("only", ["vllm", "ray"])
def test_an_exclusive_contract_covers_every_other_layer(only: str) -> None:
    allowed = {"vllm": {"engines"}, "ray": {"population", "studies"}}[only]
    contract = next(c for c in contracts() if str(c["name"]).startswith(f"{only} only in"))
    sources = contract["source_modules"]
    assert isinstance(sources, list)
    assert {s.removeprefix("broaden.") for s in sources} == layer_names() - allowed


def submodules(name: str) -> list[str]:
    """Dotted names of a light module and everything below it, read from the tree (nothing is imported)."""
    package = ROOT / "src" / "broaden"
    files = [package / f"{name}.py", *sorted((package / name).rglob("*.py"))]
    dotted = [".".join(f.relative_to(ROOT / "src").with_suffix("").parts) for f in files if f.exists()]
    return [d.removesuffix(".__init__") for d in dotted]


@pytest.mark.parametrize("name", [n for n in LIGHT if submodules(n)])
def test_a_light_module_never_loads_torch(name: str) -> None:
    code = (
        "import importlib, sys\n"
        f"for module in {submodules(name)!r}: importlib.import_module(module)\n"
        f"print(sorted(set({HEAVY!r}) & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().splitlines()[-1] == "[]"
