"""GateEntry: when a comparison fails, as a guard file says it."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    WithJsonSchema,
    create_model,
    model_validator,
)

from evalguard.config.declared_options import declared_keys
from evalguard.config.entries import GuardEntry, Text
from evalguard.config.options import CompareOptions
from evalguard.config.run_entry import key_field, key_type
from evalguard.core.figures import FIGURES, split_name
from evalguard.core.gate import Gate, WhenUndecided
from evalguard.core.limits import KINDS, Limit
from evalguard.core.verdict import MARGIN_PATTERN, Margin
from evalguard.errors import UsageError


def _margin(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError(_MARGIN_WORDS)
    try:
        margin = Margin.parse(value)
    except ValueError as error:
        raise ValueError(_MARGIN_WORDS) from error
    if margin.value == 0.0:
        raise ValueError(f"{_MARGIN_WORDS} above 0")
    return margin


_MARGIN_WORDS = "a number of sigmas (1.0), points (1pp) or a relative drop (2%)"
MarginField = Annotated[
    Any,
    BeforeValidator(_margin),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "exclusiveMinimum": 0},
                {"type": "string", "pattern": MARGIN_PATTERN},
            ]
        }
    ),
]


def _share_of_answers(value: Any) -> Any:
    number = value
    if isinstance(value, str) and value.strip().endswith("%"):
        number = float(value.strip()[:-1]) / 100.0 if re.match(MARGIN_PATTERN, value) else value
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0 <= number <= 1:
        raise ValueError("a share of the answers, 0 to 1 or 2%; 1pp is a margin")
    return float(number)


# Figures of generated answers that a limit can be set on.
_SHARES = tuple(name for name in FIGURES if name in KINDS)
_SHARE_FORMS: list[dict[str, Any]] = [
    {"type": "number", "minimum": 0, "maximum": 1},
    {"type": "string", "pattern": MARGIN_PATTERN},
]
ShareField = Annotated[
    Any, BeforeValidator(_share_of_answers), WithJsonSchema({"anyOf": _SHARE_FORMS})
]


def _is_margin(value: Any) -> bool:
    return isinstance(value, str) and not value.strip().endswith("%")


def _distance(what: str, **more: Any) -> Any:
    return Field(default=None, ge=0, allow_inf_nan=False, description=f"At most: {what}", **more)


def _share(what: str) -> Any:
    return Field(default=None, ge=0, le=1, description=f"At least: {what}")


class MetricGateEntry(GuardEntry):
    """What the gate asks of one metric, or of one task's."""

    margin: MarginField = Field(
        default=None, description="Tolerated drift of this metric: 1.0, 1pp, 2%."
    )
    higher_is_better: bool | None = Field(
        default=None,
        description="Which way is better, of a metric whose task does not say: without it such a "
        "metric is shown and not gated.",
    )
    limit: ShareField = Field(
        default=None,
        description="Of a figure of generated answers: the largest share of the candidate's "
        "answers (of a valid_...: the smallest), 0.02 or 2%. loops: 0 is short for loops: "
        "{limit: 0}, cut: 1pp for cut: {margin: 1pp}.",
    )


class LimitsEntry(GuardEntry):
    """Limits on distributions, answers and figures of answers, and margins of single metrics.

    The names of limits hold a number; any other is a metric, or TASK/METRIC, with its margin. A
    figure of generated answers (loops, gsm8k/cut) has either, or both.
    """

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)
    __pydantic_extra__: dict[str, MetricGateEntry] = Field(init=False)

    @model_validator(mode="before")
    @classmethod
    def _spell_out(cls, given: Any) -> Any:
        """One number or text for a figure of answers: a margin in points, else a limit."""
        if not isinstance(given, dict):
            return given
        return {
            name: {"margin" if _is_margin(value) else "limit": value}
            if split_name(str(name))[1] in _SHARES and isinstance(value, (int, float, str))
            else value
            for name, value in given.items()
        }

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: Any, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """With the short forms of figures of answers."""
        schema = handler.resolve_ref_schema(handler(core_schema))
        long_form = schema["additionalProperties"]
        short = {"anyOf": [*_SHARE_FORMS, long_form]}
        schema["patternProperties"] = {f"^(.*/)?({'|'.join(_SHARES)})(,.*)?$": short}
        return schema

    @model_validator(mode="after")
    def _check_limits(self) -> LimitsEntry:
        for name, entry in (self.__pydantic_extra__ or {}).items():
            if entry.limit is not None:
                try:
                    Limit.parse(name, entry.limit)
                except UsageError as error:
                    raise ValueError(str(error)) from error
                if split_name(name)[1] not in _SHARES:
                    raise ValueError(f"a limit of {name} without braces: {name}: {entry.limit:g}")
        return self

    kl_mean: float | None = _distance("mean KL divergence from the base, in nats a token.")
    kl_median: float | None = _distance("median KL.")
    kl_p90: float | None = _distance("the KL that 90% of the tokens do not exceed.")
    kl_p95: float | None = _distance("the KL that 95% of the tokens do not exceed.")
    kl_p99: float | None = _distance("the KL that 99% of the tokens do not exceed.")
    kl_p99_9: float | None = _distance(
        "the KL that 99.9% of the tokens do not exceed.", alias="kl_p99.9"
    )
    kl_max: float | None = _distance("the largest KL.")
    dp_mean: float | None = _distance(
        "size of the mean change in the scored token's probability.", le=1
    )
    dp_rms: float | None = _distance(
        "root mean square change in the scored token's probability.", le=1
    )
    same_top1: float | None = _share("share of tokens with the same most probable token.")
    same_topk: float | None = _share("mean share of the most probable tokens that both have.")


_DEFAULTS = {field.name: field.default for field in fields(Gate)}
DECLARED = declared_keys(CompareOptions, "gate")
"""Keys that are options, too, and are declared with those."""

if TYPE_CHECKING:
    _DeclaredKeys = GuardEntry
else:
    _DeclaredKeys = create_model(
        "_DeclaredKeys",
        __base__=GuardEntry,
        **{
            name: (
                MarginField if option.option.kind == "margin" else key_type(option),
                key_field(option, default=_DEFAULTS[name]),
            )
            for name, option in DECLARED.items()
        },
    )


class GateEntry(_DeclaredKeys):
    """When a comparison fails."""

    undecided: WhenUndecided = Field(
        default="warn",
        description="What becomes of a run whose documents cannot tell: warn (exit code 0, with a "
        "warning of CI), fail (exit code 4, as --strict), pass.",
    )
    subtasks: bool = Field(
        default=False,
        description="Whether the subtasks of a group with an aggregate are gated too.",
    )
    metrics: LimitsEntry = Field(
        default_factory=LimitsEntry,
        description="Absolute limits, beside the margin; margins of single metrics; figures of "
        "generated answers (loops: 0, gsm8k/cut: 1pp).",
    )
    only: list[Text] = Field(
        default_factory=list,
        description="Metrics (acc) or tasks' metrics (gsm8k/exact_match) that are gated, of one "
        "filter after a comma (gsm8k/exact_match,strict-match); one that is not in the run fails. "
        "Default: all.",
    )
    advisory: list[Text] = Field(
        default_factory=list,
        description="Metrics, tasks' metrics, or those of one filter, that are shown and never "
        "fail.",
    )
