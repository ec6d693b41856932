"""A candidate's weights beside the base's: how they were rounded, and which differ otherwise."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import isnan
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from evalguard.core.grid import explain_by_grid, find_grid_fault
from evalguard.core.settings import Value
from evalguard.core.tensor_edits import find_constant, find_edit, not_finite_text
from evalguard.core.tensor_structure import LARGEST_SEARCHED, find_structure
from evalguard.core.trace_points import ROOT
from evalguard.core.weight_precision import (
    CLASSES,
    EPSILON,
    OTHER,
    SAME,
    DeclaredPrecision,
    WeightClass,
    classify_weight,
    relative_error,
    round_weights,
    vote_class,
)
from evalguard.models.checkpoint_files import checkpoint_folder
from evalguard.models.checkpoint_tensors import computing_dtype
from evalguard.models.hyperparameters_read import flatten_values
from evalguard.models.unloaded_models import may_have_heads
from evalguard.tracing.measure.passes import as_array
from evalguard.tracing.measure.suspects import WEIGHTS_THRESHOLD, WeightFinding

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

# "int8", "q4_k_m", "nf4", "w4a16", "uint4", "fp8", "float8_e4m3"; "3 bits", "3-bit"
_BITS = re.compile(
    r"(?<![a-z])(?:u?int|nf|iq|q|w|mxfp|nvfp|fp|float)_?(?P<own>[1-8])(?!\d)|"
    r"(?<!\d)(?P<bits>[1-8])[ _-]?bits?(?![a-z])",
    re.IGNORECASE,
)
_COUNTS = re.compile(r"(?:.*[._-])?(?:w|n|num_?|weight_?)?_?bits", re.IGNORECASE)
_QUANTISED = re.compile(r"quanti[sz]|gptq|awq|bitsandbytes|bnb|gguf|hqq|torchao", re.IGNORECASE)
# Settings of what is no weight.
_NO_WEIGHTS = re.compile(r"(?<![a-z])(kv|cache|act|activation)", re.IGNORECASE)
_DTYPES = {
    "bfloat16": "bfloat16", "bf16": "bfloat16", "float16": "float16", "fp16": "float16",
    "f16": "float16", "half": "float16",
}  # fmt: skip
_DECLARED_STORED = {"BF16": "bfloat16", "F16": "float16"}  # as safetensors calls them


def read_declared(model: torch.nn.Module, said: Mapping[str, Value]) -> DeclaredPrecision:
    """Read how the weights of a loaded model are said to be rounded.

    Args:
        said: settings, arguments and build inputs of the model, by name.
    """
    config = getattr(model, "config", None)
    precisions = [*_read_config(config), *_read_said(said)]
    known = [precision for precision in precisions if precision.source]
    return DeclaredPrecision(
        source=", ".join(dict.fromkeys(precision.source for precision in known)),
        # the coarsest one that is said: several may be, of parts of the model
        bits=min((precision.bits for precision in known), default=0),
        dtypes=frozenset().union(*(precision.dtypes for precision in precisions))
        | _read_stored_dtypes(config),
    )


def _read_config(config: Any) -> Iterator[DeclaredPrecision]:
    quantization = getattr(config, "quantization_config", None)
    if quantization is None and hasattr(config, "get_text_config"):
        quantization = getattr(config.get_text_config(), "quantization_config", None)
    if quantization is None:
        return
    values = (
        quantization
        if isinstance(quantization, Mapping)
        else getattr(quantization, "to_dict", dict)()
    )
    method = values.get("quant_method") or type(quantization).__name__
    method = str(getattr(method, "value", method))
    yield DeclaredPrecision(
        source=f"quantization_config ({method})", bits=_least_bits(dict(flatten_values(values)))
    )


def _read_said(said: Mapping[str, Value]) -> Iterator[DeclaredPrecision]:
    for name, value in flatten_values(said):
        if _NO_WEIGHTS.search(name) or value in (None, False, "", 0):
            continue
        text = str(value).removeprefix("torch.").lower()
        if text in _DTYPES:
            yield DeclaredPrecision(dtypes=frozenset({_DTYPES[text]}))
            continue
        bits = _least_bits({name: value})
        if bits or _QUANTISED.search(name) or (isinstance(value, str) and _is_scheme(value)):
            yield DeclaredPrecision(source=f"{name}: {value}", bits=bits)


def _is_scheme(value: str) -> bool:
    return "/" not in value and _QUANTISED.search(value) is not None


def _least_bits(values: Mapping[str, Any]) -> int:
    """The fewest bits that names and values speak of; 0: none."""
    widths = []
    for name, value in values.items():
        if isinstance(value, int) and not isinstance(value, bool) and _COUNTS.fullmatch(name):
            widths.append(value)
        elif value:
            text = f"{name} {value.rpartition('/')[2]}" if isinstance(value, str) else name
            widths += [int(match["own"] or match["bits"]) for match in _BITS.finditer(text)]
    return min((bits for bits in widths if bits > 0), default=0)


def _read_stored_dtypes(config: Any) -> frozenset[str]:
    """The 16-bit dtypes that a checkpoint's files hold, or its config.json names."""
    name = str(getattr(config, "_name_or_path", "") or "")
    folder = checkpoint_folder(name) if name else None
    if folder is None:
        return frozenset()
    dtypes = set()
    for file in sorted(folder.glob("*.safetensors")):
        dtypes |= {
            _DECLARED_STORED[stored_name]
            for stored_name in _stored_names(file)
            if stored_name in _DECLARED_STORED
        }
    config_json = _read_json(folder / "config.json")
    texts = (str(config_json.get(key)).removeprefix("torch.") for key in ("dtype", "torch_dtype"))
    return frozenset(dtypes | {text for text in texts if text in EPSILON})


