"""Where the generation configs of two models differ; only tasks that generate read them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evalguard.models.weights import hub_snapshot
from evalguard.settings import Value

_FILE = "generation_config.json"
# bookkeeping; and sampling, which lm-eval settles at every call
_NEVER = frozenset({"transformers_version", "_from_model_config", "do_sample", "temperature"})


def generation_differences(
    base: Mapping[str, Value], candidate: Mapping[str, Value], *, whole: bool
) -> list[str]:
    """Say where two models' generation_config.json differ.

    Args:
        base, candidate: their model_args.
        whole: whether a setting takes the base's whole checkpoint, this file included.
    """
    one, other = _stored(base), _stored(candidate)
    if whole:
        return []
    return [
        f"generation_config.json: {name} is {one.get(name)!r} in the base, {other.get(name)!r} in "
        "the candidate; tasks that generate read it, and it is no setting"
        for name in dict.fromkeys((*one, *other))
        if name not in _NEVER and one.get(name) != other.get(name)
    ]


def _stored(model_args: Mapping[str, Value]) -> dict[str, Any]:
    source = str(model_args["pretrained"])
    subfolder = str(model_args.get("subfolder") or "")
    folder: Path | None = Path(source).expanduser()
    if folder is not None and not folder.is_dir():
        folder = hub_snapshot(source, str(model_args.get("revision") or "main"), subfolder)
    file = None if folder is None else folder / subfolder / _FILE
    if file is None or not file.is_file():
        return {}
    told: dict[str, Any] = json.loads(file.read_text())
    return told
