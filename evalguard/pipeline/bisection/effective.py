"""Effective values: what a loaded model shows of its settings, whatever was asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from evalguard.scorer import ModelDescription
from evalguard.settings import Setting, Value, Variant, digest_of


def candidate_value(variant: Variant, setting: Setting) -> Value:
    """The value that a setting has in the candidate that was compared."""
    return variant.assignment.get(setting.name, setting.candidate)


def differing(variant: Variant) -> tuple[Setting, ...]:
    """The settings whose value in the candidate is not their reference; 1, 1.0 and true differ."""
    return tuple(
        setting
        for setting in variant.settings
        if not _equal(candidate_value(variant, setting), setting.reference)
    )


def inert_by_readback(
    settings: Sequence[Setting], reference: ModelDescription, candidate: ModelDescription
) -> tuple[str, ...]:
    """The settings whose two values were one in the loaded model.

    A dtype of the whole model is read back as that of most weights: that proves too little.
    """
    return tuple(
        setting.name
        for setting in settings
        if setting.name in reference.effective
        and setting.name in candidate.effective
        and _equal(reference.effective[setting.name], candidate.effective[setting.name])
        and not (setting.target.kind == "model_args" and setting.target.path == "dtype")
    )


def same_model(ours: ModelDescription | None, theirs: ModelDescription | None) -> bool:
    """Whether identities prove that two models are one: everything read back is equal.

    A setting that only one of them has proves nothing: what it sets is not read from the other.
    """
    if ours is None or theirs is None or ours.identity is None or theirs.identity is None:
        return False
    return _equal(_told(ours.identity), _told(theirs.identity))


def _told(identity: Mapping[str, Value]) -> Value:
    """An identity with its settings by target and effective value, whatever they are called."""
    settings = identity.get("settings")
    found: dict[str, Value] = {}
    if isinstance(settings, Mapping):
        for entry in settings.values():
            assert isinstance(entry, (list, tuple))
            found[str(entry[0])] = entry[2]
    return {**identity, "settings": found}


def _equal(one: Value, other: Value) -> bool:
    return digest_of([one]) == digest_of([other])
