"""task x engine x M samples -> SampleSet -> metrics with intervals, paired comparisons, tables."""

from broaden.evaluation.compare import Comparison, compare
from broaden.evaluation.document import arm_json, document
from broaden.evaluation.frontier import gap_to_frontier, subset
from broaden.evaluation.sampling import conditions, evaluate, missing, request_key
from broaden.evaluation.scores import Scores, by_problem, ratios
from broaden.evaluation.summary import ArmSummary, summarise

__all__ = [
    "ArmSummary",
    "Comparison",
    "Scores",
    "arm_json",
    "by_problem",
    "compare",
    "conditions",
    "document",
    "evaluate",
    "gap_to_frontier",
    "missing",
    "ratios",
    "request_key",
    "subset",
    "summarise",
]
