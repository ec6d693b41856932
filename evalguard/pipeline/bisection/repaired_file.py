"""A guard file with the base and a repaired candidate whose settings nobody declared."""

from __future__ import annotations

import json
from pathlib import Path

from evalguard.config.excerpt import guard_text
from evalguard.pipeline.bisection.finished import Finished
from evalguard.pipeline.choices import Choices
from evalguard.pipeline.distribution_choice import DistributionChoice
from evalguard.pipeline.option_words import option_words
from evalguard.pipeline.sources import ModelSource
from evalguard.redaction import redacted_command
from evalguard.settings import Value
from evalguard.verdict import Margin

NAME = "repaired.yaml"
_HEAD = "the candidate with its culprits put right, by evalguard bisect"
# Options that no guard file can hold, beside those about prompts.
_TYPED_ONLY = (
    "threads", "worker", "timeout", "cluster", "cache_dir", "use_cache", "check_batch_size",
    "verify_scorer", "strict", "floor", "output_path",
)  # fmt: skip


def repaired_guard(finished: Finished, repaired: ModelSource) -> str:
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
        "tasks": list(choices.tasks),
        "include_path": [str(path) for path in choices.task_options.include_paths],
        "clusters": dict(choices.clusters.by_task),
        "run": _run(choices),
        "gate": {
            "margin": _margin(gate.default_margin),
            "fail_on": gate.fail_on,
            "confidence": gate.confidence,
            "undecided": gate.undecided,
            "subtasks": gate.subtasks,
            "only": list(gate.gate_metrics),
            "advisory": list(gate.advisory),
            "metrics": {
                **{limit.metric: limit.value for limit in gate.limits},
                **{name: {"margin": _margin(margin)} for name, margin in gate.margins},
            },
        },
    }
    models = {"base": base.variant, "repaired": repaired.variant}
    return guard_text(models, more, head=_HEAD)


def _margin(margin: Margin) -> Value:
    """As a guard file has it."""
    return margin.value if margin.unit == "sigma" else margin.text


def proof_of(folder: Path, finished: Finished) -> str:
    """The command that compares the two, with what of the comparison no guard file can say."""
    asked, words = finished.choices.task_options, ["--config", str(folder / NAME)]
    words += ["--base", "base", "--cand", "repaired"]
    if asked.system_instruction:
        words += ["--system-instruction", asked.system_instruction]
    if asked.fewshot_as_multiturn:
        words += ["--fewshot-as-multiturn"]
    if asked.gen_kwargs:
        words += ["--gen-kwargs", json.dumps(dict(asked.gen_kwargs))]
    if asked.confirm_unsafe:
        words += ["--confirm-run-unsafe-code"]
    for what in sorted(finished.choices.declared):  # the rest comes with the settings
        words += ["--allow-differing", what]
    words += option_words(finished.options, _TYPED_ONLY)
    return redacted_command(["evalguard", "compare", *words])


def _run(choices: Choices) -> dict[str, Value]:
    """The ``run`` block: what was settled, where it is not what a run does by itself."""
    asked, policy, distributions = choices.task_options, choices.policy, choices.distributions
    usual = DistributionChoice()
    settled: dict[str, tuple[Value, Value]] = {  # option -> (value, what it is by itself)
        "limit": (_whole(asked.limit), None),
        "num_fewshot": (asked.num_fewshot, None),
        "apply_chat_template": (asked.apply_chat_template, False),
        "batch_size": (policy.batch_size, None),
        "token_budget": (policy.token_budget, 0),
        "scorer": (policy.scorer, "fast"),
        "share_prefixes": (policy.share_prefixes, True),
        "rolling_bos": (policy.rolling_bos, "lm-eval"),
        "device": (policy.device, ""),
        "distributions": (distributions.mode, usual.mode),
        "reference_top_k": (distributions.top_k, usual.top_k),
        "memory": (choices.memory, "auto"),
        "sequential_alpha": (choices.sequential_alpha, None),
    }
    run = {name: value for name, (value, usually) in settled.items() if value != usually}
    sequential: dict[str, Value] = {} if choices.sequential_alpha is None else {"sequential": True}
    return {"seed": asked.seed, **run, **sequential}


def _whole(limit: float | None) -> int | float | None:
    """A number of documents as a guard file has it: whole, or a share."""
    return limit if limit is None or limit < 1 else int(limit)
