"""Checks of the models before anything long runs: are they there, are they models at all?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from evalguard.conversion import plan
from evalguard.errors import EvaluationError, UsageError
from evalguard.models.loading import HF_TYPES
from evalguard.models.weights import check_model_folder, local_folder
from evalguard.pipeline.places import placed
from evalguard.pipeline.sources import ModelSource
from evalguard.settings import Value

_CONFIG = "config.json"


def check_models(sources: Iterable[ModelSource]) -> None:
    """Refuse models that can be seen to be none, before the first one is loaded and scored.

    Raises:
        UsageError: for a folder that is not there or holds no model.
        EvaluationError: for weights that are damaged, or pickled and not allowed to be.
        SettingError: for settings that contradict each other.
    """
    for source in sources:
        with placed(source):
            variant = source.variant
            arguments = plan(variant).model_args
            # What a recipe builds is not there yet; other model types read names their own way.
            if variant.model in HF_TYPES and variant.build is None:
                _check_folder(arguments, allow_pickle=variant.allow_pickle)


def _check_folder(arguments: Mapping[str, Value], *, allow_pickle: bool) -> None:
    try:
        folder = _model_folder(arguments)
    except EvaluationError as error:
        raise UsageError(str(error), hint=error.hint) from error
    if folder is not None:
        check_model_folder(folder, allow_pickle=allow_pickle, needed=())


def _model_folder(arguments: Mapping[str, Value]) -> Path | None:
    """Return the local folder that holds a model; None for a hub id.

    Raises:
        EvaluationError: if there is no such folder, or no model in it.
    """
    name = arguments.get("pretrained")
    folder = local_folder(name) if isinstance(name, str) and name else None
    if folder is None:
        return None
    folder /= str(arguments.get("subfolder") or "")
    if not folder.is_dir():
        raise EvaluationError(f"there is no model folder {folder}")
    if not (arguments.get("gguf_file") or (folder / _CONFIG).is_file()):
        check_model_folder(folder, allow_pickle=True, needed=(_CONFIG,))
    return folder
