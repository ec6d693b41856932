"""Everything about a loaded model and its surroundings that can change a score."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import evalguard
from evalguard.core.redaction import is_secret, redact_value
from evalguard.core.settings import digest_of
from evalguard.models.scoring_code import scoring_code
from evalguard.models.tokenizers import tokenizer_digest
from evalguard.start_up import start_up_code

if TYPE_CHECKING:
    from evalguard.core.scorer import ScoringPolicy
    from evalguard.core.settings import Value


def read_batching(lm: Any) -> dict[str, Value]:
    """Return batch_size, token_budget, scorer and shares_prefixes, read back from an lm-eval model.

    None for what it does not show, or has not.
    """
    size = getattr(lm, "batch_size", None)
    batching: dict[str, Value] = {
        "batch_size": size if isinstance(size, (int, str)) else None,
        "token_budget": None,
        "scorer": None,
        "shares_prefixes": None,
    }
    if not hasattr(lm, "score_pairs"):
        return batching
    if not lm.own_path:
        return {**batching, "scorer": "harness", "shares_prefixes": False}
    by_tokens = lm.sequences is None
    return {
        "batch_size": lm.sequences,
        "token_budget": lm.token_budget if by_tokens else None,
        "scorer": "fast" if lm.only_scored_positions else "full logits",
        "shares_prefixes": lm.sharing is not None,
    }


_PACKAGES = ("torch", "transformers", "tokenizers", "lm_eval", "numpy")
# Where one of these is installed, transformers or a model's own code may compute with it.
_KERNELS = (
    "accelerate", "auto-round", "autoawq", "bitsandbytes", "causal-conv1d", "compressed-tensors",
    "flash-attn", "flash-linear-attention", "gptqmodel", "kernels", "mamba-ssm", "optimum", "peft",
    "rwkv", "sentencepiece", "tiktoken", "torchao", "transformer-lens", "triton", "xformers",
)  # fmt: skip
# model_args that name files; their contents are in the provenance instead of their paths
_PATH_ARGS = ("pretrained", "tokenizer", "peft", "delta")
# Parts of a policy that no identity holds, and why.
POLICY_LEFT_OUT: Mapping[str, str] = {
    "device": "what it led to is the part `device`",
    "threads": "what it led to is the part `threads`",
    "batch_size": "what the model made of it is in `policy`, read back",
    "token_budget": "what the model made of it is in `policy`, read back",
    "scorer": "what the model made of it is in `policy`, read back",
    "share_prefixes": "what the model made of it is in `policy`, read back",
}
# Of a policy, all that a server is asked by; the rest is for models that compute here.
_POLICY_OF_SERVERS = ("seed", "max_gen_toks", "rolling_bos")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreIdentity:
    """Everything that can change the scores of a model, of whatever type; equal means equal scores.

    Left out are paths, secrets and where a server is reached, which change nothing, and what
    ``POLICY_LEFT_OUT`` and ``scoring_code.LEFT_OUT`` name, with the reasons.

    Attributes:
        model, model_args: lm-eval's names.
        weights: digests of the files that it is loaded from, by name.
        code: digests of code that is not evalguard's: hooks, a checkpoint's own, libraries.
        settings: target of each, what was asked for and what was read back; hooks in their order.
        scoring: digest of evalguard's own code that makes scores.
        start_up: digest of code that Python runs before all else (sitecustomize and the like).
        tokenizer, dtype, attention: of the loaded model; "" or None where it does not show them.
        device: what computes, as far as it changes arithmetic.
        threads: CPU threads that compute.
        arithmetic: switches and variables that change what a sum comes to.
        packages: versions of what computes.
        policy: how it is scored: as asked, and as read back.
        server: what a server was started with, where evalguard started it.
        served, revision, told: of any server: which of its models, by which revision the user
            vouches for it, and what it tells of itself.
    """

    model: str
    model_args: Mapping[str, Value]
    weights: Value = None
    code: Value = None
    settings: Value = None
    scoring: str
    start_up: str
    tokenizer: Value = ""
    dtype: str = ""
    device: Value = ""
    threads: Value = 0
    arithmetic: Mapping[str, Value] = field(default_factory=dict)
    attention: str | None = None
    packages: Mapping[str, Value] = field(default_factory=dict)
    policy: Mapping[str, Value] = field(default_factory=dict)
    server: Value = None
    served: str = ""
    revision: str = ""
    told: Value = None

    def as_values(self) -> dict[str, Value]:
        """The parts by name, as plain values."""
        values = ((part.name, getattr(self, part.name)) for part in fields(self))
        return {name: dict(v) if isinstance(v, Mapping) else v for name, v in values}


def scoring_identity(
    *,
    model: str,
    model_args: Mapping[str, Value],
    provenance: Mapping[str, Value],
    policy: Mapping[str, Value],
    packages: Mapping[str, Value],
    **parts: Any,
) -> dict[str, Value]:
    """Make the identity of a model of any type: what the caller knows, and what holds for all.

    Args:
        provenance: digests of weights and code, settings, a server: what only the loader knows.
        parts: others of ``ScoreIdentity``, as the model shows them.
    """
    started = "server" in provenance
    return ScoreIdentity(
        model=model,
        model_args=args_for_identity(model_args, started=started),
        scoring=scoring_code(),
        start_up=start_up_code(),
        policy=policy,
        packages=packages,
        **{**parts, **provenance},
    ).as_values()


def identity_of_lm(
    lm: Any,
    model_type: str,
    model_args: Mapping[str, Value],
    policy: ScoringPolicy,
    provenance: Mapping[str, Value],
) -> dict[str, Value]:
    """The identity of an lm-eval model that computes in this process."""
    return scoring_identity(
        model=model_type,
        model_args=model_args,
        provenance=provenance,
        policy={**policy_for_identity(policy), **read_batching(lm)},
        packages={**package_versions(), **kernel_versions()},
        tokenizer=tokenizer_digest(lm),
        dtype=model_dtype(lm),
        device=_device_parts(device_name(lm)),
        threads=torch_threads(),
        arithmetic={**arithmetic_switches(), **arithmetic_variables()},
        attention=attention_implementation(lm),
    )


def identity_of_server(
    lm: Any,
    model_type: str,
    model_args: Mapping[str, Value],
    policy: ScoringPolicy,
    *,
    revision: str,
    settings: Mapping[str, Value],
) -> dict[str, Value]:
    """The identity of what a server answers, but for what the server tells of itself.

    Args:
        lm: lm-eval's client of it.
        revision: by which the user vouches for what is served.
        settings: their values, read back.
    """
    asked = asdict(policy)
    return scoring_identity(
        model=model_type,
        model_args={n: redact_value(v, n) for n, v in without_route(model_args).items()},
        provenance={"settings": dict(settings)},
        policy={name: asked[name] for name in _POLICY_OF_SERVERS} | {"batch_size": lm._batch_size},
        packages=package_versions(),
        tokenizer=tokenizer_digest(lm),
        served=str(lm.model),
        revision=revision,
    )


def identity_of_runtime(
    model: str,
    model_args: Mapping[str, Value],
    policy: ScoringPolicy,
    provenance: Mapping[str, Value],
    *,
    dtype: str,
    device: str,
    packages: Mapping[str, Value],
) -> dict[str, Value]:
    """The identity of a model that one of evalguard's runtimes has loaded in this process."""
    here = "torch" in sys.modules
    switches = arithmetic_switches() if here else {}
    return scoring_identity(
        model=model,
        model_args=model_args,
        provenance=provenance,
        policy=policy_for_identity(policy),
        packages={"python": platform.python_version(), "installed": digest_of(dict(packages))},
        dtype=dtype,
        device=_device_parts(device),
        threads=[policy.threads or usable_cores(), torch_threads() if here else None],
        arithmetic={**switches, **arithmetic_variables(), **thread_variables()},
    )


