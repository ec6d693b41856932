"""Edit a loaded torch model so that it carries a plan's settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evalguard.conversion.code import load_function
from evalguard.conversion.dtypes import set_dtypes
from evalguard.core.redaction import redact_value
from evalguard.errors import EvalguardError, SettingError

if TYPE_CHECKING:
    import torch

    from evalguard.conversion.planning import ConversionPlan, HookCall
from evalguard.conversion.attributes import set_attribute
from evalguard.conversion.generation_attributes import set_generation


def apply(
    model: torch.nn.Module, plan: ConversionPlan, *, code_folder: str, allow_code: bool
) -> None:
    """Apply generation, attribute, call and dtype edits, in this order, each as declared.

    Attributes come first, so that a hook sees them. Hooks come before dtypes, because a hook may
    replace modules or weights (a quantiser), and a dtype must reach what the model ends up with.
    A hook leaves the model in evaluation mode: modules that it made are born in training mode.

    Raises:
        UsageError: a hook is asked for where code is not allowed.
        SettingError: an edit names nothing, or a hook fails.
    """
    import torch

    set_generation(model, plan.generation)
    with torch.no_grad():
        for edit in plan.attributes:
            set_attribute(model, edit)
        for call in plan.calls:
            _call_hook(model, call, code_folder=code_folder, allow_code=allow_code)
        if plan.calls:
            model.eval()
        if plan.dtypes:
            set_dtypes(model, plan.dtypes)


def _call_hook(
    model: torch.nn.Module, call: HookCall, *, code_folder: str, allow_code: bool
) -> None:
    function = load_function(call.function, folder=code_folder, allowed=allow_code)
    where = f"setting '{call.setting}': call:{call.function}"
    try:
        answer = function(model, call.value)
    except EvalguardError:
        raise
    except (Exception, SystemExit) as error:  # a hook must not end the run with its own exit code
        raise SettingError(
            f"{where} failed with {type(error).__name__}: {error}",
            hint=f"it was called as function(model, {redact_value(call.value, call.setting)!r})",
            setting=call.setting,
        ) from error
    if answer is not None:
        raise SettingError(
            f"{where} returned a {type(answer).__name__}; a hook edits the model in place "
            "and returns None",
            setting=call.setting,
        )
