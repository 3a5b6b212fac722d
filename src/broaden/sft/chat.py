"""Text pairs to training examples: chat messages through the model's template, completions with its EOS.

Not here: where the text comes from (`tasks`), batching (`examples`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from broaden.models.rows import Examples
from broaden.models.tokenizer import ChatTokenizer
from broaden.records import Message

ChatPair = tuple[tuple[Message, ...], str]


class ChatExamples:
    """Tokenises chat pairs: fixed ones (call with any epoch) or those that `draw(epoch)` gives.

    Prompts and completions seen before are not tokenised again, since traces of later epochs repeat them.
    A completion ends with the tokenizer's own EOS (the smallest of the model's where it has none).
    """

    def __init__(self, tokenizer: ChatTokenizer, draw: Callable[[int], Iterable[ChatPair]]) -> None:
        self._tokenizer = tokenizer
        self._draw = draw
        self._prompts: dict[tuple[Message, ...], tuple[int, ...]] = {}
        self._completions: dict[str, tuple[int, ...]] = {}
        own = tokenizer.backend.eos_token_id
        self.eos_id: int = min(tokenizer.eos_ids) if own is None else own

    def __call__(self, epoch: int) -> Examples:
        """The packed examples of an epoch."""
        return Examples.of((self._prompt(m), self._completion(text)) for m, text in self._draw(epoch))

    def _prompt(self, messages: tuple[Message, ...]) -> tuple[int, ...]:
        if messages not in self._prompts:
            self._prompts[messages] = self._tokenizer.encode_chat(messages)
        return self._prompts[messages]

    def _completion(self, text: str) -> tuple[int, ...]:
        if text not in self._completions:
            self._completions[text] = (*self._tokenizer.encode(text), self.eos_id)
        return self._completions[text]
