"""Stored samples: numbered Parquet parts, each written atomically, resumable sample by sample.

    header.json        task, problems and conditions
    part-000000.parquet ...   samples in the order in which they were drawn

Nested records (verdict) are JSON text in a column of their own; its main fields are columns as well, so
that any Parquet reader can count them. Not here: metrics (`evaluation`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any

from broaden.errors import ExistsError, MissingFileError, ResumeError, StoreError
from broaden.records import SCHEMA_VERSION, Problem, Sample, SampleSet, Verdict
from broaden.store.commit import clean_partial, is_free, write_bytes, write_text


@dataclass(frozen=True, slots=True)
class SampleStore:
    """The folder of one evaluation's samples."""

    path: Path

    def start(self, task: str, problems: Sequence[Problem], conditions: Mapping[str, Any]) -> list[str]:
        """Write the header, or check that it is the same one (a resumed evaluation).

        More samples a problem than before are welcome (only the missing ones need drawing); another engine
        version or machine is let through with a message, since its samples may differ in the last bits.

        Returns:
            Messages: partial files that were removed, another engine.
        Raises:
            ExistsError: the folder holds other files.
            ResumeError: the folder holds an evaluation of other problems or conditions (diff named).
        """
        messages = clean_partial(self.path)
        header = {
            "schema": SCHEMA_VERSION,
            "task": task,
            "conditions": dict(conditions),
            "problems": [shown(p).to_json() for p in problems],
        }
        if not self.exists():
            self.check_free()
            write_text(self.path / "header.json", json.dumps(header, ensure_ascii=False, allow_nan=False))
            return messages
        grown, notes = self._check(json.loads(json.dumps(header)))
        if grown:
            write_text(self.path / "header.json", json.dumps(header, ensure_ascii=False, allow_nan=False))
        return messages + notes

    def check_free(self) -> None:
        """Raise ExistsError where other files are, which are not an evaluation's."""
        if not self.exists() and not is_free(self.path):
            raise ExistsError(f"{self.path} is not empty and holds no samples", "choose another --out")

    def exists(self) -> bool:
        """Has an evaluation been started here?"""
        return (self.path / "header.json").is_file()

    def append(self, samples: Sequence[Sample]) -> None:
        """Store samples as the next part (nothing for none). Raises StoreError on a full disk."""
        if samples:
            parts = self._parts()
            number = int(parts[-1].stem.removeprefix("part-")) + 1 if parts else 0
            write_bytes(self.path / f"part-{number:06d}.parquet", to_parquet(samples))

    def read_samples(self) -> list[Sample]:
        """All stored samples in the order in which they were stored."""
        return [s for part in self._parts() for s in _from_parquet(part)]

    def read(self) -> SampleSet:
        """The stored evaluation, samples in problem and sample order (it may be incomplete)."""
        header = self._header()
        problems = tuple(Problem.from_json(p) for p in header["problems"])
        at = {p.id: i for i, p in enumerate(problems)}
        first: dict[tuple[int, int], Sample] = {}
        for s in self.read_samples():
            first.setdefault((at[s.problem_id], s.sample), s)
        return SampleSet(
            header["task"], problems, tuple(first[k] for k in sorted(first)), header["conditions"]
        )

    def write(self, sample_set: SampleSet) -> None:
        """Store a whole sample set in a folder that holds none yet."""
        if self.exists():
            raise ExistsError(f"{self.path} holds samples already", "choose another name")
        self.start(sample_set.task, sample_set.problems, sample_set.conditions)
        self.append(sample_set.samples)

    def _parts(self) -> list[Path]:
        return sorted(self.path.glob("part-*.parquet"))

    def _header(self) -> dict[str, Any]:
        if not self.exists():
            raise MissingFileError(f"{self.path} holds no samples: it has no header.json")
        header = json.loads((self.path / "header.json").read_text())
        if header.get("schema") != SCHEMA_VERSION:
            raise StoreError(
                f"{self.path} has schema {header.get('schema')!r}, this version reads {SCHEMA_VERSION}"
            )
        return dict(header)

    def _check(self, header: dict[str, Any]) -> tuple[bool, list[str]]:
        """(more samples than before?, messages); ResumeError where anything else differs."""
        stored = self._header()
        diff = [f"task: {stored['task']} -> {header['task']}"] if stored["task"] != header["task"] else []
        if stored["problems"] != header["problems"]:
            diff.append(f"problems: {len(stored['problems'])} -> {len(header['problems'])}, or their text")
        old, new = stored["conditions"], header["conditions"]
        grown = _count(new) > _count(old)
        ignored = {"engine", "samples"} if grown else {"engine"}
        keys = sorted({*old, *new} - ignored)
        diff += [f"{k}: {old.get(k)!r} -> {new.get(k)!r}" for k in keys if old.get(k) != new.get(k)]
        if diff:
            raise ResumeError(
                f"{self.path} holds another evaluation:\n  " + "\n  ".join(diff),
                "use another --out to start anew",
            )
        changed = old.get("engine") != new.get("engine")
        return grown, [f"{self.path.name}: resumed under other engine conditions"] if changed else []


