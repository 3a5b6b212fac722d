"""The paper's reward for mathematics: 1 if correct, 0.1 if the form is right and the answer wrong, 0 otherwise."""

from __future__ import annotations

import pytest

from broaden import tasks
from broaden.records import Message, Problem

COUNTDOWN = Problem("c", "countdown", (Message("user", "?"),), "22", {"numbers": [3, 7, 12], "target": 22})
GSM8K = Problem("g", "gsm8k", (Message("user", "?"),), "18")


@pytest.mark.parametrize(
    ("problem", "text", "reward"),
    [
        (GSM8K, r"so \boxed{18}", 1.0),
        (GSM8K, r"so \boxed{18.0}", 1.0),
        (GSM8K, r"so \boxed{17}", 0.1),
        (GSM8K, "the answer is 18", 0.0),
        (GSM8K, "", 0.0),
        (COUNTDOWN, "<answer>3 + 7 + 12</answer>", 1.0),
        (COUNTDOWN, "<answer>3 + 12 * 7</answer>", 0.1),
        (COUNTDOWN, "<answer>3 + 7</answer>", 0.0),
        (COUNTDOWN, "<answer>22</answer>", 0.0),
        (COUNTDOWN, "3 + 7 + 12", 0.0),
    ],
)
def test_reward(problem: Problem, text: str, reward: float) -> None:
    assert tasks.get(problem.task).judge(problem, text, "stop").reward == reward
