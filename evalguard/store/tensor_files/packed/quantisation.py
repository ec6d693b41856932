"""What a checkpoint says of how it was quantised: ``quantization_config`` in its config.json, or
the file of the library that wrote it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evalguard.regular_file import read_regular_text

# Files beside config.json, and the method that they belong to: ModelOpt, AutoGPTQ, AutoAWQ, quanto.
_OWN_FILES = {
    "hf_quant_config.json": "modelopt",
    "quantize_config.json": "gptq",
    "quant_config.json": "awq",
    "quanto_qmap.json": "quanto",
}
# Methods of which some packing is read; of these and of none other what is left over is unknown.
KNOWN_METHODS = frozenset(
    {
        "compressed-tensors", "modelopt", "gptq", "awq", "bitsandbytes", "torchao", "quanto",
        "mxfp4", "fp8", "fbgemm_fp8", "auto-round", "quark", "mlx",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantisation:
    """How a checkpoint says it was quantised.

    Attributes:
        method: "gptq", "compressed-tensors", "modelopt"; "" where nothing says it.
        settings: the method's own.
    """

    method: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Method and format, for people."""
        form = self.settings.get("format") or self.settings.get("quant_algo")
        return " ".join(str(part) for part in (self.method, form) if part)

    @property
    def known(self) -> bool:
        """Whether evalguard reads some packing of the method."""
        return not self.method or self.method in KNOWN_METHODS

    @property
    def transforms(self) -> bool:
        """Whether weights were rotated before they were stored (compressed-tensors' transforms)."""
        return bool(self.settings.get("transform_config"))

    @property
    def weight_block(self) -> tuple[int, ...]:
        """Rows and columns of a block that has one scale; () where nothing says it."""
        block = self.settings.get("weight_block_size")
        for weights in self._weights():
            block = block or weights.get("block_structure")
        if isinstance(block, list) and all(isinstance(one, int) and one > 0 for one in block):
            return tuple(block)
        return ()

    @property
    def integer_bits(self) -> int:
        """Bits of all weights that are integers; 0 where nothing says it or they differ."""
        told = [one.get("num_bits") for one in self._weights() if one.get("type") == "int"]
        bits = told[0] if told and all(one == told[0] for one in told) else 0
        return bits if isinstance(bits, int) and 1 <= bits <= 8 else 0

    def _weights(self) -> Iterator[Mapping[str, Any]]:
        groups = self.settings.get("config_groups")
        for group in groups.values() if isinstance(groups, dict) else ():
            weights = group.get("weights") if isinstance(group, dict) else None
            if isinstance(weights, dict):
                yield weights


def read_quantisation(config: Mapping[str, Any], folder: Path) -> Quantisation:
    """Return what config.json says, else a library's own file in the folder."""
    found: dict[str, Any] = {}
    text = config.get("text_config")
    for part in (config, text if isinstance(text, dict) else {}):
        for key in ("quantization_config", "compression_config"):
            told = part.get(key)
            if isinstance(told, dict):
                found = {**told, **found}
    method = str(found.get("quant_method") or found.get("quantization_type") or "")
    for name, owner in _OWN_FILES.items():
        if method not in ("", owner):
            continue
        own = read_json_object(folder / name)
        if own is None:
            continue
        inner = own.get("quantization")
        found = {**(inner if isinstance(inner, dict) else own), **found}
        method = owner
    if not method and "config_groups" in found:
        method = "compressed-tensors"
    mlx = config.get("quantization")  # which mlx-lm writes a second time as quantization_config
    if not method and isinstance(mlx, dict) and {"bits", "group_size"} <= mlx.keys():
        method, found = "mlx", {**mlx, **found}
    method = {"intel/auto-round": "auto-round", "compressed_tensors": "compressed-tensors"}.get(
        method, method
    )
    return Quantisation(method=method, settings=found)


def read_json_object(path: Path) -> dict[str, Any] | None:
    """Return what a file beside the weights says; None where it is not there or is no object."""
    try:
        content = json.loads(read_regular_text(path))
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None
