"""Code that is neither evalguard's nor an installed package's: whose it is, what it has patched.

It may change a library for every model of its process, and nothing tells from outside. So a model
that brings such code has a process of its own, and where it could not, nothing of that process is
kept (``list_patches``). Nor does anything tell what it reads: its scores are for the run that made
them, unless the guard file says what that is (``digest_foreign_code``).

Functions of a task run in the command's process. Most read documents and answers; one that reaches
torch or transformers may change any value there (an entry of a dict, a default argument, a flag, a
tensor), which nothing shows afterwards. Where such code was run, models are scored in workers,
which have none of it (``foreign_code.runs_other_code``).
"""

from __future__ import annotations

import dis
import functools
import importlib.util
import json
import re
import sys
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING

import evalguard
from evalguard.conversion.installed_packages import LIBRARIES
from evalguard.conversion.observed_reads import digest_content, digest_path
from evalguard.conversion.planning import ConversionPlan, plan_conversion
from evalguard.conversion.user_functions import (
    code_places,
    digest_code_at,
    digest_inputs,
    is_installed,
)
from evalguard.core.settings import Value, Variant
from evalguard.engine.loading.own_environment import asks_server, is_runtime
from evalguard.models.arguments import SERVED_TYPES
from evalguard.models.checkpoint_files import checkpoint_folder, split_revision
from evalguard.run_token import RUN_KEY, this_run
from evalguard.start_up import list_start_up_files

if TYPE_CHECKING:
    from evalguard.config.options import CompareOptions

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
        imported = [
            instruction.argval
            for instruction in dis.get_instructions(part)
            if instruction.opname == "IMPORT_NAME"
        ]
        for name in imported:
            yield from _import_accesses(str(name), names, folder, seen)
        yield from (f"uses {name}" for name in sorted(names & _ANY_NAME))
        yield from (f"uses {name}" for name in sorted(names & _OF_MODELS))
        if {"sys", "modules"} <= names:
            yield "uses sys.modules"


def _parts(code: CodeType) -> Iterator[CodeType]:
    """A module's code, and that of every function and class in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _parts(constant)


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
    for directory in (*map(Path, places), folder / root):
        if files := sorted(directory.rglob("*.py")):
            return files
    beside = folder / f"{root}.py"
    return [beside] if beside.is_file() else []


@functools.cache
def _needs_models(root: str) -> str:
    """Which library of models a package needs, by what its distribution says; "" for none."""
    asked, pending = set(), [*_distributions().get(root, [root])]
    while pending:
        name = pending.pop()
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
            requirement = re.split(r"[^\w.-]", line, maxsplit=1)[0].lower()
            if requirement.replace("-", "_") in _OF_MODELS:
                return requirement
            pending.append(requirement)
    return ""


@functools.cache
def _distributions() -> Mapping[str, list[str]]:
    return metadata.packages_distributions()


def _is_foreign(file: str) -> bool:
    return not (file.startswith(("<", _OWN)) or is_installed(Path(file)))


_PATCHED = ("torch", "torch.nn.functional", "torch._tensor", "torch.nn.init")
_PATCHED_ROOMS = ("transformers.", "torch.nn.modules.", "lm_eval.models.", "lm_eval.api.")


def list_patches() -> dict[str, str]:
    """Files whose code stands in for a library's own in this process -> their digests.

    Found are functions in the modules and classes of torch, transformers and lm-eval. (What Python
    imports at its start counts whole, see start_up.py.)
    """
    files: dict[str, None] = {}
    for name, module in list(sys.modules.items()):
        if name in _PATCHED or name.startswith(_PATCHED_ROOMS):
            files |= dict.fromkeys(_foreign_files(name, module))
    return {file: _digest(file) for file in sorted(files)}


def runs_other_code() -> str:
    """Code in this process that a checkpoint, a hook or a task has brought, "" if there is none.

    Of tasks, code that can reach models.
    """
    brought = ("transformers_modules.", "evalguard_user_")
    module = next((name for name in list(sys.modules) if name.startswith(brought)), "")
    return module or reaching_task_code()


def _foreign_files(name: str, module: object) -> Iterator[str]:
    if not isinstance(module, types.ModuleType):
        return
    for value in list(vars(module).values()):
        kind = type(value)
        if kind is types.FunctionType:
            if value.__code__.co_filename not in _known:
                yield from _unless_known(value.__code__.co_filename)
        elif isinstance(value, type) and value.__module__ == name:
            yield from _foreign_methods(value)


def _foreign_methods(owner: type) -> Iterator[str]:
    for value in list(vars(owner).values()):
        kind = type(value)
        if kind is staticmethod or kind is classmethod:
            value = value.__func__
        elif kind is property:
            value = value.fget
        if type(value) is types.FunctionType and value.__code__.co_filename not in _known:
            yield from _unless_known(value.__code__.co_filename)


_known: set[str] = set()


def _unless_known(file: str) -> Iterator[str]:
    """A file, unless it is Python's, an installed package's or evalguard's."""
    if file.startswith(("<", _OWN)) or is_installed(Path(file)):
        _known.add(file)
    else:
        yield file


def _digest(file: str) -> str:
    try:
        return digest_path(Path(file))
    except OSError:
        return ""


