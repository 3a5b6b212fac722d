"""All I/O of a run: stages under one configuration, logs, checkpoints, probes, resume, replay."""

from broaden.runs.replay import replay_run
from broaden.runs.loop import RunResult, resume, train

__all__ = ["RunResult", "replay_run", "resume", "train"]
