"""Settings from two models of one class: arguments, configs, generation configs, tokenizers."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from evalguard.bisect.settings.hf_side import HFSide
from evalguard.core.settings import Constraint, Setting, Target, Value
from evalguard.errors import EvalguardError, EvaluationError
from evalguard.models.checkpoint_files import checkpoint_folder, hub_snapshot
from evalguard.models.config_overrides import ConfigDifference, compare_configs, to_json_value
from evalguard.models.process_state import silence_libraries
from evalguard.models.unloaded_models import (
    build_empty_model,
    compare_shapes,
    config_model_args,
    load_tokenizer,
    puts_bos_first,
    read_effective_config,
    tokenizer_files,
)

# Compared by what they lead to, not by how they are written: weights, tokenizer, dtype, attention.
_BY_EFFECT = frozenset(
    {
        "pretrained", "revision", "subfolder", "gguf_file", "tokenizer", "dtype",
        "attn_implementation", "quantization_config",
    }
)  # fmt: skip


def argument_settings(base: HFSide, candidate: HFSide) -> tuple[list[Setting], list[str]]:
    """Return settings ``model_args.X`` for what the models are loaded with, and notes.

    An argument that one side leaves out has the value that loading gives it.
    """
    settings, notes = [*_dtype_and_attention(base, candidate)], []
    names = dict.fromkeys((*candidate.model_args, *base.model_args))
    for name in names:
        if name in _BY_EFFECT:
            continue
        given = [_argument_value(name, side) for side in (base, candidate)]
        if name == "device" and None in given:
            notes.append("device: only one of the two models names one")
        elif to_json_value(given[0]) != to_json_value(given[1]):
            settings.append(argument_setting(name, given[0], given[1]))
    return settings, notes


def argument_setting(name: str, reference: Value, candidate: Value, *, called: str = "") -> Setting:
    """A setting on one argument of the model type."""
    target = Target(kind="model_args", path=name)
    return Setting(name=called or name, reference=reference, candidate=candidate, target=target)


def _dtype_and_attention(base: HFSide, candidate: HFSide) -> Iterator[Setting]:
    """What the weights are held and attention is computed in."""
    if base.dtype and candidate.dtype and base.dtype != candidate.dtype:
        yield argument_setting("dtype", base.dtype, candidate.dtype)
    kinds = [_attention_of(side) for side in (base, candidate)]
    asked = any(side.model_args.get("attn_implementation") for side in (base, candidate))
    # what another architecture resolves to by itself comes with it
    comparable = asked or type(base.config) is type(candidate.config)
    if comparable and None not in kinds and kinds[0] != kinds[1]:
        yield argument_setting("attn_implementation", kinds[0], kinds[1])


def _attention_of(side: HFSide) -> str | None:
    """The implementation that this model resolves to."""
    config = side.config if side.model is None else side.model.config
    implementation = getattr(config, "_attn_implementation", None)
    return implementation if isinstance(implementation, str) else None


def _argument_value(name: str, side: HFSide) -> Value:
    from evalguard.models.hf.model import GuardedHFLM

    if name in side.model_args:
        return side.model_args[name]
    for kind in GuardedHFLM.__mro__:
        known = inspect.signature(kind.__init__).parameters.get(name)
        if known is not None and known.default is not known.empty:
            return to_json_value(known.default)
    # transformers takes it for an attribute of the config
    laid = name in config_model_args(side.config, {name: True})
    return to_json_value(getattr(side.config, name)) if laid else None


def config_settings(base: HFSide, candidate: HFSide) -> tuple[list[Setting], list[str]]:
    """Return settings ``config.X`` for two models of one class, and notes on what is left out.

    Attributes that change the shapes of weights are left out: they come with the weights. What an
    argument of loading sets, that argument's setting covers.
    """
    settings: list[Setting] = []
    notes: list[str] = []
    covered = {
        name
        for side in (base, candidate)
        for name in config_model_args(side.config, side.model_args)
    }
    for key in compare_configs(base.config, candidate.config):
        if key.path.partition(".")[0] in covered:
            continue
        if not key.known:
            notes.append(
                f"config.{key.path}: {key.base!r} in the base, {key.candidate!r} in the candidate; "
                "the config class does not know it, so it cannot be set"
            )
        else:
            settings.append(_config_setting(key))
    return settings, notes


def find_shape_settings(settings: Iterable[Setting], candidate: HFSide) -> list[Setting]:
    """Return the settings that, at their reference value alone, give weights other shapes."""
    return [
        setting
        for setting in settings
        if not _same_shapes(candidate, {setting.target.path: setting.reference})
    ]


def tie_together(settings: Iterable[Setting]) -> tuple[Constraint, ...]:
    """Say that settings are at their reference values together, or at their candidate's."""
    first, *mates = [*settings]
    return tuple(
        Constraint(when={given.name: given.reference}, then={implied.name: implied.reference})
        for mate in mates
        for given, implied in ((first, mate), (mate, first))
    )


def find_config_leftovers(
    base: HFSide, candidate: HFSide, settings: Iterable[Setting]
) -> tuple[str, ...]:
    """Build the config of the all-reference model, and say where it still is not the base's."""
    values = {
        setting.target.path: setting.reference
        for setting in settings
        if setting.target.kind == "config"
    }
    arguments = {
        setting.target.path: setting.reference
        for setting in settings
        if setting.target.kind == "model_args"
    }
    given = {**candidate.model_args, **arguments}
    trusted = {"trust_remote_code": candidate.variant.trust_remote_code}
    try:
        made = read_effective_config(given, {**candidate.overrides, **values}, **trusted)
    except EvalguardError as error:
        return (f"the config of the base cannot be reached with settings: {error}",)
    return tuple(
        f"config.{key.path} stays {key.candidate!r} where the base has {key.base!r}"
        for key in compare_configs(base.config, made)
        if key.known
    )