def needs_worker(variant: Variant, options: CompareOptions) -> bool:
    """Whether a variant is to run in a process of its own."""
    return has_own_process(variant) or (options.worker == "always" and not asks_server(variant))


def has_own_process(variant: Variant) -> bool:
    """Whether a variant runs in a process of its own, whatever the user chose.

    Where code of others was loaded into this process (to read a config, a tokenizer or a model's
    modules, or with a task), it computes no model any more: nobody knows what that code has
    changed.
    """
    plan = plan_conversion(variant)
    if is_runtime(variant) or plan.needs_worker or brings_code(variant, plan):
        return True
    return bool(runs_other_code()) and not asks_server(variant)


def brings_code(variant: Variant, plan: ConversionPlan) -> bool:
    """Whether loading or running a variant runs code of a user, a checkpoint or the hub.

    A checkpoint that may bring code and is not on this machine yet counts as one that does.
    """
    if plan.calls:
        return True
    if variant.serve is not None or variant.model in SERVED_TYPES:
        return False
    return uses_hub_kernels(plan.model_args) or bool(
        list_remote_code(variant, plan.model_args, plan.checkpoints)
    )


def runs_foreign_code(variant: Variant, plan: ConversionPlan) -> bool:
    """Whether a variant is scored with code of others, that which Python starts included."""
    return brings_code(variant, plan) or bool(list_start_up_files())


def mixes_code_with_modules(variant: Variant, plan: ConversionPlan) -> bool:
    """Whether modules of another model compute in one process with code that a model brings.

    What that code changes in them, nobody says with the files that it reads.
    """
    return bool(plan.module_sources) and brings_code(variant, plan)


def digest_foreign_code(variant: Variant, plan: ConversionPlan) -> dict[str, str]:
    """What of a model's key stands for the code of others that it runs; {} where it runs none.

    That is the code by its folders, with this run or, where somebody has said what such code reads,
    with those files, by their paths. Which kernels of the hub a model uses, nobody can say, nor
    what code does to modules of another model beside it: those are always for this run.

    Raises:
        UsageError: an input is not there.
    """
    if not runs_foreign_code(variant, plan):
        return {}
    hooks = (
        path for call in plan.calls for path in code_places(call.function, variant.code_folder)
    )
    digests = digest_code_at(hooks)
    if (
        variant.inputs is None
        or uses_hub_kernels(plan.model_args)
        or mixes_code_with_modules(variant, plan)
    ):
        return {RUN_KEY: this_run(), **digests}
    digests |= digest_inputs(variant)
    for reference in list_remote_code(variant, plan.model_args, plan.checkpoints):
        source = reference.rpartition("--")[0]
        if source:  # elsewhere: loading downloads it
            folder = checkpoint_folder(source, str(plan.model_args.get("code_revision") or "main"))
            digest = this_run() if folder is None else digest_content(folder, code=True)
            digests[f"{ELSEWHERE_PREFIX}{source}"] = digest
    return digests


ELSEWHERE_PREFIX = "code from elsewhere: "
"""Code of another model of the hub, which loading may bring."""


def uses_hub_kernels(model_args: Mapping[str, Value]) -> bool:
    """Whether a model computes with kernels from the hub."""
    attention = str(model_args.get("attn_implementation") or "")
    return "/" in attention or bool(model_args.get("use_kernels"))


def list_remote_code(
    variant: Variant, model_args: Mapping[str, Value], taken_from: Sequence[str] = ()
) -> tuple[str, ...]:
    """What the configs of a variant's checkpoints name of code of their own, where it may run.

    ``OTHER--module.Class`` is code of another folder, or of another model of the hub. "?" stands
    for a checkpoint that is not on this machine.

    Args:
        taken_from: other checkpoints, whose modules run here too.
    """
    if not variant.trust_remote_code:
        return ()
    revision = str(model_args.get("revision") or "main")
    subfolder = str(model_args.get("subfolder") or "")
    named = [(str(model_args.get(name) or ""), revision) for name in ("pretrained", "tokenizer")]
    if variant.build is not None:
        return ("?",)
    references: dict[str, None] = {}
    for source, at in (*named, *map(split_revision, taken_from)):
        folder = checkpoint_folder(source, at) if source else None
        if source and folder is None:
            references["?"] = None
        for directory in () if folder is None else (folder, folder / subfolder):
            references |= dict.fromkeys(
                reference for config in _CONFIG_FILES for reference in _auto_map(directory / config)
            )
            if (directory / "custom_generate" / "generate.py").is_file():
                references["custom_generate/generate."] = None
    return tuple(references)


_CONFIG_FILES = (
    "config.json", "generation_config.json", "preprocessor_config.json", "processor_config.json",
    "tokenizer_config.json",
)  # fmt: skip


def _auto_map(config: Path) -> Iterator[str]:
    try:
        auto_map = json.loads(config.read_text(encoding="utf-8")).get("auto_map") or {}
    except (OSError, ValueError, AttributeError):
        return
    for value in auto_map.values() if isinstance(auto_map, dict) else ():
        several = value if isinstance(value, list) else [value]
        yield from (reference for reference in several if isinstance(reference, str))
