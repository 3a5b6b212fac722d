"""What a run costs: FLOPs on two ledgers, budgets and their matching, memory plans. No torch."""

from broaden.ledger.budget import Budget, EsPlan, GrpoPlan, Match, match_group, match_members, match_updates
from broaden.ledger.flops import (
    Flops,
    ModelSize,
    attention_flops,
    es_full,
    es_paper,
    grpo_full,
    grpo_paper,
    sft_full,
)
from broaden.ledger.memory import MemoryPlan, plan_es, plan_eval, plan_grpo, plan_sft

__all__ = [
    "Budget",
    "EsPlan",
    "Flops",
    "GrpoPlan",
    "Match",
    "MemoryPlan",
    "ModelSize",
    "attention_flops",
    "es_full",
    "es_paper",
    "grpo_full",
    "grpo_paper",
    "match_group",
    "match_members",
    "match_updates",
    "plan_es",
    "plan_eval",
    "plan_grpo",
    "plan_sft",
    "sft_full",
]
