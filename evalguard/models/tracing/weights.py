"""A candidate's weights beside the base's: how they were rounded, and which differ otherwise."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from evalguard.core.tensors.structure import LARGEST_SEARCHED, find_structure
from evalguard.core.tracing.points import ROOT
from evalguard.core.tracing.precision import (
    CLASSES,
    EPSILON,
    OTHER,
    SAME,
    WeightClass,
    classify_weight,
    relative_error,
    round_weights,
    vote_class,
)
from evalguard.core.tracing.suspects import WEIGHTS_THRESHOLD, WeightFinding
from evalguard.models.tracing.passes import as_array

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray


# Of the weight's error: what may be left where a class's rounding explains it.
_SAME_ROUNDING = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsCompared:
    """The candidate's weights beside the base's.

    Attributes:
        dtype: of most of the candidate's weights: in which it computes.
        matrices, vectors: class of most of them. votes: of the matrices.
        findings: weights that are not of their class.
        policies: class of the matrices of one role, where all layers have it and others have not.
        identical: whether all weights are the base's. exact: whether most are, or are a cast.
        uncompared: parameters of the base without a comparable counterpart, and why.
    """

    dtype: str
    matrices: str
    vectors: str
    votes: Mapping[str, int]
    identical: bool
    exact: bool
    policies: Mapping[str, str] = field(default_factory=dict)
    findings: tuple[WeightFinding, ...] = ()
    uncompared: tuple[str, ...] = ()

    def rule_of(self, key: tuple[str, str], axes: int) -> str:
        """Give the class that a weight should have, by its module's name, its own, and its axes."""
        if axes < 2:
            return self.vectors
        return self.policies.get(_role(key), self.matrices)


def compare_weights(
    base: torch.nn.Module, candidate: torch.nn.Module, names: Mapping[str, str]
) -> WeightsCompared:
    """Say how the candidate's weights were made from the base's, and which ones were not.

    Args:
        names: the base's name of each module of the candidate.
    """
    found: dict[tuple[str, str], WeightClass] = {}
    axes: dict[tuple[str, str], int] = {}
    uncompared: list[str] = []
    for key, ours, theirs in pair_weights(base, candidate, names):
        own, other = plain_weights(ours), weights_beside(ours, theirs)
        if own is None or other is None or own.shape != other.shape:
            uncompared.append(f"{key[0]}.{key[1]}")
            continue
        found[key], axes[key] = classify_weight(own, other), count_axes(own)
    dtype = computing_dtype(candidate)
    matrices, votes = vote_class(c for key, c in found.items() if axes[key] > 1)
    compared = WeightsCompared(
        dtype=dtype,
        matrices=matrices,
        vectors=_vote_vectors(c for key, c in found.items() if axes[key] < 2),
        votes=votes,
        identical=all(c.name == SAME for c in found.values()) and not uncompared,
        exact=matrices in (SAME, *EPSILON),
        uncompared=tuple(uncompared),
    )
    if matrices in (SAME, *EPSILON):
        policies = _find_policies({key: c for key, c in found.items() if axes[key] > 1})
        compared = replace(compared, policies=policies, exact=not policies)
    if matrices == OTHER:  # a model of its own: every weight differs
        return compared
    findings = []
    for key, ours, theirs in pair_weights(base, candidate, names):
        if key not in found:
            continue
        rule = compared.rule_of(key, axes[key])
        if found[key].exact and found[key].name == rule:  # as it should be: not read again
            continue
        own, other = plain_weights(ours), weights_beside(ours, theirs)
        if own is None or other is None:
            continue
        rules = {rule, dtype} & set(CLASSES)  # a weight may be left in the candidate's dtype
        errors = (relative_error(own, round_weights(own, each)) for each in rules)
        allowed = max(0.25 * EPSILON["float32"], *errors)
        ratio = min(found[key].error, 1e6) / allowed
        if ratio > WEIGHTS_THRESHOLD:
            looks = f"{key[1]} {describe_weight(own, other, found[key], dtype)}"
            findings.append(WeightFinding(module=key[0], ratio=ratio, looks=looks))
    return replace(compared, findings=tuple(findings))


