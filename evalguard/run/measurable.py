"""Whether what the gate asks for can be measured: seen before hours of scoring."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from importlib import metadata

from evalguard.core.figure_names import split_name
from evalguard.core.gate import Gate
from evalguard.core.limits import BOUNDED, OF_ANSWERS
from evalguard.errors import (
    MisalignedRunsError,
    UsageError,
    nearest,
)
from evalguard.models.arguments import CHAT_TYPES, HF_TYPES, no_chat_requests
from evalguard.models.served.shown_top_tokens import TOP_ARGUMENT
from evalguard.run.choices import Choices
from evalguard.run.loading.own_environment import (
    shows_distributions,
)
from evalguard.run.options import CompareOptions
from evalguard.run.scoring.reference_scorer import chat_template_missing
from evalguard.run.sources import (
    BaselineSource,
    DumpSource,
    ModelSource,
    ReferenceSource,
    RunSource,
    Source,
    StoredSource,
)

_GIVE_MODEL = "name the model itself with --base"
# How models are asked and checked: of no effect where none is.
_OF_MODELS = (
    "apply_chat_template", "fewshot_as_multiturn", "gen_kwargs", "rolling_bos", "save_reference",
    "scorer", "system_instruction", "verify_scorer",
)  # fmt: skip


# What chooses documents, of no effect where they lie in folders.
_OF_TASKS = (
    "cluster", "limit", "num_fewshot", "reference_top_k", "requests", "sequential", "tasks",
)  # fmt: skip


def check_asked(sources: Sequence[Source], options: CompareOptions) -> None:
    """Refuse, of two finished runs or dumps, to be asked for other answers than theirs.

    Raises:
        UsageError: naming the options.
    """
    dumps = all(isinstance(source, DumpSource) for source in sources)
    runs = [source for source in sources if isinstance(source, StoredSource)]
    if len(runs) < len(sources) and not dumps:
        return
    default, idle = CompareOptions(), (*_OF_MODELS, *(_OF_TASKS if dumps else ()))
    asked = [
        field.name
        for field in fields(options)
        if field.name in idle and getattr(options, field.name) != getattr(default, field.name)
    ]
    tables = [table for source in runs for table in source.run.tables]
    shots = {table.run.get("num_fewshot") for table in tables}
    if runs and options.num_fewshot is not None and shots - {options.num_fewshot}:
        asked.append("num_fewshot")
    limit = options.limit
    if limit is not None and any(limit < table.n for table in tables):
        asked.append("limit")
    if dumps and options.distributions in ("lockstep", "reference"):
        asked.append("distributions")
    if asked:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in asked)
        what, its = ("dumps of outputs", "dumps") if dumps else ("finished runs", "runs")
        raise UsageError(
            f"both sides are {what}: no model is asked, so {names} would have no effect",
            hint=f"leave it out, or name the models in place of their {its}",
        )


def check_measurable(sources: Sequence[Source], choices: Choices) -> None:
    """Refuse a gate that asks for what this comparison cannot show.

    Raises:
        UsageError: naming the limits, or the option.
    """
    _check_chats(sources, choices)
    _check_scorer(choices)
    _check_rolling_bos(sources, choices)
    _check_switched_on(choices)
    for source in sources:
        if isinstance(source, StoredSource):
            _check_stored(source, choices.gate)
        elif isinstance(source, ReferenceSource):
            _check_reference(source, choices)
        elif isinstance(source, ModelSource):
            _check_shown(source, choices.gate)
    _check_versions(sources, choices)


def _check_chats(sources: Sequence[Source], choices: Choices) -> None:
    """Refuse chat requests to a model that is put prompts only."""
    for source in sources if choices.task_options.chats else ():
        if not isinstance(source, ModelSource):
            continue
        kind = source.variant.model
        if kind not in (*HF_TYPES, *CHAT_TYPES):
            raise no_chat_requests(f"{source.name} is of type '{kind}', and")


def _check_reference(base: ReferenceSource, choices: Choices) -> None:
    """Refuse what a file of a base does not hold."""
    if choices.task_options.apply_chat_template:
        raise chat_template_missing(base.path)
    absent = [task for task in choices.tasks if task not in base.tasks]
    if absent and not any(task in base.tasks for task in choices.tasks):
        raise UsageError(
            f"{base.path} has no answers to {', '.join(absent)}{nearest(absent[0], base.tasks)}",
            hint=f"its tasks: {', '.join(base.tasks)}",
        )


def _check_scorer(choices: Choices) -> None:
    mode, needed = choices.distributions.mode, choices.gate.needs_distributions
    asked = mode in ("lockstep", "reference")
    if choices.policy.scorer == "harness" and (asked or (mode == "auto" and needed)):
        what = f"distributions {mode}" if asked else "a limit of the gate"
        raise UsageError(
            f"{what} needs the models' distributions, and lm-eval's own path (--scorer harness) "
            "shows none",
            hint="leave out one of the two",
        )


def _check_versions(sources: Sequence[Source], choices: Choices) -> None:
    """Refuse a model beside an lm-eval run of which no metric could be paired with the model's.

    Raises:
        MisalignedRunsError: before the model is scored, with what to do.
    """
    runs = [source for source in sources if isinstance(source, RunSource)]
    models = [source for source in sources if isinstance(source, ModelSource)]
    if not runs or not models or "reading" in choices.allow:
        return
    (run,) = runs
    here = metadata.version("lm_eval")
    then = {str((table.reading or {}).get("lm_eval") or "not recorded") for table in run.run.tables}
    if then <= {here}:
        return
    raise MisalignedRunsError(
        f"the version of lm-eval is {', '.join(then)} in the run {run.name}, and {here} here: "
        "versions build and read prompts differently (some add BOS, some do not), and a finished "
        "run does not show its token ids",
        hint=f"run lm_eval again with {here}, or name the model instead of its run; if both read "
        "the same tokens: --allow-differing tokens",
    )


def _check_rolling_bos(sources: Sequence[Source], choices: Choices) -> None:
    if choices.policy.rolling_bos != "once":
        return
    leave_out = "leave out rolling_bos: once (run of the guard file)"
    if choices.policy.scorer == "harness":
        raise UsageError(
            "rolling_bos once reads whole texts otherwise than lm-eval's own path (--scorer "
            "harness) does",
            hint="leave out one of the two",
        )
    for source in sources:
        if isinstance(source, ModelSource) and not shows_distributions(source.variant):
            raise UsageError(
                f"rolling_bos once works with model type hf, and '{source.name}' is of type "
                f"'{source.variant.model}': lm-eval's own code reads its texts",
                hint=leave_out,
            )


def _check_switched_on(choices: Choices) -> None:
    if choices.distributions.mode == "off" and choices.gate.needs_distributions:
        raise UsageError(
            f"the gate has limits on {_distribution_limits(choices.gate)}, and distributions "
            "are off",
            hint="leave out --distributions off (distributions: off), or the limits",
        )


def _check_shown(source: ModelSource, gate: Gate) -> None:
    """A limit on distributions needs all of them; what a server shows may break one on KL."""
    if not gate.needs_distributions or shows_distributions(source.variant):
        return
    whole = "name the model itself (model: hf, or a GGUF file: llama_cpp) for base and candidate"
    limits = [limit.metric for limit in gate.limits if limit.of_distributions]
    shown = source.variant.model_args.get(TOP_ARGUMENT)
    if all(one in BOUNDED for one in limits):
        if shown:
            return
        raise UsageError(
            f"the gate has a limit on {', '.join(limits)}, and '{source.name}', of type "
            f"'{source.variant.model}', shows no whole distributions; a lower bound of KL, which "
            "can break a limit, comes of the most probable tokens that it is asked for",
            hint=f"model_args: {{{TOP_ARGUMENT}: 20}} asks for them; to have it held or broken, "
            f"{whole}",
        )
    raise UsageError(
        f"the gate has limits on {_distribution_limits(gate)}, and '{source.name}', of type "
        f"'{source.variant.model}', shows no whole distributions: of the most probable tokens of "
        f"a server there is a lower bound of KL, to which {', '.join(BOUNDED)} alone is held",
        hint=f"{whole}, or leave out the limits (--gate-metric, gate: {{metrics: ...}})",
    )


def _check_stored(source: StoredSource, gate: Gate) -> None:
    """Scores that were kept are all there is of a model that is not asked any more."""
    kept = isinstance(source, BaselineSource)
    what = f"the stored base '{source.name}'" if kept else f"the finished run '{source.name}'"
    instead = _GIVE_MODEL if kept else "name the model instead of its run"
    if gate.needs_distributions:
        raise UsageError(
            f"the gate has limits on {_distribution_limits(gate)}, and {what} holds scores, no "
            "distributions",
            hint=f"{instead}, or leave out the limits (--gate-metric, gate: {{metrics: ...}})",
        )
    shown = any(table.answers for table in source.run.tables)
    figures = [f for f in gate.figure_names if not shown or split_name(f)[1] != OF_ANSWERS]
    if figures and isinstance(source, BaselineSource) and not source.run.rows:
        raise UsageError(
            f"the gate asks for figures of generated answers ({', '.join(figures)}), and {what} "
            "keeps no texts",
            hint="give its run folder in place of the history, or name the model itself",
        )
    asks_for_answers = any(limit.metric == OF_ANSWERS for limit in gate.limits)
    if asks_for_answers and not shown:
        instead = "give its run folder in place of the history" if kept else instead
        raise UsageError(
            f"the gate has a limit on {OF_ANSWERS}, and {what} keeps no answers",
            hint=f"{instead}, or leave out the limit",
        )


def _distribution_limits(gate: Gate) -> str:
    return ", ".join(limit.metric for limit in gate.limits if limit.of_distributions)