def _device_parts(device: str) -> list[Value]:
    """What computes; of a CPU its kind as well, by which libraries choose how they add."""
    return [device, *(() if device.startswith("cuda") else processor())]


# Where and how a server is reached says nothing of what it answers; how many requests it works on
# at the same time may change its sums.
_ROUTE_ARGUMENTS = (
    "base_url", "timeout", "max_retries", "verify_certificate", "ca_cert_path", "auth_token",
    "header",
)  # fmt: skip


def without_route(model_args: Mapping[str, Value]) -> dict[str, Value]:
    """The arguments of a client without those that say where its server is reached."""
    return {name: value for name, value in model_args.items() if name not in _ROUTE_ARGUMENTS}


def args_for_identity(
    model_args: Mapping[str, Value], *, started: bool = False
) -> dict[str, Value]:
    """The model_args that an identity holds: neither paths nor secrets.

    Args:
        started: of a server that evalguard started: its port changes every time.
    """
    left_out = (*_PATH_ARGS, "base_url") if started else _PATH_ARGS
    return {k: v for k, v in model_args.items() if k not in left_out and not is_secret(k)}


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
    return {key: value for key, value in asdict(policy).items() if key not in POLICY_LEFT_OUT}


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
    return {name: metadata.version(name) for name in _PACKAGES}


