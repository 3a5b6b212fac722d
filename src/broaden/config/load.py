"""Reading a configuration: TOML, `key=value` overrides, the `--stages es:117,sft:50` shorthand; and back to TOML."""

from __future__ import annotations

import difflib
import hashlib
import json
import tomllib
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import ValidationError

from broaden.config.budget import apply_budget
from broaden.config.presets import apply_presets
from broaden.config.schema import RunConfig
from broaden.errors import ConfigError, MissingFileError


def load_config(path: Path, overrides: tuple[str, ...] = (), stages: str | None = None) -> RunConfig:
    """Read a run's TOML file. Raises MissingFileError and ConfigError; both name the key and the fix."""
    if not path.is_file():
        raise MissingFileError(f"no configuration file {path}", "give the path of a .toml file")
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}", "see configs/demo/es.toml for the form") from error
    data.setdefault("name", path.stem)
    return build_config(data, overrides, stages)


def build_config(
    data: dict[str, Any], overrides: tuple[str, ...] = (), stages: str | None = None
) -> RunConfig:
    """Validate a raw dict after the shorthand, the overrides, the presets and the budget's shares."""
    if stages is not None:
        data = {**data, "stages": parse_stages(stages, data.get("stages"))}
    data = apply_budget(apply_presets(_overridden(data, overrides)))
    try:
        return RunConfig.model_validate(data)
    except ValidationError as error:
        raise ConfigError("the configuration is not valid:\n" + _readable(error), "mend these keys") from None


def parse_stages(text: str, given: Any = None) -> list[dict[str, Any]]:
    """`es:117,sft:50` -> stage tables; settings of a given stage of the same algorithm are kept."""
    tables = {s["algo"]: s for s in given or () if isinstance(s, dict) and "algo" in s}
    out = []
    for part in text.split(","):
        algo, _, updates = part.strip().partition(":")
        if not updates.isdigit():
            raise ConfigError(
                f"--stages {text!r}: {part!r} is not ALGO:UPDATES", "for example --stages es:117"
            )
        out.append({**tables.get(algo, {}), "algo": algo, "updates": int(updates)})
    return out


def parse_override(text: str) -> tuple[list[str], Any]:
    """`stages.0.sigma=0.01` -> (["stages", "0", "sigma"], 0.01); a value that is not TOML is text."""
    key, eq, raw = text.partition("=")
    if not eq or not key.strip():
        raise ConfigError(f"override {text!r} is not KEY=VALUE", "for example stages.0.sigma=0.01")
    try:
        value: Any = tomllib.loads(f"v = {raw}")["v"]
    except tomllib.TOMLDecodeError:
        value = raw
    return key.strip().split("."), value


def _overridden(data: dict[str, Any], overrides: tuple[str, ...]) -> dict[str, Any]:
    data = json.loads(json.dumps(data, default=str))
    for text in overrides:
        keys, value = parse_override(text)
        at: Any = data
        for key in keys[:-1]:
            at = _step(at, key, text)
        if isinstance(at, list):
            at[_index(at, keys[-1], text)] = value
        else:
            _table(at, keys[-1], text)[keys[-1]] = value
    return data


def _step(at: Any, key: str, text: str) -> Any:
    if isinstance(at, list):
        return at[_index(at, key, text)]
    return _table(at, key, text).setdefault(key, {})


def _table(at: Any, key: str, text: str) -> dict[str, Any]:
    if not isinstance(at, dict):
        raise ConfigError(
            f"override {text!r}: {key!r} is looked for in {at!r}, which is not a table", "see --dry-run"
        )
    return at


def _index(at: list[Any], key: str, text: str) -> int:
    if not key.isdigit() or int(key) >= len(at):
        raise ConfigError(f"override {text!r}: {key!r} is no index into {len(at)} entries", "count from 0")
    return int(key)


def _readable(error: ValidationError) -> str:
    lines = []
    items = error.errors(include_url=False)
    for item in items:
        if item["type"] == "too_short" and len(items) > 1:
            continue  # pydantic's echo of a bad stage
        where = ".".join(str(p) for p in item["loc"] if p not in ("es", "sft", "grpo"))
        if not where:  # a rule that several tables share
            lines.append(f"  {item['msg'].removeprefix('Value error, ')}")
        elif item["type"] == "extra_forbidden":
            hint = difflib.get_close_matches(str(item["loc"][-1]), _fields(), n=1)
            lines.append(f"  {where}: unknown key" + (f" (did you mean {hint[0]!r}?)" if hint else ""))
        else:
            lines.append(f"  {where}: {item['msg']} (found {item['input']!r})"[:300])
    return "\n".join(lines)


def _fields() -> list[str]:
    from broaden.config import schema

    leaves = [v for v in vars(schema).values() if isinstance(v, type) and issubclass(v, schema.Leaf)]
    return sorted({name for leaf in leaves for name in leaf.model_fields})


def to_dict(config: RunConfig) -> dict[str, Any]:
    """JSON types; None left out, as TOML has no null."""
    return config.model_dump(mode="json", exclude_none=True)


def to_toml(config: RunConfig) -> str:
    """The resolved file: what `--dry-run` prints and a run directory keeps."""
    return tomli_w.dumps(to_dict(config))


def config_hash(config: RunConfig) -> str:
    """SHA-256 of what decides results: the name, the loggers and how members are run do not."""
    data = to_dict(config)
    for key in ("name", "loggers", "population", "checkpoint", "low_memory"):
        data.pop(key, None)
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def diff(old: RunConfig, new: RunConfig) -> str:
    """Unified diff of two resolved files ("" when equal)."""
    lines = difflib.unified_diff(
        to_toml(old).splitlines(), to_toml(new).splitlines(), "stored", "given", lineterm="", n=0
    )
    return "\n".join(lines)
