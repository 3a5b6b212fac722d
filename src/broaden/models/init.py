"""Fresh weights for a spec, each tensor keyed by its name: the start of a run that has no checkpoint.

Not here: the tokenizer that goes with them (`nano` builds the bundled model's).
"""

from __future__ import annotations

import math

import torch

from broaden.models.optimizer import Weights
from broaden.models.spec import ModelSpec
from broaden.seeds import numpy_generator, stream

EMBEDDING_STD = 0.1
RESIDUAL_OUTPUTS = ("o_proj.weight", "down_proj.weight")


def standard_deviation(spec: ModelSpec, name: str, shape: tuple[int, ...]) -> float:
    """What a matrix's entries are drawn with: N(0, std^2).

        embedding: 0.1        other matrices: 1 / sqrt(fan in), further / sqrt(2 layers) where they write
        into the residual stream (o_proj, down_proj), so that its variance does not grow with depth.

    The usual flat 0.02 is made for widths near 1000; at width 64 it makes a model that starts far too quiet.
    """
    if "embed_tokens" in name:
        return EMBEDDING_STD
    std = 1.0 / math.sqrt(shape[1])
    return std / math.sqrt(2 * spec.layers) if name.endswith(RESIDUAL_OUTPUTS) else std


def random_weights(spec: ModelSpec, key: int) -> Weights:
    """fp32 weights under canonical names: norms one, biases zero, matrices normal (see `standard_deviation`).

    Args:
        spec: any family with an own decode path.
        key: the run seed, or any integer; a tensor's numbers are keyed by `stream(key, "init", name)`.
    """
    out = {}
    for name, shape in spec.shapes().items():
        if name.endswith(".bias"):
            out[name] = torch.zeros(shape)
        elif len(shape) == 1:
            out[name] = torch.ones(shape)
        else:
            drawn = numpy_generator(stream(key, "init", name)).standard_normal(shape, dtype="float32")
            out[name] = torch.from_numpy(drawn) * standard_deviation(spec, name, shape)
    return out
