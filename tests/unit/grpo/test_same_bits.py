"""Sampler and trainer find the same log-probability of a sampled token, bit for bit, however rows are grouped."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.helpers.tiny import tiny_config, tiny_weights

from broaden.engines import TorchEngine
from broaden.grpo.policy import Policy
from broaden.grpo.rollouts import Rollouts, packed
from broaden.models.spec import ModelSpec
from broaden.population.base import Prompt
from broaden.records import Message, Problem, Request, Sampling, Verdict
from broaden.seeds import stream

GROUP = 5
CONFIGS = {
    "llama": tiny_config("llama"),
    "qwen2": tiny_config("qwen2", tied=False),
    "qwen3": tiny_config("qwen3"),
    "biases": tiny_config("llama", attention_bias=True, mlp_bias=True),
    "wide": tiny_config("llama", hidden_size=96, num_attention_heads=3, num_key_value_heads=1, head_dim=64),
}


def sampled(
    spec: ModelSpec, weights: dict[str, torch.Tensor], dtype: torch.dtype, temperature: float
) -> Rollouts:
    engine = TorchEngine(spec, range(14), dtype=dtype, kernels="compiled", max_context=128)
    for name, tensor in engine.weights(0).items():
        tensor.copy_(weights[name])
    prompts = [
        Prompt(Problem(str(i), "x", (Message("user", ""),), ""), tuple(range(2 + i, 7 + 9 * i)))
        for i in range(4)
    ]
    requests = [Request(p.ids, stream(1, p.problem.id, s)) for p in prompts for s in range(GROUP)]
    sampling = Sampling(temperature=temperature, max_new_tokens=60, logprobs=True, entropy=True)
    completions = engine.generate([requests], sampling)[0]
    return packed(prompts, completions, (Verdict("wrong", 0.0, 0.0),) * len(completions), GROUP)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("temperature", "threads"), [(1.0, 1), (0.7, 2)])
def test_trainer_and_sampler_agree(
    config: dict, dtype: torch.dtype, temperature: float, threads: int
) -> None:
    spec, weights = ModelSpec.from_config(config), tiny_weights(config)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        rollouts = sampled(spec, weights, dtype, temperature)
        policy = Policy(spec, temperature, dtype)
        cast = {n: w.to(dtype) for n, w in weights.items()}
        rows = np.arange(len(rollouts.verdicts))
        whole = policy.logprobs(cast, rollouts, rows)
        assert torch.equal(whole.plain_N, torch.from_numpy(rollouts.logprobs_N).float())
        if temperature == 1.0:
            assert torch.equal(whole.logp_N, whole.plain_N)
        assert len(set(rollouts.lengths_R.tolist())) > 3
        for at in (rows[:1], rows[3:9], rows[::-1].copy(), rows[[1, 17, 6]]):
            part = policy.logprobs(cast, rollouts, at)
            assert torch.equal(part.logp_N, whole.logp_N[torch.from_numpy(rollouts.tokens_of(at))])
    finally:
        torch.set_num_threads(before)
