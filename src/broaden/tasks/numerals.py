r"""Exact numbers out of answer texts: `18`, `18.00`, `\$1,800`, `70\,000`, `\text{18}`, `18 dollars`, `3/4`,
`2\frac{1}{2}`.

A value is a `Fraction`, never a float; nothing is rounded, no tolerance exists. What the rules do not read
is None, never a guess. Not here: expressions with letters, sets, intervals (`mathematics`).
"""

from __future__ import annotations

import re
from fractions import Fraction

MAX_LENGTH = 400
_DIGITS = 60
_SPACES = re.compile(r"\\[,;:!> ]|\\q?quad(?![A-Za-z])|~|\\thinspace|[\u00a0\u2009\u202f\s]")
_TEXT = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mbox|textrm|mathit|bf|rm)\s*\{([^{}]*)\}")
_DECIMAL = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]*)?|[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
_SIMPLE = re.compile(rf"^([-+]?)\s*({_DECIMAL})$")
_SLASH = re.compile(rf"^([-+]?)\s*({_DECIMAL})\s*/\s*({_DECIMAL})$")
_FRAC = re.compile(
    r"^([-+]?)\s*([0-9]*)\s*\\[dtc]?frac\s*(?:\{\s*(-?[0-9]+)\s*\}|([0-9]))\s*(?:\{\s*(-?[0-9]+)\s*\}|([0-9]))$"
)
_MIXED = re.compile(r"^([-+]?)\s*([0-9]+)\s+([0-9]+)/([0-9]+)$")
_CURRENCY = re.compile(r"^([-+]?)\s*(?:\\?\$|\\?€|\\?£|USD|US\$)\s*([-+]?)(?=[0-9.])")
_UNIT_TAIL = re.compile(r"^(.*[0-9.}%])(\s+|(?=/\s*[A-Za-z])|(?=\\?[$€£%°]|\^))([A-Za-z$€£%°²³/.\\^{} -]*)$")
_WORD = re.compile(r"[A-Za-z]+")
MEANING_WORDS = frozenset(
    "more less fewer than not plus minus times over by squared cubed half halves third thirds quarter quarters "
    "fourth fourths "
    "fifth fifths sixth sixths eighth eighths tenth tenths hundredth hundredths percent percentage pct hundred "
    "hundreds "
    "thousand thousands million millions billion billions trillion trillions dozen dozens pair pairs k m b bn "
    "mod modulo "
    "or and to remainder factorial pi sqrt root power negative positive point e i x y z n a c d f".split()
)
"""Words after a number that would change its value, and letters that may be variables: never dropped as a unit."""
_LETTER_UNITS = frozenset("m g s h l".split())


def plain(text: str) -> str:
    """Text without math delimiters, text wrappers, spacing commands, grouping and a closing full stop."""
    out = text.strip()
    out = out.replace("−", "-").replace("–", "-").replace("$\\", "\\") if "−" in out or "–" in out else out
    for left, right in (("\\(", "\\)"), ("\\[", "\\]"), ("$$", "$$"), ("$", "$"), ("**", "**")):
        if out.startswith(left) and out.endswith(right) and len(out) >= len(left) + len(right) + 1:
            inner = out[len(left) : len(out) - len(right)]
            if left not in inner:
                out = inner.strip()
    for _ in range(4):
        changed = _TEXT.sub(lambda m: f" {m.group(1)} " if m.group(1).strip() else " ", out)
        if changed == out:
            break
        out = changed
    out = out.replace("{,}", ",").replace("\\%", "%")
    out = re.sub(r"(?<=[0-9])(?:\\[,;:! ]|[\u2009\u202f]|,\\!\s*|\\!,\s*)(?=[0-9]{3}(?![0-9]))", ",", out)
    out = re.sub(r",\s*\\!\s*(?=[0-9])", ",", out)
    out = _SPACES.sub(" ", out).strip()
    out = out.removesuffix(".").strip() if not out.endswith("..") else out
    return re.sub(r"  +", " ", out)


def decimal(text: str) -> Fraction | None:
    """`1,234.50` exactly; commas only between groups of three."""
    digits = text.replace(",", "")
    if not digits or digits == "." or len(digits) > _DIGITS:
        return None
    return Fraction(digits if not digits.endswith(".") else digits[:-1])


def number(text: str, units: bool = True) -> Fraction | None:
    """The exact value of a text that is one number, else None.

    Args:
        units: words after a space and currency signs may stand beside it (`18 dollars`, `\\$18`); words that change
            the value (`million`, `percent`, `or`) never may.
    """
    if len(text) > MAX_LENGTH:
        return None
    return _number(plain(text), units)


def _number(out: str, units: bool) -> Fraction | None:
    value = _bare(out)
    if value is not None or not units:
        return value
    out = _CURRENCY.sub(lambda m: m.group(1) + m.group(2), out)
    tail = _UNIT_TAIL.match(out)
    if tail is not None and _is_unit(tail.group(3)):
        out = tail.group(1).strip()
    return _bare(out)


def _is_unit(tail: str) -> bool:
    if "%" in tail or "°" in tail or "circ" in tail:
        return False
    words = [w.lower() for w in _WORD.findall(tail)]
    return all(w not in MEANING_WORDS or (w in _LETTER_UNITS and len(words) == 1) for w in words)


def _bare(out: str) -> Fraction | None:
    if match := _SIMPLE.match(out):
        value = decimal(match.group(2))
        return None if value is None else -value if match.group(1) == "-" else value
    if match := _SLASH.match(out):
        top, bottom = decimal(match.group(2)), decimal(match.group(3))
        if top is None or not bottom:
            return None
        return -top / bottom if match.group(1) == "-" else top / bottom
    if match := _MIXED.match(out):
        sign, whole, n, d = match.groups()
        return _mixed(sign, whole, n, d)
    if match := _FRAC.match(out):
        sign, whole = match.group(1), match.group(2)
        return _mixed(sign, whole, match.group(3) or match.group(4), match.group(5) or match.group(6))
    return None


def _mixed(sign: str, whole: str, top: str, bottom: str) -> Fraction | None:
    if max(len(whole), len(top), len(bottom)) > _DIGITS or int(bottom) == 0:
        return None
    if whole and (top.startswith("-") or bottom.startswith("-")):
        return None
    value = Fraction(int(whole or "0")) + Fraction(int(top), int(bottom))
    return -value if sign == "-" else value


def show(value: Fraction) -> str:
    """Canonical form: `18`, `-3/4`."""
    return str(value)
