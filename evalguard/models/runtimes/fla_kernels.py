"""RWKV-7's kernels of flash-linear-attention in plain torch, for machines without a GPU.

They round where the compiled kernels of fla 0.6.0 round: operands to the dtype of what a kernel
stores, the chunk's triangular inverse to float16, sums in float32. What a compiled kernel does
beyond that (TF32 in float32 products on a GPU) they do not. Shapes are fla's: B texts, T tokens,
H heads of K keys and V values; ``w`` is the logarithm of the decay.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

CHUNK = 64
_BLOCK = 16  # the triangular inverse is made of blocks of 16 rows


def shift_tokens(
    x: Tensor,
    cu_seqlens: Any = None,
    cache: Tensor | None = None,
    output_cache: bool = False,
    chunk_indices: Any = None,
) -> Any:
    """Token before minus token, (B, T, D); the first one's predecessor is the cache, or zero.

    Returns:
        The differences; with ``output_cache`` the last token of each text beside them.
    """
    _refuse_packed(cu_seqlens, chunk_indices)
    first = torch.zeros_like(x[:, :1]) if cache is None else cache.view_as(x[:, :1])
    difference = torch.cat([first, x[:, :-1]], dim=1) - x
    return (difference, x[:, -1:]) if output_cache else difference


def mix_tokens(x: Tensor, delta: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
    """One mix of each token with its predecessor for every weight, (B, T, D)."""
    return tuple(_add_product(x, delta, weight) for weight in weights)


def _add_product(x: Tensor, delta: Tensor, weight: Tensor) -> Tensor:
    return (x.float() + delta.float() * weight.float()).to(x.dtype)


def update_keys(k: Tensor, a: Tensor, k_a: Tensor) -> Tensor:
    """``k (1 + (a - 1) k_a)``, (B, T, D)."""
    return (k.float() * (1.0 + (a.float() - 1.0) * k_a.float())).to(k.dtype)


def correct_and_gate(o: Tensor, r: Tensor, k: Tensor, r_k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    """Add each head's bonus of its present token and multiply by the gate, (B, T, H V)."""
    bonus = (r.float() * k.float() * r_k.float()).sum(-1, keepdim=True) * v.float()
    return ((o.float() + bonus.reshape(o.shape)) * g.float()).to(o.dtype)


def normalize_heads(x: Tensor, eps: float = 1e-6, output_dtype: Any = None) -> Tensor:
    """Divide by the length of the last dimension, of which eps is added to the square."""
    wide = x.float()
    normalized = wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + eps)
    return normalized.to(output_dtype or x.dtype)


class StandInLayerNorm(nn.LayerNorm):
    """fla's fused layer norm: it adds the residual, unrounded, before it normalises.

    Args:
        hidden_size: D.
        bias, eps: as of ``nn.LayerNorm``.
    """

    def __init__(self, hidden_size: int, *, bias: bool = False, eps: float = 1e-5) -> None:
        super().__init__(hidden_size, eps=eps, bias=bias)

    def forward(self, x: Tensor, residual: Tensor | None = None, prenorm: bool = False) -> Any:
        """Normalise ``x`` plus residual; with ``prenorm`` return the sum beside it."""
        total = x.float() if residual is None else x.float() + residual.float()
        weight, bias = (None if t is None else t.float() for t in (self.weight, self.bias))
        normalized = functional.layer_norm(total, self.normalized_shape, weight, bias, self.eps)
        normalized = normalized.to(x.dtype)
        dtype = x.dtype if residual is None else residual.dtype
        return (normalized, total.to(dtype)) if prenorm else normalized


class StandInGroupNorm(nn.GroupNorm):
    """fla's fused group norm over the last dimension, (..., H V)."""

    def __init__(
        self,
        num_groups: int,
        hidden_size: int,
        *,
        elementwise_affine: bool = True,
        bias: bool = False,
        eps: float = 1e-5,
    ) -> None:
        super().__init__(num_groups, hidden_size, eps=eps, affine=elementwise_affine)
        if not bias:
            self.register_parameter("bias", None)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise every token's groups."""
        weight, bias = (None if t is None else t.float() for t in (self.weight, self.bias))
        rows = x.float().reshape(-1, self.num_channels)
        normalized = functional.group_norm(rows, self.num_groups, weight, bias, self.eps)
        return normalized.reshape(x.shape).to(x.dtype)


def run_recurrence(
    r: Tensor,
    w: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    scale: float = 1.0,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Any = None,
    **_: Any,
) -> tuple[Tensor, Tensor | None]:
    """Token by token, the state in float32: ``S = e^w S + b (a S) + k v``, ``o = r S``.

    Returns:
        Outputs (B, T, H, V) in v's dtype; the last state (B, H, K, V) in float32, or None.
    """
    _refuse_packed(cu_seqlens)
    of_r, decay, of_k, of_v, of_a, of_b = (x.float() for x in (r * scale, w, k, v, a, b))
    decay = decay.exp()
    state = _first_state(k, v, initial_state)
    rows = []
    for t in range(r.shape[1]):
        taken = torch.einsum("bhk,bhkv->bhv", of_a[:, t], state)
        state = (
            decay[:, t, :, :, None] * state
            + of_b[:, t, :, :, None] * taken[:, :, None]
            + of_k[:, t, :, :, None] * of_v[:, t, :, None]
        )
        rows.append(torch.einsum("bhk,bhkv->bhv", of_r[:, t], state))
    return torch.stack(rows, dim=1).to(v.dtype), state if output_final_state else None