def _role(key: tuple[str, str]) -> str:
    """Name a weight without the number of its layer."""
    return re.sub(r"(^|\.)\d+(?=\.|$)", r"\1*", f"{key[0]}.{key[1]}")


def _find_policies(found: Mapping[tuple[str, str], WeightClass]) -> Mapping[str, str]:
    """Find roles whose weights are quantised alike in all layers, of two at least.

    A converter may leave most matrices as they are (a convolution, an output layer); that is a
    choice. One layer that differs from the others is not.
    """
    roles: dict[str, list[WeightClass]] = {}
    for key, each in found.items():
        roles.setdefault(_role(key), []).append(each)
    policies = {}
    for role, members in roles.items():
        common = set.intersection(*({*each.fitting} for each in members)) - {SAME, OTHER, *EPSILON}
        if len(members) > 1 and common:
            policies[role] = next(name for name in CLASSES if name in common)
    return policies


def count_axes(weights: NDArray[np.float32]) -> int:
    """Count axes of more than one element: a weight with one such axis is a vector."""
    return sum(size > 1 for size in weights.shape)


def _vote_vectors(found: Iterable[WeightClass]) -> str:
    """Vote over norms and biases; those that any dtype holds exactly (ones, zeros) have no say."""
    return vote_class(c for c in found if c.name != OTHER and c.error > 0.0)[0]


def weights_beside(ours: torch.Tensor, theirs: HeldWeight) -> NDArray[np.float32] | None:
    """Give the candidate's values; a bias that it does not have is zero."""
    if theirs.key == "bias" and not theirs.is_there:
        return np.zeros(tuple(ours.shape), dtype=np.float32)
    return theirs.read(ours.shape)


_LAYOUTS: Mapping[str, str] = {
    "transposed": "looks transposed",
    "scaled": "looks scaled {}",
    "plus a constant": "looks like the base's plus a constant ({})",
    "shifted": "looks shifted {}",
    "rows permuted": "has its rows in another order ({})",
    "columns permuted": "has its columns in another order ({})",
    "heads permuted": "has its heads in another order ({})",
    "rotary pairs": "has its rotary pairs in another order ({})",
}


def describe_weight(
    base: NDArray[np.float32], candidate: NDArray[np.float32], seen: WeightClass, dtype: str
) -> str:
    """Say what a weight that differs looks like: rounded, transposed, permuted, scaled.

    Args:
        seen: its class.
        dtype: of most of the candidate's weights, to which a rounded weight is rounded too.
    """
    if not np.all(np.isfinite(candidate)):
        return "holds nan or infinite values"
    if not np.any(candidate):
        return "is all zeros"
    rounding = _find_rounding(base, candidate, seen, dtype)
    if rounding is not None:
        return f"is rounded to {rounding}"
    if base.size <= LARGEST_SEARCHED and np.all(np.isfinite(base)):
        fault = find_structure(base, candidate)
        if fault is not None:
            return _LAYOUTS[fault.fault].format(fault.detail)
    differs = f"differs by {100 * seen.error:.2g}%"
    level = seen.name not in (SAME, OTHER)
    return f"{differs}, about as much as a rounding to {seen.name}" if level else differs


def _find_rounding(
    base: NDArray[np.float32], candidate: NDArray[np.float32], seen: WeightClass, dtype: str
) -> str | None:
    """Find the class whose rounding it is; None where it is only as far from the base's as that."""
    if seen.exact:
        return None if seen.name == SAME else seen.name
    cast = dtype if dtype in CLASSES else SAME
    # quantised, and cast before or after
    starts = (base,) if cast == SAME else (base, round_weights(base, cast))
    for name in (one for one in seen.fitting if one != OTHER):
        for exact in starts:
            rounded = round_weights(round_weights(exact, name), cast)
            if relative_error(rounded, candidate) < _SAME_ROUNDING * seen.error:
                return name
    return None


