"""Where a run's scalars go: JSONL always, and trackers behind one small protocol. No torch.

with open_loggers(["tensorboard"], records=run.records_file(), folder=run.path, ...) as log:
    log.log(record)
"""

from broaden.loggers.base import Jsonl, Logger, Loggers, scalars
from broaden.loggers.trackers import TRACKERS, Tracker, open_loggers, open_tracker

__all__ = ["TRACKERS", "Jsonl", "Logger", "Loggers", "Tracker", "open_loggers", "open_tracker", "scalars"]
