"""LoRA adapters as PEFT saves them, folded into the weights of their base: W + s B A.

After peft.tuners.lora (``LoraConfig``, ``update_layer``, ``get_delta_weight``): s is alpha / r,
with rsLoRA alpha / sqrt(r); ranks and alphas of single modules by pattern; embeddings and layers
that keep their weights transposed take (B A)^T; modules that were trained whole stand in the place
of the base's. What makes other weights than these is said to be unknown.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from evalguard.errors import EvaluationError, UsageError
from evalguard.regular_file import read_regular_text
from evalguard.tensor_files.stored_tensor import (
    Array,
    Bytes,
    NoBytes,
    StoredTensor,
    TensorCodec,
    unknown_codec,
)

CONFIG = "adapter_config.json"
_PREFIX = "base_model.model."
_PART = re.compile(
    r"(?P<module>.+)\.(?P<part>lora_A|lora_B|lora_embedding_A|lora_embedding_B)"
    r"(?:\.default)?(?:\.weight)?"
)
_WHOLE = re.compile(r"(?P<module>.+?)\.modules_to_save(?:\.default)?\.(?P<leaf>[^.]+)")
# Of a config, what makes other weights than W + s B A when it is set.
_OTHERWISE = {
    "use_dora": "DoRA",
    "use_qalora": "QA-LoRA",
    "lora_bias": "biases of B",
    "layer_replication": "replicated layers",
    "target_parameters": "parameters that are no module's weight",
    "trainable_token_indices": "single trained tokens",
    "alora_invocation_tokens": "activated LoRA",
    "arrow_config": "Arrow",
    "megatron_config": "Megatron",
}
# Ways to begin that leave a part of W in the adapter: its base is no longer the one that is named.
_MOVES_BASE = ("pissa", "olora", "corda", "loftq")


def is_adapter(folder: Path) -> bool:
    """Whether a folder holds an adapter of PEFT."""
    return folder.is_dir() and (folder / CONFIG).is_file()


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """What a module's B A is multiplied with; ``usual_rank`` and ``usual_alpha`` are those that no
    pattern changed."""

    rank: int
    alpha: float
    rslora: bool
    usual_rank: int
    usual_alpha: float

    @property
    def factor(self) -> float:
        """It, as a number."""
        return scale_update(self.rank, self.alpha, rslora=self.rslora)


def scale_update(rank: int, alpha: float, *, rslora: bool) -> float:
    """Return alpha / r, of rsLoRA alpha / sqrt(r)."""
    return alpha / (math.sqrt(rank) if rslora else rank)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterConfig:
    """What an adapter says of itself.

    Attributes:
        base: name or path of its base; "": it names none.
        otherwise: why its weights are not folded; "" where they are.
    """

    base: str
    otherwise: str
    rank: int
    alpha: float
    rslora: bool = False
    transposed: bool = False
    ranks: Mapping[str, float] = field(default_factory=dict)
    alphas: Mapping[str, float] = field(default_factory=dict)

    def scaling(self, module: str) -> Scaling:
        """Return the rank and the alpha that a module has."""
        return Scaling(
            rank=int(_match(self.ranks, module, self.rank)),
            alpha=_match(self.alphas, module, self.alpha),
            rslora=self.rslora,
            usual_rank=self.rank,
            usual_alpha=self.alpha,
        )


def read_adapter_config(folder: Path) -> AdapterConfig:
    """Read an adapter's config.

    Raises:
        EvaluationError: it cannot be read, or is no adapter's.
    """
    path = folder / CONFIG
    try:
        config = json.loads(read_regular_text(path))
        kind = str(config["peft_type"])
    except OSError as error:
        raise EvaluationError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise EvaluationError(f"{path} is no adapter's config: it has no peft_type") from error
    base = str(config.get("base_model_name_or_path") or "")
    if kind != "LORA":
        why = f"adapters of kind {kind} are not folded into their base"
        return AdapterConfig(base=base, otherwise=why, rank=1, alpha=1.0)
    try:
        ranks, alphas = (
            {str(name): float(value) for name, value in (config.get(key) or {}).items()}
            for key in ("rank_pattern", "alpha_pattern")
        )
        rank, alpha = int(config["r"]), float(config["lora_alpha"])
        if min([rank, *ranks.values()]) < 1:
            raise ValueError(rank)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise EvaluationError(f"{path} does not say its rank and alpha") from error
    return AdapterConfig(
        base=base,
        otherwise=_otherwise(config),
        rank=rank,
        alpha=alpha,
        rslora=bool(config.get("use_rslora")),
        transposed=bool(config.get("fan_in_fan_out")),
        ranks=ranks,
        alphas=alphas,
    )


def _otherwise(told: Mapping[str, Any]) -> str:
    reasons = [words for key, words in _OTHERWISE.items() if told.get(key)]
    began = str(told.get("init_lora_weights")).lower()
    if began.startswith(_MOVES_BASE):
        reasons.append(f"a start by {began}, which moves a part of the base into the adapter")
    return f"evalguard does not fold {reasons[0]}" if reasons else ""


def find_base(folder: Path, config: AdapterConfig) -> Path:
    """Return where an adapter's base lies.

    Raises:
        UsageError: it names none that is a local file or folder.
    """
    for start in (Path(), folder):
        base_path = (start / Path(config.base).expanduser()) if config.base else None
        if base_path is not None and base_path.exists():
            return base_path
    named = f"names '{config.base}', which is not here" if config.base else "names none"
    raise UsageError(
        f"{folder} is an adapter, and its base is needed too: its config {named}",
        hint=f"name both: BASE+{folder}",
    )


def fold_adapter(
    base: Mapping[str, StoredTensor],
    adapter: Mapping[str, StoredTensor],
    config: AdapterConfig,
) -> dict[str, StoredTensor]:
    """Return the tensors of a base with an adapter in them; numbers are made when they are read.

    Where the adapter cannot be folded into one, or has something for a tensor that is not there,
    that tensor has a fault that says so.
    """
    folded = dict(base)
    parts: dict[str, dict[str, StoredTensor]] = defaultdict(dict)
    for name, tensor in adapter.items():
        own = name.removeprefix(_PREFIX)
        part, whole = _PART.fullmatch(own), _WHOLE.fullmatch(own)
        if part is not None:
            parts[part["module"]][part["part"]] = tensor
            continue
        # beside the LoRA of an embedding PEFT saves the embedding that it was trained on
        target = own.replace(".base_layer.", ".")
        if whole is not None:
            target = f"{whole['module']}.{whole['leaf']}"
        stands_in = whole is not None or target != own
        known = (target in base and stands_in) or target.endswith(".bias")
        if config.otherwise or not known:
            weight = _owner(target, base)
            why = config.otherwise or f"evalguard does not know what {name} does to it"
            folded[weight] = _faulty(base.get(weight), weight, tensor, why)
        else:
            folded[target] = replace(tensor, name=target)
    for module, module_parts in parts.items():
        name = f"{module}.weight"
        folded[name] = _fold(folded.get(name), name, module_parts, config)
    return folded


def name_useless(
    base: Mapping[str, StoredTensor], adapter: Mapping[str, StoredTensor]
) -> tuple[str, ...]:
    """Return the modules of an adapter where its base has none of them; else ()."""
    modules = dict.fromkeys(
        part["module"] for name in adapter if (part := _PART.fullmatch(name.removeprefix(_PREFIX)))
    )
    return () if any(f"{module}.weight" in base for module in modules) else tuple(modules)


def _owner(target: str, base: Mapping[str, StoredTensor]) -> str:
    """Return the weight that a part of unknown kind belongs to."""
    module = target
    while module:
        if f"{module}.weight" in base:
            return f"{module}.weight"
        module = module.rpartition(".")[0]
    return target


def _faulty(weight: StoredTensor | None, name: str, part: StoredTensor, fault: str) -> StoredTensor:
    if weight is not None:
        return replace(weight, fault=weight.fault or fault)
    return StoredTensor(
        name=name, shape=(), codec=unknown_codec(""), source=NoBytes(), file=part.file, fault=fault
    )


def _fold(
    weight: StoredTensor | None,
    name: str,
    parts: Mapping[str, StoredTensor],
    config: AdapterConfig,
) -> StoredTensor:
    first = next(iter(parts.values()))
    if weight is None:
        return _faulty(None, name, first, f"the base has no {name}, which the adapter changes")
    embedding = "lora_embedding_A" in parts or "lora_embedding_B" in parts
    names = [f"lora_embedding_{side}" if embedding else f"lora_{side}" for side in "AB"]
    fault = config.otherwise or weight.fault
    missing = [part_name for part_name in names if part_name not in parts]
    if fault or missing or len(parts) > 2:
        lost = f"its {missing[0]} is missing" if missing else "it has parts of two kinds"
        return _faulty(weight, name, first, fault or lost)
    a, b = (parts[part_name] for part_name in names)
    scaling = config.scaling(name.removesuffix(".weight"))
    transposed = embedding or config.transposed
    fault = a.fault or b.fault or _shape_fault(weight, a, b, scaling.rank, transposed)
    if fault:
        return _faulty(weight, name, first, fault)
    columns, update = weight.shape[1], Update(a, b, scaling, transposed)
    bits = _SHORT.get(weight.dtype)
    return replace(
        weight,
        codec=TensorCodec(
            dtype=weight.dtype if weight.dtype in _FLOATS else "float32",
            block=columns,
            size=4 * columns,
            decode=_as_float32,
        ),
        source=FoldedRows(weight, update, columns),
        first=0,
        packing="LoRA folded in",
        parts=(weight, a, b),
        rounding=0.0 if bits is None else update.most() * 2.0**-bits,
    )


# Bits of a mantissa, the first one included: s B A may have been rounded to them at first.
_SHORT = {"bfloat16": 9, "float16": 12}
_FLOATS = ("float64", "float32", "float16", "bfloat16")


def _shape_fault(
    weight: StoredTensor, a: StoredTensor, b: StoredTensor, rank: int, transposed: bool
) -> str:
    if len(weight.shape) != 2 or len(a.shape) != 2 or len(b.shape) != 2:
        return f"evalguard does not fold LoRA into a weight of shape {list(weight.shape)}"
    if a.shape[0] != rank or b.shape[1] != rank:
        return f"its parts are of rank {a.shape[0]} and {b.shape[1]}, and its config says {rank}"
    made = (a.shape[1], b.shape[0]) if transposed else (b.shape[0], a.shape[1])
    if made != weight.shape:
        return f"B A is {list(made)}, and the weight {list(weight.shape)}"
    return ""


@dataclass(slots=True)
class Update:
    """s B A, a few rows at a time; its two factors are small, and kept."""

    a: StoredTensor
    b: StoredTensor
    scaling: Scaling
    transposed: bool
    _kept: tuple[Array, Array] | None = None

    def most(self) -> float:
        """No element is greater, by Cauchy's inequality."""
        left, right = self._factors()
        sides = np.linalg.norm(left, axis=1).max(), np.linalg.norm(right, axis=0).max()
        return float(abs(self.scaling.factor) * sides[0] * sides[1])

    def _factors(self) -> tuple[Array, Array]:
        if self._kept is None:
            a, b = (factor.load().astype(np.float64) for factor in (self.a, self.b))
            self._kept = (a.T, b.T) if self.transposed else (b, a)
        return self._kept

    def rows(self, first: int, last: int) -> Array:
        """Rows ``first`` to ``last``, float64."""
        left, right = self._factors()
        product: Array = self.scaling.factor * (left[first:last] @ right)
        return product


@dataclass(frozen=True, slots=True)
class FoldedRows:
    """Rows of a weight with an adapter's added, as float32."""

    weight: StoredTensor
    update: Update
    columns: int

    def read(self, start: int, stop: int) -> Bytes:
        """Return whole rows."""
        first, last = start // (4 * self.columns), stop // (4 * self.columns)
        begin, end, block = first * self.columns, last * self.columns, self.weight.codec.block
        low, high = begin // block * block, -(-end // block) * block
        values = self.weight.read(low, high)[begin - low : end - low].astype(np.float64)
        made = values.reshape(-1, self.columns) + self.update.rows(first, last)
        return np.ascontiguousarray(made, dtype=np.float32).reshape(-1).view(np.uint8)


def _as_float32(raw: Bytes) -> Array:
    return np.ascontiguousarray(raw).view(np.float32)


def _match(patterns: Mapping[str, float], module: str, usual: float) -> float:
    """The value of the first pattern that a module's name ends with (``get_pattern_key``)."""
    for pattern, value in patterns.items():
        try:
            if re.match(rf"(.*\.)?({pattern})$", module):
                return value
        except re.error as error:
            raise EvaluationError(f"{CONFIG} has a pattern that is none: {pattern!r}") from error
    return usual
