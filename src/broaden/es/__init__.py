"""Evolution strategies: shaping, estimators, schedules, the training loop, its guard."""

from broaden.es.guard import check_collapse
from broaden.es.settings import EsSettings
from broaden.es.trainer import train

__all__ = ["EsSettings", "check_collapse", "train"]
