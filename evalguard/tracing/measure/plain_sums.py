"""A model whose every sum and operation is rounded as plain float32 code may round it.

What healthy code that nobody has seen makes of the same operations depends on how many there are
and on how long their sums are. So each operation that torch dispatches is run as it is, and its
result moved by the error of a sum of its length (Monte Carlo arithmetic: Parker, UCLA 1997).
Normalisations and softmaxes are taken apart first: what is wrong with their sums is wrong with
whole rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import sqrt
from typing import TYPE_CHECKING, Any

from evalguard.errors import EvaluationError
from evalguard.tracing.measure.suspects import plain_sum_error

if TYPE_CHECKING:
    import torch

_LARGE = 1e30  # a mask's number, which moved would be infinite
_OFFSETS = 1 << 16  # places at which a row of random signs begins
# Operations whose results are sums of what they are given; products are known by their flops.
_SUMS = {
    "sum", "mean", "var", "std", "var_mean", "logsumexp", "linalg_vector_norm", "mv", "dot",
    "avg_pool2d", "_adaptive_avg_pool2d",
}  # fmt: skip


@contextmanager
def plain_sums() -> Iterator[None]:
    """Round all that torch computes in float32 in this context as a plain loop does.

    Raises:
        EvaluationError: this torch is too old for that.
    """
    import torch

    try:
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.utils._python_dispatch import TorchDispatchMode
    except ImportError as error:  # an older torch of a worker's own environment
        raise EvaluationError(f"torch {torch.__version__} does not show its operations") from error
    aten: Any = torch.ops.aten
    apart: dict[Any, Callable[..., Any]] = {
        aten.native_layer_norm: _norm_layer,
        aten.native_group_norm: _norm_groups,
        aten._softmax: _take_softmax,
        aten._safe_softmax: _take_softmax,
    }
    signs = _Signs()

    class _PlainSums(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            del types
            steps = apart.get(func.overloadpacket)
            if steps is not None and args[0].dtype == torch.float32:
                with self:
                    return steps(*args)
            result = func(*args, **(kwargs or {}))
            made = result if isinstance(result, tuple) else (result,)
            if made and isinstance(made[0], torch.Tensor) and made[0].dtype == torch.float32:
                terms = _count_terms(func, args, kwargs or {}, result)
                for tensor in made if terms else ():
                    _move(tensor, terms, signs.draw(tensor))
            return result

    with sdpa_kernel(SDPBackend.MATH), _PlainSums():  # type: ignore[no-untyped-call]
        yield


def _count_terms(func: Any, args: Any, kwargs: Any, found: Any) -> int:
    """How many terms each element of a result is the sum of; 0: nothing is rounded."""
    import torch
    from torch.utils.flop_counter import flop_registry

    out: torch.Tensor = found[0] if isinstance(found, tuple) else found
    count = flop_registry.get(func.overloadpacket)
    if count is not None:  # a multiplication and an addition for each term
        return int(count(*args, **kwargs, out_val=found)) // (2 * max(out.numel(), 1))
    if torch.Tag.pointwise in func.tags:
        return 1
    if func.overloadpacket.__name__ in _SUMS:
        return int(args[0].numel()) // max(out.numel(), 1)
    return 0


class _Signs:
    """Random signs for tensors of any shape, from one row of them that grows as it must."""

    def __init__(self) -> None:
        import torch

        self._generator = torch.Generator().manual_seed(0)
        self._row = torch.empty(0)

    def draw(self, like: torch.Tensor) -> torch.Tensor:
        import torch

        if self._row.numel() < like.numel() + _OFFSETS or self._row.device != like.device:
            size = (like.numel() + _OFFSETS,)
            drawn = torch.randint(0, 2, size, generator=self._generator, dtype=torch.int8)
            self._row = drawn.to(like) * 2 - 1
        first = int(torch.randint(0, _OFFSETS, (), generator=self._generator))
        return self._row[first : first + like.numel()].reshape(like.shape)


def _move(value: torch.Tensor, terms: int, signs: torch.Tensor) -> None:
    """Move a result that nothing else shares by the error of a sum of so many terms.

    A running sum is as large as its row's results are, and so is its error, however small one
    result is; an operation's error without a sum is of the result itself.
    """
    import torch

    if not value.numel():
        return
    low, high = torch.aminmax(value)
    if not (low > -_LARGE and high < _LARGE):  # masks, and what is not finite, stay
        signs = torch.where(value.abs() < _LARGE, signs, 0.0)
        size = torch.where(value.abs() < _LARGE, value, 0.0)
    else:
        size = value
    if terms > 1 and value.ndim:
        size = torch.linalg.vector_norm(size, dim=-1, keepdim=True) / sqrt(value.shape[-1])
    value.addcmul_(size, signs, value=plain_sum_error(terms))


def _norm_rows(value: torch.Tensor, axes: list[int], epsilon: float) -> tuple[torch.Tensor, ...]:
    import torch

    mean = value.mean(dim=axes, keepdim=True)
    moved = value - mean
    inverse = torch.rsqrt((moved * moved).mean(dim=axes, keepdim=True) + epsilon)
    return moved * inverse, mean, inverse


def _norm_layer(
    value: torch.Tensor, shape: Any, weight: Any, bias: Any, epsilon: float
) -> tuple[torch.Tensor, ...]:
    normalized, *rows = _norm_rows(value, list(range(-len(shape), 0)), epsilon)
    normalized = normalized if weight is None else normalized * weight
    return (normalized if bias is None else normalized + bias, *rows)


def _norm_groups(
    value: torch.Tensor, weight: Any, bias: Any,
    batch: int, channels: int, _size: int, groups: int, epsilon: float,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    normalized, *rows = _norm_rows(value.reshape(batch, groups, -1), [-1], epsilon)
    normalized = normalized.reshape(value.shape)
    by_channel = (1, channels, *[1] * (value.ndim - 2))
    normalized = normalized if weight is None else normalized * weight.reshape(by_channel)
    normalized = normalized if bias is None else normalized + bias.reshape(by_channel)
    return (normalized, *(row.reshape(batch, groups) for row in rows))


def _take_softmax(value: torch.Tensor, axis: int, *_dtype: object) -> torch.Tensor:
    exponents = (value - value.amax(dim=axis, keepdim=True)).exp()
    return exponents / exponents.sum(dim=axis, keepdim=True)
