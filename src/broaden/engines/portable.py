"""The runner of tensor operations: any device and dtype that torch has, the reference for `compiled`.

Its call shapes are fixed, so that what else is in the batch cannot change a row's bits: rows in multiples of 16 a
member, cached lengths in multiples of 64 and always masked, the query heads of a key/value head folded into the
query length and padded to at least 4, prompts in buckets of a multiple of 64; norms, rotation, softmax in float32.

That is enough on a CPU. Libraries for GPUs choose a kernel by the number of rows, so there (`fixed`) every product has
one shape: FIXED_ROWS rows of one member, and every pass over prompts of a bucket as many of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from broaden.engines.runner import CAPACITY_MULTIPLE, ROW_MULTIPLE, Cache, Drawn, Ints, round_up, table_index
from broaden.engines.sampling import sample_rows_torch, uniforms
from broaden.engines.weights import Buffers, LayerBuffers
from broaden.errors import DivergedError
from broaden.models.decoder import rms_norm, rotate
from broaden.records import Sampling

PROMPT_TOKENS = 4096  # padded prompt tokens in one pass
LOGIT_ROWS = 64  # rows of float32 logits alive at once
LEAST_QUERIES = 4
FIXED_ROWS = 256  # rows of every product of a decode step where shapes are fixed


class PortableRunner:
    """`Runner` by tensor operations for a range of members.

    Args:
        fixed: one shape for all products, whatever is asked (for GPUs).
    """

    def __init__(self, buffers: Buffers, tables: tuple[Tensor, Tensor], *, fixed: bool = False) -> None:
        self.spec, self.buffers, self.fixed = buffers.spec, buffers, fixed
        self.device = buffers.norm.device
        # prompts are padded to a bucket, which may end beyond a short context
        beyond = -len(tables[0]) % CAPACITY_MULTIPLE
        self.cos, self.sin = (F.pad(t, (0, 0, 0, beyond)) if beyond else t for t in tables)

    @property
    def members(self) -> int:
        """Members in the batch."""
        return self.buffers.count

    @property
    def row_multiple(self) -> int:
        """See `Runner`."""
        return ROW_MULTIPLE

    def cache(self, slots: int, positions: int) -> Cache:
        """An empty cache [layers, slots, kv_heads, capacity, head_dim]."""
        spec, capacity = self.spec, round_up(max(positions, 1), CAPACITY_MULTIPLE)
        shape = (spec.layers, slots, spec.kv_heads, capacity, spec.head_dim)
        return Cache(self.buffers.norm.new_zeros(shape), self.buffers.norm.new_zeros(shape))

    def prompts(
        self, member: int, prompts: Sequence[Sequence[int]], cache: Cache, slots: Sequence[int]
    ) -> None:
        """Prompts of one bucket together, padded on the right (causal attention hides the padding)."""
        buckets: dict[int, list[int]] = {}
        for index, prompt in enumerate(prompts):
            if len(prompt):
                buckets.setdefault(round_up(len(prompt), CAPACITY_MULTIPLE), []).append(index)
        for length, chosen in sorted(buckets.items()):
            step = max(1, PROMPT_TOKENS // length)
            for start in range(0, len(chosen), step):
                part = chosen[start : start + step]
                ids = np.zeros((step if self.fixed else len(part), length), np.int64)
                for row, index in enumerate(part):
                    ids[row, : len(prompts[index])] = prompts[index]
                self._prompt_pass(
                    member, ids, cache, torch.tensor([slots[i] for i in part], device=self.device)
                )

    def logits(self, ids: Ints, positions: Ints, cache: Cache) -> Tensor:
        """One decode step."""
        length = round_up(int(positions.max()) + 1, CAPACITY_MULTIPLE)
        at = torch.from_numpy(np.maximum(positions, 0)).to(self.device)
        index = table_index(ids, self.members, self.spec.vocab).to(self.device)
        return self.decode(index, at, cache, length)

    def decode(self, index: Tensor, at: Tensor, cache: Cache, length: int) -> Tensor:
        """One decode step that never waits for the device: logits [rows, V].

        Args:
            index: int64 [rows], row of each token in the stacked embedding (`runner.table_index`).
            at: int64 [rows], the position of each, below `length`.
            length: cached positions that are looked at, a multiple of 64.
        """
        seen = (torch.arange(length, device=self.device) <= at[:, None])[:, None, None, :]
        mask = seen if not self.fixed else _additive(seen, cache.keys.dtype)
        rows, places = torch.arange(len(at), device=self.device), len(at)
        cos, sin = self.cos[at][:, None], self.sin[at][:, None]
        h = self.buffers.embedding.reshape(-1, self.spec.hidden)[index]
        for number, layer in enumerate(self.buffers.layers):
            q, k, v = self._qkv(layer, h, cos, sin, self.fixed)
            cache.keys[number][rows, :, at] = k
            cache.values[number][rows, :, at] = v
            k, v = cache.keys[number][:places, :, :length], cache.values[number][:places, :, :length]
            h = self._rest(layer, h, _fold(q, k, v, mask), self.fixed)
        final = _norm(h, self.buffers.norm, self.spec.norm_eps)
        return product(final, self.buffers.head, fixed=self.fixed)

    def sample(
        self, logits: Tensor, rows: Ints, sampling: Sampling, keys: NDArray[np.uint64], counts: Ints
    ) -> Drawn:
        """Draw on the device, a chunk of rows at a time."""
        n = logits.shape[0]
        drawn = Drawn(np.zeros(n, np.int64), np.zeros(n, np.float32), np.zeros(n, np.float32))
        u = np.zeros(n, np.float64)
        uniforms(keys, counts, u)
        for start in range(0, len(rows), LOGIT_ROWS):
            part = rows[start : start + LOGIT_ROWS]
            numbers = torch.from_numpy(u[part]).to(self.device)
            chosen = logits[torch.from_numpy(part).to(self.device)]
            tokens, logprobs, entropies, finite = sample_rows_torch(
                chosen, sampling.temperature, numbers, sampling.entropy
            )
            if not bool(finite.all()):
                raise DivergedError("the model's logits are not finite: its weights have diverged")
            drawn.tokens[part] = tokens.cpu().numpy()
            drawn.logprobs[part], drawn.entropies[part] = logprobs.cpu().numpy(), entropies.cpu().numpy()
        return drawn

    def copy(self, source: Cache, target: Cache, from_slots: Ints, to_slots: Ints, lengths: Ints) -> None:
        """Copy by index (gathered first, so a cache may be copied into itself)."""
        length = min(
            round_up(int(lengths.max()), CAPACITY_MULTIPLE), source.keys.shape[3], target.keys.shape[3]
        )
        a, b = (torch.from_numpy(x).to(self.device) for x in (from_slots, to_slots))
        for old, new in ((source.keys, target.keys), (source.values, target.values)):
            for layer in range(self.spec.layers):
                new[layer][b, :, :length] = old[layer][a, :, :length]

    def _prompt_pass(self, member: int, ids: NDArray[np.int64], cache: Cache, slots: Tensor) -> None:
        buffers = self.buffers.members(slice(member, member + 1))
        count, length = ids.shape
        asked = len(slots)
        cos, sin = (t[:length].repeat(count, 1)[:, None] for t in (self.cos, self.sin))
        h = self._embed(buffers, ids.reshape(-1))
        for index, layer in enumerate(buffers.layers):
            q, k, v = (
                x.view(count, length, -1, self.spec.head_dim).transpose(1, 2)
                for x in self._qkv(layer, h, cos, sin)
            )
            cache.keys[index][slots, :, :length] = k[:asked]
            cache.values[index][slots, :, :length] = v[:asked]
            if index + 1 < self.spec.layers:
                grouped = self.spec.heads != self.spec.kv_heads
                mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
                h = self._rest(layer, h, mixed.transpose(1, 2).reshape(count * length, -1))

    def _embed(self, buffers: Buffers, ids: Ints) -> Tensor:
        index = table_index(ids, buffers.count, self.spec.vocab).to(self.device)
        return buffers.embedding.reshape(-1, self.spec.hidden)[index]

    def _qkv(
        self, layer: LayerBuffers, h: Tensor, cos: Tensor, sin: Tensor, fixed: bool = False
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated q, k and plain v, [rows, heads, d] each."""
        spec = self.spec
        x = product(_norm(h, layer.input_norm, spec.norm_eps), layer.qkv, layer.qkv_bias, fixed)
        q, k, v = x.view(len(h), -1, spec.head_dim).split((spec.heads, spec.kv_heads, spec.kv_heads), dim=1)
        if spec.qk_norm:
            q, k = _norm(q, layer.q_norm, spec.norm_eps), _norm(k, layer.k_norm, spec.norm_eps)
        return rotate(q, cos, sin), rotate(k, cos, sin), v

    def _rest(self, layer: LayerBuffers, h: Tensor, mixed: Tensor, fixed: bool = False) -> Tensor:
        """Output projection and MLP with their residuals."""
        h = h + product(mixed, layer.output, layer.output_bias, fixed)
        x = _norm(h, layer.mlp_norm, self.spec.norm_eps)
        gate, up = product(x, layer.gate_up, layer.gate_up_bias, fixed).chunk(2, dim=1)
        return h + product(F.silu(gate.float()).to(up.dtype) * up, layer.down, layer.down_bias, fixed)


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None, fixed: bool = False) -> Tensor:
    """x [rows, in] by stacked weights [N, out, in] to [rows, out]; rows member-major.

    `fixed`: member by member in calls of exactly FIXED_ROWS rows (the last one filled up), since a batched product
    and a product of another number of rows are other kernels.
    """
    members = weight.shape[0]
    if fixed:
        parts = [
            _linear(part, weight[member], None if bias is None else bias[member])
            for member, rows in enumerate(x.view(members, -1, x.shape[1]))
            for part in rows.split(FIXED_ROWS)
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)
    if members == 1:
        y = F.linear(x, weight[0])[None]
    else:
        y = torch.bmm(x.view(members, -1, x.shape[1]), weight.transpose(1, 2))
    if bias is not None and bias.numel():
        y = y + bias[:, None]
    return y.reshape(len(x), -1)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """One product of FIXED_ROWS rows, of which the first len(x) count."""
    full = x if len(x) == FIXED_ROWS else F.pad(x, (0, 0, 0, FIXED_ROWS - len(x)))
    return F.linear(full, weight, bias if bias is not None and bias.numel() else None)[: len(x)]


def _additive(seen: Tensor, dtype: torch.dtype) -> Tensor:
    """The mask as numbers, made once a step instead of in every layer."""
    return torch.zeros_like(seen, dtype=dtype).masked_fill(~seen, -torch.inf)


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm of x [rows, ..., n] by each member's weight [N, n]."""
    members = weight.shape[0]
    wide = weight.view(members, *([1] * (x.dim() - 1)), -1)
    return rms_norm(x.reshape(members, -1, *x.shape[1:]), wide, eps).view(x.shape)


def _fold(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
    """Masked attention of one query a row: q [rows, heads, d] over k, v [rows, kv, length, d] -> [rows, heads d]."""
    rows, heads, width = q.shape
    kv_heads = k.shape[1]
    group = heads // kv_heads
    folded = F.pad(q.view(rows, kv_heads, group, width), (0, 0, 0, max(0, LEAST_QUERIES - group)))
    mixed = F.scaled_dot_product_attention(folded, k, v, attn_mask=seen)
    return mixed[:, :, :group].reshape(rows, heads * width)
