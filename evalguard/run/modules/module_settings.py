"""Settings that take a part of the model from the base: one for each layer, or module of a layer.

Each is a ``module:`` target, with the base (its own settings included) as reference and null as
candidate: where settings were declared they stay as they are, and are not searched.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from evalguard.conversion.planning import MODULE_SOURCE_KINDS, plan_conversion, read_module_source
from evalguard.core.settings import ENCODING_ARGS, LENGTH_ARGS, Setting, Target, Value, Variant
from evalguard.errors import UsageError
from evalguard.models.arguments import HF_TYPES
from evalguard.run.bisection.model_differences import checkpoint_name

ModuleLevel = Literal["layers", "modules"]
# What a module is without the modules inside it: its own code, attributes and tensors.
OWN = ".own"


def take_modules_from(base: Variant, candidate: Variant, modules: Mapping[str, str]) -> Variant:
    """Return a candidate with a setting for each of some modules, all at null: as they are.

    Args:
        modules: name of the setting -> name or glob of the module.

    Raises:
        UsageError: the base's modules cannot be taken.
    """
    value = describe_module_source(base, candidate)
    added = tuple(
        Setting(
            name=name,
            reference=value,
            candidate=None,
            target=Target(kind="module", path=module),
        )
        for name, module in modules.items()
    )
    kept = tuple(one for one in candidate.settings if one.name not in modules)
    for one in candidate.settings:
        if one.name in modules:
            raise UsageError(
                f"the candidate has a setting of its own that is called '{one.name}', as the "
                "module is",
                hint="call the setting otherwise",
            )
    values = {**candidate.assignment, **{one.name: None for one in added}}
    return replace(candidate, settings=(*kept, *added), assignment=values)


def describe_module_source(base: Variant, candidate: Variant) -> Value:
    """The base as the value of a ``module:`` setting of a candidate.

    Raises:
        UsageError: its modules cannot be taken, or not into this candidate.
    """
    why = _why_not_taken(base, candidate)
    if why:
        raise UsageError(
            f"modules of '{base.name}' cannot be put into '{candidate.name}': {why}",
            hint="both have to be of model type hf, in evalguard's own environment",
        )
    wanted = plan_conversion(base)
    arguments = {
        name: value for name, value in wanted.model_args.items() if name not in _NOT_OF_MODULES
    }
    edits = {
        str(target): value
        for target, value in wanted.targets.values()
        if target.kind in MODULE_SOURCE_KINDS and target.kind != "model_args"
    }
    if edits or arguments.keys() - {"pretrained", "revision"}:
        source: Value = {"model_args": arguments, **({"settings": edits} if edits else {})}
    else:
        source = checkpoint_name(wanted.model_args)
    read_module_source(base.name, source)  # refused now, not after the models were scored
    return source


# Arguments that say how a model is asked, or that are the candidate's for all of its modules.
_NOT_OF_MODULES = (
    (ENCODING_ARGS - {"tokenizer", "use_fast_tokenizer"})
    | LENGTH_ARGS
    | {"dtype", "device", "attn_implementation", "batch_size", "max_batch_size", "add_bos_token"}
)


def _why_not_taken(base: Variant, candidate: Variant) -> str:
    for one in (base, candidate):
        if one.model not in HF_TYPES:
            return f"'{one.name}' is of model type {one.model}"
        if one.environment is not None:
            return f"'{one.name}' runs in an environment of its own"
    if base.build is not None:
        return f"'{base.name}' is made by a build recipe; name the folder that it makes"
    if base.trust_remote_code and not candidate.trust_remote_code:
        return "only the base may run code of its own (trust_remote_code)"
    odd = [
        name
        for name, (target, _) in plan_conversion(base).targets.items()
        if target.kind not in (*MODULE_SOURCE_KINDS, "generation")
    ]
    return f"setting '{odd[0]}' of the base cannot be taken along" if odd else ""


def hold_settings(variant: Variant) -> Variant:
    """The variant with its settings held at the values that they have: none is searched."""
    held = tuple(
        replace(one, reference=variant.assignment.get(one.name, one.candidate))
        for one in variant.settings
    )
    return replace(variant, settings=held)


def released_settings(variant: Variant, declared: Variant) -> Variant:
    """A variant with the settings that it declared as they were declared."""
    before = {one.name: one for one in declared.settings}
    return replace(variant, settings=tuple(before.get(one.name, one) for one in variant.settings))
