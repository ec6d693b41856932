"""Everything about a loaded model and its surroundings that can change a score."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import evalguard
from evalguard.models.batching import batching
from evalguard.models.tokenizer_digest import tokenizer_digest
from evalguard.redaction import is_secret
from evalguard.settings import digest_of

if TYPE_CHECKING:
    from evalguard.scorer import ScoringPolicy
    from evalguard.settings import Value

_PACKAGES = ("torch", "transformers", "tokenizers", "lm_eval", "numpy")
# Where one of these is installed, transformers or a model's own code may compute with it.
_KERNELS = (
    "accelerate", "auto-round", "autoawq", "bitsandbytes", "causal-conv1d", "compressed-tensors",
    "flash-attn", "flash-linear-attention", "gptqmodel", "kernels", "mamba-ssm", "optimum", "peft",
    "rwkv", "sentencepiece", "tiktoken", "torchao", "transformer-lens", "triton", "xformers",
)  # fmt: skip
# model_args that name files; their contents are in the provenance instead of their paths
_PATH_ARGS = ("pretrained", "tokenizer", "peft", "delta")


def scoring_identity(
    lm: Any,
    model_type: str,
    model_args: Mapping[str, Value],
    policy: ScoringPolicy,
    provenance: Mapping[str, Value],
) -> dict[str, Value]:
    """Collect the parts of a score's identity that the loaded model shows.

    ``provenance`` holds what only the loader knows: digests of weights and code, settings asked
    for and read back.
    """
    return {
        **provenance,
        "model": model_type,
        "model_args": told_args(model_args),
        "tokenizer": tokenizer_digest(lm),
        "dtype": model_dtype(lm),
        "device": device_name(lm),
        "threads": torch_threads(),
        "arithmetic": {**arithmetic(), **arithmetic_variables()},
        "attention": attention(lm),
        "packages": {**package_versions(), **kernel_versions(), "code": scoring_code()},
        "policy": {**told_policy(policy), **batching(lm)},
    }


def told_args(model_args: Mapping[str, Value]) -> dict[str, Value]:
    """The model_args that an identity holds: neither paths nor secrets."""
    return {k: v for k, v in model_args.items() if k not in _PATH_ARGS and not is_secret(k)}


def asked_batches(policy: ScoringPolicy) -> dict[str, Value]:
    """What a policy says of batches; what is left to the model says nothing."""
    asked: dict[str, Value] = {"batch_size": policy.batch_size}
    if policy.batch_size is None and policy.token_budget:
        asked["token_budget"] = policy.token_budget
    if not policy.share_prefixes:
        asked["shares_prefixes"] = False
    return asked


def told_policy(policy: ScoringPolicy) -> dict[str, Value]:
    """The parts of a policy that an identity holds as they were asked for."""
    return {key: value for key, value in asdict(policy).items() if key not in _NOT_SCORING}


# what they led to is in the identity by itself
_NOT_SCORING = ("device", "threads", "batch_size", "token_budget", "scorer", "share_prefixes")


def torch_model(lm: Any) -> Any | None:
    """Return the torch module inside an lm-eval model, or None."""
    import torch

    model = getattr(lm, "model", None)
    return model if isinstance(model, torch.nn.Module) else None


def model_dtype(lm: Any) -> str:
    """Return the dtypes of the weights by name, the most common first; "" where unknown."""
    model = torch_model(lm)
    sizes: dict[str, int] = {}
    for tensor in () if model is None else model.parameters():
        name = str(tensor.dtype).removeprefix("torch.")
        sizes[name] = sizes.get(name, 0) + tensor.numel()
    return "+".join(sorted(sizes, key=lambda name: -sizes[name]))


def device_name(lm: Any) -> str:
    """Return the kind of device that computes, as far as it changes arithmetic; "" if unknown."""
    import torch

    device = getattr(lm, "device", None)
    if device is None:
        return ""
    if str(device).startswith("cuda"):
        return f"cuda ({torch.cuda.get_device_name(device)})"
    if str(device) == "cpu":
        return f"cpu ({platform.machine()}, {torch.backends.cpu.get_cpu_capability()})"
    return str(device)


@functools.cache
def package_versions() -> Mapping[str, Value]:
    """Return the versions of the packages that compute scores; read once, from their metadata."""
    return {"evalguard": evalguard.__version__, **{n: metadata.version(n) for n in _PACKAGES}}


@functools.cache
def kernel_versions() -> Mapping[str, Value]:
    """Return the versions of packages that compute scores where they are installed."""
    found: dict[str, Value] = {}
    for name in _KERNELS:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


@functools.cache
def scoring_code() -> str:
    """Digest of evalguard's own code, whole: a checkout changes without its version.

    Times of its files say nothing: reproducible builds give all of them the same.
    """
    package = Path(evalguard.__file__).parent
    digests = [
        [file.relative_to(package).as_posix(), hashlib.sha256(file.read_bytes()).hexdigest()]
        for file in sorted(package.rglob("*.py"))
    ]
    return digest_of(digests)


# Variables that change how a sum comes out, by their beginnings; numbers of threads are read back.
_ARITHMETIC = (
    "ATEN_", "CUBLAS_", "CUDNN_", "DNNL_", "FLASH_ATTENTION", "KMP_DETERMINISTIC", "MIOPEN_",
    "MKL_", "NVIDIA_TF32_OVERRIDE", "NVTE_", "ONEDNN_", "OPENBLAS_CORETYPE", "ROCBLAS_",
    "TORCH_ALLOW_TF32", "TORCH_BLAS_", "TORCH_CUDNN", "TORCH_LINALG", "TRITON_F32", "XLA_FLAGS",
)  # fmt: skip


def arithmetic_variables() -> dict[str, Value]:
    """Return the environment variables that change how floats are computed."""
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith(_ARITHMETIC) and not name.endswith("_NUM_THREADS")
    }


def attention(lm: Any) -> str | None:
    """The implementation that transformers looks up at every call, in the model's own config."""
    config = getattr(torch_model(lm), "config", None)
    found = getattr(config, "_attn_implementation", None)
    return found if isinstance(found, str) else None


