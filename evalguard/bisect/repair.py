"""The candidate with its culprits put right, judged as the comparison was."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from evalguard.bisect.bisect_report import WHOLE_MODEL, Repaired, RepairedMetric
from evalguard.bisect.settings.module_settings import drop_idle_modules
from evalguard.comparison.finished_comparison import FinishedComparison
from evalguard.comparison.gate_judgement import GateJudgement
from evalguard.comparison.judge import judge_scores
from evalguard.comparison.typed_command import option_words, typed_comparison, typed_text
from evalguard.config.guard_writing import as_yaml, guard_text, settings_excerpt
from evalguard.core.gate import Gate
from evalguard.core.redaction import redacted_command, redacted_text, shown_value
from evalguard.core.repeat_command import as_comparison
from evalguard.core.settings import Assignment, Setting, Value
from evalguard.core.verdict import Margin
from evalguard.engine.choices import Choices
from evalguard.engine.distribution_choice import DistributionChoice
from evalguard.engine.score_models import score_models
from evalguard.engine.scored_side import ScoredSide, side_of_model
from evalguard.engine.side_figures import with_named_figures
from evalguard.engine.sources import ModelSource, ReferenceSource
from evalguard.errors import StoreError
from evalguard.report.meaning import other_classes, own_code
from evalguard.store.run_folder import write_text


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedRepair:
    """A repaired candidate with its scores and the gate's answer."""

    source: ModelSource
    scored: tuple[ScoredSide, ScoredSide]
    judgement: GateJudgement
    reset: tuple[str, ...]

    @property
    def repaired(self) -> Repaired:
        """As it is reported."""
        gate = self.judgement.gate
        return Repaired(
            assignment=shown_assignment(self.source),
            reset=self.reset,
            passed=gate.passed,
            state=gate.state,
            metrics=tuple(
                RepairedMetric(
                    task=comparison.task,
                    filter=comparison.filter,
                    metric=comparison.metric,
                    sigma=comparison.sigma,
                    outcome=comparison.outcome,
                    gated=comparison.key in gate.gated,
                )
                for comparison in self.judgement.comparisons
            ),
            limits=gate.limits,
        )


def reset_settings(
    candidate: ModelSource, reset: Sequence[str], values: Assignment | None = None
) -> ModelSource:
    """The candidate with some settings at their reference value, or at another that will do."""
    changed = {s.name: s.reference for s in candidate.variant.settings if s.name in reset}
    return replace(candidate, variant=candidate.variant.assigned({**changed, **(values or {})}))


def judge_repaired(
    finished: FinishedComparison, source: ModelSource, reset: Sequence[str]
) -> JudgedRepair:
    """Score a repaired candidate, and judge it as the candidate was judged.

    What of it was measured by the search comes from the score cache. The base is scored again only
    where the gate has limits on distributions, for which both models are needed.

    Raises:
        UsageError, EvaluationError, Interrupted: as scoring does.
    """
    choices, options, base = finished.choices, finished.options, finished.sources[0]
    named = replace(source, name=f"{source.name} (repaired)")
    if choices.gate.needs_distributions and isinstance(base, ModelSource):
        _, evaluation = score_models([base, named], choices, options)
    elif isinstance(base, ReferenceSource):
        _, evaluation = score_models([named], choices, options, reference=base)
    else:
        alone = replace(choices, distributions=DistributionChoice(mode="off"), memory="auto")
        (evaluation,) = score_models([named], alone, options)
    sides = finished.scored[0], side_of_model(named, evaluation)
    scored = with_named_figures(sides, choices.gate, choices.answers)
    judgement = judge_scores(scored, choices, options).judgement
    return JudgedRepair(source=source, scored=scored, judgement=judgement, reset=tuple(reset))


def shown_assignment(source: ModelSource) -> dict[str, Value]:
    """The value of every setting as it may be shown."""
    variant = source.variant
    return {s.name: shown_value(variant.assignment.get(s.name), s) for s in variant.settings}


REPAIRED_FILE = "repaired.yaml"
_HEAD = "the candidate with its culprits put right, by evalguard bisect"
# Options that no guard file can hold, beside those about prompts.
_TYPED_ONLY = (
    "threads", "cache_dir", "use_cache", "verify_scorer", "strict", "floor", "output_path",
)  # fmt: skip


