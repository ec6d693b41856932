"""``model-index``: one candidate's results as the metadata of a model card on the hub.

The rules are those of hub-docs/modelcard.md and of ``huggingface_hub.EvalResult``. Results of the
same task type, dataset, config, split and revision are merged into one entry that keeps the first
one's dataset name and args: what tells two of them apart (task, filter, examples) therefore stands
in a metric's own name and args, which are kept. A result that equals another in all but its value
replaces that one in ``huggingface_hub.metadata_update``: nothing that was measured is among them.

A commit such as 12e4567 or 0012345, a version 1.0 and the word "no" are a number or a truth value
to one parser or the other where they stand bare.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import yaml

from evalguard.core.compare_report import NO_VERSION, AskedTask, CompareReport
from evalguard.core.comparison import Comparison
from evalguard.core.distribution_comparison import DistributionComparison
from evalguard.errors import UsageError
from evalguard.page.safe_text import printable
from evalguard.report.metric_labels import judged_comparisons, metric_label
from evalguard.several.card_conditions import conditions_line, list_tasks

if TYPE_CHECKING:
    from huggingface_hub import EvalResult

_NO_FOLDING = 2**31


class _Quoted(str):
    __slots__ = ()


class _Dumper(yaml.SafeDumper):
    """Lists below a key are indented, as hub-docs has them; nothing refers to something above."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002
        super().increase_indent(flow, False)

    def ignore_aliases(self, _: Any) -> bool:
        return True


_Dumper.add_representer(
    _Quoted, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"')
)


def quoted_yaml(content: Mapping[str, Any] | Sequence[Any], *, comments: Sequence[str]) -> str:
    """Return plain values as YAML below comments of a line each."""
    head = "".join(f"# {printable(line)}\n" for line in comments)
    return head + yaml.dump(
        _quote(content), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=_NO_FOLDING
    )


def _quote(value: Any) -> Any:
    if isinstance(value, str):
        return _Quoted(value)
    if isinstance(value, Mapping):
        return {key: _quote(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_quote(inner) for inner in value]
    return value


_TASK, _TASK_NAME = "text-generation", "Text Generation"
_HEAD = (
    "Paste this between the --- lines at the top of the model's README.md.",
    "Made by evalguard card; self-reported, not verified by the hub.",
)


def render_model_index(report: CompareReport) -> str:
    """Return the metadata as YAML, with its conditions as a comment.

    Metrics without a number are left out, and named in a comment. Names are printable, and all
    texts quoted, so that no commit, version or "no" is read as a number or a truth value.

    Raises:
        UsageError: no metric has a number.
    """
    from huggingface_hub.repocard_data import eval_results_to_model_index

    results = eval_results(report)
    if not results:
        raise UsageError(
            f"{printable(report.candidate.name)} has no metric with a number, so that there is "
            "nothing to publish",
            hint="evalguard report RUN says why",
        )
    name = printable(report.candidate.model or report.candidate.name)
    left_out = [
        comparison for comparison in judged_comparisons(report) if not _is_known(comparison)
    ]
    comments = [*_HEAD, conditions_line([report])]
    comments += [
        f"left out: {_title(comparison, None)}: {printable(comparison.reason)}"
        for comparison in left_out
    ]
    index = eval_results_to_model_index(name, results)
    return quoted_yaml({"model-index": index}, comments=comments)


def eval_results(report: CompareReport) -> list[EvalResult]:
    """Return what is published of a candidate: the metrics that the gate judges, and mean KL."""
    from huggingface_hub import EvalResult

    tasks = {task.task: task for task in list_tasks(report)}
    results = []
    for comparison in judged_comparisons(report):
        if _is_known(comparison):
            asked = tasks.get(comparison.task)
            results.append(
                EvalResult(
                    task_type=_TASK,
                    task_name=_TASK_NAME,
                    metric_type=printable(comparison.metric),
                    metric_name=_title(comparison, asked),
                    metric_value=comparison.candidate,
                    metric_args=dict(_conditions(comparison, asked)),
                    **_dataset(comparison.task, asked),
                )
            )
    for distribution in report.distributions:
        if distribution.kl.value is not None and math.isfinite(distribution.kl.value):
            results.append(_kl_result(report, distribution, tasks.get(distribution.task)))
    return results


def _kl_result(
    report: CompareReport, one: DistributionComparison, asked: AskedTask | None
) -> EvalResult:
    from huggingface_hub import EvalResult

    arguments = {
        "task": printable(one.task),
        "base": printable(report.base.model or report.base.name),
        "base_revision": printable(report.base.revision) or None,
        "tokens": one.positions,
        "estimated_from_a_reference": None if one.exact else True,
    }
    return EvalResult(
        task_type=_TASK,
        task_name=_TASK_NAME,
        metric_type="kl_divergence",
        metric_name=f"mean KL(base || model), nats a token ({printable(one.task)})",
        metric_value=one.kl.value,
        metric_args={key: value for key, value in arguments.items() if value is not None},
        **_dataset(one.task, asked),
    )


def _is_known(comparison: Comparison) -> bool:
    return comparison.candidate is not None and math.isfinite(comparison.candidate)


def _dataset(task: str, asked: AskedTask | None) -> dict[str, Any]:
    """The dataset's part of a result; of data of one's own, and of groups, the task stands in."""
    if asked is None or not asked.dataset:
        return {"dataset_type": printable(task), "dataset_name": printable(task)}
    config = printable(asked.config)
    name = printable(asked.dataset)
    return {
        "dataset_type": name,
        "dataset_name": f"{name} ({config})" if config else name,
        "dataset_config": config or None,
        "dataset_split": printable(asked.split) or None,
        "dataset_revision": printable(asked.revision) or None,
    }


def _title(comparison: Comparison, asked: AskedTask | None) -> str:
    """A metric's name, with task, filter and examples: the hub shows nothing else beside it."""
    shots = "" if asked is None or asked.num_fewshot is None else f", {asked.num_fewshot}-shot"
    part = ""
    if asked is not None and asked.n < asked.n_total:
        part = f", {asked.n:,} of {asked.n_total:,} documents"
    return f"{metric_label(comparison)} ({printable(comparison.task)}{shots}{part})"


def _conditions(comparison: Comparison, asked: AskedTask | None) -> Iterator[tuple[str, Any]]:
    """How it was asked, and nothing that was measured."""
    conditions: dict[str, Any] = {
        "task": printable(comparison.task),
        "filter": printable(comparison.filter) if comparison.filter not in ("", "none") else None,
        "documents": comparison.n_used,
        "documents_of_task": comparison.n_total or None,
    }
    if asked is not None:
        versioned = asked.version not in ("", NO_VERSION)
        conditions |= {
            "task_version": printable(asked.version) if versioned else None,
            "num_fewshot": asked.num_fewshot,
            "fewshot_seed": asked.fewshot_seed,
        }
    yield from ((key, value) for key, value in conditions.items() if value is not None)
