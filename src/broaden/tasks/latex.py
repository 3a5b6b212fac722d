r"""From cleaned text to an exact `Form`: the algebra that answers are written in, as LaTeX or typed plainly.

A recursive-descent reader with a depth limit. What it does not know raises `Unread`; it never guesses.
Not here: spellings (`spelling`); lists, sets, intervals, units, equations (`answers`).
"""

from __future__ import annotations

import re
from fractions import Fraction
from math import comb

from broaden.tasks import algebra
from broaden.tasks.algebra import Form, LimitError
from broaden.tasks.spelling import Unread

MAX_DEPTH = 40
FUNCTIONS = frozenset(
    "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh ln log lg exp sqrt max min gcd".split()
)
_GREEK = frozenset(
    "alpha beta gamma delta epsilon varepsilon theta lambda mu nu rho sigma tau phi varphi omega Delta Omega "
    "ell".split()
)


def expression(text: str, sign: int = 1) -> Form:
    """Reads a whole cleaned text as one expression; ± is `sign`. Raises Unread, LimitError, ZeroDivisionError."""
    reader = _Reader(text, sign)
    out = reader.sum(0)
    reader.space()
    if reader.at != len(text):
        raise Unread(f"{text[reader.at : reader.at + 12]!r} is not understood here")
    return out


