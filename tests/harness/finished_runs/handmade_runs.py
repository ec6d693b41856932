"""Finished lm-eval runs written by hand: a results file and samples, with any fault wanted."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

DATE = "2026-03-04T05-06-07.000000"


class HandmadeRun:
    """A finished run in the making; ``write`` puts it on disk, all fields may be changed before.

    ``results`` is the content of the results file; ``samples`` are the lines by task.
    """

    def __init__(self, name: str = "org/base", /, **config: Any) -> None:
        self.samples: dict[str, list[dict[str, Any]]] = {}
        self.results: dict[str, Any] = {
            "results": {}, "configs": {}, "versions": {}, "n-shot": {}, "n-samples": {},
            "group_subtasks": {}, "higher_is_better": {}, "model_name": name,
            "lm_eval_version": "0.4.13",
            "config": {"model": "hf", "model_args": f"pretrained={name}", "limit": None, **config},
        }  # fmt: skip

    def generate(
        self,
        texts: Sequence[str],
        answers: Sequence[Any],
        right: Sequence[float],
        *,
        task: str = "sums",
        name: str = "number",
        steps: Sequence[Mapping[str, Any]] | None = None,
        metric: str = "exact_match",
    ) -> HandmadeRun:
        """Add a task of generated answers under one filter."""
        steps = steps or [{"function": "regex", "regex_pattern": "= (.*)"}, _FIRST]
        rows = [
            {
                **_row(i, f"{task} {i}", "7"),
                "arguments": {"gen_args_0": {"arg_0": f"{task} {i}", "arg_1": {"until": ["\n"]}}},
                "resps": [[text]],
                "filtered_resps": [answer],
                "filter": name,
                "metrics": [metric],
                metric: value,
            }
            for i, (text, answer, value) in enumerate(zip(texts, answers, right, strict=True))
        ]
        config = {
            "output_type": "generate_until",
            "metric_list": [{"metric": metric, "aggregation": "mean", "higher_is_better": True}],
            "generation_kwargs": {"until": ["\n"]},
            "filter_list": [{"name": name, "filter": list(steps)}],
        }
        return self._add(task, rows, config, {(metric, name): _mean_of(right)})

    def choose(
        self, right: Sequence[float], *, task: str = "choice", shift: float = 0.0
    ) -> HandmadeRun:
        """Add a task of log-likelihoods whose metric is an accuracy."""
        rows = [
            {
                **_row(i, f"{task} {i}", " x"),
                "arguments": {"gen_args_0": {"arg_0": f"{task} {i}", "arg_1": " x"}},
                "resps": [[[str(-1.0 - (i * 0.61803) % 1.0 + shift), str(bool(value))]]],
                "filtered_resps": [[str(-1.0 - (i * 0.61803) % 1.0 + shift), str(bool(value))]],
                "filter": "none",
                "metrics": ["acc"],
                "acc": value,
            }
            for i, value in enumerate(right)
        ]
        metrics = [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}]
        config = {"output_type": "loglikelihood", "metric_list": metrics}
        return self._add(task, rows, config, {("acc", "none"): _mean_of(right)})

    def _add(
        self,
        task: str,
        rows: list[dict[str, Any]],
        config: Mapping[str, Any],
        values: Mapping[tuple[str, str], tuple[float, float]],
    ) -> HandmadeRun:
        told = self.results
        self.samples[task] = rows
        reported = told["results"].setdefault(task, {"alias": task})
        for (metric, name), (value, stderr) in values.items():
            reported |= {f"{metric},{name}": value, f"{metric}_stderr,{name}": stderr}
        told["configs"][task] = {"task": task, **config}
        told["versions"][task], told["n-shot"][task] = 1.0, 0
        told["n-samples"][task] = {"original": len(rows), "effective": len(rows)}
        told["group_subtasks"][task] = []
        return self

    def write(self, folder: Path) -> Path:
        """Write the run as lm-eval does; return the folder to give to evalguard."""
        inside = folder / self.results["model_name"].replace("/", "__")
        inside.mkdir(parents=True)
        (inside / f"results_{DATE}.json").write_text(json.dumps(self.results))
        for task, rows in self.samples.items():
            lines = "".join(json.dumps(row) + "\n" for row in rows)
            (inside / f"samples_{task}_{DATE}.jsonl").write_text(lines)
        return folder


_FIRST = {"function": "take_first"}


def _row(doc_id: int, text: str, target: str) -> dict[str, Any]:
    return {
        "doc_id": doc_id,
        "doc": {"question": text},
        "target": target,
        "doc_hash": _hash(f"doc {text}"),
        "prompt_hash": _hash(f"prompt {text}"),
        "target_hash": _hash(target),
    }


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _mean_of(values: Sequence[float]) -> tuple[float, float]:
    n = len(values)
    mean = math.fsum(values) / n
    spread = math.fsum((value - mean) ** 2 for value in values) / max(n - 1, 1)
    return mean, math.sqrt(spread / n)
