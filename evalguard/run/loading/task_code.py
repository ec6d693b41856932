"""Code of tasks that can reach models: what a task's own Python imports, by its compiled code.

Functions of a task run in the command's process. Most read documents and answers; one that reaches
torch or transformers may change any value there (an entry of a dict, a default argument, a flag, a
tensor), which nothing shows afterwards. Where such code was run, models are scored in workers,
which have none of it (``foreign_code.runs_other_code``).
"""

from __future__ import annotations

import dis
import functools
import importlib.util
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from types import CodeType

import evalguard
from evalguard.conversion.code import is_installed
from evalguard.conversion.installed_packages import LIBRARIES

# Libraries that compute a model, or read its texts.
_OF_MODELS = frozenset(LIBRARIES) - {"einops", "jinja2", "lm_eval", "numpy"} | {"evalguard"}
# Ways to any module or object, whatever is imported.
_ANY_MODULE = frozenset({"ctypes", "gc", "imp", "pkgutil", "runpy"})
_ANY_NAME = frozenset({"__import__", "import_module", "reload", "exec", "eval", "_getframe"})
# lm-eval's own models; its tasks, metrics and filters are what tasks are made of.
_LM_EVAL_MODELS = ("lm_eval.models", "lm_eval.api.model", "lm_eval.evaluator")
_LM_EVAL_NAMES = frozenset({"models", "evaluator", "get_model", "register_model", "MODEL_REGISTRY"})
# Packages that tasks use most, known to need none of these: nothing is looked up for them.
_HARMLESS = frozenset({"datasets", "evaluate", "jinja2", "lm_eval", "numpy", "yaml"})
_OWN = str(Path(evalguard.__file__).parent)

_reaching: dict[str, str] = {}


def note_task_code(executed: Iterable[CodeType]) -> None:
    """Note which of the code that loading tasks has run can reach models.

    Args:
        executed: code of modules, as it was run.
    """
    for code in executed:
        file = code.co_filename
        if file not in _reaching and _is_foreign(file):
            why = find_model_access(code)
            if why:
                _reaching[file] = why


def reaching_task_code() -> str:
    """Task code in this process that can reach models, with what it does; "" if there is none."""
    return next((f"{Path(file).name} ({why})" for file, why in _reaching.items()), "")


def find_model_access(code: CodeType) -> str:
    """Say how a module's code can reach models ("imports torch"); "" where it cannot.

    Modules of its own that it imports count with it, whenever it imports them.
    """
    return next(_model_accesses(code, {code.co_filename}), "")


def _model_accesses(code: CodeType, seen: set[str]) -> Iterator[str]:
    folder = Path(code.co_filename).parent
    for part in _parts(code):
        names = frozenset(part.co_names)
        imported = [one.argval for one in dis.get_instructions(part) if one.opname == "IMPORT_NAME"]
        for name in imported:
            yield from _import_accesses(str(name), names, folder, seen)
        yield from (f"uses {name}" for name in sorted(names & _ANY_NAME))
        yield from (f"uses {name}" for name in sorted(names & _OF_MODELS))
        if {"sys", "modules"} <= names:
            yield "uses sys.modules"


def _parts(code: CodeType) -> Iterator[CodeType]:
    """A module's code, and that of every function and class in it."""
    yield code
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield from _parts(one)


def _import_accesses(
    name: str, names: frozenset[str], folder: Path, seen: set[str]
) -> Iterator[str]:
    root = name.partition(".")[0]
    if root in _OF_MODELS | _ANY_MODULE or name.startswith(_LM_EVAL_MODELS):
        yield f"imports {name}"
    elif name == "lm_eval.api" and "model" in names:
        yield "imports lm_eval.api.model"
    elif root == "lm_eval" and names & _LM_EVAL_NAMES:
        yield f"imports {sorted(names & _LM_EVAL_NAMES)[0]} of lm_eval"
    elif root in _HARMLESS or root in sys.stdlib_module_names:
        return
    else:
        yield from _other_accesses(root, folder, seen)


def _other_accesses(root: str, folder: Path, seen: set[str]) -> Iterator[str]:
    """Of a package that is installed, or a module beside the task's own."""
    places = _find_module(root, folder)
    if not places:
        yield f"imports {root}, which is not found"
        return
    if is_installed(places[0]):
        if needed := _needs_models(root):
            yield f"imports {root}, which needs {needed}"
        return
    for file in places:
        if str(file) in seen:
            continue
        seen.add(str(file))
        try:
            code = compile(file.read_bytes(), str(file), "exec")
        except (OSError, SyntaxError, ValueError):
            yield f"imports {root}, which cannot be read"
            continue
        yield from _model_accesses(code, seen)


def _find_module(root: str, folder: Path) -> list[Path]:
    """Files of a module: those of a package, or its own one."""
    if not root:  # from . import X
        return sorted(folder.glob("*.py"))
    try:
        spec = importlib.util.find_spec(root)
    except (ImportError, ValueError):
        spec = None
    places = [] if spec is None else [*(spec.submodule_search_locations or ())]
    if spec is not None and spec.origin and not places:
        return [Path(spec.origin)]
    for place in (*map(Path, places), folder / root):
        if found := sorted(place.rglob("*.py")):
            return found
    beside = folder / f"{root}.py"
    return [beside] if beside.is_file() else []


@functools.cache
def _needs_models(root: str) -> str:
    """Which library of models a package needs, by what its distribution says; "" for none."""
    asked, left = set(), [*_distributions().get(root, [root])]
    while left:
        name = left.pop()
        if name in asked:
            continue
        asked.add(name)
        try:
            needed = metadata.requires(name) or ()
        except metadata.PackageNotFoundError:
            continue
        for line in needed:
            if "extra ==" in line:
                continue
            other = re.split(r"[^\w.-]", line, maxsplit=1)[0].lower()
            if other.replace("-", "_") in _OF_MODELS:
                return other
            left.append(other)
    return ""


@functools.cache
def _distributions() -> Mapping[str, list[str]]:
    return metadata.packages_distributions()


def _is_foreign(file: str) -> bool:
    return not (file.startswith(("<", _OWN)) or is_installed(Path(file)))