def render_repaired_guard(finished: FinishedComparison, repaired: ModelSource) -> str:
    """Return its text; the models are "base" and "repaired".

    Tasks, gate and the options that change scores are those of the comparison.
    """
    base = finished.sources[0]
    assert isinstance(base, ModelSource)
    choices = finished.choices
    gate = choices.gate
    pair: dict[str, Value] = {"base": "base", "cand": "repaired"}
    if gate.waivers:
        pair["accept"] = [
            {
                "task": waiver.task,
                "metric": waiver.metric,
                **({"filter": waiver.filter} if waiver.filter else {}),
                "up_to": waiver.up_to,
                "until": waiver.until,
                "reason": waiver.reason,
            }
            for waiver in gate.waivers
        ]
    content: dict[str, Value] = {
        "pairs": [pair],
        **_asked_tasks(choices),
        "include_path": [str(path) for path in choices.task_options.include_paths],
        "clusters": {**choices.clusters.by_task, **_cluster_fields(finished)},
        "answers": {task: expected.entry for task, expected in choices.answers.items()},
        "run": _run_block(choices),
        "gate": {
            "margin": _margin_value(gate.default_margin),
            "fail_on": gate.fail_on,
            "confidence": gate.confidence,
            "undecided": gate.undecided,
            "broken_documents": gate.broken_documents,
            "subtasks": gate.subtasks,
            "only": list(gate.gate_metrics),
            "advisory": list(gate.advisory),
            "metrics": {
                **{limit.name: limit.value for limit in gate.limits if not limit.of_figure},
                **_metric_entries(gate),
            },
        },
    }
    variant = repaired.variant
    if choices.bisect.over != "settings" and finished.candidate is not None:
        variant = drop_idle_modules(variant, finished.candidate.variant)
    models = {"base": base.variant, "repaired": variant}
    return guard_text(models, content, head=_HEAD)


def _asked_tasks(choices: Choices) -> dict[str, Value]:
    chats = choices.task_options.chats
    tasks: list[Value] = [task for task in choices.tasks if task not in chats]
    asked: dict[str, Value] = {"tasks": tasks} if tasks else {}
    for chat in chats.values():
        asked["requests"] = str(chat.path.absolute())
    return asked


def _cluster_fields(finished: FinishedComparison) -> dict[str, Value]:
    """Task -> the field that its documents were clustered by."""
    return {
        comparison.task: comparison.cluster_field
        for comparison in finished.report.comparisons
        if comparison.cluster_field
    }


def _metric_entries(gate: Gate) -> dict[str, Value]:
    """What the gate says of single metrics, as a guard file has it."""
    margins, directions = dict(gate.margins), dict(gate.directions)
    limits = {limit.name: limit.value for limit in gate.limits if limit.of_figure}
    # without a margin of its own, one with a limit is held to that alone
    alone = {name: gate.default_margin for name in gate.figures if name in limits}
    margins = {**alone, **margins}
    return {
        name: {
            **({"margin": _margin_value(margins[name])} if name in margins else {}),
            **({"higher_is_better": directions[name]} if name in directions else {}),
            **({"limit": limits[name]} if name in limits else {}),
        }
        for name in dict.fromkeys((*margins, *directions, *gate.figures, *limits))
    }


def _margin_value(margin: Margin) -> Value:
    """As a guard file has it."""
    return margin.value if margin.unit == "sigma" else margin.text


def proof_command(folder: Path, finished: FinishedComparison) -> str:
    """The command that compares the two, with what of the comparison no guard file can say."""
    asked, words = finished.choices.task_options, ["--config", str(folder / REPAIRED_FILE)]
    words += ["--base", "base", "--cand", "repaired"]
    if asked.gen_kwargs:
        words += ["--gen-kwargs", json.dumps(dict(asked.gen_kwargs))]
    if asked.confirm_unsafe:
        words += ["--confirm-run-unsafe-code"]
    for what in sorted(finished.choices.declared):  # the rest comes with the settings
        words += ["--allow-differing", what]
    words += option_words(finished.options, _TYPED_ONLY)
    return redacted_command(["evalguard", "compare", *words])


