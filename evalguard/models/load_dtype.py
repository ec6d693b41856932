"""The dtype that a model is loaded in, known before it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evalguard.core.settings import Value


# lm-eval's and transformers' own names for a dtype come to these
_DTYPE_NAMES: Mapping[str, str] = {"half": "float16", "float": "float32", "double": "float64"}


def load_dtype(model_args: Mapping[str, Value], config: Any, stored: Mapping[str, Any]) -> str:
    """Return the name of the dtype; "" where only loading will tell.

    What model_args say, else the config, else the first floating tensor of the checkpoint, as
    transformers does with "auto".

    Args:
        stored: the checkpoint's tensors, by name; {} where they cannot be read.
    """
    asked = model_args.get("dtype") or "auto"
    if asked != "auto":
        return _DTYPE_NAMES.get(str(asked), str(asked))
    told = getattr(config, "dtype", None) or _text_config_dtype(config)
    if told is None:
        tensors = (stored[name][...] for name in stored)
        told = next((one.dtype for one in tensors if one.is_floating_point()), None)
    return "" if told is None else str(told).removeprefix("torch.")


def _text_config_dtype(config: Any) -> Any:
    text = config.get_text_config() if hasattr(config, "get_text_config") else None
    return getattr(text, "dtype", None)
