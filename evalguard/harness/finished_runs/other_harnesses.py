"""Runs of other evaluation harnesses, known by the shape of their files."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from evalguard.errors import EvaluationError, UsageError
from evalguard.harness.finished_runs.foreign_json import read_file

# Of each harness patterns of paths in a run's folder ("/" between names); all must be there.
_SHAPES: dict[str, tuple[str, ...]] = {
    "lighteval": (r"(.*/)?details_[^/]+\.parquet",),
    "Inspect": (r"(.*/)?\d{4}-\d\d-\d\dT[^/]+\.eval",),
    "HELM": (r"(.*/)?run_spec\.json", r"(.*/)?(stats|scenario_state|per_instance_stats)\.json"),
    "EvalScope": (r"(.*/)?predictions/.+", r"(.*/)?reviews/.+"),
    "OpenCompass": (r"(.*/)?predictions/.+", r"(.*/)?results/.+", r"(.*/)?(summary|configs)/.+"),
    "VLMEvalKit": (r"(.*/)?[^/]+\.xlsx", r"(.*/)?[^/]+_(acc|score)\.(csv|json)"),
    "NeMo Evaluator": (
        r"(.*/)?results\.ya?ml",
        r"(.*/)?(run_config\.ya?ml|eval_factory_metrics\.json)",
    ),
    "OLMES": (r"(.*/)?task-\d+-.+-(metrics|predictions)\.jsonl?",),
    "BigCode's harness": (r"(.*/)?(evaluation_results|generations(_[^/]+)?)\.json",),
}
# Keys by which a JSON file is one harness's, whatever its name.
_KEYS: dict[str, frozenset[str]] = {
    "lighteval": frozenset({"config_general", "results"}),
    "Inspect": frozenset({"eval", "status", "samples"}),
    "simple-evals": frozenset({"score", "score:std"}),
}
_DEEPEST, _MOST_FILES, _MOST_READ = 4, 2_000, 20


def refuse_other_harness(path: Path) -> None:
    """Refuse a folder or file that another harness wrote; say which, and what to do.

    Raises:
        UsageError: it is one.
    """
    name = name_other_harness(path)
    if name:
        raise UsageError(
            f"{path} is a run of {name}; finished runs are read of lm-eval only, whose samples "
            "tell which documents two runs share",
            hint="run its tasks with lm_eval --log_samples --output_path FOLDER and give that "
            "folder, or name the model, which is asked here",
        )


def name_other_harness(path: Path) -> str:
    """Which harness a folder or file is of; "" for a model, an lm-eval run, and what is unknown."""
    if os.path.isfile(path):  # no text is too strange to be asked
        by_name = path.suffix == ".eval"
        return "Inspect" if by_name else _name_by_keys([path] if path.suffix == ".json" else [])
    if not os.path.isdir(path) or (path / "config.json").exists():
        return ""
    files = sorted(_list_files(path))
    for name, patterns in _SHAPES.items():
        if all(any(re.fullmatch(pattern, file) for file in files) for pattern in patterns):
            return name
    return _name_by_keys([path / file for file in files if file.endswith(".json")][:_MOST_READ])


def _name_by_keys(files: Sequence[Path]) -> str:
    for file in files:
        try:
            content = read_file(file)
        except EvaluationError:
            continue
        present = content.keys() if isinstance(content, dict) else set()
        for name, keys in _KEYS.items():
            if keys <= present:
                return name
    return ""


def _list_files(folder: Path) -> Iterator[str]:
    """Paths of files below a folder, relative to it, links to folders left out."""
    count = 0
    for directory, folders, names in os.walk(folder):
        inside = Path(directory).relative_to(folder)
        if len(inside.parts) >= _DEEPEST:
            folders.clear()
        for name in names:
            count += 1
            if count > _MOST_FILES:
                return
            yield (inside / name).as_posix()
