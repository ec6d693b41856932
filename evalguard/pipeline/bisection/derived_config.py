"""Settings from the configs of two models of one class."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from evalguard.errors import EvalguardError
from evalguard.models.checkpoint_comparison import shape_differences
from evalguard.models.config_differences import ConfigDifference, config_differences
from evalguard.models.empty_model import effective_config, empty_model, laid_over
from evalguard.pipeline.bisection.sides import HFSide
from evalguard.settings import Constraint, Setting, Target, Value


def config_settings(base: HFSide, candidate: HFSide) -> tuple[list[Setting], list[str]]:
    """Return settings ``config.X`` for two models of one class, and notes on what is left out.

    Attributes that change the shapes of weights are left out: they come with the weights. What an
    argument of loading sets, that argument's setting covers.
    """
    settings: list[Setting] = []
    notes: list[str] = []
    covered = {
        name for side in (base, candidate) for name in laid_over(side.config, side.model_args)
    }
    for one in config_differences(base.config, candidate.config):
        if one.path.partition(".")[0] in covered:
            continue
        if not one.known:
            notes.append(
                f"config.{one.path}: {one.base!r} in the base, {one.candidate!r} in the candidate; "
                "the config class does not know it, so it cannot be set"
            )
        else:
            settings.append(_setting(one))
    return settings, notes


def shaping(settings: Iterable[Setting], candidate: HFSide) -> list[Setting]:
    """Return the settings that, at their reference value alone, give weights other shapes."""
    return [
        one for one in settings if not _same_shapes(candidate, {one.target.path: one.reference})
    ]


def held_together(settings: Iterable[Setting]) -> tuple[Constraint, ...]:
    """Say that settings are at their reference values together, or at their candidate's."""
    first, *others = [*settings]
    return tuple(
        Constraint(when={one.name: one.reference}, then={other.name: other.reference})
        for mate in others
        for one, other in ((first, mate), (mate, first))
    )


def left_over(base: HFSide, candidate: HFSide, settings: Iterable[Setting]) -> tuple[str, ...]:
    """Build the config of the all-reference model, and say where it still is not the base's."""
    values = {one.target.path: one.reference for one in settings if one.target.kind == "config"}
    arguments = {
        one.target.path: one.reference for one in settings if one.target.kind == "model_args"
    }
    given = {**candidate.model_args, **arguments}
    trusted = {"trust_remote_code": candidate.variant.trust_remote_code}
    try:
        made = effective_config(given, {**candidate.overrides, **values}, **trusted)
    except EvalguardError as error:
        return (f"the config of the base cannot be reached with settings: {error}",)
    return tuple(
        f"config.{one.path} stays {one.candidate!r} where the base has {one.base!r}"
        for one in config_differences(base.config, made)
        if one.known
    )


def _setting(one: ConfigDifference) -> Setting:
    return Setting(
        name=f"config.{one.path}",
        reference=one.base,
        candidate=one.candidate,
        target=Target(kind="config", path=one.path),
    )


def _same_shapes(candidate: HFSide, values: Mapping[str, Value]) -> bool:
    trusted = {"trust_remote_code": candidate.variant.trust_remote_code}
    if candidate.model is None:
        return True
    try:
        config = effective_config(
            candidate.model_args, {**candidate.overrides, **values}, **trusted
        )
        changed = empty_model(config, candidate.model_args, **trusted)
    except EvalguardError:
        return False
    return not shape_differences(candidate.model, changed)
