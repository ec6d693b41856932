"""What a guard file may ask for without trust: parts that choose numbers and weights only.

These are lists of what is known to be harmless, not of what is known to be dangerous: an argument
that a library adds tomorrow is refused until somebody has looked at it. The reasons are predicates
("opens another kind of model"), "" for what is harmless.
"""

from __future__ import annotations

import re

from evalguard.core.settings import Value

# Types that load weights in this process and speak to no server but the hub.
_MODEL_TYPES = frozenset({"hf", "hf-auto", "huggingface", "dummy"})
_MODEL_ARGS = frozenset({
    "add_bos_token", "attn_implementation", "backend", "chat_template_args", "delta", "device",
    "device_map", "dtype", "enable_thinking", "experts_implementation", "gguf_file", "load_in_4bit",
    "load_in_8bit", "logits_cache", "low_cpu_mem_usage", "max_cpu_memory", "max_length",
    "max_memory_per_gpu", "mixed_precision_dtype", "parallelize", "peft", "prefix_token_id",
    "pretrained", "revision", "softmax_dtype", "subfolder", "think_end_token", "tokenizer",
    "truncation", "use_fast_tokenizer",
})  # fmt: skip
_CONFIG_CODE = frozenset({"auto_map", "quantization_config"})
_KERNEL_CHOICES = frozenset({"_attn_implementation", "_experts_implementation"})
_ENVIRONMENT = re.compile(
    r"\w+_NUM_THREADS|(OMP|KMP|MKL)_(DYNAMIC|SCHEDULE|BLOCKTIME|AFFINITY|CBWR)|MKL_CBWR"
    r"|MKL_ENABLE_INSTRUCTIONS|ATEN_CPU_CAPABILITY|ONEDNN_(MAX_CPU_ISA|DEFAULT_FPMATH_MODE)"
    r"|NVIDIA_TF32_OVERRIDE|TORCH_ALLOW_TF32_CUBLAS_OVERRIDE|CUBLAS_WORKSPACE_CONFIG"
    r"|CUDA_(VISIBLE_DEVICES|LAUNCH_BLOCKING|DEVICE_ORDER)|PYTORCH_(CUDA_|HIP_)?ALLOC_CONF"
    r"|PYTORCH_ENABLE_MPS_FALLBACK|TOKENIZERS_PARALLELISM|RWKV_(V7_ON|JIT_ON|HEAD_SIZE)"
    r"|FLA_(CONV_BACKEND|USE_\w+|DISABLE_\w+|NO_\w+)|VLLM_(ATTENTION_BACKEND|USE_V1)"
)


def model_type_danger(model_type: str) -> str:
    """Return what speaks against a model type, e.g. that it sends prompts to a server."""
    if model_type in _MODEL_TYPES:
        return ""
    return "may reach servers, send them keys, or load pickles"


def argument_danger(name: str, value: Value) -> str:
    """Return what speaks against an argument of a Hugging Face model."""
    if name not in _MODEL_ARGS:
        return "is not known to be harmless"
    return _kernel_danger(name, value)


def config_danger(path: str, value: Value) -> str:
    """Return what speaks against setting an attribute of a Hugging Face config."""
    parts = path.split(".")
    hidden = [part for part in parts if part.startswith("_") and part not in _KERNEL_CHOICES]
    if hidden or _CONFIG_CODE.intersection(parts):
        return "can choose the code that loads the model"
    return _kernel_danger(parts[-1], value)


def attribute_danger(name: str, value: Value) -> str:
    """Return what speaks against setting an attribute of a module."""
    return _kernel_danger(name, value)


def env_danger(name: str) -> str:
    """Return what speaks against an environment variable: many make a library load code."""
    return "" if _ENVIRONMENT.fullmatch(name) else "is not known to change numbers only"


def _kernel_danger(name: str, value: Value) -> str:
    """Attention and expert kernels whose name holds a slash are repositories of the hub."""
    kernel = name.endswith("_implementation") and "/" in str(value)
    return "loads a kernel from the hub" if kernel else ""
