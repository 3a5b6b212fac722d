"""The tokenizer of a plain folder, read without transformers, whose import takes half a second in every process.

Plain: `tokenizer_class` is PreTrainedTokenizerFast, the file tokenizer.json holds everything, and the settings are
of a known few that transformers would not act upon. Then transformers itself only passes text on to the `tokenizers`
library, so the ids and texts are the same. Anything else is left to transformers (`plain_tokenizer` says None).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from jinja2 import Template, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, Tokenizer

NAMED = ("bos_token", "eos_token", "unk_token", "pad_token")
INERT: Mapping[str, tuple[Any, ...]] = {
    "tokenizer_class": ("PreTrainedTokenizerFast",),
    "clean_up_tokenization_spaces": (False, True),  # decoding is asked not to
    "add_prefix_space": (False,),
    "add_bos_token": (False, True),  # encoding is asked to add nothing
    "add_eos_token": (False, True),
    "padding_side": ("left", "right"),
}
"""Settings with the values that change nothing in what we ask of a tokenizer."""
ELSEWHERE = ("special_tokens_map.json", "added_tokens.json", "chat_templates", "additional_chat_templates")
MOST_TOKENS = 100_000
"""Larger vocabularies may be of a kind whose pre-tokenizer transformers repairs."""
NOT_OURS = ("strftime_now", "generation %}", "generation -%}")
"""What a template may ask that is left to transformers: today's date, marks of the answer."""


class PlainTokenizer:
    """What `ChatTokenizer` asks of a tokenizer, under transformers' names."""

    def __init__(self, tokenizer: Tokenizer, named: Mapping[str, str], chat_template: str | None) -> None:
        self.tokenizer, self.named, self.chat_template = tokenizer, dict(named), chat_template

    @property
    def bos_token_id(self) -> int | None:
        """Id of the BOS, None where none is named; likewise below."""
        return self._id("bos_token")

    @property
    def eos_token_id(self) -> int | None:
        """Id of the EOS."""
        return self._id("eos_token")

    @property
    def pad_token_id(self) -> int | None:
        """Id of the padding."""
        return self._id("pad_token")

    def __call__(self, text: str, *, add_special_tokens: bool, verbose: bool) -> dict[str, list[int]]:
        """{"input_ids"}, with nothing cut."""
        return {"input_ids": self.tokenizer.encode(text, add_special_tokens=add_special_tokens).ids}

    def decode(
        self,
        ids: Sequence[int],
        *,
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: bool = False,
    ) -> str:
        """Text of ids. Raises ValueError where spaces are to be cleaned up."""
        if clean_up_tokenization_spaces:
            raise ValueError("a plain tokenizer leaves spaces as they are")
        return str(self.tokenizer.decode(ids, skip_special_tokens=skip_special_tokens))

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tokenize: bool,
        add_generation_prompt: bool,
        **names: str,
    ) -> str:
        """The prompt as text. Raises what the template raises; ValueError where ids are asked for."""
        if tokenize or not messages or self.chat_template is None:
            raise ValueError("a chat template renders one message or more, as text")
        given = {**self.named, **names}
        return compiled(self.chat_template).render(
            messages=messages,
            tools=None,
            documents=None,
            add_generation_prompt=add_generation_prompt,
            **given,
        )

    def _id(self, name: str) -> int | None:
        return self.tokenizer.token_to_id(self.named[name]) if name in self.named else None


def plain_tokenizer(folder: Path) -> PlainTokenizer | None:
    """The tokenizer of a folder, None where it is not plain (or not readable: transformers says what is wrong)."""
    if any((folder / name).exists() for name in ELSEWHERE) or not (folder / "tokenizer.json").is_file():
        return None
    try:
        config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        named, template = _named(config, tokenizer), _template(folder, config)
    except Exception:  # of whatever kind the libraries raise: not plain
        return None
    if tokenizer.truncation is not None or tokenizer.padding is not None:
        return None
    return PlainTokenizer(tokenizer, named, template)


def _named(config: Mapping[str, Any], tokenizer: Tokenizer) -> dict[str, str]:
    """The named tokens, made special where they are words of the vocabulary, as transformers does it; ValueError
    where a setting is not a known one or a token is neither."""
    if config.get("tokenizer_class") != "PreTrainedTokenizerFast" or tokenizer.get_vocab_size() > MOST_TOKENS:
        raise ValueError("not plain")
    named = {}
    special = {t.content: t.special for t in tokenizer.get_added_tokens_decoder().values()}
    for name, value in config.items():
        if name in NAMED:
            if not special.get(value, tokenizer.token_to_id(value) is not None):
                raise ValueError(f"{name} {value!r} is no special token of tokenizer.json")
            tokenizer.add_special_tokens([AddedToken(value, special=True)])
            named[name] = value
        elif name not in ("chat_template", "model_max_length") and value not in INERT.get(name, ()):
            raise ValueError(f"{name} = {value!r} may change the tokenizer")
    return named


def _template(folder: Path, config: Mapping[str, Any]) -> str | None:
    """The chat template, from the configuration or its own file; ValueError where it is not ours to render."""
    path, template = folder / "chat_template.jinja", config.get("chat_template")
    if path.is_file():
        if template is not None:
            raise ValueError("two chat templates")
        template = path.read_text(encoding="utf-8")
    if template is None:
        return None
    if not isinstance(template, str) or any(word in template for word in NOT_OURS):
        raise ValueError("a template that transformers renders")
    return template


@lru_cache(maxsize=8)
def compiled(template: str) -> Template:
    """A template in the sandbox and with the functions that Hugging Face's templates are written for."""
    sandbox = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    sandbox.filters["tojson"] = _to_json
    sandbox.globals["raise_exception"] = _refuse
    return sandbox.from_string(template)


def _refuse(message: str) -> None:
    raise TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it is: jinja2's own filter escapes HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
