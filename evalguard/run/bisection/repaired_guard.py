"""A guard file with the base and a repaired candidate whose settings nobody declared."""

from __future__ import annotations

import json
from pathlib import Path

from evalguard.config.guard_writing import guard_text
from evalguard.core.gate import Gate
from evalguard.core.redaction import redacted_command
from evalguard.core.settings import Value
from evalguard.core.verdict import Margin
from evalguard.run.choices import Choices
from evalguard.run.finished_comparison import FinishedComparison
from evalguard.run.modules.module_settings import drop_idle_modules
from evalguard.run.scoring.distribution_choice import DistributionChoice
from evalguard.run.sources import ModelSource
from evalguard.run.typed_options import option_words

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
    more: dict[str, Value] = {
        "pairs": [pair],
        **_asked_tasks(choices),
        "include_path": [str(path) for path in choices.task_options.include_paths],
        "clusters": {**choices.clusters.by_task, **_cluster_fields(finished)},
        "answers": {task: one.entry for task, one in choices.answers.items()},
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
    return guard_text(models, more, head=_HEAD)


def _asked_tasks(choices: Choices) -> dict[str, Value]:
    chats = choices.task_options.chats
    tasks: list[Value] = [task for task in choices.tasks if task not in chats]
    asked: dict[str, Value] = {"tasks": tasks} if tasks else {}
    for one in chats.values():
        asked["requests"] = str(one.path.absolute())
    return asked


def _cluster_fields(finished: FinishedComparison) -> dict[str, Value]:
    """Task -> the field that its documents were clustered by."""
    return {one.task: one.cluster_field for one in finished.report.comparisons if one.cluster_field}


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
