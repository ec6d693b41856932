"""A trace of the two models as the prior of a search: what to measure first."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from evalguard.conversion.name_patterns import compile_glob
from evalguard.core.reports.bisect_report import TracedPlace
from evalguard.core.settings import Setting
from evalguard.run.modules.module_settings import OWN
from evalguard.run.stored_run import TRACE_FILE

TRACE_SCHEMA = "evalguard.trace/1"
_OF_MODULES = ("module", "weights", "attr", "dtype")
_COMMA = re.compile(r",(?![^\[]*\])")


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundTrace:
    """A trace of two models.

    Attributes:
        ratios: by module, how many times its error is beyond the floor; only those beyond it.
        first: where the error begins; None: nowhere.
    """

    folder: Path
    ratios: Mapping[str, float]
    first: TracedPlace | None


def find_trace(root: Path, base: str, candidate: str) -> FoundTrace | None:
    """Find the newest trace of two models in the run folders below a folder.

    One of older files of theirs will do: a prior is no evidence.

    Returns:
        None where there is none, or none that can be read.
    """
    try:
        folders = sorted((one for one in root.iterdir() if one.is_dir()), reverse=True)
    except OSError:
        return None
    for folder in folders:
        file = folder / TRACE_FILE
        found = _read_trace(file, base, candidate) if file.is_file() else None
        if found is not None:
            return found
    return None


def _read_trace(file: Path, base: str, candidate: str) -> FoundTrace | None:
    """What a file says; None where it is of other models."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        names = (found["base"]["name"], found["candidate"]["name"])
        if found["schema"] != TRACE_SCHEMA or names != (base, candidate):
            return None
        ratios: dict[str, float] = {}
        for suspect in found["suspects"]:
            ratio = suspect["local_ratio"]
            # infinite is null in JSON: beyond any floor
            number = math.inf if ratio is None else float(ratio)
            module = str(suspect["module"])
            ratios[module] = max(number, ratios.get(module, 0.0))
        first = found.get("first")
        place = None
        if first is not None:
            module, operation = str(first["module"]), str(first["operation"])
            place = TracedPlace(folder=str(file.parent), module=module, operation=operation)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return FoundTrace(folder=file.parent, ratios=ratios, first=place)


def weigh_settings(ratios: Mapping[str, float], settings: Iterable[Setting]) -> dict[str, float]:
    """How likely settings are to be culprits, by the modules of a trace that lie in their targets.

    Args:
        ratios: module -> how many times its error is beyond the floor, above 0.

    Returns:
        Setting -> the largest ratio of the modules that it changes; only those with one.
    """
    found: dict[str, float] = {}
    for setting in settings:
        if setting.target.kind not in _OF_MODULES:
            continue
        patterns = [compile_glob(one.strip()) for one in _COMMA.split(setting.target.path)]
        own = setting.name.endswith(OWN)
        for module, ratio in ratios.items():
            names = (module,) if own else tuple(_upwards(module))
            if ratio > 0.0 and any(one.fullmatch(name) for one in patterns for name in names):
                found[setting.name] = max(ratio, found.get(setting.name, 0.0))
    return found


def _upwards(name: str) -> Iterator[str]:
    """A dotted name and those of all that it is in."""
    while name:
        yield name
        name = name.rpartition(".")[0]
