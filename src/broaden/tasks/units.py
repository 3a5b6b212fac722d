"""Words beside a number: units that may be dropped, scale words that multiply, words that change the meaning.

Two units of the same answer are compared by an alias table; what is not in the table is dropped.
Not here: numbers themselves.
"""

from __future__ import annotations

import re
from fractions import Fraction

SCALE: dict[str, Fraction] = {
    "hundred": Fraction(100), "thousand": Fraction(1000), "million": Fraction(10**6), "billion": Fraction(10**9),
    "trillion": Fraction(10**12), "dozen": Fraction(12), "percent": Fraction(1), "pct": Fraction(1),
}  # fmt: skip
MEANING = frozenset(
    "more less fewer than not plus minus times over by squared cubed half halves third thirds quarter quarters "
    "fourth fourths fifth "
    "fifths sixth sixths eighth eighths tenth tenths hundredth hundredths mod modulo or and to remainder "
    "factorial sqrt root power "
    "negative positive point between approximately about almost if for where when with integer real solution "
    "solutions no none true false "
    "undefined infinity base is are the".split()
)
"""Words that change what a number says: a text that holds one is not read as number and unit."""

_GROUPS = (
    "cm centimeter centimeters centimetre centimetres", "mm millimeter millimeters millimetre millimetres",
    "m meter meters metre metres", "km kilometer kilometers kilometre kilometres", "in inch inches", "ft foot feet",
    "yd yard yards", "mi mile miles", "g gram grams", "kg kilogram kilograms", "mg milligram milligrams",
    "lb lbs pound pounds",
    "oz ounce ounces", "s sec secs second seconds", "min mins minute minutes", "h hr hrs hour hours",
    "day days", "week weeks",
    "month months", "year years yr yrs", "l liter liters litre litres", "ml milliliter milliliters", "cent cents ¢",
    "dollar dollars usd", "mph", "kph", "radian radians rad",
)  # fmt: skip
KNOWN: dict[str, str] = {alias: group.split()[0] for group in _GROUPS for alias in group.split()}
DROPPED = frozenset("degree degrees deg unit units square sq cubic c f".split())
_WORDS = re.compile(r"[A-Za-z¢]+")


def parse_tail(words: str) -> tuple[Fraction, str] | None:
    """(scale, canonical unit) of the words after a number, None where they are no unit. "%" is the unit of percent."""
    found = [w.lower() for w in _WORDS.findall(words)]
    scale = Fraction(1)
    unit: list[str] = []
    for at, word in enumerate(found):
        if word in SCALE:
            if at > 1:
                return None
            scale *= SCALE[word]
            if word in ("percent", "pct"):
                unit.append("%")
        elif word in MEANING:
            return None
        elif word in KNOWN:
            unit.append(KNOWN[word])
    return scale, "%" if unit[:1] == ["%"] else " ".join(unit)


def is_unit_word(word: str) -> bool:
    """Whether a bare word glued to a number (`5cm`) is a unit (single letters are variables)."""
    return len(word) > 1 and (word.lower() in KNOWN or word.lower() in DROPPED)
