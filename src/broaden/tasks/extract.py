r"""Finding the answer in a completion: thinking blocks, `\boxed{}`, `<answer></answer>`, code fences.

Everything is a linear scan; nothing here knows what an answer means. Rules, all of them stated in docs/tasks:
only the text after the last `</think>` counts; a thinking block that was opened and never closed leaves no
answer; the last balanced box (or the last complete tag pair) wins; an unterminated one is no answer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_COMPLETION = 1_000_000
"""Characters looked at, counted from the end (answers stand last)."""
_BRACES = re.compile(r"\\{1,4}(?:boxed|fbox)\s{0,8}\{|\\.|[{}]", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Extracted:
    """An answer text, or None with the reason ("no_answer" or "truncated"). `retracted`: another, different
    answer stood before it; `dangling`: a later one was opened and not closed."""

    text: str | None
    missing: str = ""
    retracted: bool = False
    dangling: bool = False


def visible(completion: str, thinking: bool = False) -> str | None:
    """The part that may hold an answer, or None where thinking never ended.

    Args:
        thinking: the prompt itself ended with an opened `<think>`.
    """
    text = completion[-MAX_COMPLETION:]
    cut = text.rfind("</think>")
    if cut >= 0:
        text = text[cut + len("</think>") :]
        return None if "<think>" in text else text
    return None if thinking or "<think>" in text else text


def boxes(text: str) -> tuple[list[str], bool]:
    r"""Contents of every balanced outermost `\boxed{…}` or `\fbox{…}` in order, and whether a later one was
    left open."""
    spans, dangling = box_spans(text)
    return [text[inner:end] for _, inner, end in spans], dangling


def box_spans(text: str) -> tuple[list[tuple[int, int, int]], bool]:
    r"""(start of the command, start of the content, end of the content) of every balanced outermost box.

    One pass with a stack. Escaped braces (`\{`) do not count; a box without braces (`\boxed 5`) is skipped.
    """
    opened: list[tuple[int, int, bool]] = []  # start of the token, position after its brace, is it a box
    closed: list[tuple[int, int, int]] = []
    for match in _BRACES.finditer(text):
        token = match.group()
        if token == "}":
            if opened:
                start, inner, is_box = opened.pop()
                if is_box:
                    while closed and closed[-1][0] > start:
                        closed.pop()
                    closed.append((start, inner, match.start()))
        elif token.endswith("{") and token != r"\{":
            opened.append((match.start(), match.end(), len(token) > 1))
    last = closed[-1][2] if closed else 0
    return closed, any(is_box and start > last for start, _, is_box in opened)


def last_box(completion: str, finish: str, thinking: bool = False) -> Extracted:
    """The last balanced box of the visible text."""
    text = visible(completion, thinking)
    if text is None:
        return Extracted(None, "truncated")
    found, dangling = boxes(text)
    if not found:
        return Extracted(None, "truncated" if finish == "length" else "no_answer", dangling=dangling)
    return Extracted(found[-1], retracted=any(f != found[-1] for f in found[:-1]), dangling=dangling)


def last_tag(completion: str, finish: str, thinking: bool = False, tag: str = "answer") -> Extracted:
    """The text of the last complete `<tag>…</tag>` pair of the visible text."""
    text = visible(completion, thinking)
    if text is None:
        return Extracted(None, "truncated")
    opening, closing = f"<{tag}>", f"</{tag}>"
    end = text.rfind(closing)
    start = text.rfind(opening, 0, end) if end >= 0 else -1
    if start < 0:
        return Extracted(None, "truncated" if finish == "length" else "no_answer")
    inner = text[start + len(opening) : end].strip()
    return Extracted(inner, retracted=closing in text[:start], dangling=opening in text[end:])