def environment(lm: Any, model_args: Mapping[str, Value]) -> dict[str, Value]:
    """Return where this model runs, for a person to read."""
    found = {
        "rolling_bos": getattr(lm, "rolling_bos", None),
        "add_bos_token": getattr(lm, "add_bos_token", None),
        "prefix_token_id": getattr(lm, "custom_prefix_token_id", None),
    }
    if torch_model(lm) is None:  # of other types lm-eval's defaults say nothing
        found |= {name: model_args.get(name) for name in ("add_bos_token", "prefix_token_id")}
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": device_name(lm),
        "threads": torch_threads(),
        "packages": dict(package_versions()),
        **{name: value for name, value in found.items() if value is not None},
    }


def torch_threads() -> int:
    """Return the number of CPU threads that torch computes with now."""
    import torch

    return torch.get_num_threads()


def arithmetic() -> dict[str, Value]:
    """Return torch's switches that change what a sum comes to."""
    import torch

    backends: Any = torch.backends
    # since torch 2.9 each kind of operation has a switch, and asking for the old one may raise
    if hasattr(backends, "fp32_precision"):
        inherited = str(backends.fp32_precision).replace("none", "ieee")
        units = (backends.cuda.matmul, backends.cudnn.conv, backends.mkldnn.matmul)
        precision = [str(unit.fp32_precision).replace("none", inherited) for unit in units]
    else:
        precision = [torch.get_float32_matmul_precision(), str(backends.cudnn.allow_tf32)]
    return {
        "default_dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "float32_precision": [*precision],
        "fp16_reduction": str(backends.cuda.matmul.allow_fp16_reduced_precision_reduction),
        "bf16_reduction": str(backends.cuda.matmul.allow_bf16_reduced_precision_reduction),
        "mkldnn": bool(backends.mkldnn.enabled),
    }