def _stored_names(file: Path) -> set[str]:
    from safetensors import safe_open

    with safe_open(file, framework="np") as stored:
        return {str(stored.get_slice(name).get_dtype()) for name in stored.keys()}  # noqa: SIM118


def _read_json(file: Path) -> Mapping[str, Any]:
    if not file.is_file():
        return {}
    document = json.loads(file.read_text(encoding="utf-8"))
    return document if isinstance(document, dict) else {}


# Of the weight's error: what may be left where a class's rounding explains it.
_SAME_ROUNDING = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsCompared:
    """The candidate's weights beside the base's.

    Attributes:
        dtype: of most of the candidate's weights: in which it computes.
        seen: what most matrices look like: a class, or a grid in words. votes: of the matrices.
        matrices, vectors: class that most of them are taken to be of: the one that is seen, where
            it is declared or the weights are stored so; else that of their dtype.
        declared: what says so; "" where nothing need, or does.
        undeclared: how many matrices look rounded to what, where nobody says so.
        findings: weights that are not of their class.
        policies: class of the matrices of one role, where all layers have it and others have not.
        own_error: of weights of no class (OTHER), the relative error up to which they are as the
            candidate's were made.
        identical: whether all weights are the base's. exact: whether most are, or are a cast.
        uncompared: parameters of the base without a comparable counterpart, and why.
    """

    dtype: str
    matrices: str
    vectors: str
    votes: Mapping[str, int]
    seen: str = ""
    declared: str = ""
    undeclared: Mapping[str, int] = field(default_factory=dict)
    identical: bool
    exact: bool
    policies: Mapping[str, str] = field(default_factory=dict)
    own_error: float = 0.0
    findings: tuple[WeightFinding, ...] = ()
    uncompared: tuple[str, ...] = ()

    def rule_of(self, key: tuple[str, str], axes: int) -> str:
        """Give the class that a weight should have, by its module's name, its own, and its axes."""
        if axes < 2:
            return self.vectors
        return self.policies.get(role_of(key), self.matrices)


# The error that is left where weights were computed anew (a norm folded in and out), in spacings:
# of float32 several operations', of 16 bits that of one more rounding.
_RECOMPUTED = {SAME: 4.0}
_RECOMPUTED_16 = 0.5
_MOST_ROUNDED = 0.75  # of any declared form: what two bits leave is 0.5
_STORED = "the weights are stored so"


