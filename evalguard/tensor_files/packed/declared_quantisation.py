"""What a checkpoint says of how it was quantised: ``quantization_config`` in its config.json, or
the file of the library that wrote it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

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
# Whose scale: of what a cache of keys and values holds, of what goes into a module or out of it.
ScaleUse = Literal["cache", "input", "output"]
_CACHE_KEYS = ("kv_cache_scheme", "kv_cache_quant_algo", "kv_cache_quant_config")
# Methods whose config says of every kind of scale whether the checkpoint has it.
_SAY_ALL = frozenset({"compressed-tensors", "modelopt", "quark", "quanto", "gptq", "awq", "mlx"})


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
        if isinstance(block, list) and all(isinstance(size, int) and size > 0 for size in block):
            return tuple(block)
        return ()

    @property
    def integer_bits(self) -> int:
        """Bits of all weights that are integers; 0 where nothing says it or they differ."""
        widths = [
            weights.get("num_bits") for weights in self._weights() if weights.get("type") == "int"
        ]
        bits = widths[0] if widths and all(width == widths[0] for width in widths) else 0
        return bits if isinstance(bits, int) and 1 <= bits <= 8 else 0

    def asks_for(self, use: ScaleUse) -> bool | None:
        """Whether a checkpoint has stored scales of that use; None where nothing says it."""
        settings, schemes = self.settings, list[Any]()
        if use == "cache":
            schemes = [settings[key] for key in _CACHE_KEYS if key in settings]
        elif use == "input":
            groups = settings.get("config_groups")
            if isinstance(groups, dict) and groups:
                # where some modules have one only, which of them is for their names to say
                are_static = [
                    isinstance(g, dict) and _is_static(g.get("input_activations"))
                    for g in groups.values()
                ]
                return are_static[0] if len({*are_static}) == 1 else None
            if "activation_scheme" in settings:
                schemes = [settings["activation_scheme"]]
            elif self.method == "modelopt" and "quant_algo" in settings:
                return {"FP8": True, "NVFP4": True, "MIXED_PRECISION": None}.get(
                    str(settings["quant_algo"]), False
                )
            elif self.method == "quark":
                own = settings.get("global_quant_config")
                schemes = [own.get("input_tensors")] if isinstance(own, dict) else []
        if self.method == "quanto":  # which stores scales of 1 where it quantises weights alone
            schemes = [
                value.get("activations") for value in settings.values() if isinstance(value, dict)
            ]
        if schemes:
            return any(map(_is_static, schemes))
        return False if self.method in _SAY_ALL else None

    def _weights(self) -> Iterator[Mapping[str, Any]]:
        groups = self.settings.get("config_groups")
        for group in groups.values() if isinstance(groups, dict) else ():
            weights = group.get("weights") if isinstance(group, dict) else None
            if isinstance(weights, dict):
                yield weights


def _is_static(scheme: object) -> bool:
    """Whether a scheme of activations has a scale that is stored."""
    if isinstance(scheme, Mapping):
        inner = [
            part["output_tensors"]
            for part in scheme.values()
            if isinstance(part, Mapping) and "output_tensors" in part
        ]
        if inner:  # Quark's, by pattern
            return any(map(_is_static, inner))
        return bool(scheme) and True not in (scheme.get("dynamic"), scheme.get("is_dynamic"))
    return isinstance(scheme, str) and scheme.lower() not in ("", "none", "auto", "dynamic")


def read_quantisation(config: Mapping[str, Any], folder: Path) -> Quantisation:
    """Return what config.json says, else a library's own file in the folder."""
    settings: dict[str, Any] = {}
    text = config.get("text_config")
    for part in (config, text if isinstance(text, dict) else {}):
        for key in ("quantization_config", "compression_config"):
            declared = part.get(key)
            if isinstance(declared, dict):
                settings = {**declared, **settings}
    method = str(settings.get("quant_method") or settings.get("quantization_type") or "")
    for name, owner in _OWN_FILES.items():
        if method not in ("", owner):
            continue
        own = read_json_object(folder / name)
        if own is None:
            continue
        inner = own.get("quantization")
        settings = {**(inner if isinstance(inner, dict) else own), **settings}
        method = owner
    if not method and "config_groups" in settings:
        method = "compressed-tensors"
    mlx = config.get("quantization")  # which mlx-lm writes a second time as quantization_config
    if not method and isinstance(mlx, dict) and {"bits", "group_size"} <= mlx.keys():
        method, settings = "mlx", {**mlx, **settings}
    method = {"intel/auto-round": "auto-round", "compressed_tensors": "compressed-tensors"}.get(
        method, method
    )
    return Quantisation(method=method, settings=settings)


def read_json_object(path: Path) -> dict[str, Any] | None:
    """Return what a file beside the weights says; None where it is not there or is no object."""
    try:
        content = json.loads(read_regular_text(path))
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None
