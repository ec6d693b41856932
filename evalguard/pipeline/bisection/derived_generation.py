"""Settings from the generation configs of two models, which only generating tasks read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evalguard.models.config_differences import plain
from evalguard.models.quiet import quiet
from evalguard.models.weights import hub_snapshot
from evalguard.pipeline.bisection.sides import HFSide
from evalguard.settings import Setting, Target, Value

_FILE = "generation_config.json"
# Bookkeeping, and what lm-eval says at every call.
_NEVER = frozenset(
    {"transformers_version", "max_length", "max_new_tokens", "pad_token_id", "use_cache"}
)


def generation_settings(base: HFSide, candidate: HFSide) -> list[Setting]:
    """Return settings ``generation.X`` where the two generation configs differ.

    A model without a generation_config.json has what transformers derives from its config; where
    neither has the file, settings of the config cover it.
    """
    folders = [_folder(side.model_args) for side in (base, candidate)]
    if not any(folders):
        return []
    one, other = _values(base, folders[0]), _values(candidate, folders[1])
    return [
        Setting(
            name=f"generation.{name}",
            reference=one[name],
            candidate=other[name],
            target=Target(kind="generation", path=name),
        )
        for name in one
        if name in other and name not in _NEVER and one[name] != other[name]
    ]


def _values(side: HFSide, folder: Path | None) -> dict[str, Value]:
    from transformers import GenerationConfig

    with quiet():
        if folder is None:
            config: Any = GenerationConfig.from_model_config(side.config)
        else:
            config = GenerationConfig.from_pretrained(str(folder))
    return {name: plain(value) for name, value in vars(config).items() if not name.startswith("_")}


def _folder(model_args: Mapping[str, Value]) -> Path | None:
    """The folder with a model's generation config; None if it has none."""
    source = str(model_args["pretrained"])
    subfolder = str(model_args.get("subfolder") or "")
    folder: Path | None = Path(source).expanduser()
    if folder is not None and not folder.is_dir():
        folder = hub_snapshot(source, str(model_args.get("revision") or "main"), subfolder)
    found = None if folder is None else folder / subfolder
    return found if found is not None and (found / _FILE).is_file() else None