def run_chunks(
    r: Tensor,
    w: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    scale: float = 1.0,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Any = None,
    **_: Any,
) -> tuple[Tensor, Tensor | None]:
    """The same recurrence in chunks of 64 tokens, by matrix products (the WY representation).

    Within a chunk, with cumulative decays G, ``A_ab = (a e^G)(b e^-G)'`` and so on below the
    diagonal; ``(1 - A_ab)^-1`` carries what each token takes out of the state to the later ones.

    Returns:
        As ``run_recurrence``.
    """
    _refuse_packed(cu_seqlens)
    dtype, length = k.dtype, r.shape[1]
    of_r, of_w, of_k, of_v, of_a, of_b = (_cut(x, length) for x in (r, w, k, v, a, b))
    inclusive = of_w.cumsum(-2)
    exclusive = inclusive - of_w
    # Decays are taken from the middle of what is filled of a chunk, so that none overflows.
    middle = _middle_of_chunks(inclusive, length)
    last = inclusive[..., -1:, :]
    near_r, near_a = of_r * scale * (inclusive - middle).exp(), of_a * (exclusive - middle).exp()
    near_k, near_b = (x * (middle - inclusive).exp() for x in (of_k, of_b))
    onto_r = _round(near_r @ near_k.mT, dtype).tril()
    onto_r_taken = _round(near_r @ near_b.mT, dtype).tril()
    onto_a = (near_a @ near_k.mT).tril(-1)
    carried = invert_unit_triangle((near_a @ near_b.mT).tril(-1))
    far_r, far_a = (_round(x * middle.exp(), dtype) for x in (near_r, near_a))
    far_k, far_b = (_round(x * (last - middle).exp(), dtype) for x in (near_k, near_b))
    inner = _round(_round(carried @ onto_a, dtype) @ of_v, dtype)
    outer = _round(_round(carried, dtype) @ far_a, dtype)
    state = _first_state(k, v, initial_state)
    rows = []
    for n in range(of_r.shape[2]):
        stored = _round(state, dtype)
        taken = outer[:, :, n] @ stored + inner[:, :, n]
        rows.append(
            far_r[:, :, n] @ stored
            + onto_r[:, :, n] @ of_v[:, :, n]
            + onto_r_taken[:, :, n] @ _round(taken, dtype)
        )
        state = last[:, :, n].exp().mT * state
        state = state + far_k[:, :, n].mT @ of_v[:, :, n] + far_b[:, :, n].mT @ taken
    outputs = torch.stack(rows, dim=2).flatten(2, 3)[:, :, :length].transpose(1, 2)
    return outputs.to(v.dtype).contiguous(), state if output_final_state else None


def invert_unit_triangle(below: Tensor) -> Tensor:
    """``(1 - L)^-1`` of strictly lower triangles L, (..., 64, 64), float32.

    Blocks of 16 by doubling, then forward substitution by blocks; every product takes operands that
    are rounded to float16, as fla's kernel does for gates in a safe range. This is where its error
    in float32 comes from.
    """
    lower = [torch.split(row, _BLOCK, dim=-1) for row in torch.split(below, _BLOCK, dim=-2)]
    t00, t11, t22, t33 = (_invert_block(lower[i][i]) for i in range(4))

    def times(x: Tensor, y: Tensor) -> Tensor:
        return _half(x) @ _half(y)

    of_1, of_2 = times(lower[2][1], t11), times(lower[3][1], t11)
    t10 = times(t11, times(lower[1][0], t00))
    t21 = times(t22, of_1)
    t32 = times(t33, times(lower[3][2], t22))
    of_0 = times(lower[2][0], t00) + times(lower[2][1], t10)
    t20 = times(t22, of_0)
    t30 = times(t32, of_0) + times(t33, times(lower[3][0], t00) + times(lower[3][1], t10))
    t31 = times(t32, of_1) + times(t33, of_2)
    none = torch.zeros_like(t00)
    made = [
        [t00, none, none, none],
        [t10, t11, none, none],
        [t20, t21, t22, none],
        [t30, t31, t32, t33],
    ]
    return torch.cat([torch.cat(row, dim=-1) for row in made], dim=-2)


def _invert_block(below: Tensor) -> Tensor:
    """``(1 - L)^-1 = (1 + L)(1 + L^2)(1 + L^4)(1 + L^8)`` of a block of 16 rows."""
    identity = torch.eye(_BLOCK, dtype=below.dtype, device=below.device)
    power = _half(below)
    inverse = identity + power
    for _ in range(3):
        power = _half(power @ power)
        inverse = _half(inverse) @ _half(identity + power)
    return inverse


def _half(x: Tensor) -> Tensor:
    return x.half().float()


def _round(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.to(dtype).float()


def _cut(x: Tensor, length: int) -> Tensor:
    """(B, T, H, D) to float32 chunks (B, H, N, 64, D), the end filled with zeros."""
    filled = functional.pad(x.float().transpose(1, 2), (0, 0, 0, -length % CHUNK))
    return filled.reshape(*filled.shape[:2], -1, CHUNK, filled.shape[-1])


def _middle_of_chunks(inclusive: Tensor, length: int) -> Tensor:
    filled = [min(CHUNK, length - n * CHUNK) // 2 for n in range(inclusive.shape[2])]
    return torch.stack([inclusive[:, :, n, [m]] for n, m in enumerate(filled)], dim=2)


def _first_state(k: Tensor, v: Tensor, initial: Tensor | None) -> Tensor:
    if initial is not None:
        return initial.float()
    shape = (k.shape[0], k.shape[2], k.shape[3], v.shape[3])
    return torch.zeros(shape, dtype=torch.float32, device=k.device)


def _refuse_packed(*given: Any) -> None:
    if any(argument is not None for argument in given):
        raise NotImplementedError("packed texts (cu_seqlens) need fla's compiled kernels")
