"""Everything about a loaded model and its surroundings that can change a score."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import evalguard
from evalguard.core.redaction import is_secret
from evalguard.core.settings import digest_of
from evalguard.models.load_failures import read_batching
from evalguard.models.tokenizers import tokenizer_digest

if TYPE_CHECKING:
    from evalguard.core.scorer import ScoringPolicy
    from evalguard.core.settings import Value


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
        "model_args": args_for_identity(_without_port(model_args, provenance)),
        "tokenizer": tokenizer_digest(lm),
        "dtype": model_dtype(lm),
        "device": device_name(lm),
        "threads": torch_threads(),
        "arithmetic": {**arithmetic_switches(), **arithmetic_variables()},
        "attention": attention_implementation(lm),
        "packages": {**package_versions(), **kernel_versions(), "code": scoring_code()},
        "policy": {**policy_for_identity(policy), **read_batching(lm)},
    }


def _without_port(
    model_args: Mapping[str, Value], provenance: Mapping[str, Value]
) -> Mapping[str, Value]:
    """The address of a server that evalguard started says nothing: its port changes every time."""
    started = "server" in provenance
    return {n: v for n, v in model_args.items() if not (started and n == "base_url")}


def args_for_identity(model_args: Mapping[str, Value]) -> dict[str, Value]:
    """The model_args that an identity holds: neither paths nor secrets."""
    return {k: v for k, v in model_args.items() if k not in _PATH_ARGS and not is_secret(k)}


def requested_batching(policy: ScoringPolicy) -> dict[str, Value]:
    """What a policy says of batches; what is left to the model says nothing."""
    asked: dict[str, Value] = {"batch_size": policy.batch_size}
    if policy.batch_size is None and policy.token_budget:
        asked["token_budget"] = policy.token_budget
    if not policy.share_prefixes:
        asked["shares_prefixes"] = False
    return asked


def policy_for_identity(policy: ScoringPolicy) -> dict[str, Value]:
    """The parts of a policy that an identity holds as they were asked for."""
    return {key: value for key, value in asdict(policy).items() if key not in _POLICY_ELSEWHERE}


# what they led to is in the identity by itself
_POLICY_ELSEWHERE = ("device", "threads", "batch_size", "token_budget", "scorer", "share_prefixes")


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
_ARITHMETIC_PREFIXES = (
    "ATEN_", "CUBLAS_", "CUDNN_", "DNNL_", "FLASH_ATTENTION", "KMP_DETERMINISTIC", "MIOPEN_",
    "MKL_", "NVIDIA_TF32_OVERRIDE", "NVTE_", "ONEDNN_", "OPENBLAS_CORETYPE", "ROCBLAS_",
    "TORCH_ALLOW_TF32", "TORCH_BLAS_", "TORCH_CUDNN", "TORCH_LINALG", "TRITON_F32", "XLA_FLAGS",
)  # fmt: skip


def arithmetic_variables() -> dict[str, Value]:
    """Return the environment variables that change how floats are computed."""
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith(_ARITHMETIC_PREFIXES) and not name.endswith("_NUM_THREADS")
    }


def attention_implementation(lm: Any) -> str | None:
    """The implementation that transformers looks up at every call, in the model's own config."""
    config = getattr(torch_model(lm), "config", None)
    found = getattr(config, "_attn_implementation", None)
    return found if isinstance(found, str) else None


def describe_environment(lm: Any, model_args: Mapping[str, Value]) -> dict[str, Value]:
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


def arithmetic_switches() -> dict[str, Value]:
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


# What a model is loaded into: this machine and what is installed on it, known without torch.


# Variables that these libraries, their kernels and compilers read.
_ENVIRONMENT_PREFIXES = (
    "ACCELERATE", "ASCEND_", "ATEN", "BITSANDBYTES", "BNB", "CUBLAS", "CUDA", "CUDNN", "DNNL",
    "FLASH", "FLA_", "GOMP", "GPU_", "HF_", "HIP", "HSA", "HUGGINGFACE", "KMP_", "LD_", "LMEVAL",
    "LM_EVAL", "LM_HARNESS", "MIOPEN", "MKL", "NPU_", "NVIDIA", "NVTE", "OMP_", "ONEDNN",
    "OPENBLAS", "PJRT", "PT_HPU", "PYTHON", "PYTORCH", "ROCM", "ROCR", "SAFETENSORS", "TOKENIZERS",
    "TORCH", "TRANSFORMERS", "TRITON", "USE_HUB_KERNELS", "XDG_CACHE", "XFORMERS", "XLA", "ZE_",
)  # fmt: skip
_METADATA_SUFFIXES = (".dist-info", ".egg-info", ".egg-link")


def describe_surroundings() -> dict[str, Value]:
    """Return everything outside a model's own files that may change what is loaded.

    Digests stand for what is long; no secret is among it. torch is not imported for it: where it is
    there already, its switches count as they stand.
    """
    return {
        "python": sys.version,
        "platform": platform.platform(),
        "processor": _processor(),
        "accelerators": _accelerators(),
        "installed": digest_of(sorted(_installed_packages())),
        "packages": {**package_versions(), **kernel_versions()},
        "evalguard": scoring_code(),
        "environment": digest_of(_environment_variables()),
        "torch": _torch_state(),
    }


def _processor() -> list[Value]:
    """The kind of processor, and how many of its cores this process may use."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    lines = _read_text(Path("/proc/cpuinfo")).partition("\n\n")[0].splitlines()
    kept = [line for line in lines if line.startswith(("model name", "flags", "Features", "CPU "))]
    return [platform.machine(), platform.processor(), usable, digest_of(kept)]


def _accelerators() -> list[Value]:
    """Device files and what the driver says of them; [] where there are none."""
    devices = sorted(
        str(path)
        for pattern in ("nvidia[0-9]*", "kfd", "dri/renderD*", "dxg", "accel*")
        for path in Path("/dev").glob(pattern)
    )
    driver = Path("/proc/driver/nvidia")
    told = [
        _read_text(driver / "version"),
        *map(_read_text, sorted(driver.glob("gpus/*/information"))),
    ]
    return [*devices, digest_of(told)]


def _installed_packages() -> Iterator[str]:
    """Names and versions of installed packages, as their folders are called."""
    for place in sys.path:
        try:
            names = os.listdir(place or ".")
        except OSError:
            continue
        yield from (name for name in names if name.endswith(_METADATA_SUFFIXES))


def _environment_variables() -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if name.upper().startswith(_ENVIRONMENT_PREFIXES) and not is_secret(name)
    }


def _torch_state() -> Value:
    if "torch" not in sys.modules:
        return None

    return {**arithmetic_switches(), "threads": torch_threads()}


def _read_text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