def compare_weights(
    base: torch.nn.Module,
    candidate: torch.nn.Module,
    names: Mapping[str, str],
    declared: DeclaredPrecision | None = None,
) -> WeightsCompared:
    """Say how the candidate's weights were made from the base's, and which ones were not.

    Args:
        names: the base's name of each module of the candidate.
        declared: how they are said to be rounded; what the model stores counts beside it.
    """
    seen = _SeenWeights.of(base, candidate, names, declared or DeclaredPrecision())
    compared = seen.judge()
    findings = []
    undeclared: Counter[str] = Counter()
    for key, ours, theirs in pair_weights(base, candidate, names):
        if key not in seen.found:
            continue
        rule = compared.rule_of(key, seen.axes[key])
        if seen.found[key].exact and seen.found[key].name == rule:  # as it should be
            continue
        own, counterpart = plain_weights(ours), weights_beside(ours, theirs)
        if own is None or counterpart is None:
            continue
        rules = {rule, compared.dtype} & set(CLASSES)  # it may be left in the candidate's dtype
        errors = (relative_error(own, round_weights(own, each)) for each in rules)
        own_error = compared.own_error / WEIGHTS_THRESHOLD
        allowed = max(0.25 * EPSILON["float32"], own_error, *errors)
        error = seen.found[key].error
        ratio = (1e6 if isnan(error) else min(error, 1e6)) / allowed
        if ratio > WEIGHTS_THRESHOLD:
            rounding = find_rounding(own, counterpart, seen.found[key], compared.dtype)
            looks = (
                f"looks rounded to {rounding}"
                if rounding
                else describe_weight(own, counterpart, error, heads=may_have_heads(".".join(key)))
            )
            findings.append(
                WeightFinding(
                    module=key[0],
                    ratio=ratio,
                    looks=f"{key[1]} {looks}",
                    nonfinite=not bool(np.all(np.isfinite(counterpart))),
                )
            )
            if rounding and seen.axes[key] > 1:
                undeclared[rounding] += 1
    most = undeclared.most_common(1)
    if most and 2 * most[0][1] > sum(compared.votes.values()):
        compared = replace(compared, seen=most[0][0])
    return replace(compared, findings=tuple(findings), undeclared=dict(undeclared))