def _config_setting(one: ConfigDifference) -> Setting:
    return Setting(
        name=f"config.{one.path}",
        reference=one.base,
        candidate=one.candidate,
        target=Target(kind="config", path=one.path),
    )


def _same_shapes(candidate: HFSide, values: Mapping[str, Value]) -> bool:
    trusted = {"trust_remote_code": candidate.variant.trust_remote_code}
    if candidate.model is None:
        return True
    try:
        config = read_effective_config(
            candidate.model_args, {**candidate.overrides, **values}, **trusted
        )
        changed = build_empty_model(config, candidate.model_args, **trusted)
    except EvalguardError:
        return False
    return not compare_shapes(candidate.model, changed)


_GENERATION_CONFIG = "generation_config.json"
# Bookkeeping, and what lm-eval says at every call.
_IGNORED_VALUES = frozenset(
    {"transformers_version", "max_length", "max_new_tokens", "pad_token_id", "use_cache"}
)


def generation_settings(base: HFSide, candidate: HFSide) -> list[Setting]:
    """Return settings ``generation.X`` where the two generation configs differ.

    A model without a generation_config.json has what transformers derives from its config; where
    neither has the file, settings of the config cover it.
    """
    folders = [_generation_folder(side.model_args) for side in (base, candidate)]
    if not any(folders):
        return []
    base_values, candidate_values = (
        _generation_values(base, folders[0]),
        _generation_values(candidate, folders[1]),
    )
    return [
        Setting(
            name=f"generation.{name}",
            reference=base_values[name],
            candidate=candidate_values[name],
            target=Target(kind="generation", path=name),
        )
        for name in base_values
        if name in candidate_values
        and name not in _IGNORED_VALUES
        and base_values[name] != candidate_values[name]
    ]


def _generation_values(side: HFSide, folder: Path | None) -> dict[str, Value]:
    from transformers import GenerationConfig

    with silence_libraries():
        if folder is None:
            config: Any = GenerationConfig.from_model_config(side.config)
        else:
            config = GenerationConfig.from_pretrained(str(folder))
    return {
        name: to_json_value(value)
        for name, value in vars(config).items()
        if not name.startswith("_")
    }


def _generation_folder(model_args: Mapping[str, Value]) -> Path | None:
    """The folder with a model's generation config; None if it has none."""
    source = str(model_args["pretrained"])
    subfolder = str(model_args.get("subfolder") or "")
    folder = checkpoint_folder(source, str(model_args.get("revision") or "main"), subfolder)
    config_folder = None if folder is None else folder / subfolder
    return (
        config_folder
        if config_folder is not None and (config_folder / _GENERATION_CONFIG).is_file()
        else None
    )


def tokenizer_settings(base: HFSide, candidate: HFSide) -> tuple[list[Setting], list[str]]:
    """Return settings for tokenizers that differ, and notes.

    Where one puts BOS before a text and the other does not, that is a setting of its own, as far
    as BOS is all that the tokenizers put around a text.
    """
    if _tokenizer_source(base.model_args) == _tokenizer_source(candidate.model_args):
        return [], []
    try:
        for side in (base, candidate):  # hub files come here when they are first asked for
            load_tokenizer(side.model_args, trust_remote_code=side.variant.trust_remote_code)
        if _same_files(base, candidate):
            return [], []
        settings = [
            argument_setting("tokenizer", tokenizer_name(base), _tokenizer_value(candidate))
        ]
        settings += _bos_settings(base, candidate)
    except EvaluationError as error:
        return [], [f"tokenizer: {error}"]
    return settings, []


def tokenizer_name(side: HFSide) -> str:
    """Name a side's tokenizer so that it is found whatever the other arguments are."""
    source, revision, subfolder = _tokenizer_source(side.model_args)
    folder = Path(source).expanduser()
    if folder.exists():
        return str(folder / subfolder)
    if revision == "main" and not subfolder:
        return source
    snapshot = hub_snapshot(source, revision, subfolder)
    return source if snapshot is None else str(snapshot / subfolder)


def _tokenizer_value(side: HFSide) -> Value:
    return side.model_args.get("tokenizer")


def _bos_settings(base: HFSide, candidate: HFSide) -> list[Setting]:
    if base.model_args.get("add_bos_token") != candidate.model_args.get("add_bos_token"):
        return []  # an argument of loading, which is a setting already
    if base.model_args.get("add_bos_token") is not None:
        return []  # said, and the same
    first = [
        puts_bos_first(side.model_args, trust_remote_code=side.variant.trust_remote_code)
        for side in (base, candidate)
    ]
    if None in first or first[0] == first[1]:
        return []
    return [argument_setting("add_bos_token", first[0], first[1])]


def _same_files(base: HFSide, candidate: HFSide) -> bool:
    base_files, candidate_files = (tokenizer_files(side.model_args) for side in (base, candidate))
    return bool(base_files) and base_files == candidate_files


def _tokenizer_source(model_args: Mapping[str, Value]) -> tuple[str, str, str]:
    source = str(model_args.get("tokenizer") or model_args["pretrained"])
    revision = str(model_args.get("revision") or "main")
    return source, revision, str(model_args.get("subfolder") or "")
