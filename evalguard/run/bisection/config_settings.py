"""Settings from the configs of two models of one class."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from evalguard.core.settings import Constraint, Setting, Target, Value
from evalguard.errors import EvalguardError
from evalguard.models.checkpoint_comparison import compare_shapes
from evalguard.models.config_comparison import ConfigDifference, compare_configs
from evalguard.models.empty_model import build_empty_model, config_model_args, read_effective_config
from evalguard.run.bisection.model_differences import HFSide


def config_settings(base: HFSide, candidate: HFSide) -> tuple[list[Setting], list[str]]:
    """Return settings ``config.X`` for two models of one class, and notes on what is left out.

    Attributes that change the shapes of weights are left out: they come with the weights. What an
    argument of loading sets, that argument's setting covers.
    """
    settings: list[Setting] = []
    notes: list[str] = []
    covered = {
        name
        for side in (base, candidate)
        for name in config_model_args(side.config, side.model_args)
    }
    for one in compare_configs(base.config, candidate.config):
        if one.path.partition(".")[0] in covered:
            continue
        if not one.known:
            notes.append(
                f"config.{one.path}: {one.base!r} in the base, {one.candidate!r} in the candidate; "
                "the config class does not know it, so it cannot be set"
            )
        else:
            settings.append(_config_setting(one))
    return settings, notes


def find_shape_settings(settings: Iterable[Setting], candidate: HFSide) -> list[Setting]:
    """Return the settings that, at their reference value alone, give weights other shapes."""
    return [
        one for one in settings if not _same_shapes(candidate, {one.target.path: one.reference})
    ]


def tie_together(settings: Iterable[Setting]) -> tuple[Constraint, ...]:
    """Say that settings are at their reference values together, or at their candidate's."""
    first, *others = [*settings]
    return tuple(
        Constraint(when={one.name: one.reference}, then={other.name: other.reference})
        for mate in others
        for one, other in ((first, mate), (mate, first))
    )


def find_config_leftovers(
    base: HFSide, candidate: HFSide, settings: Iterable[Setting]
) -> tuple[str, ...]:
    """Build the config of the all-reference model, and say where it still is not the base's."""
    values = {one.target.path: one.reference for one in settings if one.target.kind == "config"}
    arguments = {
        one.target.path: one.reference for one in settings if one.target.kind == "model_args"
    }
    given = {**candidate.model_args, **arguments}
    trusted = {"trust_remote_code": candidate.variant.trust_remote_code}
    try:
        made = read_effective_config(given, {**candidate.overrides, **values}, **trusted)
    except EvalguardError as error:
        return (f"the config of the base cannot be reached with settings: {error}",)
    return tuple(
        f"config.{one.path} stays {one.candidate!r} where the base has {one.base!r}"
        for one in compare_configs(base.config, made)
        if one.known
    )


def _config_setting(one: ConfigDifference) -> Setting:
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
        config = read_effective_config(
            candidate.model_args, {**candidate.overrides, **values}, **trusted
        )
        changed = build_empty_model(config, candidate.model_args, **trusted)
    except EvalguardError:
        return False
    return not compare_shapes(candidate.model, changed)
