"""Text to ids and back, with the checkpoint's own chat template and stop tokens.

The tokenizer is the one transformers (and so vLLM) loads from the same folder, so the ids that we train
on are those that others serve; plain folders are read without transformers (`plain_tokenizer`). Not here:
batching and padding (the engines' business), prompts (tasks).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from broaden.errors import ModelError, UsageError
from broaden.models.plain_tokenizer import plain_tokenizer
from broaden.records import Message

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")

# Llama 3's template puts today's date into every prompt unless it is given one. A prompt must not change
# overnight (resume, replay, comparison), so it is given the date that Llama 3.1's own template falls back to.
TEMPLATE_CONSTANTS: dict[str, str] = {"date_string": "26 Jul 2024"}


class ChatTokenizer:
    """A checkpoint's tokenizer, chat template and stop tokens.

    Attributes:
        eos_ids: every id that ends a completion: the tokenizer's EOS and those of generation_config (those of
            config.json where generation_config names none).
        pad_id: what fills a batch; may equal an EOS.
        bos_id: the tokenizer's BOS, None where it has none.
        vocab: rows of the model's embedding (ids must lie below), None: not checked.
        backend: the tokenizer inside: transformers', or a `PlainTokenizer` that answers the same.
    """

    def __init__(
        self,
        backend: Any,
        *,
        generation_config: Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
        vocab: int | None = None,
    ) -> None:
        self.backend = backend
        self.vocab = vocab
        self.bos_id: int | None = backend.bos_token_id
        self.eos_ids = _eos_ids(backend.eos_token_id, generation_config or {}, config or {})
        self.pad_id = _pad_id(backend, generation_config or {}, self.eos_ids)
        outside = sorted(i for i in self.eos_ids if vocab is not None and not 0 <= i < vocab)
        if outside:
            raise ModelError(
                f"end-of-sequence ids {outside} lie outside the model's vocabulary of {vocab}",
                "correct eos_token_id in generation_config.json and tokenizer_config.json",
            )

    @classmethod
    def from_folder(
        cls,
        folder: Path,
        *,
        generation_config: Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
        vocab: int | None = None,
    ) -> ChatTokenizer:
        """Load from a model folder; nothing is fetched and no code from the folder is run.

        Raises:
            ModelError: no tokenizer file, one that transformers cannot read, or no end-of-sequence token.
        """
        if not any((folder / name).is_file() for name in TOKENIZER_FILES):
            raise ModelError(
                f"no tokenizer in {folder}: expected one of {', '.join(TOKENIZER_FILES)}",
                "copy the tokenizer files of the base model into the folder",
            )
        backend = plain_tokenizer(folder) or _transformers_tokenizer(folder)
        return cls(backend, generation_config=generation_config, config=config, vocab=vocab)

    def render(self, messages: Sequence[Message | Mapping[str, str]]) -> str:
        """The prompt as text: the chat template with its generation prompt.

        Raises:
            ModelError: the checkpoint has no chat template, or the template refuses these messages.
        """
        if not self.backend.chat_template:
            raise ModelError(
                "the tokenizer has no chat template, so chat messages cannot be rendered",
                "put a chat_template.jinja into the model folder (a base model's instruct sibling has one)",
            )
        plain = [m.to_json() if isinstance(m, Message) else dict(m) for m in messages]
        try:
            text = self.backend.apply_chat_template(
                plain, tokenize=False, add_generation_prompt=True, **TEMPLATE_CONSTANTS
            )
        except Exception as error:  # templates raise what they like (jinja2's errors, raise_exception)
            roles = ", ".join(str(m.get("role")) for m in plain)
            raise ModelError(
                f"the chat template cannot render messages of roles [{roles}]: {error}",
                "use the roles the template knows (often: no system message)",
            ) from error
        return str(text)

    def encode_chat(self, messages: Sequence[Message | Mapping[str, str]]) -> tuple[int, ...]:
        """Prompt ids: template, generation prompt; the BOS that the template writes, and only one of it."""
        ids = self._ids(self.render(messages))
        while len(ids) > 1 and self.bos_id is not None and ids[0] == ids[1] == self.bos_id:
            ids = ids[1:]
        return ids

    def encode(self, text: str) -> tuple[int, ...]:
        """Ids of a piece of text as it stands: nothing is added in front or behind."""
        return self._ids(text)

    def decode(self, ids: Iterable[int]) -> str:
        """Text of ids; special tokens are left out, spaces are left as they are."""
        return str(
            self.backend.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        )

    def _ids(self, text: str) -> tuple[int, ...]:
        ids = tuple(self.backend(text, add_special_tokens=False, verbose=False)["input_ids"])
        if self.vocab is not None and ids and max(ids) >= self.vocab:
            raise UsageError(
                f"the tokenizer gives id {max(ids)}, but the model's embedding has {self.vocab} rows",
                "use the tokenizer that belongs to the model",
            )
        return ids


def _transformers_tokenizer(folder: Path) -> Any:
    """AutoTokenizer's, or at once that of the class which it would choose where the folder asks for the plain one:
    that saves the two seconds which importing transformers' model classes takes."""
    import transformers

    path = folder / "tokenizer_config.json"
    try:
        asked = (
            json.loads(path.read_text(encoding="utf-8")).get("tokenizer_class") if path.is_file() else None
        )
    except (ValueError, AttributeError):
        asked = None  # transformers says what is wrong with it
    plain = asked == "PreTrainedTokenizerFast" and (folder / "tokenizer.json").is_file()
    loader = transformers.PreTrainedTokenizerFast if plain else transformers.AutoTokenizer
    try:
        return loader.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except Exception as error:  # whatever a malformed file makes transformers raise
        raise ModelError(
            f"transformers {transformers.__version__} cannot read the tokenizer in {folder}: {error}",
            "copy the tokenizer files of the base model into the folder",
        ) from error


def _as_ids(value: Any) -> frozenset[int]:
    if value is None:
        return frozenset()
    return frozenset(value if isinstance(value, list) else [value])


def _eos_ids(
    own: int | None, generation_config: Mapping[str, Any], config: Mapping[str, Any]
) -> frozenset[int]:
    stated = _as_ids(generation_config.get("eos_token_id")) or _as_ids(config.get("eos_token_id"))
    ids = stated | _as_ids(own)
    if not ids:
        raise ModelError(
            "no end-of-sequence token: neither the tokenizer nor generation_config.json nor config.json names one",
            'set "eos_token" in tokenizer_config.json or "eos_token_id" in generation_config.json',
        )
    return ids


def _pad_id(backend: Any, generation_config: Mapping[str, Any], eos_ids: frozenset[int]) -> int:
    for candidate in (backend.pad_token_id, generation_config.get("pad_token_id"), backend.eos_token_id):
        if candidate is not None:
            return int(candidate)
    return min(eos_ids)
