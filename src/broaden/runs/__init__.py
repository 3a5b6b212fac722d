"""All I/O of a run: stages under one configuration, logs, checkpoints, probes, resume, replay."""

from broaden.runs.loop import RunResult, resume, train
from broaden.runs.replay import replay_run

__all__ = ["RunResult", "replay_run", "resume", "train"]
