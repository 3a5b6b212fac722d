"""`broaden match`: the paper's N = 4G and 3G, and the full ledger by hand."""

from __future__ import annotations

from typing import Any

import pytest
from tests.helpers.command import Command

P, L, Q, T, B = 1_500_000_000, 300, 100, 234, 64
BASE = ["match", "--prompts", "64", "--updates", "234", "--response-tokens", "300", "--prompt-tokens", "100"]
SIZE = ["--parameters", "1.5e9"]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


def matched(command: Command, *more: str) -> dict[str, Any]:
    return command.ok(*BASE, *SIZE, *more, "--json").json()


def test_n_is_four_g_on_the_papers_ledger_and_all_four_budgets_are_there(command: Command) -> None:
    found = matched(command, "--es-n", "32", "--grpo-g", "8", "--solve", "n")
    es, grpo = found["es"]["budget"], found["grpo"]["budget"]
    assert set(es) == set(grpo) == {"updates", "tokens", "flops_paper", "flops_full", "seconds"}
    assert es["flops_paper"] == 2 * P * L * T * 32 * B == grpo["flops_paper"] == 8 * P * L * T * B * 8
    assert (es["tokens"], grpo["tokens"]) == (T * B * 32 * L, T * B * 8 * L)
    assert (found["es"]["rollouts"], found["grpo"]["rollouts"]) == (T * B * 32, T * B * 8)
    assert (found["solved"]["value"], found["solved"]["exact"]) == (32, 32)
    assert es["seconds"] is None


def test_without_the_reference_n_is_three_g(command: Command) -> None:
    found = matched(command, "--grpo-g", "8", "--kl", "0")
    assert (found["solved"]["value"], found["es"]["members"]) == (24, 24)
    assert matched(command, "--es-n", "24", "--kl", "0")["grpo"]["group"] == 8


def test_the_full_ledger_by_hand(command: Command) -> None:
    found = matched(
        command, "--es-n", "32", "--grpo-g", "8", "--ledger", "full", "--solve", "n", "--grpo-steps", "2"
    )
    es = 2 * P * T * B * 32 * (Q + L)  # each member prefills its own prompt and decodes
    passes = 1 + 1 + 1 + 2  # policy, pi_old, reference, a backward pass of two forward ones
    grpo = 2 * P * T * B * (Q + 8 * L + 8 * passes * (Q + L))
    assert found["es"]["budget"]["flops_full"] == es
    assert found["grpo"]["budget"]["flops_full"] == grpo
    assert found["grpo"]["optimizer_steps"] == 2 * T
    assert found["solved"]["exact"] == pytest.approx(32 * grpo / es)
    assert found["solved"]["value"] == 46  # (100 + 8 * 300 + 8 * 5 * 400) / 400 = 46.25
    single = matched(
        command, "--es-n", "32", "--grpo-g", "8", "--ledger", "full", "--solve", "n", "--kl", "0"
    )
    assert single["solved"]["exact"] == pytest.approx((Q + 8 * L + 8 * 3 * (Q + L)) / (Q + L))


def test_updates_and_seconds(command: Command) -> None:
    found = matched(
        command, "--es-n", "16", "--grpo-g", "8", "--solve", "updates", "--tokens-per-second", "1000"
    )
    assert found["solved"]["value"] == 2 * T
    assert found["ratio"]["flops_paper"] == 0.5
    assert found["es"]["budget"]["seconds"] == pytest.approx(T * B * 16 * (Q + L) / 1000)


def test_a_model_by_name_adds_attention(command: Command) -> None:
    more = ["--es-n", "32", "--grpo-g", "8", "--json"]
    found = command.ok(*BASE, "--model", "Qwen/Qwen2.5-1.5B-Instruct", *more).json()
    plain = command.ok(*BASE, "--parameters", "1543714304", *more).json()
    assert found["parameters"] == plain["parameters"] == 1_543_714_304
    assert found["es"]["budget"]["flops_paper"] == plain["es"]["budget"]["flops_paper"]
    attention = 4 * 28 * 1536 * ((Q + L) * (Q + L + 1) / 2) * T * B * 32
    gained = found["es"]["budget"]["flops_full"] - plain["es"]["budget"]["flops_full"]
    assert gained == pytest.approx(attention, rel=1e-6)


def test_the_table_for_people(command: Command) -> None:
    out = command.ok(*BASE, *SIZE, "--es-n", "30", "--grpo-g", "8", "--solve", "g").out
    assert "equal at N = 32 on the paper's ledger" in out
    assert "solved on the paper ledger: G = 7.5, so 8 (ES / GRPO = 0.9375)" in out
    assert "no rate given" in out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([*BASE, *SIZE], "--es-n is missing"),
        ([*BASE, *SIZE, "--es-n", "32", "--solve", "n"], "--grpo-g is missing"),
        ([*BASE, *SIZE, "--grpo-g", "8", "--solve", "g"], "--es-n is missing"),
        ([*BASE, "--es-n", "32"], "the model's size is needed"),
        ([*BASE, *SIZE, "--model", "x/y", "--es-n", "32"], "the model's size is needed"),
        ([*BASE, "--model", "nobody/nothing", "--es-n", "32"], "its shapes are not known"),
    ],
)
def test_mistakes_are_named(command: Command, arguments: list[str], text: str) -> None:
    done = command(*arguments)
    assert done.code == 2
    assert text in done.err
