"""What a model is loaded into: this machine and what is installed on it, known without torch."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from evalguard.models.identity import kernel_versions, package_versions, scoring_code
from evalguard.redaction import is_secret
from evalguard.settings import digest_of

if TYPE_CHECKING:
    from evalguard.settings import Value

# Variables that these libraries, their kernels and compilers read.
_READ = (
    "ACCELERATE", "ASCEND_", "ATEN", "BITSANDBYTES", "BNB", "CUBLAS", "CUDA", "CUDNN", "DNNL",
    "FLASH", "FLA_", "GOMP", "GPU_", "HF_", "HIP", "HSA", "HUGGINGFACE", "KMP_", "LD_", "LMEVAL",
    "LM_EVAL", "LM_HARNESS", "MIOPEN", "MKL", "NPU_", "NVIDIA", "NVTE", "OMP_", "ONEDNN",
    "OPENBLAS", "PJRT", "PT_HPU", "PYTHON", "PYTORCH", "ROCM", "ROCR", "SAFETENSORS", "TOKENIZERS",
    "TORCH", "TRANSFORMERS", "TRITON", "USE_HUB_KERNELS", "XDG_CACHE", "XFORMERS", "XLA", "ZE_",
)  # fmt: skip
_INSTALLED = (".dist-info", ".egg-info", ".egg-link")


def surroundings() -> dict[str, Value]:
    """Return everything outside a model's own files that may change what is loaded.

    Digests stand for what is long; no secret is among it. torch is not imported for it: where it is
    there already, its switches count as they stand.
    """
    return {
        "python": sys.version,
        "platform": platform.platform(),
        "processor": _processor(),
        "accelerators": _accelerators(),
        "installed": digest_of(sorted(_installed())),
        "packages": {**package_versions(), **kernel_versions()},
        "evalguard": scoring_code(),
        "environment": digest_of(_variables()),
        "torch": _torch_as_it_is(),
    }


def _processor() -> list[Value]:
    """The kind of processor, and how many of its cores this process may use."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    lines = _text(Path("/proc/cpuinfo")).partition("\n\n")[0].splitlines()
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
    told = [_text(driver / "version"), *map(_text, sorted(driver.glob("gpus/*/information")))]
    return [*devices, digest_of(told)]


def _installed() -> Iterator[str]:
    """Names and versions of installed packages, as their folders are called."""
    for place in sys.path:
        try:
            names = os.listdir(place or ".")
        except OSError:
            continue
        yield from (name for name in names if name.endswith(_INSTALLED))


def _variables() -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if name.upper().startswith(_READ) and not is_secret(name)
    }


def _torch_as_it_is() -> Value:
    if "torch" not in sys.modules:
        return None
    from evalguard.models.identity import arithmetic, torch_threads

    return {**arithmetic(), "threads": torch_threads()}


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
