"""Exact normal forms of algebraic expressions: sums of monomials with rational coefficients over atoms.

An atom is a variable, pi, e, i, a prime under a root (`#2` to the power 1/2 is the square root of two), or an opaque
subexpression named by its canonical text. Over the non-opaque atoms two forms are equal exactly when their
cross products are, so inequality is decided too; with opaque atoms only equality is. Everything has a size limit.
Not here: reading text (`latex`), or identities of functions.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from hashlib import blake2b
from math import factorial, isqrt

MAX_TERMS = 400
MAX_BITS = 60_000
MAX_FACTORIAL = 5_000
_TRIAL = 20_000

Monomial = tuple[tuple[str, Fraction], ...]
Poly = dict[Monomial, Fraction]
ONE: Monomial = ()
HALF = Fraction(1, 2)
CONSTANTS = frozenset({"π", "e"})


class LimitError(ValueError):
    """The expression is too large to be computed with (its value is not looked at)."""


@dataclass(frozen=True, slots=True)
class Form:
    """num / den. `opaque`: some atom is a subexpression that the rules do not open, so inequality is not decided."""

    num: Poly
    den: Poly
    opaque: bool = False

    def rational(self) -> Fraction | None:
        """The value where the form is a rational number."""
        if self.den == {ONE: Fraction(1)}:
            if not self.num:
                return Fraction(0)
            if len(self.num) == 1 and ONE in self.num:
                return self.num[ONE]
        return None

    def key(self) -> str:
        """Canonical text: equal forms of the same shape share it (used for ballots and atom names)."""
        top = _show(self.num)
        return top if self.den == {ONE: Fraction(1)} else f"({top})/({_show(self.den)})"

    def atoms(self) -> frozenset[str]:
        """Names of the atoms that occur."""
        return frozenset(a for p in (self.num, self.den) for m in p for a, _ in m)


def const(value: Fraction | int) -> Form:
    """A rational number."""
    value = Fraction(value)
    _check(value)
    return Form({ONE: value} if value else {}, {ONE: Fraction(1)})


def atom(name: str, opaque: bool = False) -> Form:
    """A variable, a constant (π, e, i) or an opaque subexpression."""
    return Form({((name, Fraction(1)),): Fraction(1)}, {ONE: Fraction(1)}, opaque)


def add(a: Form, b: Form) -> Form:
    """a + b."""
    opaque = a.opaque or b.opaque
    if a.den == b.den:
        return _simplify(_sum(a.num, b.num), a.den, opaque)
    return _simplify(_sum(_times(a.num, b.den), _times(b.num, a.den)), _times(a.den, b.den), opaque)


def neg(a: Form) -> Form:
    """-a."""
    return Form({m: -c for m, c in a.num.items()}, a.den, a.opaque)


def mul(a: Form, b: Form) -> Form:
    """a b."""
    return _simplify(_times(a.num, b.num), _times(a.den, b.den), a.opaque or b.opaque)


def div(a: Form, b: Form) -> Form:
    """a / b. Raises ZeroDivisionError."""
    if not b.num:
        raise ZeroDivisionError("division by zero")
    return _simplify(_times(a.num, b.den), _times(a.den, b.num), a.opaque or b.opaque)


def power(a: Form, exponent: Form) -> Form:
    """a ** exponent; what has no rule becomes an opaque atom. Raises LimitError, ZeroDivisionError."""
    q = exponent.rational()
    if q is None:
        return const(1) if a.rational() == 1 else atom(f"({a.key()})^({exponent.key()})", opaque=True)
    if q.denominator == 1:
        return _integer_power(a, q.numerator)
    return _root_power(a, q)


def factorial_of(a: Form) -> Form:
    """a! for a small integer, else opaque."""
    value = a.rational()
    if value is None or value.denominator != 1 or value < 0:
        return atom(f"({a.key()})!", opaque=True)
    if value > MAX_FACTORIAL:
        raise LimitError(f"a factorial above {MAX_FACTORIAL}!")
    return const(factorial(int(value)))


def equal(a: Form, b: Form) -> bool:
    """Whether the two forms are the same expression, by cross products."""
    if a.num == b.num and a.den == b.den:
        return True
    return not _sum(_times(a.num, b.den), {m: -c for m, c in _times(b.num, a.den).items()})


def proportional(a: Form, b: Form) -> bool:
    """Whether a = c b with a rational c other than 0 (two equations `a = 0`, `b = 0` that are the same)."""
    if not a.num or not b.num:
        return not a.num and not b.num
    x, y = _times(a.num, b.den), _times(b.num, a.den)
    if set(x) != set(y):
        return False
    first = next(iter(x))
    ratio = x[first] / y[first]
    return all(x[m] == ratio * y[m] for m in x)


def _check(value: Fraction) -> Fraction:
    if value.numerator.bit_length() > MAX_BITS or value.denominator.bit_length() > MAX_BITS:
        raise LimitError(f"a number of more than {MAX_BITS} bits")
    return value


def _sum(p: Poly, q: Poly) -> Poly:
    out = dict(p)
    for m, c in q.items():
        total = _check(out.get(m, Fraction(0)) + c)
        if total:
            out[m] = total
        else:
            out.pop(m, None)
    if len(out) > MAX_TERMS:
        raise LimitError(f"more than {MAX_TERMS} terms")
    return out


def _times(p: Poly, q: Poly) -> Poly:
    if len(p) * len(q) > MAX_TERMS * 20:
        raise LimitError(f"a product of {len(p)} and {len(q)} terms")
    out: Poly = {}
    for m, c in p.items():
        for n, d in q.items():
            scale, monomial = _join(m, n)
            total = _check(out.get(monomial, Fraction(0)) + c * d * scale)
            if total:
                out[monomial] = total
            else:
                out.pop(monomial, None)
    if len(out) > MAX_TERMS:
        raise LimitError(f"more than {MAX_TERMS} terms")
    return out


def _join(m: Monomial, n: Monomial) -> tuple[Fraction, Monomial]:
    """Product of two monomials: (rational factor, monomial). i*i = -1; prime roots keep exponents in (0, 1)."""
    if not m or not n:
        return Fraction(1), m or n
    exponents = dict(m)
    for name, e in n:
        exponents[name] = exponents.get(name, Fraction(0)) + e
    return _reduce(exponents)


def _reduce(exponents: dict[str, Fraction]) -> tuple[Fraction, Monomial]:
    scale = Fraction(1)
    out: list[tuple[str, Fraction]] = []
    for name, e in exponents.items():
        if name == "i":
            turn = int(e) % 4
            if turn >= 2:
                scale = -scale
            e = Fraction(turn % 2)
        elif name[0] == "#":
            whole = e.numerator // e.denominator
            scale *= Fraction(int(name[1:])) ** whole
            e -= whole
        if e:
            out.append((name, e))
    return scale, tuple(sorted(out))


def _inverse(m: Monomial) -> tuple[Fraction, Monomial]:
    return _reduce({name: -e for name, e in m})


def _simplify(num: Poly, den: Poly, opaque: bool) -> Form:
    if not num:
        return Form({}, {ONE: Fraction(1)}, opaque)
    if len(den) > 1:
        num, den = _rationalise(num, den)
    if len(den) > 1:
        quotient = _divide(num, den)
        if quotient is not None:
            return Form(quotient, {ONE: Fraction(1)}, opaque)
        inverse = _divide(den, num) if len(num) > 1 else None
        if inverse is not None:
            num, den = {ONE: Fraction(1)}, inverse
    if len(den) == 1:
        ((m, c),) = den.items()
        scale, inverse_m = _inverse(m)
        return Form(_times(num, {inverse_m: scale / c}), {ONE: Fraction(1)}, opaque)
    lead = den[max(den)]
    return Form({m: c / lead for m, c in num.items()}, {m: c / lead for m, c in den.items()}, opaque)


def _rationalise(num: Poly, den: Poly) -> tuple[Poly, Poly]:
    """Frees the denominator of i and of square roots by conjugates, one atom at a time."""
    for _ in range(8):
        name = next((a for m in den for a, e in m if a == "i" or (a[0] == "#" and e == HALF)), None)
        if name is None or len(den) == 1:
            return num, den
        if any(a == name and e not in (HALF, 1) for m in den for a, e in m):
            return num, den
        conjugate = {m: -c if any(a == name for a, _ in m) else c for m, c in den.items()}
        if conjugate == {m: -c for m, c in den.items()}:
            _, inverse = _inverse(((name, Fraction(1) if name == "i" else HALF),))
            num, den = _times(num, {inverse: Fraction(1)}), _times(den, {inverse: Fraction(1)})
            continue
        num, den = _times(num, conjugate), _times(den, conjugate)
    return num, den


def _divide(p: Poly, d: Poly) -> Poly | None:
    """The exact quotient p / d of polynomials (non-negative integer exponents), None where there is none."""
    names = sorted({a for q in (p, d) for m in q for a, _ in m})
    if any(e.denominator != 1 or e < 0 for q in (p, d) for m in q for _, e in m) or "i" in names:
        return None
    a = {_vector(m, names): c for m, c in p.items()}
    b = {_vector(m, names): c for m, c in d.items()}
    lead = max(b)
    out: Poly = {}
    for _ in range(MAX_TERMS):
        if not a:
            return out
        top = max(a)
        shift = tuple(x - y for x, y in zip(top, lead, strict=True))
        if min(shift, default=0) < 0:
            return None
        factor = a[top] / b[lead]
        out[tuple((n, Fraction(e)) for n, e in zip(names, shift, strict=True) if e)] = factor
        for m, c in b.items():
            at = tuple(x + y for x, y in zip(m, shift, strict=True))
            rest = a.get(at, Fraction(0)) - factor * c
            if rest:
                a[at] = rest
            else:
                a.pop(at, None)
    return None


def _vector(m: Monomial, names: list[str]) -> tuple[int, ...]:
    exponents = dict(m)
    return tuple(int(exponents.get(n, 0)) for n in names)


def _integer_power(a: Form, n: int) -> Form:
    if n < 0:
        return div(const(1), _integer_power(a, -n))
    if len(a.num) <= 1 and len(a.den) <= 1:
        bits = max(
            (max(c.numerator.bit_length(), c.denominator.bit_length()) for c in a.num.values()), default=1
        )
        small = all(abs(c) == 1 for c in a.num.values())
        if n > 100_000 or (not small and bits * n > MAX_BITS):
            raise LimitError("a power with a very large exponent")
    elif n > 64:
        raise LimitError("a sum to a large power")
    out = const(1)
    base = a
    while n:
        if n & 1:
            out = mul(out, base)
        n >>= 1
        if n:
            base = mul(base, base)
    return Form(out.num, out.den, out.opaque or a.opaque)


def _root_power(a: Form, q: Fraction) -> Form:
    """a ** q with a fractional q: single terms by the rules of roots, sums as an opaque atom."""
    if not a.num:
        if q < 0:
            raise ZeroDivisionError("zero to a negative power")
        return a
    if q.denominator > 64 or abs(q) > 64:
        raise LimitError("a root or power with a large exponent")
    single = len(a.num) == 1 and len(a.den) == 1
    if not single:
        whole = q.numerator // q.denominator
        rest = atom(f"({a.key()})^{q - whole}", opaque=True)
        return mul(_integer_power(a, whole), rest) if whole else rest
    ((m, c),) = a.num.items()
    out = const(1)
    exponents: dict[str, Fraction] = {}
    opaque = a.opaque
    if c < 0:
        if q.denominator == 2:
            out = _integer_power(atom("i"), q.numerator)
        elif q.denominator % 2:
            out = const(-1 if q.numerator % 2 else 1)
        else:
            return atom(f"({a.key()})^{q}", opaque=True)
        c = -c
    for name, e in m:
        even = q.denominator % 2 == 0 and (e.numerator % 2 == 0 or e.denominator % 2 == 0)
        if name == "i" or (name not in CONSTANTS and name[0] != "#" and even):
            return atom(f"({a.key()})^{q}", opaque=True)
        exponents[name] = exponents.get(name, Fraction(0)) + e * q
    for value, sign in ((c.numerator, 1), (c.denominator, -1)):
        for prime, count, sure in _factor(value):
            exponents[f"#{prime}"] = exponents.get(f"#{prime}", Fraction(0)) + sign * count * q
            opaque = opaque or not sure
    scale, monomial = _reduce(exponents)
    out = mul(out, Form({monomial: _check(scale)}, {ONE: Fraction(1)}))
    return Form(out.num, out.den, opaque)


def _factor(n: int) -> Iterable[tuple[int, int, bool]]:
    """(prime, count, is it surely prime) of n, by trial division up to a bound and a square test."""
    if n.bit_length() > 256:
        raise LimitError("a root of a number of more than 256 bits")
    at = 2
    while at <= _TRIAL and at * at <= n:
        count = 0
        while n % at == 0:
            n //= at
            count += 1
        if count:
            yield at, count, True
        at += 1 if at == 2 else 2
    if n > 1:
        root = isqrt(n)
        if n > _TRIAL * _TRIAL and root * root == n:
            yield root, 2, root <= _TRIAL * _TRIAL
        else:
            yield n, 1, n <= _TRIAL * _TRIAL


def _show(p: Poly) -> str:
    if not p:
        return "0"
    parts = []
    for m, c in sorted(p.items()):
        factors = "*".join(
            name.removeprefix("#") if e == 1 else f"{name.removeprefix('#')}^({e})" for name, e in m
        )
        parts.append(_number(c) if not factors else factors if c == 1 else f"{_number(c)}*{factors}")
    return " + ".join(parts)


def _number(value: Fraction) -> str:
    """The number as text; a digest of it where it has more than a thousand digits."""
    if max(value.numerator.bit_length(), value.denominator.bit_length()) < 3300:
        return str(value)
    return blake2b(f"{value.numerator:x}/{value.denominator:x}".encode(), digest_size=16).hexdigest()