class _Reader:
    """Recursive descent over a cleaned text."""

    def __init__(self, text: str, sign: int) -> None:
        self.text, self.sign, self.at = text, sign, 0

    def space(self) -> None:
        while self.at < len(self.text) and self.text[self.at] == " ":
            self.at += 1

    def peek(self) -> str:
        self.space()
        return self.text[self.at] if self.at < len(self.text) else ""

    def eat(self, token: str) -> bool:
        self.space()
        if self.text.startswith(token, self.at):
            self.at += len(token)
            return True
        return False

    def need(self, token: str) -> None:
        if not self.eat(token):
            raise Unread(f"{token} was expected at {self.text[self.at : self.at + 12]!r}")

    def sum(self, depth: int) -> Form:
        if depth > MAX_DEPTH:
            raise LimitError(f"nested deeper than {MAX_DEPTH}")
        out = self.product(depth)
        while (char := self.peek()) and char in "+-±∓":
            self.at += 1
            term = self.product(depth)
            negative = char == "-" or (char == "±" and self.sign < 0) or (char == "∓" and self.sign > 0)
            out = algebra.add(out, algebra.neg(term) if negative else term)
        return out

    def product(self, depth: int) -> Form:
        out = self.signed(depth)
        while char := self.peek():
            if char == "*":
                self.at += 1
                out = algebra.mul(out, self.signed(depth))
            elif char == "/":
                self.at += 1
                out = algebra.div(out, self.signed(depth))
            elif self.starts_factor(char):
                if char.isdigit() or char == ".":
                    raise Unread("two numbers without an operator")
                out = algebra.mul(out, self.powered(depth))
            else:
                break
        return out

    def starts_factor(self, char: str) -> bool:
        if char == "\\":
            return not self.text.startswith(("\\end", "\\\\", "\\circ"), self.at)
        return char.isalnum() or char in "({[π⌊⌈." or (char == "∞")

    def signed(self, depth: int) -> Form:
        negative = False
        for _ in range(8):
            char = self.peek()
            if not char or char not in "+-±∓":
                break
            self.at += 1
            negative ^= char == "-" or (char == "±" and self.sign < 0) or (char == "∓" and self.sign > 0)
        value = self.powered(depth)
        return algebra.neg(value) if negative else value

    def powered(self, depth: int) -> Form:
        base = self.primary(depth + 1)
        while True:
            if self.eat("!"):
                base = algebra.factorial_of(base)
            elif self.eat("°") or self.eat("^°") or self.eat("^{°}") or self._circ():
                pass
            elif self.peek() == "^":
                self.at += 1
                base = algebra.power(base, self.exponent(depth + 1))
            else:
                return base

    def _circ(self) -> bool:
        self.space()
        match = re.compile(r"\^\s*(?:\{\s*\\circ\s*\}|\\circ\b)|\\circ\b").match(self.text, self.at)
        if match:
            self.at = match.end()
        return bool(match)

    def exponent(self, depth: int) -> Form:
        char = self.peek()
        if char in ("-", "+"):
            self.at += 1
            value = self.exponent(depth + 1) if depth < MAX_DEPTH else algebra.const(1)
            return algebra.neg(value) if char == "-" else value
        if char == "(" or char == "{":
            value = self.primary(depth)
        elif char.isdigit():
            value = self.digits()
        else:
            value = self.primary(depth)
        if self.peek() == "^":  # a^b^c is a^(b^c)
            self.at += 1
            value = algebra.power(value, self.exponent(depth + 1) if depth < MAX_DEPTH else algebra.const(1))
        return value

    def digits(self) -> Form:
        match = re.compile(r"[0-9]{1,400}(?:\.[0-9]{0,400})?|\.[0-9]{1,400}").match(self.text, self.at)
        if match is None:
            raise Unread("a number was expected")
        self.at = match.end()
        if self.at < len(self.text) and self.text[self.at] in "0123456789":
            raise LimitError("a number of more than 400 digits")
        return algebra.const(Fraction(match.group().rstrip(".") or "0"))

    def number(self, depth: int) -> Form:
        grouped = re.compile(r"[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])(?:\.[0-9]+)?").match(self.text, self.at)
        if grouped:
            self.at = grouped.end()
            return algebra.const(Fraction(grouped.group().replace(",", "")))
        value = self.digits()
        here = self.at
        self.space()
        if self.text.startswith("\\overline", self.at):
            match = re.compile(r"\\overline\s*\{\s*([0-9]{1,30})\s*\}").match(self.text, self.at)
            shown = re.search(r"\.([0-9]*)$", self.text[:here])
            if match is None or shown is None:
                raise Unread("overline")
            self.at = match.end()
            rest = Fraction(int(match.group(1)), (10 ** len(match.group(1)) - 1) * 10 ** len(shown.group(1)))
            return algebra.add(value, algebra.const(rest))
        whole = value.rational()
        mixed = re.compile(
            r"\\frac\s*(?:\{\s*([0-9]{1,30})\s*\}|([0-9]))\s*(?:\{\s*([0-9]{1,30})\s*\}|([0-9]))"
        ).match(self.text, self.at)
        if mixed is None and self.at > here:
            mixed = re.compile(r"([0-9]{1,30})()/([0-9]{1,30})()(?![0-9.])").match(self.text, self.at)
        if (
            mixed
            and whole is not None
            and whole.denominator == 1
            and self.text[:here].rstrip()[-1:].isdigit()
        ):
            top, bottom = int(mixed[1] or mixed[2]), int(mixed[3] or mixed[4])
            if 0 < top < bottom:
                self.at = mixed.end()
                return algebra.const(whole + Fraction(top, bottom))
        self.at = here
        return value

    def primary(self, depth: int) -> Form:
        if depth > MAX_DEPTH:
            raise LimitError(f"nested deeper than {MAX_DEPTH}")
        char = self.peek()
        if (char.isdigit() and char.isascii()) or char == ".":
            return self.number(depth)
        for opening, closing in (("(", ")"), ("{", "}"), ("[", "]")):
            if char == opening:
                self.at += 1
                value = self.sum(depth + 1)
                self.need(closing)
                return value
        if char == "|":
            self.at += 1
            value = self.sum(depth + 1)
            self.need("|")
            return self._abs(value)
        for opening, closing, name in (("⌊", "⌋", "floor"), ("⌈", "⌉", "ceil")):
            if char == opening:
                self.at += 1
                value = self.sum(depth + 1)
                self.need(closing)
                return self._round(value, name)
        if char and char in "π∞":
            self.at += 1
            return algebra.atom(char)
        if char == "\\":
            return self.command(depth)
        if char.isalpha() and char.isascii():
            return self.name(depth)
        raise Unread(f"{self.text[self.at : self.at + 12]!r}")

    @staticmethod
    def _abs(value: Form) -> Form:
        number = value.rational()
        return (
            algebra.const(abs(number))
            if number is not None
            else algebra.atom(f"|{value.key()}|", opaque=True)
        )

    @staticmethod
    def _round(value: Form, name: str) -> Form:
        number = value.rational()
        if number is None:
            return algebra.atom(f"{name}({value.key()})", opaque=True)
        return algebra.const(number.__floor__() if name == "floor" else number.__ceil__())

    def name(self, depth: int) -> Form:
        run = re.compile(r"[A-Za-z]+").match(self.text, self.at)
        word = run.group() if run else ""
        for known in (
            "arcsin",
            "arccos",
            "arctan",
            "sqrt",
            "sinh",
            "cosh",
            "tanh",
            "exp",
            "sin",
            "cos",
            "tan",
            "log",
            "ln",
        ):
            if word.startswith(known) and (word == known or len(word) <= len(known) + 1):
                self.at += len(known)
                return self.function(known, depth)
        if word in ("pi", "Pi", "PI"):
            self.at += len(word)
            return algebra.atom("π")
        if len(word) > 3:
            raise Unread(f"the word {word!r}")
        letter = word[0]
        self.at += 1
        return self.variable(letter, depth)

    def variable(self, letter: str, depth: int) -> Form:
        name = letter
        if self.peek() == "_":
            self.at += 1
            match = re.compile(r"\s*(?:\{([^{}]{1,20})\}|([A-Za-z0-9]))").match(self.text, self.at)
            if match is None:
                raise Unread("a subscript")
            self.at = match.end()
            name += "_" + (match.group(1) or match.group(2)).replace(" ", "")
        while self.at < len(self.text) and self.text[self.at] == "'":
            name += "'"
            self.at += 1
        if letter in "fgh" and self.peek() == "(":
            return algebra.atom(f"{name}({self.primary(depth).key()})", opaque=True)
        return algebra.atom(name)

    def command(self, depth: int) -> Form:
        match = re.compile(r"\\([A-Za-z]+)").match(self.text, self.at)
        if match is None:
            raise Unread(f"{self.text[self.at : self.at + 8]!r}")
        name = match.group(1)
        self.at = match.end()
        if name == "frac":
            top, bottom = self.argument(depth), self.argument(depth)
            return algebra.div(top, bottom)
        if name == "binom":
            return self._binomial(self.argument(depth), self.argument(depth))
        if name in FUNCTIONS:
            return self.function(name, depth)
        if name in _GREEK:
            return self.variable(f"\\{name}", depth)
        raise Unread(f"\\{name}")

    @staticmethod
    def _binomial(n: Form, k: Form) -> Form:
        a, b = n.rational(), k.rational()
        if a is None or b is None or a.denominator != 1 or b.denominator != 1 or a < 0 or b < 0:
            return algebra.atom(f"binom({n.key()},{k.key()})", opaque=True)
        if a > algebra.MAX_FACTORIAL:
            raise LimitError("a large binomial coefficient")
        return algebra.const(comb(int(a), int(b)))

    def argument(self, depth: int) -> Form:
        r"""A LaTeX argument: a group, or one digit, letter or command (`\frac12`, `\frac9{19}`)."""
        char = self.peek()
        if char.isdigit() and char.isascii():
            self.at += 1
            return algebra.const(int(char))
        if char.isalpha() and char.isascii():
            self.at += 1
            return algebra.atom(char)
        if char in ("{", "\\", "(", "π"):
            return self.primary(depth + 1)
        raise Unread("an argument was expected")

    def function(self, name: str, depth: int) -> Form:
        if depth > MAX_DEPTH:
            raise LimitError(f"nested deeper than {MAX_DEPTH}")
        if name == "sqrt":
            index = algebra.const(2)
            if self.peek() == "[":
                self.at += 1
                index = self.sum(depth + 1)
                self.need("]")
            return algebra.power(self.argument(depth), algebra.div(algebra.const(1), index))
        base = ""
        raised: Form | None = None
        for _ in range(2):
            if self.peek() == "_":
                self.at += 1
                base = "_" + self.argument(depth).key()
            elif self.peek() == "^":
                self.at += 1
                raised = self.exponent(depth + 1)
        value = self.application(depth)
        if name == "exp":
            out = algebra.power(algebra.atom("e"), value)
        elif name in ("ln", "log", "lg") and value.rational() == 1:
            out = algebra.const(0)
        else:
            out = algebra.atom(f"{name}{base}({value.key()})", opaque=True)
        return out if raised is None else algebra.power(out, raised)

    def application(self, depth: int) -> Form:
        r"""The argument of a function: a group, or the implicit product that follows (`\sin 2x`)."""
        if self.peek() in ("(", "{", "["):
            return self.primary(depth + 1)
        out = self.powered(depth + 1)
        while (char := self.peek()) and (char.isalpha() or char == "π"):
            run = re.compile(r"[A-Za-z]+").match(self.text, self.at)
            if run and any(run.group().startswith(f) for f in FUNCTIONS):
                break
            out = algebra.mul(out, self.powered(depth + 1))
        return out