def _run_block(choices: Choices) -> dict[str, Value]:
    """The ``run`` block: what was settled, where it is not what a run does by itself."""
    asked, policy, distributions = choices.task_options, choices.policy, choices.distributions
    usual = DistributionChoice()
    settled: dict[str, tuple[Value, Value]] = {  # option -> (value, what it is by itself)
        "limit": (_limit_value(asked.limit), None),
        "num_fewshot": (asked.num_fewshot, None),
        "apply_chat_template": (asked.apply_chat_template, False),
        "system_instruction": (asked.system_instruction, ""),
        "fewshot_as_multiturn": (asked.fewshot_as_multiturn, None),
        "batch_size": (policy.batch_size, None),
        "token_budget": (policy.token_budget, 0),
        "scorer": (policy.scorer, "fast"),
        "share_prefixes": (policy.share_prefixes, True),
        "rolling_bos": (policy.rolling_bos, "lm-eval"),
        "device": (policy.device, ""),
        "distributions": (distributions.mode, usual.mode),
        "reference_top_k": (distributions.top_k, usual.top_k),
        "memory": (choices.memory, "auto"),
        "worker": (choices.worker, "auto"),
        "timeout": (choices.timeout, None),
        "sequential_alpha": (choices.sequential_alpha, None),
    }
    run = {name: value for name, (value, usually) in settled.items() if value != usually}
    sequential: dict[str, Value] = {} if choices.sequential_alpha is None else {"sequential": True}
    return {"seed": asked.seed, **run, **sequential}


def _limit_value(limit: float | None) -> int | float | None:
    """A number of documents as a guard file has it: whole, or a share."""
    return limit if limit is None or limit < 1 else int(limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """``text``: lines of a guard file, for ``where``; ``command``: shows what they do."""

    text: str = ""
    where: str = ""
    command: str = ""


def build_repair(
    finished: FinishedComparison,
    values: Mapping[str, Value],
    repaired: ModelSource,
) -> Repair:
    """Say how to give settings other values.

    Settings that the candidate declares are changed where they stand. For derived ones there is a
    guard file of its own, in the run folder if there is one; but none where other code computes
    and only the base in the candidate's place was seen to help: that repairs nothing.

    Args:
        values: setting -> the value that repairs it.
        repaired: the candidate with these.
    """
    candidate = finished.candidate
    if candidate is None or not values:
        return Repair()
    if not values.keys() <= {setting.name for setting in candidate.variant.settings}:
        targets = {str(s.target) for s in repaired.variant.settings if s.name in values}
        if targets == {WHOLE_MODEL} and (
            own_code(finished.report) or other_classes(finished.report)
        ):
            return Repair()
        return _repair_derived(finished, repaired)
    settings = {s.name: s for s in candidate.variant.settings}
    text, where = "", ""
    if candidate.guard is not None:
        text = _excerpt(candidate, settings, values)
        where = candidate.guard.place(candidate.name, next(iter(values)))
    typed = {name: _set_text(value, settings[name]) for name, value in values.items()}
    if None in typed.values():  # a secret that is not the reference: it cannot be shown
        return Repair(text=text, where=where)
    sets = [f"--set {shlex.quote(f'{name}={value}')}" for name, value in typed.items()]
    command = as_comparison(finished.report.command) or typed_comparison(
        *finished.named, finished.options
    )
    return Repair(text=text, where=where, command=command and " ".join([command, *sets]))


def _excerpt(
    candidate: ModelSource, settings: Mapping[str, Setting], values: Mapping[str, Value]
) -> str:
    """The lines for the guard file, secrets as ``***``."""
    assignment = candidate.variant.assignment
    return redacted_text(
        settings_excerpt(
            candidate.name,
            {
                n: replace(settings[n], reference=shown_value(settings[n].reference, settings[n]))
                for n in values
            },
            {n: shown_value(value, settings[n]) for n, value in values.items()},
            {n: as_yaml(shown_value(assignment[n], settings[n])) for n in values},
        )
    )


def _repair_derived(finished: FinishedComparison, repaired: ModelSource) -> Repair:
    if not isinstance(finished.sources[0], ModelSource):
        return Repair()
    text, folder = render_repaired_guard(finished, repaired), finished.folder
    if redacted_text(text) != text or folder is None:
        return Repair(text=redacted_text(text), where="a guard file")
    try:
        write_text(folder, REPAIRED_FILE, text)
    except StoreError:  # the text is in the report all the same
        return Repair(text=text, where="a guard file")
    return Repair(
        text=text, where=str(folder / REPAIRED_FILE), command=proof_command(folder, finished)
    )


def _set_text(value: Value, setting: Setting) -> str | None:
    """A value as ``--set`` reads it back, type and all; None for a secret."""
    if value == setting.reference and type(value) is type(setting.reference):
        return "reference"
    if shown_value(value, setting) != value:
        return None
    return typed_text(value)
