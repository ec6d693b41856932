"""What a loaded model shows of its settings, whatever was asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from evalguard.core.scorer import ModelDescription
from evalguard.core.settings import Setting, Value, Variant, digest_of


def candidate_value(variant: Variant, setting: Setting) -> Value:
    """The value that a setting has in the candidate that was compared."""
    return variant.assignment.get(setting.name, setting.candidate)


def settings_off_reference(variant: Variant) -> tuple[Setting, ...]:
    """The settings whose value in the candidate is not their reference; 1, 1.0 and true differ."""
    return tuple(
        setting
        for setting in variant.settings
        if not _same_value(candidate_value(variant, setting), setting.reference)
    )


def inert_by_readback(
    settings: Sequence[Setting], reference: ModelDescription, candidate: ModelDescription
) -> tuple[str, ...]:
    """The settings whose two values were one in the loaded model.

    A dtype of the whole model is read back as that of most weights: that proves too little. A
    module that was asked of the base is read back as the candidate's own where both are one.
    """

    def is_inert(setting: Setting) -> bool:
        name, target = setting.name, setting.target
        if name not in reference.effective or str(target) == "model_args.dtype":
            return False
        if target.kind == "module" and name not in candidate.effective:
            return setting.candidate is None and reference.effective[name] is None
        known = name in candidate.effective
        return known and _same_value(reference.effective[name], candidate.effective[name])

    return tuple(setting.name for setting in settings if is_inert(setting))


def same_model(ours: ModelDescription | None, theirs: ModelDescription | None) -> bool:
    """Whether identities prove that two models are one: everything read back is equal.

    A setting that only one of them has proves nothing: what it sets is not read from the other.
    """
    if ours is None or theirs is None or ours.identity is None or theirs.identity is None:
        return False
    return _same_value(_comparable_identity(ours.identity), _comparable_identity(theirs.identity))


def _comparable_identity(identity: Mapping[str, Value]) -> Value:
    """An identity with its settings by target and effective value, in whatever order."""
    settings = identity.get("settings")
    found: dict[str, Value] = {}
    for entry in settings if isinstance(settings, (list, tuple)) else ():
        assert isinstance(entry, (list, tuple))
        found[str(entry[0])] = entry[2]
    return {**identity, "settings": found}


def _same_value(one: Value, other: Value) -> bool:
    return digest_of([one]) == digest_of([other])
