"""A guard file with the base and a repaired candidate whose settings nobody declared."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from evalguard.config.excerpt import guard_text
from evalguard.pipeline.bisection.finished import Finished
from evalguard.pipeline.sources import ModelSource
from evalguard.redaction import redacted_text
from evalguard.settings import Value

NAME = "repaired.yaml"
_HEAD = "the candidate with its guilty settings put right, by evalguard bisect"


def repaired_guard(finished: Finished, repaired: ModelSource) -> str:
    """Return its text; the models are "base" and "repaired".

    Tasks, gate and the options that change scores are those of the comparison.
    """
    base = finished.sources[0]
    assert isinstance(base, ModelSource)
    choices = finished.choices
    gate, task_options = choices.gate, choices.task_options
    run: dict[str, Value] = {"seed": task_options.seed}
    if task_options.limit is not None:
        run["limit"] = task_options.limit
    if task_options.num_fewshot is not None:
        run["num_fewshot"] = task_options.num_fewshot
    if choices.policy.batch_size is not None:
        run["batch_size"] = choices.policy.batch_size
    if task_options.apply_chat_template:
        run["apply_chat_template"] = task_options.apply_chat_template
    more: dict[str, Value] = {
        "pairs": [{"base": "base", "cand": "repaired"}],
        "tasks": list(choices.tasks),
        "include_path": [str(path) for path in task_options.include_paths],
        "run": run,
        "gate": {
            "margin": gate.margin,
            "fail_on": gate.fail_on,
            "confidence": gate.confidence,
            "undecided": gate.undecided,
            "subtasks": gate.subtasks,
            "metrics": {limit.metric: limit.value for limit in gate.limits},
        },
    }
    models = {"base": base.variant, "repaired": repaired.variant}
    return guard_text(models, more, head=_HEAD)


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
    for what in sorted(finished.choices.allow):
        words += ["--allow-differing", what]
    return redacted_text(shlex.join(["evalguard", "compare", *words]))
