"""A run from its configuration to its last checkpoint: all I/O of training, and resuming it exactly.

The order of writes makes every moment safe to be killed in: an update's record line, then its seed-log line
(which is what commits an ES update), then, now and then, a checkpoint folder that exists whole or not at all.
Resuming takes the newest whole checkpoint and replays the seed log beyond it, hash by hash.
"""

from __future__ import annotations

import platform
import resource
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from broaden import __version__
from broaden.config import EsStage, GrpoStage, RunConfig, build_config, config_hash, diff, to_dict, to_toml
from broaden.engines.build import DTYPES
from broaden.engines.selftest import self_test
from broaden.errors import Interrupted, ResumeError, StoreError
from broaden.es import check_collapse
from broaden.es.trainer import SIGNAL
from broaden.evaluation.sampling import problems_fingerprint
from broaden.ledger.budget import Budget
from broaden.loggers import Loggers, Tracker, open_loggers
from broaden.metrics.signal import Signal, pool
from broaden.models.lora import Lora
from broaden.perturb import NOISE_VERSION, center_hash, replay
from broaden.records import StepRecord
from broaden.runs import checkpoints, weights
from broaden.runs.account import hand_over, is_over, spent, stage_ends, stages_so_far
from broaden.runs.checkpoints import Position
from broaden.runs.events import Silent, Watcher
from broaden.runs.interrupt import Interrupts
from broaden.runs.memory import fit
from broaden.runs.prepare import Prepared, parameterisation, prepare
from broaden.runs.probe import Prober
from broaden.runs.stages import ActiveStage, stage_seed, start_stage
from broaden.store import JsonlFile, RunDir

Weights = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class RunResult:
    """Where a finished (or resumed and already finished) run lies."""

    path: Path
    checkpoint: Path
    step: int
    center_hash: str
    seconds: float


def train(config: RunConfig, out: Path, *, watcher: Watcher | None = None) -> RunResult:
    """Start a run in `out` (which must not hold one) and train it to its end.

    Raises:
        UsageError: anything wrong with the configuration, the model or the data, before any compute.
        Interrupted: after Ctrl-C or SIGTERM, with everything saved.
        DivergedError: weights or rewards left what training can mend; the log and checkpoints are intact.
    """
    RunDir.check_free(out)
    watcher = watcher or Silent()
    prepared = fit(prepare(config), watcher.note)
    weights.check_room(config, prepared.model, out)
    run = RunDir.create(out, manifest(prepared), to_toml(config))
    return _Run(run, prepared, watcher).go()


def resume(path: Path, *, config: RunConfig | None = None, watcher: Watcher | None = None) -> RunResult:
    """Go on with a run from its last whole state; nothing left to do is said, not done again.

    Args:
        config: what the caller thinks the configuration is; refused with a diff where it decides otherwise. What
            changes no result (workers, low_memory, checkpoints, loggers) is taken from it.
    """
    run = RunDir.open(path)
    stored = stored_config(run)
    if config is not None and config_hash(config) != config_hash(stored):
        raise ResumeError(
            f"{path} was started with another configuration:\n{diff(stored, config)}",
            "resume without a configuration, or start a new run with --out",
        )
    watcher = watcher or Silent()
    prepared = fit(prepare(config or stored), watcher.note)
    _check_unchanged(run, prepared)
    for message in run.messages:
        watcher.note(message)
    return _Run(run, prepared, watcher).go()


def stored_config(run: RunDir) -> RunConfig:
    """The configuration a run directory holds."""
    import tomllib

    return build_config(tomllib.loads(run.config_toml))


def manifest(prepared: Prepared) -> dict[str, Any]:
    """What was run, with what: enough to notice later that something has changed."""
    return {
        "broaden": __version__, "noise_version": NOISE_VERSION, "config_sha256": config_hash(prepared.config),
        "model": prepared.config.model.source, "model_fingerprint": prepared.model.fingerprint,
        "parameters": prepared.model.parameters, "task": f"{prepared.task.name}/{prepared.task.version}",
        "problems": len(prepared.loaded.problems), "problems_sha256": problems_fingerprint(prepared.loaded.problems),
        "bad_rows": [[b.id, b.reason] for b in prepared.loaded.bad[:100]],
        "torch": torch.__version__, "python": platform.python_version(), "machine": platform.machine(),
        "device": prepared.device, "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "status": "running",
        "stages": hand_over(prepared.config),
        "stage_seeds": [stage_seed(prepared.config.seed, i) for i in range(len(prepared.config.stages))],
    }  # fmt: skip