def _count(conditions: Mapping[str, Any]) -> int:
    return int(conditions.get("samples", 0))


def shown(problem: Problem) -> Problem:
    """What of a problem is written: all of it, or for a private one (GPQA) its id, letters and gold letter alone."""
    if not problem.extra.get("private"):
        return problem
    kept = {k: v for k, v in problem.extra.items() if k in ("letters", "shuffle_seed", "private", "thinking")}
    return replace(problem, messages=(), extra=kept)


def to_parquet(samples: Sequence[Sample]) -> bytes:
    """Samples as the bytes of one Parquet file (zstd)."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {name: [get(s) for s in samples] for name, (_, get) in _columns().items()}
    schema = pa.schema([(name, kind) for name, (kind, _) in _columns().items()])
    buffer = BytesIO()
    pq.write_table(pa.table(columns, schema=schema), buffer, compression="zstd")
    return buffer.getvalue()


def _columns() -> dict[str, Any]:
    import pyarrow as pa

    return {
        "problem_id": (pa.string(), lambda s: s.problem_id),
        "sample": (pa.int32(), lambda s: s.sample),
        "seed": (pa.uint64(), lambda s: s.seed),
        "prompt_tokens": (pa.int32(), lambda s: s.prompt_tokens),
        "token_ids": (pa.list_(pa.int32()), lambda s: list(s.token_ids)),
        "finish": (pa.string(), lambda s: s.finish),
        "text": (pa.string(), lambda s: s.text),
        "mean_entropy": (pa.float64(), lambda s: s.mean_entropy),
        "score": (pa.float64(), lambda s: s.verdict.score),
        "reward": (pa.float64(), lambda s: s.verdict.reward),
        "reason": (pa.string(), lambda s: s.verdict.reason),
        "answer": (pa.string(), lambda s: s.verdict.answer),
        "ballot": (pa.string(), lambda s: s.verdict.ballot),
        "verifier": (pa.string(), lambda s: s.verdict.verifier),
        "verdict": (pa.string(), lambda s: json.dumps(s.verdict.to_json(), ensure_ascii=False)),
    }


def _from_parquet(path: Path) -> Iterator[Sample]:
    import pyarrow.parquet as pq

    try:
        rows = pq.read_table(path).to_pylist()
    except (OSError, ValueError) as error:
        raise StoreError(
            f"{path} cannot be read as Parquet: {error}", "remove that part and evaluate again"
        ) from error
    for row in rows:
        yield Sample(
            problem_id=row["problem_id"],
            sample=row["sample"],
            seed=row["seed"],
            prompt_tokens=row["prompt_tokens"],
            token_ids=tuple(row["token_ids"]),
            finish=row["finish"],
            text=row["text"],
            verdict=Verdict.from_json(json.loads(row["verdict"])),
            mean_entropy=row["mean_entropy"],
        )
