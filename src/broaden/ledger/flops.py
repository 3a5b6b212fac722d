"""Model FLOPs: the paper's ledger (Eq. 52-53 of its second version) and the full one.

For P parameters a forward pass costs 2P a token, a backward pass 4P. The paper counts response tokens only
and leaves out GRPO's own decoding; the full ledger counts prompts, decoding, the passes that a setting
really makes, and attention if asked. Not here: budgets and matching (`budget`), seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

from broaden.errors import MetricError
from broaden.records import Record


@dataclass(frozen=True, slots=True)
class ModelSize(Record):
    """What FLOPs depend on. `layers` and `width` (heads x head_dim) matter for attention only; 0 leaves it out."""

    parameters: int
    layers: int = 0
    width: int = 0


@dataclass(frozen=True, slots=True)
class Flops(Record):
    """Full ledger by kind of work."""

    prefill: float = 0.0
    decode: float = 0.0
    policy: float = 0.0
    old_policy: float = 0.0
    reference: float = 0.0
    backward: float = 0.0
    attention: float = 0.0

    @property
    def total(self) -> float:
        """All of it."""
        return (
            self.prefill
            + self.decode
            + self.policy
            + self.old_policy
            + self.reference
            + self.backward
            + self.attention
        )

    def __add__(self, other: Flops) -> Flops:
        if not isinstance(other, Flops):
            return NotImplemented
        mine, theirs = self.to_json(), other.to_json()
        return Flops(**{name: mine[name] + theirs[name] for name in mine})


def es_paper(
    parameters: int,
    response_tokens: float,
    *,
    updates: int,
    members: float,
    prompts: int,
    antithetic: bool = False,
) -> float:
    """ES: T N D 2 P L; twice that with two-point estimation (N counts directions)."""
    evaluations = members * (2 if antithetic else 1)
    return updates * evaluations * prompts * 2.0 * parameters * response_tokens


def grpo_paper(
    parameters: int,
    response_tokens: float,
    *,
    updates: int,
    prompts: int,
    group: float,
    reference: bool = True,
) -> float:
    """GRPO: T B G (2PL policy + 2PL reference + 4PL backward) = 8 P L T B G; 6 without the reference."""
    per_token = (8.0 if reference else 6.0) * parameters
    return updates * prompts * group * per_token * response_tokens


def es_full(
    size: ModelSize,
    *,
    updates: int,
    members: float,
    prompts: int,
    prompt_tokens: float,
    response_tokens: float,
    samples: int = 1,
    antithetic: bool = False,
) -> Flops:
    """ES with its prompts: each member prefills a prompt once and decodes `samples` responses to it."""
    prefills = updates * members * (2 if antithetic else 1) * prompts
    return _rollout(size, prefills, prefills * samples, prompt_tokens, response_tokens)


def grpo_full(
    size: ModelSize,
    *,
    updates: int,
    prompts: int,
    group: float,
    prompt_tokens: float,
    response_tokens: float,
    kl: bool = True,
    old_pass: bool = False,
    inner: int = 1,
) -> Flops:
    """GRPO with what it really runs.

    Args:
        inner: passes over a batch (each a forward and a backward one).
        kl: a KL term with a coefficient above zero: the reference pass is made. At zero it is not needed.
        old_pass: a pass of its own for pi_old (off-policy minibatches without the sampler's log-probabilities).
    """
    responses = updates * prompts * group
    rollout = _rollout(size, updates * prompts, responses, prompt_tokens, response_tokens)
    tokens = responses * (prompt_tokens + response_tokens)
    forward = 2.0 * size.parameters * tokens
    # a forward, a backward of two forwards' cost, and the extra ones
    passes = 3 * inner + int(kl) + int(old_pass)
    attention = passes * responses * attention_flops(size, 0.0, prompt_tokens + response_tokens)
    return rollout + Flops(
        policy=inner * forward,
        old_policy=forward if old_pass else 0.0,
        reference=forward if kl else 0.0,
        backward=2.0 * inner * forward,
        attention=attention,
    )


def sft_full(size: ModelSize, *, sequences: float, tokens: float) -> Flops:
    """Cross-entropy training: 6P a token (forward 2P, backward 4P)."""
    forward = 2.0 * size.parameters * sequences * tokens
    attention = 3 * sequences * attention_flops(size, 0.0, tokens)
    return Flops(policy=forward, backward=2.0 * forward, attention=attention)


def attention_flops(size: ModelSize, start: float, tokens: float) -> float:
    """Scores and weighted values of `tokens` tokens that follow `start` others, causally.

    A token at position c attends to c positions: 2 width c for the scores and 2 width c for the values, a layer.
    Summed over start < c <= start + tokens: 4 layers width (start tokens + tokens (tokens + 1)/2).
    """
    return 4.0 * size.layers * size.width * (start * tokens + tokens * (tokens + 1.0) / 2.0)


def _rollout(
    size: ModelSize, prefills: float, responses: float, prompt_tokens: float, response_tokens: float
) -> Flops:
    """Prompts prefilled once and shared by their samples; responses decoded token by token."""
    if min(prefills, responses, prompt_tokens, response_tokens) < 0 or size.parameters < 1:
        raise MetricError("a ledger's counts cannot be negative")
    return Flops(
        prefill=2.0 * size.parameters * prefills * prompt_tokens,
        decode=2.0 * size.parameters * responses * response_tokens,
        attention=prefills * attention_flops(size, 0.0, prompt_tokens)
        + responses * attention_flops(size, prompt_tokens, response_tokens),
    )