def _check_unchanged(run: RunDir, prepared: Prepared) -> None:
    now, then = manifest(prepared), run.manifest
    keys = ("model_fingerprint", "problems_sha256", "task", "noise_version")
    changed = [f"  {k}: {then.get(k)} -> {now[k]}" for k in keys if then.get(k) != now[k]]
    if changed:
        raise ResumeError(
            f"{run.path} cannot be continued exactly: what it was started with has changed\n"
            + "\n".join(changed),
            "restore the model and the data, or start a new run with --out",
        )


class _Run:
    """The state of a run in progress: center, position, logs."""

    def __init__(self, run: RunDir, prepared: Prepared, watcher: Watcher) -> None:
        self.run, self.prepared, self.watcher = run, prepared, watcher
        self.config = prepared.config
        self.origin = weights.theta_0(prepared.config, prepared.model, run.path)
        self.ends: list[int] = []
        self.spent = Budget()
        self.began = time.monotonic()
        self.rewards: list[float] = []
        self.told_flat = False
        self.signals: Signal | None = None
        self.optimizer: dict[str, torch.Tensor] | None = None
        self.interrupts = Interrupts(f"broaden train --resume {run.path}")
        self.center, self.at = self._restore()

    def go(self) -> RunResult:
        """Run what is left."""
        if self._finished():
            self.watcher.note(f"{self.run.path} is finished: {self.at.step} updates, nothing left to do")
        status = "failed"
        with self.interrupts:
            try:
                self._self_test()
                while self.at.stage < len(self.config.stages):
                    self._stage()
                status = "finished"
            except Interrupted:
                status = "interrupted"
                raise
            finally:
                self._set_status(status)
        folder = self.run.checkpoint_path(self.at.step)
        return RunResult(
            self.run.path, folder, self.at.step, self.at.center_hash, time.monotonic() - self.began
        )

    def _finished(self) -> bool:
        last = len(self.config.stages) - 1
        return self.at.stage > last or (self.at.stage == last and is_over(self.config, last, self.spent))

    def _self_test(self) -> None:
        """Prove once that batching changes no bit on this machine, and record it. Raises ExactnessError."""
        left = self.config.stages[self.at.stage :]
        rolls_out = any(
            isinstance(s, GrpoStage) or (isinstance(s, EsStage) and s.control != "random_z") for s in left
        )
        own = self.prepared.model.spec.family != "other" and self.config.engine.kind != "generate"
        if not (self.config.engine.self_test and rolls_out and own):
            return
        threads = 1 if self.config.population.workers > 1 else None  # None: as many as this process uses
        dtype = DTYPES[self.config.model.dtype]
        rank = max((parameterisation(s).rank for s in left if isinstance(s, EsStage)), default=0)
        report = self_test(
            self.prepared.model.spec, dtype, threads, device=self.prepared.device, low_rank=rank
        )
        self.run.amend_manifest(self_test=report.to_json())
        report.require()

    def _set_status(self, status: str) -> None:
        try:
            stages = stages_so_far(self.config, self.run.records())
            self.run.amend_manifest(
                status=status, steps=self.at.step, center_hash=self.at.center_hash, stages=stages
            )
        except StoreError as error:
            self.watcher.note(f"the manifest could not be written: {error.message}")

    def _stage(self) -> None:
        stage = self.config.stages[self.at.stage]
        self._enter(stage)
        self.watcher.stage(self.at.stage, stage.algo, self.at.stage_step, stage.updates)
        active = start_stage(
            self.prepared, self.at.stage, self.center, self.origin, start=self.at.stage_step,
            optimizer=self.optimizer, stage_start=self._stage_start, on_progress=self._progress,
        )  # fmt: skip
        self.optimizer = None
        if active.conditions:
            self.run.amend_manifest(conditions=active.conditions)
        prober = Prober(self.prepared, self.run, self.watcher)
        try:
            with self._loggers() as loggers, self.run.seedlog_file() as seedlog:
                prober.probe(self.center, self.at.step, self._progress)
                over = is_over(self.config, self.at.stage, self.spent)  # killed after its last update
                for record in () if over else active.records:
                    self._log(record, stage, loggers, seedlog)
                    prober.probe(self.center, self.at.step, self._progress)
                    if self.config.checkpoint.every and self.at.step % self.config.checkpoint.every == 0:
                        self._save(active)
                    self.interrupts.check()
                    if is_over(self.config, self.at.stage, self.spent):
                        break
        except Interrupted:
            self._save(active)
            raise
        finally:
            prober.close()
            active.close()
        self._finish_stage(active)

    def _stage_start(self) -> Weights:
        """The weights that the current stage began with, read only: theta_0, or the boundary's checkpoint."""
        first = self.at.step - self.at.stage_step
        if first == 0:
            return self.origin
        folder = self.run.checkpoint_path(first)
        return checkpoints.load_center(folder, checkpoints.position(folder))

    def _enter(self, stage: object) -> None:
        """The in-place control's center is bf16; every other stage's is the fp32 master."""
        if isinstance(stage, EsStage) and stage.precision == "bf16_inplace":
            self.center = {n: t.to(torch.bfloat16) for n, t in self.center.items()}
        elif any(t.dtype != torch.float32 for t in self.center.values()):
            self.center = weights.master(self.config, self.center, self.run.path)

    def _loggers(self) -> Loggers:
        """records.jsonl and the trackers asked for. Raises ConfigError where a tracker's package is missing."""
        about = Tracker(self.run.path, run=self.config.name or self.run.path.name, config=to_dict(self.config),
                        resume=self.at.step > 0)  # fmt: skip
        return open_loggers(
            self.config.loggers, records=self.run.records_file(), about=about, on_failure=self.watcher.note
        )

    def _progress(self, completions: int, tokens: int) -> None:
        self.interrupts.check()
        self.watcher.rollout(completions, tokens)

    def _log(self, record: StepRecord, stage: object, loggers: Loggers, seedlog: JsonlFile) -> None:
        if self.prepared.model.guard is not None:
            self.prepared.model.guard.check()
        line = record.log
        step, index = self.at.step, self.at.stage
        values = {
            **record.values, "stage": index, "stage_step": record.step, "peak_bytes": peak_bytes(self.prepared.device),
            **self._pooled(record),
        }  # fmt: skip
        stored = StepRecord(record.algo, step, values)
        digest = str(line["center_hash"]) if line is not None else ""
        loggers.log(stored)
        if line is not None:
            seedlog.append({"step": step, "stage": index, "line": line})
        self.at = Position(step + 1, index, record.step + 1, digest)
        self.spent += spent([stored])
        self.watcher.step(stored)
        if skipped := record.values.get("skipped_steps"):
            self.watcher.note(
                f"update {step + 1}: {skipped} optimiser steps skipped, no response had an advantage"
            )
        self._tell_flat(stored)
        reward = record.values.get("reward")
        if isinstance(stage, EsStage) and reward is not None:
            self.rewards.append(float(reward))
            check_collapse(self.rewards, stage.collapse)

    def _tell_flat(self, record: StepRecord) -> None:
        """Members that all earn the same move nothing: said once, since a row of zeros does not say why."""
        v = record.values
        if self.told_flat or v.get("reward_std") != 0.0:
            return
        self.told_flat = True
        self.watcher.note(
            f"update {record.step + 1}: every member had the reward {v['reward']:.3g}, so the weights stay as they are "
            f"({v['truncated']:.0%} of responses truncated); more prompts, longer responses or another prompt form "
            "would give the members something to differ in"
        )

    def _pooled(self, record: StepRecord) -> dict[str, float | int | None]:
        """The signal pooled over the stage so far: one step cannot tell F = 1.1 from chance."""
        found = signal_of(record)
        if found is None:
            return {}
        self.signals = pool([self.signals, found]) if self.signals is not None else found
        return {"pooled_f": self.signals.F, "pooled_rho": self.signals.rho, "pooled_p": self.signals.p_value}

    def _save(self, active: ActiveStage) -> None:
        """A checkpoint that cannot be written (disk full) is reported; the run and the older ones live on."""
        try:
            self._commit(active.optimizer_state(), active.lora)
            checkpoints.prune(self.run, self.config.checkpoint.keep, self.ends_set)
        except StoreError as error:
            self.watcher.note(
                f"checkpoint at update {self.at.step} not saved: {error.message}; the run goes on"
            )

    def _commit(self, optimizer: dict[str, torch.Tensor] | None, lora: Lora | None) -> None:
        if not self.at.center_hash:
            self.at = Position(self.at.step, self.at.stage, self.at.stage_step, center_hash(self.center))
        checkpoints.save(self.run, self.prepared.model, self.center, self.at, optimizer, lora)

    @property
    def ends_set(self) -> frozenset[int]:
        """Steps at which a stage has ended: their checkpoints are kept."""
        return frozenset(self.ends)

    def _finish_stage(self, active: ActiveStage) -> None:
        """A stage's end is always committed: the next stage, and replay across it, start from it.

        (A periodic checkpoint of the same step says "stage i, all done", which resumes to the same place.)
        """
        if self.spent.updates < self.config.stages[self.at.stage].updates:
            self.watcher.note(
                f"stage {self.at.stage} ends: its share of the budget is used up ({_text(self.spent)})"
            )
        self.at = Position(self.at.step, self.at.stage + 1, 0, self.at.center_hash)
        self.ends.append(self.at.step)
        self.rewards, self.signals, self.spent = [], None, Budget()
        self._commit(None, active.lora)

    def _restore(self) -> tuple[Weights, Position]:
        """Newest whole checkpoint, then the seed log beyond it; log lines beyond that are dropped."""
        center, at = self._from_checkpoint()
        lines = [x for x in self.run.seedlog() if x["step"] >= at.step and x["stage"] == at.stage]
        exact = at.stage < len(self.config.stages) and _replayable(self.config.stages[at.stage])
        if lines and exact:
            stage_key = stage_seed(self.config.seed, at.stage)
            for _, digest in replay(center, [x["line"] for x in lines], self.origin, stage_key):
                at = Position(at.step + 1, at.stage, at.stage_step + 1, digest)
            self.watcher.note(f"replayed {len(lines)} updates from the seed log; at update {at.step}")
        for message in self.run.truncate_logs(at.step):
            self.watcher.note(message)
        logged = self.run.records()
        self.ends = stage_ends(self.config, logged, at.stage)[: at.stage]
        records = [r for r in logged if r.values.get("stage") == at.stage]
        self.spent = spent(records)
        self.rewards = [float(x) for r in records if (x := r.values.get("reward")) is not None]
        signals = [found for r in records if (found := signal_of(r)) is not None]
        self.signals = pool(signals) if signals else None
        return center, at

    def _from_checkpoint(self) -> tuple[Weights, Position]:
        for _, folder in reversed(self.run.checkpoints()):
            at = checkpoints.position(folder)
            self.optimizer = checkpoints.load_optimizer(folder)
            self.watcher.note(f"resuming from {folder.name}")
            return weights.master(self.config, checkpoints.load_center(folder, at), self.run.path), at
        center = weights.master(self.config, self.origin, self.run.path)
        return center, Position(0, 0, 0, center_hash(center))


def _text(budget: Budget) -> str:
    return (
        f"{budget.updates} updates, {budget.tokens:,} tokens, {budget.flops_paper:.3g} FLOPs by the paper's ledger, "
        f"{budget.flops_full:.3g} by the full one, {budget.seconds:,.1f} s"
    )


def peak_bytes(device: str) -> int:
    """Most memory that this process (on CUDA: its tensors) has held so far; worker processes not counted."""
    if device.startswith("cuda"):
        return int(torch.cuda.max_memory_allocated(device))
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def signal_of(record: StepRecord) -> Signal | None:
    """The step's signal analysis, as the trainer logged it."""
    data = {k.removeprefix(SIGNAL): v for k, v in record.values.items() if k.startswith(SIGNAL)}
    return Signal.from_json(data) if data else None


def _replayable(stage: object) -> bool:
    return isinstance(stage, EsStage) and stage.precision == "fp32_master"


__all__ = ["RunResult", "manifest", "resume", "stored_config", "train"]
