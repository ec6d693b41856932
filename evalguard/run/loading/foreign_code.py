"""Code that is neither evalguard's nor an installed package's: whose it is, what it has patched.

It may change a library for every model of its process, and nothing tells from outside. So a model
that brings such code has a process of its own, and where it could not, nothing of that process is
kept (``list_patches``). Nor does anything tell what it reads: its scores are for the run that made
them, unless the guard file says what that is (``digest_foreign_code``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from evalguard.conversion.code import code_places
from evalguard.conversion.declared_inputs import digest_code_at, digest_inputs
from evalguard.conversion.digests import digest_content
from evalguard.conversion.planning import ConversionPlan, plan_conversion
from evalguard.core.settings import Value, Variant
from evalguard.models.arguments import SERVED_TYPES
from evalguard.models.checkpoint_files import split_revision
from evalguard.models.model_folders import checkpoint_folder
from evalguard.run.loading.library_patches import runs_other_code
from evalguard.run.loading.own_environment import asks_server, is_runtime
from evalguard.run_token import RUN_KEY, this_run
from evalguard.start_up import list_start_up_files

if TYPE_CHECKING:
    from evalguard.run.options import CompareOptions


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
        place for one in plan.calls for place in code_places(one.function, variant.code_folder)
    )
    found = digest_code_at(hooks)
    if (
        variant.inputs is None
        or uses_hub_kernels(plan.model_args)
        or mixes_code_with_modules(variant, plan)
    ):
        return {RUN_KEY: this_run(), **found}
    found |= digest_inputs(variant)
    for reference in list_remote_code(variant, plan.model_args, plan.checkpoints):
        source = reference.rpartition("--")[0]
        if source:  # elsewhere: loading downloads it
            folder = checkpoint_folder(source, str(plan.model_args.get("code_revision") or "main"))
            digest = this_run() if folder is None else digest_content(folder, code=True)
            found[f"{ELSEWHERE_PREFIX}{source}"] = digest
    return found


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
    found: dict[str, None] = {}
    for source, at in (*named, *map(split_revision, taken_from)):
        folder = checkpoint_folder(source, at) if source else None
        if source and folder is None:
            found["?"] = None
        for place in () if folder is None else (folder, folder / subfolder):
            found |= dict.fromkeys(
                one for config in _CONFIG_FILES for one in _auto_map(place / config)
            )
            if (place / "custom_generate" / "generate.py").is_file():
                found["custom_generate/generate."] = None
    return tuple(found)


_CONFIG_FILES = (
    "config.json", "generation_config.json", "preprocessor_config.json", "processor_config.json",
    "tokenizer_config.json",
)  # fmt: skip


def _auto_map(config: Path) -> Iterator[str]:
    try:
        found = json.loads(config.read_text(encoding="utf-8")).get("auto_map") or {}
    except (OSError, ValueError, AttributeError):
        return
    for value in found.values() if isinstance(found, dict) else ():
        several = value if isinstance(value, list) else [value]
        yield from (one for one in several if isinstance(one, str))
