r"""When two answers say the same: True, False, or None where the rules cannot tell (`mathpool` asks math-verify).

The contested choices (percent, dropped names and units, base subscripts, lists against tuples) are listed in
docs/tasks/mathematics.md. Not here: reading text (`answers`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Context, Decimal
from fractions import Fraction

from broaden.tasks import algebra
from broaden.tasks.algebra import Form
from broaden.tasks.answers import Node, scaled


def same(gold: Node, answer: Node) -> bool | None:
    """Whether the answer says what the gold says; None where the rules cannot tell."""
    if gold.kind == "set" and len(gold.items) == 1:
        return same(gold.items[0], answer)
    if answer.kind == "set" and len(answer.items) == 1:
        return same(gold, answer.items[0])
    if gold.kind == "named" or answer.kind == "named":
        return _same_named(gold, answer)
    if "percent" in (gold.kind, answer.kind):
        return _same_percent(gold, answer)
    if {gold.kind, answer.kind} == {"set", "seq"}:
        return _list_and_tuple(gold, answer)
    if gold.kind == "set" or answer.kind == "set":
        return _same_sets(gold, answer)
    if gold.kind == "base" and answer.kind == "num" and answer.form is not None:
        return gold.text.rpartition("_")[0] == answer.form.key()
    if gold.kind != answer.kind:
        return False
    return _RULES[gold.kind](gold, answer)


def _same_num(gold: Node, answer: Node) -> bool | None:
    a, b = gold.form, answer.form
    if a is None or b is None:
        return None
    if algebra.equal(a, b):
        return not (gold.text and answer.text and gold.text != answer.text)
    if approximates(a, b):
        return True
    return None if a.opaque or b.opaque else False


def _same_percent(gold: Node, answer: Node) -> bool | None:
    """`50%` equals `50%`; a percentage equals its number with or without the division by a hundred."""
    if gold.kind == answer.kind:
        return _same_num(gold, answer)
    percent, other = (gold, answer) if gold.kind == "percent" else (answer, gold)
    if other.kind != "num" or percent.form is None or other.form is None:
        return False
    return algebra.equal(percent.form, other.form) or algebra.equal(
        algebra.div(percent.form, algebra.const(100)), other.form
    )


def _same_named(gold: Node, answer: Node) -> bool | None:
    if gold.kind == answer.kind == "named":
        if _bare(gold.text) == _bare(answer.text):
            return same(gold.items[0], answer.items[0])
        left, right = _as_relation(gold), _as_relation(answer)
        return False if left is None or right is None else _same_relation(left, right)
    named, other = (gold, answer) if gold.kind == "named" else (answer, gold)
    if other.kind == "relation":
        relation = _as_relation(named)
        return None if relation is None else _same_relation(relation, other)
    return same(named.items[0], other) if gold is named else same(other, named.items[0])


def _bare(name: str) -> str:
    return re.sub(r"[{}\s«»]", "", name)


def _as_relation(node: Node) -> Node | None:
    value = node.items[0]
    if value.kind != "num" or value.form is None or not re.fullmatch(r"[A-Za-z]", node.text):
        return None
    return Node("relation", algebra.add(algebra.atom(node.text), algebra.neg(value.form)), "=")


def _same_relation(gold: Node, answer: Node) -> bool | None:
    a, b = gold.form, answer.form
    if a is None or b is None:
        return None
    if gold.text == answer.text:
        if gold.text in "=≠":
            if algebra.proportional(a, b):
                return True
        elif algebra.equal(scaled(a, False), scaled(b, False)):
            return True
    return None if a.opaque or b.opaque else False


def _same_sets(gold: Node, answer: Node) -> bool | None:
    left, right = unique(gold), unique(answer)
    if len(left) != len(right):
        undecided = any(i.form is not None and i.form.opaque for i in (*left, *right))
        return None if undecided and gold.kind == answer.kind == "set" else False
    unsure = False
    rest = list(right)
    for item in left:
        for at, other in enumerate(rest):
            verdict = same(item, other)
            if verdict:
                del rest[at]
                break
            unsure = unsure or verdict is None
        else:
            return None if unsure else False
    return True


def unique(node: Node) -> list[Node]:
    items: tuple[Node, ...] = node.items if node.kind == "set" else (node,)
    out: list[Node] = []
    for item in items:
        if not any(same(item, o) for o in out):
            out.append(item)
    return out


def _same_seq(gold: Node, answer: Node) -> bool | None:
    if gold.text != answer.text or len(gold.items) != len(answer.items):
        return False
    return _all(same(a, b) for a, b in zip(gold.items, answer.items, strict=True))


def _list_and_tuple(gold: Node, answer: Node) -> bool | None:
    """`3, 5, 7` and `(3, 5, 7)` in the same order, from three items on: two in brackets are a point or an interval.
    `\\{3, 5, 7\\}` and a tuple never."""
    if "{}" in (gold.text, answer.text) or "()" not in (gold.text, answer.text):
        return False
    if len(gold.items) != len(answer.items) or len(gold.items) < 3:
        return False
    return _all(same(a, b) for a, b in zip(gold.items, answer.items, strict=True))


def lenient(gold: Node, answer: Node) -> bool:
    """Whether a match between the two rests on a contested rule (other shape, percent, dropped name or unit, base)."""
    return (
        gold.kind != answer.kind
        or (gold.kind == "num" and gold.text != answer.text)
        or gold.key() != answer.key()
    )


def _same_union(gold: Node, answer: Node) -> bool | None:
    return _same_sets(Node("set", items=gold.items), Node("set", items=answer.items))


def _same_text(gold: Node, answer: Node) -> bool | None:
    return gold.text == answer.text or gold.text.replace(" ", "") == answer.text.replace(" ", "")


def _same_ratio(gold: Node, answer: Node) -> bool | None:
    return _same_seq(Node("seq", text="::", items=gold.items), Node("seq", text="::", items=answer.items))


def _all(verdicts: object) -> bool | None:
    unsure = False
    for verdict in verdicts:  # type: ignore[attr-defined]
        if verdict is False:
            return False
        unsure = unsure or verdict is None
    return None if unsure else True


_RULES: dict[str, Callable[[Node, Node], bool | None]] = {
    "num": _same_num, "text": _same_text, "seq": _same_seq, "union": _same_union, "relation": _same_relation,
    "matrix": _same_seq, "ratio": _same_ratio, "base": lambda a, b: a.text == b.text,
}  # fmt: skip


APPROX_DIGITS = 6
_PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459230781640628620899")


def approximates(gold: Form, answer: Form) -> bool:
    """Whether the answer is a decimal of at least six significant digits that rounds or cuts a gold without a
    finite decimal form (`0.0833333333` for 1/12). Integers and finite decimals are compared exactly, always."""
    value = answer.rational()
    if value is None or value.denominator == 1 or value.numerator.bit_length() > 1000:
        return False
    exact = gold.rational()
    if exact is not None and _finite(exact.denominator):
        return False
    digits = _decimals(value)
    if digits is None or len(str(abs(value.numerator * 10**digits // value.denominator))) < APPROX_DIGITS:
        return False
    number = evaluate(gold)
    if number is None:
        return False
    ours = Decimal(value.numerator) / Decimal(value.denominator)
    step = Decimal(10) ** -digits
    rounded = abs(number - ours) <= step / 2
    cut = number * ours > 0 and 0 <= abs(number) - abs(ours) < step
    return rounded or cut


def _finite(denominator: int) -> bool:
    for p in (2, 5):
        while denominator % p == 0:
            denominator //= p
    return denominator == 1


def _decimals(value: Fraction) -> int | None:
    if not _finite(value.denominator):
        return None
    return next((k for k in range(41) if (value * 10**k).denominator == 1), None)


def evaluate(form: Form) -> Decimal | None:
    """The value to about fifty digits where every atom is π, e or a root of a prime; else None."""
    context = Context(prec=60)
    e = context.exp(Decimal(1))

    def poly(terms: algebra.Poly) -> Decimal | None:
        total = Decimal(0)
        for monomial, c in terms.items():
            if max(c.numerator.bit_length(), c.denominator.bit_length()) > 2000:
                return None
            term = context.divide(Decimal(c.numerator), Decimal(c.denominator))
            for name, q in monomial:
                base = (
                    _PI
                    if name == "π"
                    else e
                    if name == "e"
                    else Decimal(int(name[1:]))
                    if name[0] == "#"
                    else None
                )
                if base is None or abs(q) > 1000:
                    return None
                raised = context.power(base, context.divide(Decimal(q.numerator), Decimal(q.denominator)))
                term = context.multiply(term, raised)
            total = context.add(total, term)
        return total

    top, bottom = poly(form.num), poly(form.den)
    return None if top is None or not bottom else context.divide(top, bottom)