def plain_weights(weight: torch.Tensor | None) -> NDArray[np.float32] | None:
    """Give a weight's values in float32, dequantised; None where that cannot be done."""
    if weight is None:
        return None
    if hasattr(weight, "dequantize") and not is_plain(weight):
        weight = weight.dequantize()
    if not weight.is_floating_point():
        return None
    values: NDArray[np.float32] = as_array(weight).astype(np.float32)
    return values


def computing_dtype(model: torch.nn.Module) -> str:
    """Name the dtype of most of a model's weights, by their number of elements."""
    counts: Counter[str] = Counter()
    for parameter in model.parameters():
        if parameter.is_floating_point():
            counts[str(parameter.dtype).removeprefix("torch.")] += parameter.numel()
    return counts.most_common(1)[0][0] if counts else SAME


def is_plain(weight: torch.Tensor) -> bool:
    import torch

    return type(weight.data) is torch.Tensor and not weight.is_quantized


@dataclass(frozen=True, slots=True)
class HeldWeight:
    """Where a module holds a weight beside which another module holds the base's.

    Attributes:
        turned: whether the base's module stores it as [in, out], as GPT-2's Conv1D does.
    """

    module: torch.nn.Module
    key: str
    turned: bool = False

    def read(self, shape: Sequence[int]) -> NDArray[np.float32] | None:
        """Give its values in float32, of the base's shape; None where they cannot be told."""
        held = getattr(self.module, self.key, None)
        if held is not None and (values := plain_weights(held)) is not None:
            return values
        if self.key != "weight" or len(shape) != 2:
            return None
        probed = probe_matrix(self.module, shape[0] if self.turned else shape[1])
        return probed.T if probed is not None and self.turned else probed

    @property
    def is_there(self) -> bool:
        """Whether the module has such a weight, in whatever form."""
        return getattr(self.module, self.key, None) is not None


_PROBED_ROWS = 1024  # of the unit matrix, at a time


def probe_matrix(module: torch.nn.Module, columns: int) -> NDArray[np.float32] | None:
    """Read a linear module's matrix off what it makes of the unit matrix, without its bias.

    So that what a library packs (bitsandbytes, GPTQ, AWQ) need not be known.

    Returns:
        (rows, columns), or None where the module is not called as a linear one is.
    """
    import torch

    held = [*module.parameters(), *module.buffers()]
    if not held:
        return None
    dtype = next((one.dtype for one in held if one.is_floating_point()), torch.float32)
    bias = getattr(module, "bias", None)
    parts = []
    try:
        with torch.no_grad():
            for start in range(0, columns, _PROBED_ROWS):
                number = min(_PROBED_ROWS, columns - start)
                unit = torch.zeros(number, columns, dtype=dtype, device=held[0].device)
                unit[range(number), range(start, start + number)] = 1.0
                made = module(unit) if bias is None else module(unit) - bias
                parts.append(as_array(made.float()))
    except Exception:  # noqa: BLE001  no linear module: its weight is listed as uncompared
        return None
    return np.ascontiguousarray(np.concatenate(parts).T)


def pair_weights(
    base: torch.nn.Module, candidate: torch.nn.Module, names: Mapping[str, str]
) -> Iterator[tuple[tuple[str, str], torch.Tensor, HeldWeight]]:
    """Pair the base's parameters with their places in the candidate."""
    modules = {name or ROOT: module for name, module in candidate.named_modules()}
    counterparts = {ours: modules[theirs] for theirs, ours in names.items()}
    for name, module in base.named_modules():
        other = counterparts.get(name or ROOT)
        if other is None:
            continue
        turned = type(module).__name__ == "Conv1D"
        for key, parameter in module._parameters.items():
            if parameter is not None:
                yield (name or ROOT, key), parameter, HeldWeight(other, key, turned)
