r"""One spelling for what answers write in many: commands to symbols, wrappers opened, text as «words».

`\dfrac` becomes `\frac`, `\left(` becomes `(`, `\pi` the letter π, `70\,000` and `11,\!111` plain digits. A
command outside the
tables raises `Unread`. Not here: what the result means (`latex`, `answers`).
"""

from __future__ import annotations

import re

from broaden.tasks.algebra import LimitError

MAX_LENGTH = 3000

_SAME = {
    r"\dfrac": r"\frac", r"\tfrac": r"\frac", r"\cfrac": r"\frac", r"\dbinom": r"\binom", r"\tbinom": r"\binom",
    r"\leqslant": "≤", r"\leq": "≤", r"\le": "≤", r"\geqslant": "≥", r"\geq": "≥", r"\ge": "≥", r"\lt": "<",
    r"\gt": ">",
    r"\neq": "≠", r"\ne": "≠", r"\infty": "∞", r"\infin": "∞", r"\pi": "π", r"\cup": "∪", r"\cap": "∩", r"\in": "∈",
    r"\pm": "±", r"\mp": "∓", r"\ldots": "…", r"\cdots": "…", r"\dots": "…", r"\cdot": "*", r"\times": "*",
    r"\ast": "*",
    r"\div": "/", r"\emptyset": "∅", r"\varnothing": "∅", r"\lvert": "|", r"\rvert": "|", r"\vert": "|", r"\mid": "|",
    r"\lfloor": "⌊", r"\rfloor": "⌋", r"\lceil": "⌈", r"\rceil": "⌉", r"\{": "⦃", r"\}": "⦄", r"\lbrace": "⦃",
    r"\rbrace": "⦄",
    r"\%": "%", r"\$": "$", r"\&": "&", r"\#": "#", r"\_": "_", r"\degree": "°", r"\langle": "⟨",
    r"\rangle": "⟩", r"\colon": ":",
    r"\land": " «and» ", r"\lor": " «or» ", r"\wedge": " «and» ", r"\vee": " «or» ", r"\lbrack": "[", r"\rbrack": "]",
}  # fmt: skip
_DROP = frozenset(
    r"\left \right \big \Big \bigg \Bigg \bigl \bigr \Bigl \Bigr \biggl \biggr \displaystyle \textstyle \limits "
    r"\, \; \: \! \> "
    r"\quad \qquad \thinspace \hfill \( \) \[ \] \middle \boldsymbol \rm \bf \it \strut \phantom".split()
)
_KEEP = frozenset(
    r"\frac \sqrt \binom \sin \cos \tan \cot \sec \csc \arcsin \arccos \arctan \sinh \cosh \tanh \ln \log \exp "
    r"\overline \circ "
    r"\begin \end \\ \alpha \beta \gamma \delta \epsilon \varepsilon \theta \lambda \mu \nu \rho \sigma \tau "
    r"\phi \varphi \omega "
    r"\Delta \Omega \ell \max \min \gcd \lg".split()
)
_WRAPPER = re.compile(
    r"\\(?:text|textbf|textit|textrm|textsf|mbox|mathrm|mathbf|mathit|mathsf|operatorname|bm|boxed|fbox|emph)"
    r"\s{0,4}\*?\{"
)
_GROUPING = re.compile(r"(?<=[0-9])(?:\{,\}|,\s*\\!|\\!\s*,|\\[,!;: ]|\\thinspace)\s*(?=[0-9]{3}(?![0-9]))")
_COMMAND = re.compile(r"\\(?:[A-Za-z]+|.)", re.DOTALL)
_UNICODE = str.maketrans(
    {
        "−": "-", "–": "-", "—": "-", "×": "*", "·": "*", "⋅": "*", "∗": "*", "÷": "/", "⁄": "/",
        "√": "\\sqrt ", "’": "'",
        "\u00a0": " ", "\u2009": " ", "\u202f": " ", "º": "°", "˚": "°", "，": ",", "：": ":", "（": "(", "）": ")",
        "％": "%",
        "²": "^2", "³": "^3", "½": "\\frac{1}{2}", "¼": "\\frac{1}{4}", "¾": "\\frac{3}{4}", "\n": " ", "\t": " ",
    }
)  # fmt: skip


class Unread(ValueError):
    """The text is outside what this reader knows."""


def clean(text: str) -> str:
    """One spelling: commands to symbols, wrappers opened, text as «words», spaces single. Raises Unread, LimitError."""
    if len(text) > MAX_LENGTH:
        raise LimitError(f"longer than {MAX_LENGTH} characters")
    out = _unwrap(text.translate(_UNICODE))
    out = _GROUPING.sub("", out)
    out = re.sub(r"(?<=[0-9]),\s*\\!\s*(?=[0-9])", "", out)
    out = _COMMAND.sub(_command, out)
    out = re.sub(r"(?<![A-Za-z])(?:infinity|infty|inf|oo)(?![A-Za-z])", "∞", out)
    out = out.replace("$$", " ").replace("~", " ").replace("...", "…").replace("**", "^")
    out = re.sub(r"<=|=<", "≤", out)
    out = re.sub(r">=", "≥", out)
    out = re.sub(r"!=", "≠", out)
    out = re.sub(r"\+-|\+/-", "±", out) if "+/-" in out else out
    return re.sub(r"\s+", " ", out).strip()


def _command(match: re.Match[str]) -> str:
    name = match.group()
    if name in _SAME:
        return _SAME[name] + (" " if name[-1].isalpha() and _SAME[name][0] == "\\" else "")
    if name in _DROP:
        return " "
    if name in _KEEP:
        return name + (" " if name[-1].isalpha() else "")
    if name == "\\ ":
        return " "
    raise Unread(f"command {name}")


def _unwrap(text: str) -> str:
    r"""`\text{ab}` to «ab», `\mathrm{x}` likewise; mathematics inside (`\text{13}`, `\mathbf{3}`) is left bare."""
    for _ in range(12):
        found = list(_WRAPPER.finditer(text))
        if not found:
            return text
        match = found[-1]  # the innermost of nested ones
        depth, at = 1, match.end()
        while at < len(text) and depth:
            depth += {"{": 1, "}": -1}.get(text[at], 0)
            at += 1
        if depth:
            raise Unread("a text wrapper is never closed")
        inner = text[match.end() : at - 1]
        plain = inner.replace("~", " ").replace("\\ ", " ")
        wordy = bool(re.search(r"[A-Za-z]{2}", plain)) and not re.search(r"[\\{}^_=«»0-9$]", plain)
        single = bool(re.fullmatch(r"\s*\(?[A-Za-z]\)?\s*", plain)) and "text" in match.group()
        unit = bool(re.fullmatch(r"\s*[A-Za-z]{1,3}\s*", plain)) and plain.strip() in (
            "m",
            "g",
            "s",
            "h",
            "L",
            "C",
            "F",
            "K",
        )
        unit = unit and bool(re.search(r"[0-9}]\s*$|°\s*$|circ\}?\s*$", text[: match.start()]))
        body = f" «{plain.strip()}» " if wordy or single or unit else f" {inner} "
        text = text[: match.start()] + body + text[at:]
    raise Unread("too many text wrappers")
