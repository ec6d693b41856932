"""Rotary positions as a module holds them: inverse frequencies, or tables that were made of them.

Su et al. 2021 (arXiv:2104.09864): the i-th of n frequencies is base^(-i/n); scaled ones (YaRN,
Llama 3) are no such series.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from evalguard.core.tracing.hyperparameters import ROPE_FREQUENCIES, HeldValue

if TYPE_CHECKING:
    import torch

_FREQUENCIES = re.compile(r"(?!original_|.*_original_)(?:(?P<part>.*)_)?inv_freqs?")
_SINES = re.compile(r"_?(?:(?P<part>.*?)_)?(?:sin|sin_cached?|sin_cache|sines?)")
_TURNS = re.compile(r"_?freqs_?cis|_?freqs_complex")
_SINES_AND_COSINES = "embed_positions"  # GPT-J's: sines, then cosines
# How far inverse frequencies may be from a geometric progression, relative, to name their base.
_GEOMETRIC = 1e-4


def read_rotary(name: str, module: torch.nn.Module) -> Iterator[HeldValue]:
    """Give base, frequencies, size and layout of rotary positions that a module holds.

    Args:
        name: of the module.
    """
    held = {**vars(module), **module._buffers}
    for key, value in held.items():
        if not _is_table(value):
            continue
        found = _frequencies(key, value)
        if found is None:
            continue
        part, frequencies, interleaved = found
        label = f" ({part})" if part else ""
        theta = rope_base(frequencies)
        if theta is not None:
            yield HeldValue(name=f"rope_theta{label}", value=theta, module=name, source=key)
        yield HeldValue(
            name=f"{ROPE_FREQUENCIES}{label}",
            value=[float(f"{one:.7g}") for one in frequencies.tolist()],
            module=name,
            source=key,
        )
        if not part:
            size = 2 * len(frequencies)
            yield HeldValue(name="rope_dimensions", value=size, module=name, source=key)
        if interleaved is not None and not part:
            yield HeldValue(name="rope_interleaved", value=interleaved, module=name, source=key)


def _is_table(value: Any) -> bool:
    dtype = getattr(value, "dtype", None)
    if dtype is None or not hasattr(value, "is_complex"):
        return False
    return bool(value.numel() > 1 and (value.is_floating_point() or value.is_complex()))


def _frequencies(
    key: str, value: torch.Tensor
) -> tuple[str, NDArray[np.float64], bool | None] | None:
    """Read frequencies off a tensor, what they are of, and whether pairs are neighbours."""
    plain = _FREQUENCIES.fullmatch(key)
    if plain is not None and not value.is_complex():
        return plain["part"] or "", value.detach().double().cpu().numpy().reshape(-1), None
    if value.ndim < 2 or value.shape[-2] < 2:
        return None
    # the second position: one step of each frequency
    row = value.detach()[(0,) * (value.ndim - 2)][1].cpu()
    if _TURNS.fullmatch(key) and row.is_complex():
        return "", np.angle(row.numpy().astype(np.complex128)), None
    if row.is_complex():
        return None
    sines = row.double().numpy()
    if key == _SINES_AND_COSINES and len(sines) % 2 == 0:
        return "", np.arcsin(np.clip(sines[: len(sines) // 2], -1.0, 1.0)), None
    named = _SINES.fullmatch(key)
    if named is None or np.max(np.abs(sines)) > 1.0:
        return None
    half = len(sines) // 2
    if len(sines) == 2 * half and np.array_equal(sines[:half], sines[half:]):
        return named["part"] or "", np.arcsin(sines[:half]), False
    if len(sines) == 2 * half and np.array_equal(sines[0::2], sines[1::2]):
        return named["part"] or "", np.arcsin(sines[0::2]), True
    return named["part"] or "", np.arcsin(sines), None


def rope_base(frequencies: NDArray[np.float64]) -> float | None:
    """Return the base whose rotary inverse frequencies these are, to 5 digits; None: of none."""
    n = frequencies.shape[0]
    if n < 2 or not np.all(frequencies > 0.0) or abs(frequencies[0] - 1.0) > _GEOMETRIC:
        return None
    ratio = float(frequencies[-1]) ** (1.0 / (n - 1))
    told = ratio ** np.arange(n)
    if np.max(np.abs(told / frequencies - 1.0)) > _GEOMETRIC:
        return None
    return float(f"{ratio**-n:.5g}")
