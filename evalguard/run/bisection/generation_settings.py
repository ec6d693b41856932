"""Settings from the generation configs of two models, which only generating tasks read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evalguard.core.settings import Setting, Target, Value
from evalguard.models.config_comparison import to_json_value
from evalguard.models.model_folders import checkpoint_folder
from evalguard.models.quiet_libraries import silence_libraries
from evalguard.run.bisection.model_differences import HFSide

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
    one, other = _generation_values(base, folders[0]), _generation_values(candidate, folders[1])
    return [
        Setting(
            name=f"generation.{name}",
            reference=one[name],
            candidate=other[name],
            target=Target(kind="generation", path=name),
        )
        for name in one
        if name in other and name not in _IGNORED_VALUES and one[name] != other[name]
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
    found = None if folder is None else folder / subfolder
    return found if found is not None and (found / _GENERATION_CONFIG).is_file() else None
