"""Model types that evalguard brings, and what each of them needs."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evalguard.errors import EvaluationError, UsageError
from evalguard.models.runtimes.runtime import Runtime, RuntimeArguments

# A whole number from this one on; true or false; a number; a text; one of some words; None: what
# others check, or only the library knows.
AllowedValues = int | type[bool] | type[float] | type[str] | tuple[str, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeType:
    """One model type.

    Attributes:
        module: file of this room that loads it.
        imports: modules of which all have to be there; a tuple inside: one of them.
        requirements: what installs them.
        purpose: one line for people.
        arguments: its model_args, each with the values that it can have; None: whatever its
            library takes.
        others: whether its library takes others beside them.
    """

    module: str
    imports: tuple[str | tuple[str, ...], ...]
    requirements: tuple[str, ...]
    purpose: str
    arguments: Mapping[str, AllowedValues] | None
    others: bool = False

    @property
    def missing(self) -> tuple[str, ...]:
        """Modules that are not in this environment."""
        absent = []
        for requirement in self.imports:
            options = (requirement,) if isinstance(requirement, str) else requirement
            if not any(importlib.util.find_spec(name) for name in options):
                absent.append(" or ".join(options))
        return tuple(absent)


_TEXTS: Mapping[str, AllowedValues] = {
    "pretrained": str, "revision": str, "tokenizer": str, "add_bos_token": bool,
    "prefix_token_id": 0,
}  # fmt: skip
_OF_TORCH: Mapping[str, AllowedValues] = {**_TEXTS, "dtype": None, "device": None, "max_length": 1}
_KV_TYPES = ("f32", "f16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "bf16")
# All that ONNX Runtime is built with somewhere; which this machine's has, it says itself.
_PROVIDERS = tuple(
    f"{name}ExecutionProvider"
    for name in (
        "CPU", "CUDA", "Tensorrt", "NvTensorRTRTX", "ROCM", "MIGraphX", "OpenVINO", "Dnnl", "Dml",
        "CoreML", "QNN", "SNPE", "Xnnpack", "Nnapi", "WebGpu", "WebNN", "JS", "Azure", "VitisAI",
        "ACL", "ArmNN", "Rknpu", "CANN", "Tvm", "VSINPU",
    )
)  # fmt: skip
# Activations that TransformerLens has had by name, up to 4.3; the one that is here says itself.
_ACTIVATIONS = (
    "solu", "solu_ln", "gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "silu", "relu",
    "relu2", "xielu",
)  # fmt: skip
# Engine arguments that vLLM has had for years, for an environment that it is not in.
_ENGINE: Mapping[str, AllowedValues] = {
    "tokenizer_mode": str, "tokenizer_revision": str, "load_format": str, "download_dir": str,
    "dtype": ("auto", "half", "float16", "bfloat16", "float", "float32"),
    "kv_cache_dtype": str, "quantization": str, "enforce_eager": bool, "max_model_len": -1,
    "max_num_seqs": 1, "max_num_batched_tokens": 1, "gpu_memory_utilization": float,
    "enable_prefix_caching": bool, "enable_chunked_prefill": bool, "block_size": 1,
    "tensor_parallel_size": 1, "pipeline_parallel_size": 1, "enable_expert_parallel": bool,
    "disable_custom_all_reduce": bool, "cpu_offload_gb": float, "max_logprobs": -1, "seed": 0,
    "enable_lora": bool, "disable_log_stats": bool,
}  # fmt: skip
# "transformers" is what model: hf becomes in an environment of its own.
RUNTIME_TYPES: Mapping[str, RuntimeType] = {
    "transformers": RuntimeType(
        module="hf",
        imports=("torch", "transformers"),
        requirements=("torch", "transformers"),
        purpose="transformers of another version, in an environment of its own",
        arguments={**_OF_TORCH, "attn_implementation": None, "quantization_config": None},
    ),
    "transformer_lens": RuntimeType(
        module="transformer_lens",
        imports=("transformer_lens",),
        requirements=("transformer-lens",),
        purpose="HookedTransformer (2.x, 3.x) and TransformerBridge (3.x, 4.x)",
        arguments={
            **_OF_TORCH,
            "api": ("hooked", "bridge"),
            "compatibility_mode": bool,
            "attn_implementation": None,
            "attn_scale": float,
            "attn_scores_soft_cap": float,
            "output_logits_soft_cap": float,
            "eps": float,
            "rotary_base": float,
            "use_attn_scale": bool,
            "use_local_attn": bool,
            "window_size": 1,
            "act_fn": _ACTIVATIONS,
            "attn_types": None,
        },
    ),
    "llama_cpp": RuntimeType(
        module="llama_cpp",
        imports=(("xllamacpp", "llama_cpp"),),
        requirements=("xllamacpp",),
        purpose="GGUF files by llama.cpp: KV types, flash attention, threads",
        arguments={
            **_TEXTS,
            "n_ctx": 1,
            "n_batch": 1,
            "n_ubatch": 1,
            "threads": 1,
            "type_k": _KV_TYPES,
            "type_v": _KV_TYPES,
            "flash_attn": ("auto", "off", "on"),
        },
    ),
    "fla": RuntimeType(
        module="fla",
        imports=("torch", "transformers", "triton", "fla"),
        requirements=("torch", "transformers", "triton", "flash-linear-attention"),
        purpose="flash-linear-attention; on a CPU RWKV-7 only, by kernels in plain torch",
        arguments={
            **_OF_TORCH,
            "prefill": ("auto", "chunk", "recurrent"),
            "fuse_norm": bool,
            "pad_to": 1,
            "segment": 1,
            "state_layout": ("kv", "vk"),
        },
    ),
    "onnx": RuntimeType(
        module="graphs",
        imports=("onnxruntime", ("transformers", "tokenizers")),
        requirements=("tokenizers", "onnxruntime"),
        purpose="ONNX graphs by ONNX Runtime",
        arguments={
            **_TEXTS,
            "max_length": 1,
            "file": str,
            "threads": 0,
            "provider": _PROVIDERS,
            "optimization": ("disabled", "basic", "extended", "all"),
        },
    ),
    "openvino": RuntimeType(
        module="graphs",
        imports=("openvino", ("transformers", "tokenizers")),
        requirements=("tokenizers", "openvino"),
        purpose="ONNX graphs and OpenVINO's own by OpenVINO",
        arguments={
            **_TEXTS,
            "max_length": 1,
            "file": str,
            "threads": 0,
            "target": None,
            "precision": ("f32", "bf16", "f16"),
        },
    ),
    "vllm": RuntimeType(
        module="vllm",
        imports=("vllm",),
        requirements=("vllm",),
        purpose="vLLM in this process, any engine argument; exact distributions",
        arguments={**_TEXTS, **_ENGINE, "max_length": 1},
        others=True,
    ),
    "rwkv": RuntimeType(
        module="rwkv",
        imports=("torch", "rwkv"),
        requirements=("torch", "rwkv"),
        purpose="RWKV-7 by rwkv-pip, one sequence at a time",
        arguments={**_TEXTS, "strategy": str, "max_length": 1},
    ),
}


def describe_installation(packages: Sequence[str], *, beside: Sequence[str] = ()) -> str:
    """Say how a model gets packages: in this environment, or in one of its own, in a guard file.

    Args:
        packages: as pip takes them, with versions.
        beside: what that environment needs beside them, and this one has.
    """
    quoted = " ".join(
        f"'{package}'" if set(package) & set("[<>") else package for package in packages
    )
    listed = ", ".join(
        f"'{package}'" if "[" in package else package for package in (*beside, *packages)
    )
    return f"pip install {quoted}, or in a guard file, on the model: requirements: [{listed}]"


def load_runtime(model_type: str, arguments: RuntimeArguments) -> Runtime:
    """Load a model of one of these types in this process.

    Raises:
        EvaluationError: its packages are missing, with what installs them; or it does not load.
        UsageError: an argument that does not exist, or a value that it cannot have.
    """
    kind = RUNTIME_TYPES[model_type]
    missing = kind.missing
    if missing:
        raise EvaluationError(
            f"model type '{model_type}' needs {', '.join(missing)}, which is not installed here",
            hint=describe_installation(kind.requirements),
        )
    module = importlib.import_module(f"evalguard.models.runtimes.{kind.module}")
    runtime: Runtime = module.load(arguments)
    if runtime.prefix_token_id >= runtime.vocabulary_size:
        runtime.close()
        raise UsageError(
            f"the token that stands before a text without context, {runtime.prefix_token_id}, is "
            f"none of the {runtime.vocabulary_size:,} of the model",
            hint="model_args.prefix_token_id names it, else the tokenizer",
            target="model_args.prefix_token_id",
        )
    return runtime
