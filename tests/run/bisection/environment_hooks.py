"""Hooks of a candidate whose damage depends on its environment."""

from __future__ import annotations

import os
from typing import Any

VARIABLE = "EVALGUARD_TEST_KERNEL"
_FACTOR = 3.0  # of the last norm's weights: the words that are predicted become too sure


def _kernel_is_fast() -> bool:
    return os.environ.get(VARIABLE) == "fast"


def _damage(model: Any) -> None:
    model.model.norm.weight.mul_(_FACTOR)


def needs_the_kernel(model: Any, value: bool) -> None:
    """Damage where this hook and the environment are both at their candidate value."""
    if value and _kernel_is_fast():
        _damage(model)


def either_will_do(model: Any, value: bool) -> None:
    """Damage where this hook or the environment is at its candidate value, once."""
    if value or _kernel_is_fast():
        _damage(model)


def follows_the_kernel(model: Any, value: bool) -> None:
    """Damage where the environment is at its candidate value, whatever this hook's is."""
    if _kernel_is_fast():
        _damage(model)


def damages(model: Any, value: bool) -> None:
    """Damage what an MLP adds, whatever the environment is; its own scale is normed away."""
    if value:
        model.model.layers[1].post_feedforward_layernorm.weight.add_(3.0)


def rounds(model: Any, value: bool) -> None:
    """Change what an MLP adds by less than anybody would notice."""
    if value:
        model.model.layers[1].post_feedforward_layernorm.weight.add_(2.0**-12)
