"""`GenerateEngine`: any architecture that transformers can load, through its `generate`.

Slower than the own decode path, same contract. The token is chosen by a logits processor with the keyed
uniforms of `sampling`, so no global generator is touched. Every call has the same number of rows (copies of the
last request fill it up) and prompts of one length (no padding), so that a sample does not depend on what else
was asked. Not here: llama, qwen2 and qwen3 (`torch_engine` has them faster).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
)

from broaden.engines.base import NUMERICS_VERSION, OnProgress, Weights, check_requests
from broaden.engines.sampling import sample_rows_torch, uniforms
from broaden.errors import DivergedError, ModelError
from broaden.records import Completion, Request, Sampling

ROWS = 16


class GenerateEngine:
    """Samples from transformers models with live weights.

    Args:
        folder: a Hugging Face model folder; only its config is read (weights are written by the caller).
        eos_ids: any of these ends a completion.
        members: models held.
        max_context: most tokens of prompt and completion together; None: the config's positions.
        rows: rows of every call.
    """

    def __init__(
        self,
        folder: Path,
        eos_ids: Collection[int],
        *,
        members: int = 1,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        max_context: int | None = None,
        rows: int = ROWS,
    ) -> None:
        try:
            config = AutoConfig.from_pretrained(folder)
            models = [AutoModelForCausalLM.from_config(config, dtype=dtype) for _ in range(members)]
        except (ValueError, KeyError, OSError) as error:
            raise ModelError(f"transformers cannot build the model in {folder}: {error}") from error
        self.models = [model.to(device).eval() for model in models]
        text = config.get_text_config()
        positions = int(getattr(text, "max_position_embeddings", None) or 1 << 20)
        self.context, self.vocab = min(positions, max_context or positions), int(text.vocab_size)
        self.eos_ids, self.rows = sorted(eos_ids), rows
        self.dtype, self.device = dtype, torch.device(device)
        for model in self.models:
            model.generation_config = GenerationConfig()

    @property
    def members(self) -> int:
        """Models held."""
        return len(self.models)

    def weights(self, member: int = 0) -> Weights:
        """The model's parameters by canonical name (a tied head is absent)."""
        return {name: p.detach() for name, p in self.models[member].named_parameters()}

    def weights_changed(self) -> None:
        """Nothing to drop: a call keeps no cache."""

    def generate(
        self,
        requests: Sequence[Sequence[Request]],
        sampling: Sampling,
        on_progress: OnProgress | None = None,
    ) -> list[list[Completion]]:
        """See `Engine.generate`."""
        check_requests(requests, sampling, members=self.members, context=self.context, vocab=self.vocab)
        finished = tokens = 0
        out: list[list[Completion]] = []
        for member, asked in enumerate(requests):
            answers: dict[int, Completion] = {}
            for part in _calls(asked, self.rows):
                for index, completion in zip(
                    part, self._call(member, [asked[i] for i in part], sampling), strict=True
                ):
                    answers[index] = completion
                    finished, tokens = finished + 1, tokens + len(completion.token_ids)
                if on_progress is not None:
                    on_progress(finished, tokens)
            out.append([answers[i] for i in range(len(asked))])
        return out

    def conditions(self) -> dict[str, Any]:
        """JSON: what a result from this engine is tied to."""
        return {
            "engine": "generate",
            "numerics": NUMERICS_VERSION,
            "transformers": transformers.__version__,
            "torch": torch.__version__,
            "isa": torch.backends.cpu.get_cpu_capability(),
            "threads": torch.get_num_threads(),
            "dtype": str(self.dtype).removeprefix("torch."),
            "device": str(self.device),
            "members": self.members,
            "rows": self.rows,
        }

    @torch.inference_mode()
    def _call(self, member: int, requests: list[Request], sampling: Sampling) -> list[Completion]:
        """Complete up to `rows` requests of one prompt length."""
        filled = requests + [requests[-1]] * (self.rows - len(requests))
        ids = torch.tensor([r.prompt_ids for r in filled], device=self.device)
        chooser = Chooser(np.array([r.key for r in filled], np.uint64), sampling)
        config = GenerationConfig(
            max_new_tokens=sampling.max_new_tokens,
            do_sample=False,
            eos_token_id=self.eos_ids or None,
            pad_token_id=self.eos_ids[0] if self.eos_ids else 0,
        )
        self.models[member].generate(
            ids,
            attention_mask=torch.ones_like(ids),
            generation_config=config,
            logits_processor=LogitsProcessorList([chooser]),
        )
        return chooser.completions(len(requests), self.eos_ids)


class Chooser(LogitsProcessor):
    """Draws every row's token and leaves only that one possible."""

    def __init__(self, keys: np.ndarray[Any, np.dtype[np.uint64]], sampling: Sampling) -> None:
        self.keys, self.sampling = keys, sampling
        self.drawn: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores [rows, V] with the drawn token at 0 and every other at minus infinity."""
        u = np.zeros(len(self.keys), np.float64)
        uniforms(self.keys, np.full(len(self.keys), len(self.drawn), np.int64), u)
        drawn = sample_rows_torch(
            scores, self.sampling.temperature, torch.from_numpy(u).to(scores.device), True
        )
        self.drawn.append(tuple(x.cpu() for x in drawn))  # type: ignore[arg-type]
        forced = torch.full_like(scores, -torch.inf)
        return forced.scatter(1, drawn[0][:, None], 0.0)

    def completions(self, count: int, eos_ids: Sequence[int]) -> list[Completion]:
        """The first `count` rows, each up to its first EOS."""
        tokens, logprobs, entropies, finite = (torch.stack(x, dim=1) for x in zip(*self.drawn, strict=True))
        out = []
        for row in range(count):
            ids = tokens[row].tolist()
            n = next((i + 1 for i, t in enumerate(ids) if t in eos_ids), len(ids))
            if not bool(finite[row, :n].all()):
                raise DivergedError("the model's logits are not finite: its weights have diverged")
            out.append(
                Completion(
                    tuple(ids[:n]),
                    "stop" if ids[n - 1] in eos_ids else "length",
                    tuple(logprobs[row, :n].tolist()) if self.sampling.logprobs else None,
                    tuple(entropies[row, :n].tolist()) if self.sampling.entropy else None,
                )
            )
        return out


def _calls(requests: Sequence[Request], rows: int) -> list[list[int]]:
    """Request indices in groups of one prompt length and at most `rows`."""
    by_length: dict[int, list[int]] = {}
    for index, request in enumerate(requests):
        by_length.setdefault(len(request.prompt_ids), []).append(index)
    return [same[i : i + rows] for _, same in sorted(by_length.items()) for i in range(0, len(same), rows)]
