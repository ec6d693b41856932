"""Configs of Hugging Face models: two compared, and one changed before its model is built."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from evalguard.errors import SettingError, UsageError, nearest
from evalguard.models.config_values import check_name, check_values

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
    differences = _find_differences(_config_attributes(base), _config_attributes(candidate), "")
    return tuple(
        ConfigDifference(
            path=path, base=ours, candidate=theirs, known=path.partition(".")[0] in known
        )
        for path, ours, theirs in differences
    )


def _config_attributes(config: Any) -> dict[str, Any]:
    values = config if isinstance(config, Mapping) else vars(config)
    return {str(k): v for k, v in values.items() if not str(k).startswith("_")}


def _find_differences(
    base: Mapping[str, Any], candidate: Mapping[str, Any], prefix: str
) -> Iterator[tuple[str, Value, Value]]:
    for name in dict.fromkeys((*base, *candidate)):
        if not is_computed_with(name):
            continue
        ours, theirs = base.get(name, _ABSENT), candidate.get(name, _ABSENT)
        if _is_nested(ours) and _is_nested(theirs):
            our_inner, their_inner = _config_attributes(ours), _config_attributes(theirs)
            if not isinstance(ours, Mapping) or our_inner.keys() == their_inner.keys():
                yield from _find_differences(our_inner, their_inner, f"{prefix}{name}.")
                continue
        if not _same_value(ours, theirs):
            yield prefix + name, to_json_value(ours), to_json_value(theirs)


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


def override_config(config: Any, overrides: Mapping[str, Value]) -> None:
    """Set dotted paths in a transformers config, in place.

    A path must exist on the config class's default config, or, for keys of a nested dictionary or
    sub-config (``rope_parameters.rope_theta``), in the loaded one: a name that only this
    checkpoint's config.json invented is read by nobody.

    Raises:
        SettingError: an unknown path, with the nearest names.
        UsageError: a value that the field cannot have.
    """
    from huggingface_hub.errors import StrictDataclassError

    known = _default_like(config)
    for path, value in overrides.items():
        head, _, rest = path.partition(".")
        if not hasattr(known, head):
            raise _unknown_attribute(path, config, known)
        current = getattr(config, head)
        check_name(path, current, value)
        changed = (
            _set_nested(current, rest, value, path, config)
            if rest
            else _match_number_type(current, value)
        )
        try:
            setattr(config, head, changed)
        except (TypeError, ValueError, AttributeError, StrictDataclassError) as error:
            reason = " ".join(str(error).split())
            raise UsageError(
                f"config.{path} cannot be {value!r}: {reason}", target=f"config.{path}"
            ) from error
    check_values(config, overrides)


def apply_overrides(
    config: Any, overrides: Mapping[str, Value], pretrained: str, **where: Any
) -> None:
    """Set dotted paths in a config that was just read, and what it derives from them, in place.

    ``pretrained`` and ``where`` (revision, subfolder, ...) are what it was read from.

    Raises:
        SettingError, UsageError: as ``override_config``.
    """
    override_config(config, overrides)
    if overrides and not where.get("gguf_file"):
        stored, _ = type(config).get_config_dict(pretrained, **where)
        derive_attributes(config, stored, overrides)


def derive_attributes(
    config: Any, stored: Mapping[str, Any], overrides: Mapping[str, Value]
) -> None:
    """Let a config work out anew what it derives from overridden attributes, in place.

    A config class fills what the file leaves out when it is made (``layer_types`` from
    ``use_sliding_window``); setting an attribute afterwards would change nothing else.

    Args:
        config: after ``override_config``.
        stored: what the model's config.json holds.
        overrides: as given to ``override_config``; dotted paths derive nothing.
    """
    whole = {
        path: _match_number_type(getattr(config, path), value)
        for path, value in overrides.items()
        if "." not in path
    }
    kind = type(config)
    before = vars(kind.from_dict(copy.deepcopy(dict(stored))))
    after = vars(kind.from_dict(copy.deepcopy({**stored, **whole})))
    heads = {path.partition(".")[0] for path in overrides}
    for name, value in after.items():
        changed = name not in before or value != before[name]
        if changed and name not in heads and not name.startswith("_"):
            setattr(config, name, value)


def _default_like(config: Any) -> Any:
    try:
        return type(config)()
    except Exception:  # noqa: BLE001 - a remote config may demand arguments; then the loaded one rules
        return config


def _set_nested(current: Any, rest: str, value: Value, path: str, config: Any) -> Any:
    head, _, deeper = rest.partition(".")
    if isinstance(current, dict):
        if head not in current:
            raise _unknown_attribute(path, config, config)
        inner = current[head]
        return {
            **current,
            head: _set_nested(inner, deeper, value, path, config) if deeper else value,
        }
    if not hasattr(current, head):
        raise _unknown_attribute(path, config, config)
    changed = copy.deepcopy(current)
    inner = getattr(current, head)
    setattr(
        changed,
        head,
        _set_nested(inner, deeper, value, path, config)
        if deeper
        else _match_number_type(inner, value),
    )
    return changed


def _match_number_type(current: object, value: Value) -> Value:
    """YAML writes 1 where a config, which checks its types, holds 1.0."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    return float(value) if whole and isinstance(current, float) else value  # type: ignore[arg-type]


def _unknown_attribute(path: str, config: Any, known: Any) -> SettingError:
    if hasattr(config, f"_{path}"):
        return SettingError(
            f"{type(config).__name__} has no attribute '{path}'",
            hint=f"it is an argument of loading: model_args.{path}",
            target=f"config.{path}",
        )
    names = sorted(
        {*_attribute_names(known), *_attribute_names(config)}
        if known is not config
        else _attribute_names(known)
    )
    last = path.rpartition(".")[2]
    inner = [name for name in names if name.rpartition(".")[2] == last and name != path]
    close = f"; did you mean '{inner[0]}'?" if inner else nearest(path, names)
    return SettingError(
        f"{type(config).__name__} has no attribute '{path}'{close}",
        hint="a config.X setting names an attribute that the config class knows",
        target=f"config.{path}",
    )


def _attribute_names(config: Any, prefix: str = "", depth: int = 0) -> Iterator[str]:
    items = config.items() if isinstance(config, dict) else vars(config).items()
    for name, value in items:
        if not isinstance(name, str) or name.startswith("_"):
            continue
        yield prefix + name
        nested = isinstance(value, dict) or hasattr(value, "to_dict")
        if nested and depth < 2:
            yield from _attribute_names(value, f"{prefix}{name}.", depth + 1)
