"""A computation repeated as it is, in other batch shapes and in other precisions, and compared."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from evalguard.core.tensors.differences import PairSums
from evalguard.core.tensors.noise import NoiseClass, NoiseRange, NoiseTable
from evalguard.core.tensors.precision_vote import round_float8, round_integer, round_mantissa
from evalguard.models.noise.operations import NoiseSubject, round_weights

if TYPE_CHECKING:
    import torch

_Way = Callable[["torch.nn.Module", "torch.Tensor"], "torch.Tensor"]
_BESIDE = 3  # other inputs in the batch


def measure_noise(
    subject: NoiseSubject, *, repetitions: int = 20, rtol: float = 1.3e-6, atol: float = 1e-5
) -> NoiseTable:
    """Measure what benign changes and coarser precisions do to a computation on this CPU.

    The base is the computation in float32. TF32, which CPUs do not have, is emulated: both factors
    of every product are rounded to 10 bits of mantissa.

    Args:
        repetitions: seeds of weights and inputs.
        rtol, atol: tolerance by which elements count as mismatched.
    """
    import torch

    sums: dict[tuple[str, str], list[PairSums]] = {}
    elements = 0
    with torch.no_grad():
        for seed in range(repetitions):
            module, values = subject.make(seed)
            base = _flat(module(values))
            elements = base.size
            for name, family, way in _ways():
                found = PairSums(rtol=rtol, atol=atol)
                found.add(base, _flat(way(module, values)), 0)
                sums.setdefault((name, family), []).append(found)
    return NoiseTable(
        subject=subject.name,
        repetitions=repetitions,
        elements=elements,
        rtol=rtol,
        atol=atol,
        classes=tuple(_class(name, family, rest) for (name, family), rest in sums.items()),
        environment={
            "torch": torch.__version__,
            "device": "cpu",
            "capability": torch.backends.cpu.get_cpu_capability(),
        },
    )


def _ways() -> Iterator[tuple[str, str, _Way]]:
    """Yield a name, the family of its error, and how the computation is done."""
    import torch

    yield "the same again", "float32", lambda module, values: module(values)
    yield "beside other inputs", "float32", _run_beside_others
    yield "float64", "float32", partial(_run_in, dtype=torch.float64)
    yield "TF32", "fp16/TF32", _run_tf32
    yield "float16", "fp16/TF32", partial(_run_in, dtype=torch.float16)
    yield "bfloat16", "bf16", partial(_run_in, dtype=torch.bfloat16)
    yield "float8 weights", "fp8", partial(_run_rounded, rounding=_round_float8)
    yield "int8 weights", "int8", partial(_run_rounded, rounding=partial(round_integer, bits=8))
    yield "int4 weights", "int4", partial(_run_rounded, rounding=_round_int4)


def _run_beside_others(module: torch.nn.Module, values: torch.Tensor) -> torch.Tensor:
    import torch

    others = [torch.roll(values, shift + 1, dims=-1) for shift in range(_BESIDE)]
    found: torch.Tensor = module(torch.cat([values, *others]))
    return found[:1]


def _run_in(module: torch.nn.Module, values: torch.Tensor, *, dtype: torch.dtype) -> torch.Tensor:
    import copy

    cast = copy.deepcopy(module).to(dtype)
    found: torch.Tensor = cast(values.to(dtype) if values.is_floating_point() else values)
    return found


def _run_rounded(
    module: torch.nn.Module, values: torch.Tensor, *, rounding: Callable[[Any], Any]
) -> torch.Tensor:
    found: torch.Tensor = round_weights(module, rounding)(values)
    return found


def _round_float8(matrix: Any) -> Any:
    scale = np.float32(np.abs(matrix).max() / 448) or np.float32(1)
    return round_float8(matrix / scale) * scale


def _round_int4(matrix: Any) -> Any:
    group = next((size for size in (32, 16, 8) if matrix.shape[1] % size == 0), 0)
    return round_integer(matrix, 4, group=group)


def _run_tf32(module: torch.nn.Module, values: torch.Tensor) -> torch.Tensor:
    with rounded_products(_round_tf32):
        found: torch.Tensor = module(values)
    return found


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
                places = {_PRODUCTS[name] + factor for factor in factors}
                args = tuple(
                    rounded(one) if place in places else one for place, one in enumerate(args)
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


def _round_tf32(value: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.from_numpy(round_mantissa(value.detach().contiguous().numpy(), 10))


def _flat(values: torch.Tensor) -> Any:
    return np.ascontiguousarray(values.detach().float().numpy().reshape(-1))


def _class(name: str, family: str, sums: list[PairSums]) -> NoiseClass:
    return NoiseClass(
        name=name,
        family=family,
        greatest_absolute=_range([one.greatest_abs.value for one in sums]),
        greatest_relative=_range([one.greatest_rel.value for one in sums]),
        relative_l2=_range([one.relative_l2 for one in sums]),
        mismatched_share=_range([one.mismatched / one.elements for one in sums]),
        exact=all(one.unequal == 0 for one in sums),
    )


def _range(values: list[float]) -> NoiseRange:
    return NoiseRange(low=min(values), median=float(np.median(values)), high=max(values))