@functools.cache
def kernel_versions() -> Mapping[str, Value]:
    """Return the versions of packages that compute scores where they are installed."""
    versions: dict[str, Value] = {}
    for name in _KERNELS:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


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


def thread_variables() -> dict[str, Value]:
    """Return the environment variables that say how many threads libraries compute with."""
    return {n: v for n, v in sorted(os.environ.items()) if n.endswith("_NUM_THREADS")}


def attention_implementation(lm: Any) -> str | None:
    """The implementation that transformers looks up at every call, in the model's own config."""
    config = getattr(torch_model(lm), "config", None)
    implementation = getattr(config, "_attn_implementation", None)
    return implementation if isinstance(implementation, str) else None


def describe_environment(lm: Any, model_args: Mapping[str, Value]) -> dict[str, Value]:
    """Return where this model runs, for a person to read."""
    settings = {
        "rolling_bos": getattr(lm, "rolling_bos", None),
        "add_bos_token": getattr(lm, "add_bos_token", None),
        "prefix_token_id": getattr(lm, "custom_prefix_token_id", None),
    }
    if torch_model(lm) is None:  # of other types lm-eval's defaults say nothing
        settings |= {name: model_args.get(name) for name in ("add_bos_token", "prefix_token_id")}
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": device_name(lm),
        "threads": torch_threads(),
        "packages": {"evalguard": evalguard.__version__, **package_versions()},
        **{name: value for name, value in settings.items() if value is not None},
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
        "processor": [*processor(), usable_cores()],
        "accelerators": _accelerators(),
        "installed": digest_of(sorted(_installed_packages())),
        "packages": {**package_versions(), **kernel_versions()},
        "evalguard": scoring_code(),
        "start_up": start_up_code(),
        "environment": digest_of(_environment_variables()),
        "torch": _torch_state(),
    }


@functools.cache
def processor() -> tuple[str, str, str]:
    """The kind of processor: libraries choose their arithmetic by its model and what it can do."""
    lines = _read_text(Path("/proc/cpuinfo")).partition("\n\n")[0].splitlines()
    traits = [
        line for line in lines if line.startswith(("model name", "flags", "Features", "CPU "))
    ]
    return platform.machine(), platform.processor(), digest_of(traits)


def usable_cores() -> int:
    """How many cores this process may use."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return usable or 1


def _accelerators() -> list[Value]:
    """Device files and what the driver says of them; [] where there are none."""
    devices = sorted(
        str(path)
        for pattern in ("nvidia[0-9]*", "kfd", "dri/renderD*", "dxg", "accel*")
        for path in Path("/dev").glob(pattern)
    )
    driver = Path("/proc/driver/nvidia")
    facts = [
        _read_text(driver / "version"),
        *map(_read_text, sorted(driver.glob("gpus/*/information"))),
    ]
    return [*devices, digest_of(facts)]


def _installed_packages() -> Iterator[str]:
    """Names and versions of installed packages, as their folders are called; not evalguard's."""
    for folder in sys.path:
        try:
            names = os.listdir(folder or ".")
        except OSError:
            continue
        installed = (name for name in names if name.endswith(_METADATA_SUFFIXES))
        yield from (name for name in installed if not name.startswith("evalguard-"))


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