@dataclass(frozen=True, slots=True, kw_only=True)
class _SeenWeights:
    """The class of every weight of a candidate that can be compared with the base's.

    Attributes:
        packed: those that are stored quantised.
    """

    dtype: str
    declared: DeclaredPrecision
    found: Mapping[tuple[str, str], WeightClass]
    axes: Mapping[tuple[str, str], int]
    packed: frozenset[tuple[str, str]]
    uncompared: tuple[str, ...]

    @classmethod
    def of(
        cls,
        base: torch.nn.Module,
        candidate: torch.nn.Module,
        names: Mapping[str, str],
        declared: DeclaredPrecision,
    ) -> _SeenWeights:
        classes: dict[tuple[str, str], WeightClass] = {}
        axes: dict[tuple[str, str], int] = {}
        packed: set[tuple[str, str]] = set()
        uncompared: list[str] = []
        for key, ours, theirs in pair_weights(base, candidate, names):
            own, counterpart = plain_weights(ours), weights_beside(ours, theirs)
            if own is None or counterpart is None or own.shape != counterpart.shape:
                uncompared.append(f"{key[0]}.{key[1]}")
                continue
            classes[key], axes[key] = classify_weight(own, counterpart), count_axes(own)
            if theirs.is_packed:
                packed.add(key)
        dtype = computing_dtype(candidate)
        return cls(
            dtype=dtype,
            declared=replace(declared, dtypes=declared.dtypes | {dtype}),
            found=classes,
            axes=axes,
            packed=frozenset(packed),
            uncompared=tuple(uncompared),
        )

    def judge(self) -> WeightsCompared:
        """Say what most weights are, and which class of them is the floor."""
        matrices = {key: each for key, each in self.found.items() if self.axes[key] > 1}
        vectors = {key: each for key, each in self.found.items() if self.axes[key] < 2}
        # what no rounding makes says nothing about how the others were rounded
        shifted = sum(each.shifted for each in matrices.values())
        name, votes = vote_class(each for each in matrices.values() if not each.shifted)
        if shifted:
            votes = {**votes, OTHER: votes.get(OTHER, 0) + shifted}
        rule = self._rule(name, matrices)
        policies: Mapping[str, str] = {}
        if name in (SAME, *EPSILON):
            policies = {
                role: each
                for role, each in _find_policies(matrices).items()
                if self._rule(each, {k: c for k, c in matrices.items() if role_of(k) == role})
                == each
            }
        quantised = rule not in (SAME, OTHER, *EPSILON)
        why = ""
        if (quantised or policies or rule == OTHER) and matrices:
            stored = sum(key in self.packed for key in matrices)
            why = _STORED if 2 * stored > len(matrices) else self.declared.source
            why = why or (_STORED if stored else "")
        exact = rule in (SAME, *EPSILON) and not policies and name == rule
        own_error = 0.0
        if rule == OTHER:  # one fault among weights that were computed anew is none of these
            anew = self._are_recomputed(matrices)
            own_error = WEIGHTS_THRESHOLD * self._recomputed if anew else _MOST_ROUNDED
        return WeightsCompared(
            dtype=self.dtype,
            matrices=rule,
            vectors=self._rule(_vote_vectors(vectors.values()), vectors),
            votes=votes,
            seen=name,
            declared=why,
            identical=all(c.name == SAME for c in self.found.values()) and not self.uncompared,
            exact=exact,
            policies=policies,
            own_error=own_error,
            uncompared=self.uncompared,
        )

    def _rule(self, name: str, weights: Mapping[tuple[str, str], WeightClass]) -> str:
        """Give the class that is the floor: ``name`` where that is said, else the dtype's own."""
        own = [key for key, each in weights.items() if name in each.fitting]
        if self.declared.allows(name) or 2 * sum(key in self.packed for key in own) > len(own):
            return name
        if name == OTHER and self._are_recomputed(weights):
            return name
        return self.dtype if self.dtype in EPSILON else SAME

    def _are_recomputed(self, weights: Mapping[tuple[str, str], WeightClass]) -> bool:
        errors = [each.error for each in weights.values() if each.name == OTHER]
        return bool(errors) and median(errors) <= self._recomputed

    @property
    def _recomputed(self) -> float:
        """The relative error up to which a weight was computed anew."""
        dtype = self.dtype if self.dtype in EPSILON else SAME
        return _RECOMPUTED.get(dtype, _RECOMPUTED_16) * EPSILON[dtype]


def role_of(key: tuple[str, str]) -> str:
    """Name a weight without the number of its layer."""
    return re.sub(r"(^|\.)\d+(?=\.|$)", r"\1*", f"{key[0]}.{key[1]}")


def _find_policies(found: Mapping[tuple[str, str], WeightClass]) -> Mapping[str, str]:
    """Find roles whose weights are quantised alike in all layers, of two at least.

    A converter may leave most matrices as they are (a convolution, an output layer); that is a
    choice. One layer that differs from the others is not.
    """
    roles: dict[str, list[WeightClass]] = {}
    for key, each in found.items():
        roles.setdefault(role_of(key), []).append(each)
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
    "stored as its exponential": "looks like the base's exponential, {}",
    "stored as its logarithm": "looks like the base's logarithm, {}",
    "shifted": "looks shifted {}",
    "swapped": "has its {} exchanged",
    "rows permuted": "has its {rows} in another order ({})",
    "columns permuted": "has its columns in another order ({})",
    "heads permuted": "has its heads in another order ({})",
    "rotary pairs": "has its rotary pairs in another order ({})",
    "scales rolled": "has the scales of other groups ({})",
    "constant": "is {}",
    "pruned": "looks pruned ({})",
    "low rank": "looks like the base's plus a matrix of low rank ({})",
    "zero points off": "has zero points that are off ({})",
}


