r"""What an answer says: numbers, tuples, intervals, sets, equations, matrices, words.

`read` turns text into a `Node`; `Node.key()` is the ballot, computed from the answer alone. Lists, `\{…\}`, `±` and
"a or b" are unordered; tuples and intervals are ordered and keep their brackets. Not here: when two nodes say the
same (`equality`), algebra itself (`latex`, `algebra`), units (`units`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from fractions import Fraction

from broaden.tasks import algebra, units
from broaden.tasks.algebra import Form, LimitError
from broaden.tasks.latex import MAX_DEPTH, expression
from broaden.tasks.spelling import Unread, clean

MAX_ITEMS = 200
_OPEN, _CLOSE = "([{⦃⟨", ")]}⦄⟩"


@dataclass(frozen=True, slots=True)
class Node:
    """One thing an answer says.

    kinds: num (form, unit), percent (form), text, seq (brackets kept), set (unordered), union (of intervals),
    named (name = items[0]), relation (op and form compared with 0), matrix (items = rows), ratio, base (digits, base).
    """

    kind: str
    form: Form | None = None
    text: str = ""
    items: tuple[Node, ...] = field(default=())

    def key(self) -> str:
        """Canonical text, the same for equal answers wherever the rules have a normal form."""
        if self.kind in ("num", "percent"):
            return self.form.key() if self.form is not None else ""
        if self.kind == "text":
            return f"«{self.text}»"
        if self.kind == "named":
            return self.items[0].key()
        keys = [i.key() for i in self.items]
        if self.kind in ("set", "union"):
            keys = sorted(set(keys))
            return keys[0] if len(keys) == 1 and self.kind == "set" else f"{self.kind}{{{'; '.join(keys)}}}"
        if self.kind == "seq":
            return f"{self.text[0]}{', '.join(keys)}{self.text[1]}"
        if self.kind == "relation":
            return (
                f"{scaled(self.form, self.text == '=').key()} {self.text} 0" if self.form is not None else ""
            )
        return f"{self.kind}[{self.text}|{'; '.join(keys)}]"


def read(text: str) -> Node:
    """The reading of an answer text. Raises Unread, LimitError."""
    try:
        return _node(_strip(clean(_unmarked(text))), 0)
    except (ZeroDivisionError, RecursionError) as error:
        raise Unread(type(error).__name__) from error


def _unmarked(text: str) -> str:
    """Without Markdown bold around it and a leading "approximately"."""
    out = text.strip()
    if out.startswith("**") and out.endswith("**") and len(out) > 4:
        out = out[2:-2].strip()
    return re.sub(r"^(\$?)\s*(?:\\approx(?![A-Za-z])|≈)\s*", r"\1", out)


def readings(text: str) -> list[Node]:
    """The reading, and for `1,234` without LaTeX grouping also the list 1, 234 (a gold is compared with both)."""
    out = [read(text)]
    stripped = _strip(clean(text))
    if re.fullmatch(r"-?[0-9]{1,3}(?:,[0-9]{3})+", stripped) and "," in text:
        out.append(_list(stripped.split(","), 0))
    return out


def squash(text: str) -> str:
    """Last-resort normal form of what cannot be read: wrappers and blanks removed."""
    out = re.sub(r"\\(?:left|right|displaystyle|,|;|!|:|quad|qquad)(?![A-Za-z])", "", text)
    out = re.sub(r"\\[dt]frac", r"\\frac", out)
    return re.sub(r"[\s$]+", "", out).rstrip(".")


def bare(text: str) -> str:
    """The text as a parser of LaTeX should see it: no dollars, bold, braces (math-verify reads `{a}` as a set)."""
    return _strip(_unmarked(text))


def _strip(text: str) -> str:
    out = text.replace("$", " ").strip()
    while True:
        before = out
        if out.endswith((".", ",", ";")) and not out.endswith(("..", "…")):
            out = out[:-1].rstrip()
        if out.startswith("{") and _closing(out, 0) == len(out) - 1:
            out = out[1:-1].strip()
        if out == before:
            return re.sub(r"\s+", " ", out)


def _closing(text: str, start: int) -> int:
    """Index of the bracket that closes the one at `start`; brackets may be of unlike kinds (`(3, 4]`). -1: none."""
    depth = 0
    for at in range(start, len(text)):
        if text[at] in _OPEN:
            depth += 1
        elif text[at] in _CLOSE:
            depth -= 1
            if depth == 0:
                return at
    return -1


def _split(text: str, separators: str) -> list[str]:
    """Pieces at top-level separator characters (inside brackets and «words» nothing is cut)."""
    out: list[str] = []
    depth = start = 0
    for at, char in enumerate(text):
        if char in _OPEN or char == "«":
            depth += 1
        elif char in _CLOSE or char == "»":
            depth -= 1
        elif depth == 0 and char in separators:
            out.append(text[start:at])
            start = at + 1
    out.append(text[start:])
    return [p.strip() for p in out]


_CONNECTIVE = re.compile(
    r"\s*,?\s*(?:«\s*(?:or|and|,\s*and|,\s*or)\s*»|(?<![A-Za-z])(?:or|and)(?![A-Za-z]))\s*,?\s*",
    re.IGNORECASE,
)
_GROUPED = re.compile(r"(?<![0-9,.^_])([0-9]{1,3}(?:,[0-9]{3})+)(?![0-9,])")


def _node(text: str, depth: int) -> Node:
    if depth > MAX_DEPTH:
        raise LimitError(f"nested deeper than {MAX_DEPTH}")
    text = _strip(text)
    if not text:
        raise Unread("empty")
    if (word := _words(text)) is not None:
        return word
    if "\\begin" in text:
        return _matrix(text, depth)
    joined = _CONNECTIVE.sub(" ; ", text)
    parts = [p for p in _split(joined, ";") if p]
    if len(parts) > 1:
        return _joined(parts, depth)
    text = parts[0] if parts else text
    if "," in text and _GROUPED.sub("", text).count(",") == 0 and "".join(_split(text, ",")).count(",") == 0:
        text = _GROUPED.sub(lambda m: m.group(1).replace(",", ""), text)
    pieces = _split(text, ",")
    if len(pieces) > 1:
        pieces = [p for p in pieces if p]
        return _list(pieces, depth)
    return _relation(text, depth)


def _joined(parts: list[str], depth: int) -> Node:
    """Parts between "or", "and" or semicolons: a union of intervals or an unordered list."""
    flat: list[str] = []
    for part in parts:
        flat.extend(p for p in _split(part, ",") if p)
    node = _list(flat, depth)
    inner = [i.items[0] if i.kind == "named" else i for i in node.items]
    if (
        node.kind == "set"
        and inner
        and all(i.kind == "seq" and len(i.items) == 2 and _endless(i) for i in inner)
    ):
        return Node("union", items=tuple(inner))
    return node


def _endless(node: Node) -> bool:
    return any(i.form is not None and "∞" in i.form.atoms() for i in node.items) or node.text in ("(]", "[)")


def _list(pieces: list[str], depth: int) -> Node:
    if len(pieces) > MAX_ITEMS:
        raise LimitError(f"more than {MAX_ITEMS} items")
    head = re.match(r"^([A-Za-z](?:_\{?\w\}?)?)\s*[=∈]\s*(.+)$", pieces[0])
    if head and len(pieces) > 1 and not any(re.search(r"[=∈<>≤≥]", p) for p in pieces[1:]):
        inner = _list([head.group(2), *pieces[1:]], depth + 1)
        return Node("named", text=head.group(1), items=(inner,))
    items: list[Node] = []
    for piece in pieces:
        node = _node(piece, depth + 1)
        items.extend(node.items if node.kind == "set" else (node,))
    return Node("set", items=tuple(items))


SHORT_WORDS = frozenset("yes no true false dne none odd even".split())
"""Bare words of up to four letters that are words and no products of variables."""


def _words(text: str) -> Node | None:
    """A text answer: one «…», or bare words without mathematics."""
    match = re.fullmatch(r"«([^«»]*)»", text)
    inner = match.group(1) if match else text
    if re.fullmatch(r"\(?\s*[A-Za-z]\s*\)?\.?", inner) and match:
        return Node("num", algebra.atom(re.sub(r"[^A-Za-z]", "", inner)))
    if text.casefold() in SHORT_WORDS:
        return Node("text", text=text.casefold())
    if match or (
        re.fullmatch(r"[A-Za-z][A-Za-z' .-]*", text) and re.search(r"[A-Za-z]{4}", text) and not _mathy(text)
    ):
        return Node("text", text=re.sub(r"[\s.'-]+", " ", inner).strip().casefold())
    return None


_FUNCTION_WORD = re.compile(
    r"(?<![A-Za-z])(?:arcsin|arccos|arctan|sqrt|sin|cos|tan|log|ln|exp|pi|or|and)(?![A-Za-z])"
)


def _mathy(text: str) -> bool:
    """Whether bare letters are mathematics after all: function names, or short products like `ab c`."""
    if _FUNCTION_WORD.search(text):
        return True
    return re.fullmatch(r"[a-z]{1,3}(?: ?[a-z]){0,6}", text) is not None and not re.search(r"[a-z]{4}", text)


def _relation(text: str, depth: int) -> Node:
    sides = _split(text, "=")
    if len(sides) > 1:
        return _equation(sides, depth)
    member = _split(text, "∈")
    if len(member) == 2:
        return Node("named", text=member[0], items=(_node(member[1], depth + 1),))
    if re.search(r"[<>≤≥≠]", text):
        return _inequality(text)
    intervals = _split(text, "∪")
    if len(intervals) > 1:
        nodes = [_node(p, depth + 1) for p in intervals]
        if all(n.kind == "set" for n in nodes):
            return Node("set", items=tuple(i for n in nodes for i in n.items))
        return Node("union", items=tuple(nodes))
    return _bracketed(text, depth)


_NAME = re.compile(r"(?:[A-Za-z]|\\[a-z]+ ?)(?:_(?:\{[^{}]{1,12}\}|\w))?'?(?:\([A-Za-z](?:,\s*[A-Za-z])*\))?")


def _equation(sides: list[str], depth: int) -> Node:
    if any(not s for s in sides):
        raise Unread("an empty side of an equation")
    if _NAME.fullmatch(sides[0]) or re.fullmatch(r"«[^«»]+»", sides[0]):
        inner = [_node(s, depth + 1) for s in sides[1:]]
        if all(inner[0].key() == i.key() for i in inner[1:]):
            return Node("named", text=sides[0].replace(" ", ""), items=(inner[-1],))
        raise Unread("a chain of equations that do not agree")
    forms = [expression(s) for s in sides]
    if len(forms) == 2:
        value = forms[1].rational()
        if forms[0].rational() is not None and value is not None:
            if forms[0].rational() != value:
                raise Unread("an equation that does not hold")
            return Node("num", forms[1])
        return Node("relation", algebra.add(forms[0], algebra.neg(forms[1])), "=")
    if all(algebra.equal(forms[0], f) for f in forms[1:]):
        return Node("num", forms[-1])
    raise Unread("a chain of equations that do not agree")


def _inequality(text: str) -> Node:
    """`x < 3`, `-2 ≤ x ≤ 7` as intervals of a named variable; anything else as a relation with 0."""
    parts = re.split(r"([<>≤≥≠])", text)
    forms = [expression(p.strip()) if p.strip() else None for p in parts[::2]]
    ops = parts[1::2]
    if any(f is None for f in forms) or len(forms) > 3:
        raise Unread("an inequality")
    values = [f for f in forms if f is not None]
    if all(o in "><≥" for o in ops) and ops[0] in ">≥":
        values, ops = values[::-1], ["<" if o == ">" else "≤" for o in ops[::-1]]
    infinity = algebra.atom("∞")
    if len(values) == 3 and all(o in "<≤" for o in ops) and _variable(values[1]):
        low, name, high = values
        brackets = ("(" if ops[0] == "<" else "[") + (")" if ops[1] == "<" else "]")
        return _interval(name.key(), low, high, brackets)
    if len(values) == 2 and ops[0] in "<≤":
        left, right = values
        if _variable(left) and not right.atoms() & left.atoms():
            return _interval(left.key(), algebra.neg(infinity), right, "(" + (")" if ops[0] == "<" else "]"))
        if _variable(right) and not left.atoms() & right.atoms():
            return _interval(right.key(), left, infinity, ("(" if ops[0] == "<" else "[") + ")")
        return Node("relation", algebra.add(left, algebra.neg(right)), ops[0])
    if len(values) == 2 and ops[0] == "≠":
        return Node("relation", algebra.add(values[0], algebra.neg(values[1])), "≠")
    raise Unread("an inequality")


def _variable(form: Form) -> bool:
    return bool(re.fullmatch(r"[A-Za-z](?:_\w+)?|\\[a-z]+", form.key())) and form.key() not in ("e", "i")


def _interval(name: str, low: Form, high: Form, brackets: str) -> Node:
    return Node(
        "named", text=name, items=(Node("seq", text=brackets, items=(Node("num", low), Node("num", high))),)
    )


def _bracketed(text: str, depth: int) -> Node:
    if text[0] in "([⦃⟨" and _closing(text, 0) == len(text) - 1:
        inner = text[1:-1].strip()
        if text[0] == "⦃" and text[-1] == "⦄":
            if not inner:
                return Node("text", text="∅")
            node = _list([p for p in _split(inner, ",;") if p], depth + 1)
            return Node("set", text="{}", items=node.items if node.kind == "set" else (node,))
        pieces = _split(inner, ",")
        if len(pieces) > 1:
            if len(pieces) > MAX_ITEMS:
                raise LimitError(f"more than {MAX_ITEMS} items")
            items = tuple(_node(p, depth + 1) for p in pieces)
            if any(i.kind in ("set", "named") for i in items):
                raise Unread("a list inside a tuple")
            brackets = text[0].replace("⟨", "(") + text[-1].replace("⟩", ")")
            return Node("seq", text=brackets, items=items)
        if text[0] == "(" and text[-1] == ")":
            return _node(inner, depth + 1)
    if text == "∅":
        return Node("text", text="∅")
    if text == "…":
        return Node("num", algebra.atom("…"))
    ratio = _split(text, ":")
    if len(ratio) > 1:
        return Node(
            "ratio",
            text=":".join(re.sub(r"\s", "", p) for p in ratio),
            items=tuple(_node(p, depth + 1) for p in ratio),
        )
    return _quantity(text, depth)


_BASE = re.compile(r"([0-9A-Z]+)\s*_\s*(?:\{\s*\(?\s*([0-9]{1,2})\s*\)?\s*\}|([0-9]{1,2}))")
_TEXT_UNIT = re.compile(
    r"^(.*?[0-9)}%!°πA-Za-z])\s*((?:\s*(?:\*|/)?\s*«[^«»]*»\s*(?:\^\s*\{?\s*-?[0-9]\s*\}?)?)+)$"
)
_BARE_UNIT = re.compile(r"^(.*?[0-9)}%!°π])(\s*)([A-Za-z][A-Za-z ./]*?)\s*(?:\^\s*\{?\s*([0-9])\s*\}?)?$")


def _quantity(text: str, depth: int) -> Node:
    """A number or expression with percent sign, base, unit or ±."""
    if base := _BASE.fullmatch(text):
        return Node("base", text=f"{base.group(1).lstrip('0') or '0'}_{base.group(2) or base.group(3)}")
    match = _TEXT_UNIT.match(text)
    if match and (tail := units.parse_tail(match.group(2))) is not None:
        return _with_unit(match.group(1), tail, re.findall(r"\^\s*\{?\s*([0-9])", match.group(2)), depth)
    match = _BARE_UNIT.match(text)
    if (
        match
        and _bare_unit(match.group(2), match.group(3))
        and (tail := units.parse_tail(match.group(3))) is not None
    ):
        return _with_unit(match.group(1), tail, [match.group(4)] if match.group(4) else [], depth)
    if text.endswith("%"):
        return Node("percent", expression(text[:-1].strip()))
    if "±" in text or "∓" in text:
        return Node("set", items=(Node("num", expression(text, 1)), Node("num", expression(text, -1))))
    try:
        return Node("num", expression(text))
    except Unread:
        if re.search(r"[A-Za-z]{4}", text) and not re.search(r"[\\{}^_=]", text):
            return Node("text", text=re.sub(r"[\s.«»'-]+", " ", text).strip().casefold())
        raise


def _bare_unit(space: str, words: str) -> bool:
    found = words.split()
    if not found or _FUNCTION_WORD.search(words):
        return False
    if all(units.is_unit_word(w.strip("./")) for w in found if w.strip("./") not in ("per", "/")):
        return True
    return bool(space) and len(found[0]) >= 4 and len(found) <= 4


def _with_unit(number: str, tail: tuple[Fraction, str], raised: list[str], depth: int) -> Node:
    scale, unit = tail
    node = _quantity(number.strip(), depth + 1)
    if node.kind != "num" or node.form is None:
        if scale == 1 and node.kind in ("set", "percent", "base"):
            return node
        raise Unread("a unit after something that is no number")
    if unit == "%":
        return Node("percent", node.form)
    name = f"{unit}^{raised[0]}" if unit and raised else unit
    return Node("num", algebra.mul(node.form, algebra.const(scale)), name)


def _matrix(text: str, depth: int) -> Node:
    match = re.fullmatch(
        r"[(\[]?\s*\\begin\s*\{([a-zA-Z]*matrix|array)\}(?:\{[clr|]*\})?(.*)\\end\s*\{\1\}\s*[)\]]?",
        text,
        re.DOTALL,
    )
    if match is None or "\\begin" in match.group(2):
        raise Unread("an environment")
    kind = match.group(1)
    rows: list[Node] = []
    for line in match.group(2).split("\\\\"):
        if not line.strip():
            continue
        cells = tuple(_node(c, depth + 1) for c in line.split("&"))
        rows.append(Node("seq", text="[]", items=cells))
    if not rows or len(rows) * len(rows[0].items) > MAX_ITEMS:
        raise Unread("a matrix")
    return Node("matrix", text="det" if kind in ("vmatrix", "Vmatrix") else "", items=tuple(rows))


def scaled(form: Form, any_sign: bool) -> Form:
    """The form divided by its leading coefficient (for equations) or its absolute value (for inequalities)."""
    if not form.num:
        return form
    lead = form.num[max(form.num)]
    return algebra.mul(form, algebra.const(1 / (lead if any_sign else abs(lead))))
