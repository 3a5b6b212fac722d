r"""Arithmetic over + - * / with exact rationals: the grammar of a Countdown answer.

    expression := term (("+" | "-") term)*      term := factor (("*" | "/") factor)*
    factor     := number | "(" expression ")"   number := digits without a leading zero (or "0")

No unary signs, decimals, powers, `//`, juxtaposition or names. An explicit stack (shunting-yard), so no
input can exhaust Python's; length, nesting and digits are limited before anything is computed.
The unicode forms × ÷ − are recognised, so that a caller can say what was wrong, but are outside the grammar.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

MAX_LENGTH = 1000
MAX_DEPTH = 64
MAX_DIGITS = 12
_TOKEN = re.compile(r"([0-9]+)|([-+*/()])|([×÷−])|(\s+)")
_UNICODE = {"×": "*", "÷": "/", "−": "-"}
_PRECEDENCE = {"+": 1, "-": 1, "*": 2, "/": 2}


class ExpressionError(ValueError):
    """The text is not an expression of the grammar. `limit`: it was too long or too deep to be looked at."""

    def __init__(self, message: str, limit: bool = False) -> None:
        super().__init__(message, limit)
        self.message = message
        self.limit = limit

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True, slots=True)
class Expression:
    """A parsed expression: its numbers in order, its exact value (None: division by zero), unicode use."""

    numbers: tuple[int, ...]
    value: Fraction | None
    unicode: bool


def parse(text: str) -> Expression:
    """Parses and evaluates. Raises ExpressionError."""
    tokens, unicode = _tokens(text)
    numbers: list[int] = []
    values: list[Fraction | None] = []
    operators: list[str] = []
    operand_next = True
    depth = 0
    for token in tokens:
        if token == "(":
            depth += 1
            if not operand_next:
                raise ExpressionError("a parenthesis follows a number without an operator")
            if depth > MAX_DEPTH:
                raise ExpressionError(f"nested deeper than {MAX_DEPTH}", limit=True)
            operators.append(token)
        elif token == ")":
            if operand_next:
                raise ExpressionError("an operand is missing before a closing parenthesis")
            while operators and operators[-1] != "(":
                _reduce(values, operators.pop())
            if not operators:
                raise ExpressionError("a closing parenthesis without an opening one")
            operators.pop()
            depth -= 1
        elif token in _PRECEDENCE:
            if operand_next:
                raise ExpressionError(f"operator {token} without a left operand (no unary signs, ** or //)")
            while operators and _PRECEDENCE.get(operators[-1], 0) >= _PRECEDENCE[token]:
                _reduce(values, operators.pop())
            operators.append(token)
            operand_next = True
        else:
            if not operand_next:
                raise ExpressionError("two numbers without an operator between them")
            number = int(token)
            numbers.append(number)
            values.append(Fraction(number))
            operand_next = False
    if operand_next:
        raise ExpressionError("the expression ends where a number is expected" if tokens else "empty")
    while operators:
        operator = operators.pop()
        if operator == "(":
            raise ExpressionError("an opening parenthesis is never closed")
        _reduce(values, operator)
    return Expression(tuple(numbers), values[0], unicode)


def _tokens(text: str) -> tuple[list[str], bool]:
    if len(text) > MAX_LENGTH:
        raise ExpressionError(f"longer than {MAX_LENGTH} characters", limit=True)
    out: list[str] = []
    unicode = False
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ExpressionError(f"character {text[at]!r} is outside + - * / ( ) and digits")
        at = match.end()
        digits, operator, other, _ = match.groups()
        if digits:
            if len(digits) > MAX_DIGITS:
                raise ExpressionError(f"a number of more than {MAX_DIGITS} digits", limit=True)
            if len(digits) > 1 and digits[0] == "0":
                raise ExpressionError(f"a number with a leading zero ({digits})")
            out.append(digits)
        elif operator:
            out.append(operator)
        elif other:
            unicode = True
            out.append(_UNICODE[other])
    return out, unicode


def _reduce(values: list[Fraction | None], operator: str) -> None:
    right = values.pop()
    left = values.pop()
    if left is None or right is None or (operator == "/" and right == 0):
        values.append(None)
    elif operator == "+":
        values.append(left + right)
    elif operator == "-":
        values.append(left - right)
    elif operator == "*":
        values.append(left * right)
    else:
        values.append(left / right)