def describe_weight(
    base: NDArray[np.float32], candidate: NDArray[np.float32], error: float, *, heads: bool = False
) -> str:
    """Say what a weight that differs looks like: transposed, permuted, scaled.

    Args:
        error: relative L2 from the base's.
        heads: whether its rows or columns may be heads, as those of attention are.
    """
    finite = np.isfinite(candidate)
    if not np.all(finite):
        first = np.unravel_index(int(np.argmin(finite)), candidate.shape)
        nans, infs = (int(np.count_nonzero(find(candidate))) for find in (np.isnan, np.isinf))
        description = not_finite_text(nans, infs, candidate.size, [int(index) for index in first])
        return f"holds nan or infinite values ({description})"
    if not np.any(candidate):
        return "is all zeros"
    if base.size <= LARGEST_SEARCHED and np.all(np.isfinite(base)):
        fault = find_structure(base, candidate, heads=heads)
        fault = fault or find_grid_fault(base, candidate) or find_edit(base, candidate)
        if fault is not None:
            rows, words = "rows" if count_axes(base) > 1 else "elements", _LAYOUTS[fault.fault]
            detail = f" ({fault.detail})" if fault.detail and "{}" not in words else ""
            return words.format(fault.detail, rows=rows) + detail
    if not np.any(base):  # nothing that a share could be of
        return f"is no longer 0 (up to {np.abs(candidate).max():.3g})"
    return f"differs by {100 * error:.2g}%"


def find_rounding(
    base: NDArray[np.float32], candidate: NDArray[np.float32], seen: WeightClass, dtype: str
) -> str:
    """Name what a weight looks rounded to, by the grid that it lies on; "" where that is none.

    Args:
        seen: its class.
        dtype: of most of the candidate's weights, to which a rounded weight is rounded too.
    """
    if not np.all(np.isfinite(candidate)) or not np.any(candidate):
        return ""
    if seen.exact and seen.name in (SAME, *EPSILON):
        return "" if seen.name == SAME else seen.name
    if find_constant(base, candidate) is not None:
        return ""
    if seen.exact:
        return seen.name
    cast = dtype if dtype in CLASSES else SAME
    # quantised, and cast before or after
    starts = (base,) if cast == SAME else (base, round_weights(base, cast))
    for name in (rounding for rounding in seen.fitting if rounding != OTHER):
        for exact in starts:
            rounded = round_weights(round_weights(exact, name), cast)
            if relative_error(rounded, candidate) < _SAME_ROUNDING * seen.error:
                return name
    grid = explain_by_grid(base, candidate)
    return "" if grid is None else str(grid)


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
        probe = getattr(self.module, "probe", partial(probe_matrix, self.module))
        probed = probe(shape[0] if self.turned else shape[1])
        return probed.T if probed is not None and self.turned else probed

    @property
    def is_packed(self) -> bool:
        """Whether it is stored quantised: as whole numbers, or in a form of a library's own."""
        held = getattr(self.module, self.key, None)
        if self.key in getattr(self.module, "packed", ()):
            return True
        if held is not None:
            return not (is_plain(held) and held.is_floating_point())
        own = (*self.module.parameters(recurse=False), *self.module.buffers(recurse=False))
        return any(not (is_plain(tensor) and tensor.is_floating_point()) for tensor in own)

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
    dtype = next((tensor.dtype for tensor in held if tensor.is_floating_point()), torch.float32)
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
    """Pair the base's parameters, and the buffers that its files store, with their places in the
    candidate.

    Buffers beside packed weights are parts of these.
    """
    modules = {name or ROOT: module for name, module in candidate.named_modules()}
    counterparts = {ours: modules[theirs] for theirs, ours in names.items()}
    for name, module in base.named_modules():
        counterpart = counterparts.get(name or ROOT)
        if counterpart is None:
            continue
        turned = type(module).__name__ == "Conv1D"
        held = {
            key: parameter for key, parameter in module._parameters.items() if parameter is not None
        }
        for key, tensor in {**held, **stored_buffers(module)}.items():
            yield (name or ROOT, key), tensor, HeldWeight(counterpart, key, turned)


def stored_buffers(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Give a module's own buffers of numbers that are stored with its weights: a router's biases.

    None of a module that is quantised, where they are scales.
    """
    held = {key: buffer for key, buffer in module._buffers.items() if buffer is not None}
    own = (*module._parameters.values(), *held.values())
    if any(tensor is not None and tensor.ndim and not tensor.is_floating_point() for tensor in own):
        return {}
    passing = module._non_persistent_buffers_set
    return {
        key: buffer
        for key, buffer in held.items()
        if buffer.is_floating_point() and is_plain(buffer) and key not in passing
    }
