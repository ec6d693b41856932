"""Quantised checkpoints: whether transformers can read one here, and what helps where not."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evalguard.errors import UsageError
from evalguard.models.runtimes.types import describe_installation
from evalguard.regular_file import read_regular_text

# What transformers needs beside itself and accelerate, by quant_method.
_PACKAGES: Mapping[str, tuple[str, ...]] = {
    "aqlm": ("aqlm[gpu,cpu]",),
    "auto-round": ("auto-round",),
    "awq": ("gptqmodel",),
    "bitsandbytes": ("bitsandbytes",),
    "compressed-tensors": ("compressed-tensors",),
    "eetq": ("kernels",),
    "fouroversix": ("fouroversix",),
    "gptq": ("optimum", "gptqmodel"),
    "hqq": ("hqq",),
    "quanto": ("optimum-quanto",),
    "quark": ("amd-quark",),
    "sinq": ("sinq",),
    "spqr": ("spqr_quant[gpu]",),
    "torchao": ("torchao",),
    "vptq": ("vptq",),
}
_MODELOPT = frozenset({"modelopt", "modelopt_fp4", "modelopt_mixed", "modelopt_mxfp8"})
# What vLLM reads by itself, from whatever wrote it.
_OF_VLLM = _MODELOPT | {
    "auto-round", "awq", "bitsandbytes", "compressed-tensors", "fbgemm_fp8", "fp8", "gptq", "mxfp4",
    "quark", "torchao",
}  # fmt: skip
_EXLLAMA = {"exl2": "exllamav2", "exl3": "exllamav3"}
_MLX = "mlx"
# Model arguments by which transformers reads other weights, or lm-eval these in its own way.
OTHER_WEIGHTS = ("gguf_file", "autogptq", "gptqmodel")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredQuantisation:
    """How the weights of a folder are quantised; ``settings`` is what transformers is told.

    ``form``: of several that a method writes, NVFP4 say; "" where it does not say.
    """

    method: str
    settings: Mapping[str, Any]
    form: str = ""


def read_stored_quantisation(config: Path) -> StoredQuantisation | None:
    """Return what a checkpoint's config.json, or ModelOpt's file beside it, says of its weights.

    None: they are plain, or that cannot be read; loading says why.
    """
    config_values = _read_object(config)
    inner = config_values.get("text_config")
    nested = inner.get("quantization_config") if isinstance(inner, dict) else None
    settings = config_values.get("quantization_config") or nested or {}
    method = settings.get("quant_method") if isinstance(settings, dict) else None
    if method:
        form = settings.get("quant_algo") or settings.get("format") or ""
        return StoredQuantisation(method=str(method), settings=settings, form=str(form))
    if isinstance(settings, dict) and (
        settings.get("load_in_4bit") or settings.get("load_in_8bit")
    ):
        return StoredQuantisation(method="bitsandbytes", settings=settings)
    # MLX writes its own key, and since 2024 the same under transformers' name, without a method.
    own = config_values.get("quantization")
    if isinstance(own, dict) and {"bits", "group_size"} <= own.keys():
        return StoredQuantisation(method=_MLX, settings=own)
    beside = config.parent / "hf_quant_config.json"
    if not settings and beside.is_file():
        written = _read_object(beside).get("quantization")
        form = written.get("quant_algo") if isinstance(written, dict) else None
        return StoredQuantisation(method="modelopt", settings={}, form=str(form or ""))
    return StoredQuantisation(method="", settings={}) if settings else None


def _read_object(file: Path) -> Mapping[str, Any]:
    try:
        parsed = json.loads(read_regular_text(file))
    except (OSError, ValueError, RecursionError):
        return {}
    return parsed if isinstance(parsed, dict) else {}


def check_quantisation(name: str, config: Path, given: Mapping[str, Any]) -> None:
    """Refuse weights that nothing in this environment reads, before any of them is loaded.

    transformers itself is asked what it needs: a method that it doesn't know it skips, and reads
    the packed weights as plain ones.

    Args:
        name: what the user called the model.
        config: its config.json.
        given: model arguments.

    Raises:
        UsageError: with the reason, and what reads them.
    """
    stored = read_stored_quantisation(config)
    if any(given.get(name) for name in OTHER_WEIGHTS):
        return
    if stored is None:
        _check_asked(name, given.get("quantization_config"))
        return
    reason = _missing_here(stored, given.get("quantization_config"))
    if reason is not None:
        raise UsageError(
            f"{name} holds {_called(stored)} weights, which cannot be read here: "
            f"{' '.join(str(reason).split())}",
            hint=_help(name, stored.method, installable=isinstance(reason, ImportError)),
        )


def _check_asked(name: str, asked: Any) -> None:
    """Refuse a quantisation of plain weights whose package is missing, before they are read."""
    from evalguard.models.runtimes.hf import read_quantisation

    if asked is None:
        return
    reason = _missing_for(lambda: read_quantisation(asked), pre_quantized=False)
    if isinstance(reason, UsageError):
        raise reason
    if isinstance(reason, ImportError):
        packages = [
            _at_version(package) for package in _PACKAGES.get(str(asked["quant_method"]), ())
        ]
        needed = ("torch", "transformers", "accelerate")
        raise UsageError(
            f"{name} cannot be quantised here: {' '.join(str(reason).split())}",
            hint=describe_installation(packages, beside=needed) if packages else "",
            target="model_args.quantization_config",
        )


def _called(stored: StoredQuantisation) -> str:
    form = f" ({stored.form})" if stored.form else ""
    return f"{stored.method}{form} quantised" if stored.method else "quantised"


def _missing_here(stored: StoredQuantisation, given: Any) -> Exception | None:
    """What transformers says it lacks; None where it can read the weights."""
    import transformers
    from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING, AutoHfQuantizer

    from evalguard.models.runtimes.hf import read_quantisation

    known = {name.removesuffix("_4bit").removesuffix("_8bit") for name in AUTO_QUANTIZER_MAPPING}
    if stored.method not in known:
        return ValueError(f"transformers {transformers.__version__} does not know the method")
    asked = None if given is None else read_quantisation(given)
    return _missing_for(
        lambda: AutoHfQuantizer.merge_quantization_configs(dict(stored.settings), asked),
        pre_quantized=True,
    )


def _missing_for(make: Callable[[], Any], *, pre_quantized: bool) -> Exception | None:
    """What transformers says it lacks for the configuration of a quantisation; None: nothing."""
    from transformers.quantizers.auto import AutoHfQuantizer
    from transformers.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity_error()  # what it warns of is a caveat of the loaded model
    try:
        quantizer = AutoHfQuantizer.from_config(make(), pre_quantized=pre_quantized)
        quantizer.validate_environment(device_map=None, weights_only=True)
    except Exception as error:  # noqa: BLE001 - of whatever class its author chose
        return error
    finally:
        logging.set_verbosity(level)
    return None


def _help(name: str, method: str, *, installable: bool) -> str:
    if method == _MLX:
        return (
            f"mlx_lm.convert --hf-path {name} --mlx-path PLAIN --dequantize writes a folder with "
            "the same values that is read here; evalguard tensors reads this one"
        )
    if method in _EXLLAMA:
        return (
            f"only {_EXLLAMA[method]} reads it: serve it (TabbyAPI) and name the address, "
            "http://HOST:PORT/v1"
        )
    ways = []
    packages = [_at_version(package) for package in _PACKAGES.get(method, ())]
    if packages and installable:
        ways.append(describe_installation(packages, beside=("torch", "transformers", "accelerate")))
    if method in _OF_VLLM:
        only = "" if ways else "of the model types here only vLLM reads it: "
        ways.append(f"{only}vllm:{name} (pip install vllm)")
    return ", or ".join(ways) or (
        "name the folder that it was quantised from, or give it requirements: with a transformers "
        "that reads it"
    )


def _at_version(package: str) -> str:
    """A package with the least version that the installed transformers asks for, if it does."""
    from transformers.quantizers import quantizer_gptq
    from transformers.utils import import_utils

    plain = package.partition("[")[0]
    names = {plain.replace("-", "_").upper(), plain.replace("-", "").upper()}
    names = {f"{name}_MIN_VERSION" for name in names}
    names |= {f"MIN_{plain.removesuffix('model').upper()}_VERSION"}
    held = (getattr(of, name, "") for of in (import_utils, quantizer_gptq) for name in names)
    least = next(filter(None, held), "")
    return f"{package}>={least}" if least else package
