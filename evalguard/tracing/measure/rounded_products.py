"""Matrix products whose factors are rounded first, as tensor cores and kernels of 16 bits do."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@contextmanager
def rounded_products(
    rounding: Callable[[torch.Tensor], torch.Tensor], factors: Collection[int] = (0, 1)
) -> Iterator[None]:
    """Round what torch multiplies in this context; sums stay float32, as tensor cores have it.

    Args:
        factors: of matrix products and convolutions; 0: activations, 1: weights.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    def rounded(value: Any) -> Any:
        plain = isinstance(value, torch.Tensor) and value.dtype == torch.float32
        return rounding(value) if plain else value

    class _RoundedProducts(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            del types
            name = func.__name__.partition(".")[0]
            if name in _PRODUCTS:
                positions = {_PRODUCTS[name] + factor for factor in factors}
                args = tuple(
                    rounded(operand) if position in positions else operand
                    for position, operand in enumerate(args)
                )
            elif "scaled_dot_product" in name:
                args = tuple(map(rounded, args))
            return func(*args, **(kwargs or {}))

    with _RoundedProducts():  # type: ignore[no-untyped-call]
        yield


# operation -> the place of the first of its two factors
_PRODUCTS = {
    "mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1, "addmv": 1, "mv": 0, "dot": 0, "linear": 0,
    "convolution": 0, "mkldnn_convolution": 0,
}  # fmt: skip
