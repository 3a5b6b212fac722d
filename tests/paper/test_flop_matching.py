"""FLOP matching (Appendix G.2; Eq. 52-53 of the second version) and the full ledger beside it."""

from __future__ import annotations

import pytest

from broaden.ledger import (
    EsPlan,
    GrpoPlan,
    ModelSize,
    es_paper,
    grpo_full,
    grpo_paper,
    match_group,
    match_members,
    match_updates,
)

P, L, T, B, G = 1_543_714_304, 2048, 234, 64, 8
SIZE = ModelSize(P)
ES = EsPlan(members=32, prompts=B, updates=T, prompt_tokens=0, response_tokens=L)
GRPO = GrpoPlan(group=G, prompts=B, updates=T, prompt_tokens=0, response_tokens=L)


def test_the_two_equations() -> None:
    assert grpo_paper(P, L, updates=T, prompts=B, group=G) == 8 * P * L * T * B * G
    assert es_paper(P, L, updates=T, members=32, prompts=B) == 2 * P * L * T * 32 * B
    assert es_paper(P, L, updates=T, members=32, prompts=B, antithetic=True) == 2 * 2 * P * L * T * 32 * B


def test_equal_for_n_equal_four_g() -> None:
    assert ES.paper(SIZE) == GRPO.paper(SIZE)
    got = match_members(ES, GRPO, SIZE)
    assert (got.exact, got.value, got.ratio) == (32.0, 32, 1.0)
    assert match_group(ES, GRPO, SIZE).value == 8
    assert match_updates(ES, GRPO, SIZE).value == T


def test_without_the_reference_pass_it_is_three_g() -> None:
    no_kl = GrpoPlan(group=G, prompts=B, updates=T, prompt_tokens=0, response_tokens=L, kl=False)
    assert no_kl.paper(SIZE) == 6 * P * L * T * B * G
    assert match_members(ES, no_kl, SIZE).value == 24


def test_the_full_ledger_counts_grpos_own_decoding() -> None:
    assert GRPO.full(SIZE) == 10 * P * L * T * B * G
    assert match_members(ES, GRPO, SIZE, "full").value == 40  # 5 G
    full = grpo_full(
        SIZE, updates=1, prompts=1, group=2, prompt_tokens=100, response_tokens=10, old_pass=True
    )
    assert full.prefill == 2 * P * 100  # once a prompt
    assert full.decode == 2 * P * 20
    assert full.policy == full.reference == full.old_policy == 2 * P * 2 * 110
    assert full.backward == 2 * full.policy


@pytest.mark.parametrize("ledger", ["paper", "full"])
def test_a_match_is_within_half_a_member(ledger: str) -> None:
    es = EsPlan(members=1, prompts=48, updates=100, prompt_tokens=90, response_tokens=130, antithetic=True)
    grpo = GrpoPlan(group=6, prompts=40, updates=70, prompt_tokens=90, response_tokens=110, old_pass=True)
    size = ModelSize(10**8, layers=12, width=768)
    got = match_members(es, grpo, size, ledger)  # type: ignore[arg-type]
    assert abs(got.exact - got.value) <= 0.5
    assert got.ratio == pytest.approx(got.value / got.exact)
    back = match_group(EsPlan(**{**es.to_json(), "members": got.value}), grpo, size, ledger)  # type: ignore[arg-type]
    assert back.value == 6
