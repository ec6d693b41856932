"""How a candidate's weights are said to be rounded: by its config, its files and its settings."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalguard.core.settings import Value
from evalguard.core.tracing.weight_precision import EPSILON, DeclaredPrecision
from evalguard.models.model_folders import checkpoint_folder
from evalguard.models.tracing.read_hyperparameters import flatten_values

if TYPE_CHECKING:
    import torch

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
_STORED = {"BF16": "bfloat16", "F16": "float16"}  # as safetensors calls them


def read_declared(model: torch.nn.Module, said: Mapping[str, Value]) -> DeclaredPrecision:
    """Read how the weights of a loaded model are said to be rounded.

    Args:
        said: settings, arguments and build inputs of the model, by name.
    """
    config = getattr(model, "config", None)
    found = [*_read_config(config), *_read_said(said)]
    known = [one for one in found if one.source]
    return DeclaredPrecision(
        source=", ".join(dict.fromkeys(one.source for one in known)),
        # the coarsest one that is said: several may be, of parts of the model
        bits=min((one.bits for one in known), default=0),
        dtypes=frozenset().union(*(one.dtypes for one in found)) | _read_stored_dtypes(config),
    )


def _read_config(config: Any) -> Iterator[DeclaredPrecision]:
    found = getattr(config, "quantization_config", None)
    if found is None and hasattr(config, "get_text_config"):
        found = getattr(config.get_text_config(), "quantization_config", None)
    if found is None:
        return
    values = found if isinstance(found, Mapping) else getattr(found, "to_dict", dict)()
    method = values.get("quant_method") or type(found).__name__
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
    found = []
    for name, value in values.items():
        if isinstance(value, int) and not isinstance(value, bool) and _COUNTS.fullmatch(name):
            found.append(value)
        elif value:
            text = f"{name} {value.rpartition('/')[2]}" if isinstance(value, str) else name
            found += [int(one["own"] or one["bits"]) for one in _BITS.finditer(text)]
    return min((bits for bits in found if bits > 0), default=0)


def _read_stored_dtypes(config: Any) -> frozenset[str]:
    """The 16-bit dtypes that a checkpoint's files hold, or its config.json names."""
    name = str(getattr(config, "_name_or_path", "") or "")
    folder = checkpoint_folder(name) if name else None
    if folder is None:
        return frozenset()
    found = set()
    for file in sorted(folder.glob("*.safetensors")):
        found |= {_STORED[one] for one in _stored_names(file) if one in _STORED}
    said = _read_json(folder / "config.json")
    texts = (str(said.get(key)).removeprefix("torch.") for key in ("dtype", "torch_dtype"))
    return frozenset(found | {one for one in texts if one in EPSILON})


def _stored_names(file: Path) -> set[str]:
    from safetensors import safe_open

    with safe_open(file, framework="np") as stored:
        return {str(stored.get_slice(name).get_dtype()) for name in stored.keys()}  # noqa: SIM118


def _read_json(file: Path) -> Mapping[str, Any]:
    if not file.is_file():
        return {}
    found = json.loads(file.read_text(encoding="utf-8"))
    return found if isinstance(found, dict) else {}
