"""Where two Hugging Face configs differ, as far as that can change what is computed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evalguard.core.settings import Value


# What no forward pass reads. Whatever is not here counts, known or not.
_NOT_COMPUTED_WITH = frozenset(
    {
        # bookkeeping of files and classes; the class comes from the model type
        "transformers_version", "architectures", "auto_map", "ignore_keys_at_rope_validation",
        # of classification heads, which no causal model has
        "id2label", "label2id", "problem_type",
        # what the scorer says at every call
        "use_cache", "return_dict", "output_hidden_states", "output_attentions",
        # of training: values before it
        "initializer_range",
    }
)  # fmt: skip
# of training: nothing is dropped in evaluation
_TRAINING = re.compile(r".*dropout(_prob|_rate|_p)?|.*_pdrop")
# These are settings of their own: the class, model_args.dtype, quantisation, and the output head,
# whose weights are compared whether they are tied or not.
_OTHER_SETTINGS = frozenset(
    {"model_type", "dtype", "torch_dtype", "quantization_config", "tie_word_embeddings"}
)
_ABSENT = object()


def is_computed_with(path: str) -> bool:
    """Whether a dotted path of a config may change what is computed, and is no other setting."""
    names = path.split(".")
    return not any(
        name in _NOT_COMPUTED_WITH or name in _OTHER_SETTINGS or _TRAINING.fullmatch(name)
        for name in names
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigDifference:
    """One dotted path with both values; ``known``: whether the config class knows it."""

    path: str
    base: Value
    candidate: Value
    known: bool = True


def compare_configs(base: Any, candidate: Any) -> tuple[ConfigDifference, ...]:
    """Compare two configs of one class, as transformers has completed them.

    Dictionaries with the same keys (rope parameters) and inner configs are compared inside; others
    as a whole. A key that only one of them has is None in the other one.
    """
    known = _config_attributes(_default_like(candidate))
    found = _find_differences(_config_attributes(base), _config_attributes(candidate), "")
    return tuple(
        ConfigDifference(
            path=path, base=one, candidate=other, known=path.partition(".")[0] in known
        )
        for path, one, other in found
    )


def _default_like(config: Any) -> Any:
    try:
        return type(config)()
    except Exception:  # noqa: BLE001 - a remote config may demand arguments
        return config


def _config_attributes(config: Any) -> dict[str, Any]:
    values = config if isinstance(config, Mapping) else vars(config)
    return {str(k): v for k, v in values.items() if not str(k).startswith("_")}


def _find_differences(
    base: Mapping[str, Any], candidate: Mapping[str, Any], prefix: str
) -> Iterator[tuple[str, Value, Value]]:
    for name in dict.fromkeys((*base, *candidate)):
        if not is_computed_with(name):
            continue
        one, other = base.get(name, _ABSENT), candidate.get(name, _ABSENT)
        if _is_nested(one) and _is_nested(other):
            inner, others = _config_attributes(one), _config_attributes(other)
            if not isinstance(one, Mapping) or inner.keys() == others.keys():
                yield from _find_differences(inner, others, f"{prefix}{name}.")
                continue
        if not _same_value(one, other):
            yield prefix + name, to_json_value(one), to_json_value(other)


def _is_nested(value: Any) -> bool:
    return isinstance(value, Mapping) or hasattr(value, "to_dict")


def _same_value(one: Any, other: Any) -> bool:
    # in Python, 1 equals true; YAML and JSON write 1 where a config holds 1.0
    one, other = to_json_value(one), to_json_value(other)
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def to_json_value(value: Any) -> Value:
    """Return a config's value as it is written in JSON."""
    if value is _ABSENT:
        return None
    if isinstance(value, Enum):
        return to_json_value(value.value)
    if isinstance(value, Mapping):
        return {str(key): to_json_value(inner) for key, inner in value.items()}
    if isinstance(value, (set, frozenset)):
        return [*sorted(map(str, value))]
    if isinstance(value, (list, tuple)):
        return [to_json_value(inner) for inner in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if hasattr(value, "to_dict"):
        return to_json_value(value.to_dict())
    return str(value).removeprefix("torch.")
