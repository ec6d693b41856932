"""Finished runs in lm-eval 0.4.13's layout, written row by row, so that a test can break one.

Metrics and results are computed from the answers when a run is written: what is broken in an
answer reaches all that follows from it, as it does in a model. Only then are files damaged.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

DATE = "2026-11-20T10-00-00.000000"
OPTIONS = ("lantern", "fog", "harbour", "nobody")
N = 240  # documents of each task
_STRICT, _LOOSE = r"#### (\-?[0-9]+)", r"(\-?[0-9]+)"

Row = dict[str, Any]


@dataclass(slots=True)
class WrittenTask:
    """A task of a run.

    Attributes:
        rows: one for each document and filter, as lm-eval logs them, metrics left out.
        config: its entry in ``configs``.
        scores: a row's metrics, from its answers.
        skipped: document ids whose answers are said to be 0 whatever they are (no metric).
    """

    name: str
    rows: list[Row]
    config: dict[str, Any]
    scores: Callable[[Row], dict[str, Any]]
    shots: int = 0

    def of(self, filter_name: str = "none") -> list[Row]:
        """The rows of one filter."""
        return [row for row in self.rows if row["filter"] == filter_name]

    def metrics(self) -> list[str]:
        """Names of the metrics."""
        return [entry["metric"] for entry in self.config["metric_list"]]


@dataclass(slots=True)
class WrittenRun:
    """A run before it is written; everything may be changed."""

    tasks: dict[str, WrittenTask]
    model: str = "org/model"
    config: dict[str, Any] = field(default_factory=dict)
    more: dict[str, Any] = field(default_factory=dict)

    def write(self, folder: Path) -> Path:
        """Write results and samples; return the folder."""
        folder.mkdir(parents=True)
        for task in self.tasks.values():
            for row in task.rows:
                row.update(metrics=task.metrics(), **task.scores(row))
            lines = "".join(f"{json.dumps(row)}\n" for row in task.rows)
            (folder / f"samples_{task.name}_{DATE}.jsonl").write_text(lines, encoding="utf-8")
        (folder / f"results_{DATE}.json").write_text(json.dumps(self._results()), encoding="utf-8")
        return folder

    def _results(self) -> dict[str, Any]:
        tasks = self.tasks.values()
        counts = {t.name: len({row["doc_id"] for row in t.rows}) for t in tasks}
        return {
            "results": {task.name: _reported(task) for task in tasks},
            "group_subtasks": {},
            "configs": {task.name: task.config for task in tasks},
            "versions": {task.name: 1.0 for task in tasks},
            "n-shot": {task.name: task.shots for task in tasks},
            "higher_is_better": {
                task.name: {
                    entry["metric"]: entry["higher_is_better"]
                    for entry in task.config["metric_list"]
                }
                for task in tasks
            },
            "n-samples": {
                name: {"original": count, "effective": count} for name, count in counts.items()
            },
            "config": {
                "model": "hf",
                "model_args": {"pretrained": self.model, "dtype": "float32"},
                "batch_size": 16, "use_cache": None, "limit": None, "gen_kwargs": None,
                "fewshot_seed": 1234, **self.config,
            },
            "date": 1795639377.75,
            "lm_eval_version": "0.4.13",
            "transformers_version": "4.57.0",
            "model_source": "hf",
            "model_name": self.model,
            **self.more,
        }  # fmt: skip


def write_finished_runs(
    folder: Path, change: Callable[[WrittenRun, WrittenRun], None]
) -> tuple[Path, Path]:
    """Write a base and its healthy port, after ``change`` had both."""
    base, candidate = healthy_run(), healthy_run(port=True)
    change(base, candidate)
    return base.write(folder / "base"), candidate.write(folder / "cand")


def healthy_run(*, port: bool = False) -> WrittenRun:
    """A run of all four tasks; a port answers as another implementation of the model does.

    Its log-likelihoods are off by 1e-3 nats, and one answer in a hundred is another one.
    """
    tasks = (last_words(port), choices(port), numbers(port), whole_texts(port))
    return WrittenRun(
        tasks={task.name: task for task in tasks}, model="org/port" if port else "org/model"
    )


def last_words(port: bool = False) -> WrittenTask:
    """Log-likelihoods of a last word: perplexity and accuracy."""
    values = _likelihoods(11, port)

    def score(row: Row) -> dict[str, Any]:
        value, greedy = row["resps"][0][0]
        return {"perplexity": float(value), "acc": float(greedy == "True")}

    rows = []
    for i, value in enumerate(values):
        answer = [repr(float(value)), str(bool(value > -1.2))]
        row = _row(i, {"text": f"story {i} ends"}, "word", [[f"story {i} ends", " word"]])
        rows.append(row | {"resps": [[answer]], "filtered_resps": [answer]})
    metrics = [_metric("perplexity", "perplexity", better=False), _metric("acc", "mean")]
    return WrittenTask("words", rows, _config("words", "loglikelihood", metrics), score)


def whole_texts(port: bool = False) -> WrittenTask:
    """Log-likelihoods of whole texts: word perplexity."""
    values = 20.0 * _likelihoods(17, port)

    def score(row: Row) -> dict[str, Any]:
        return {"word_perplexity": [float(row["resps"][0][0]), len(row["doc"]["text"].split())]}

    rows = []
    for i, value in enumerate(values):
        text = " ".join(f"word{k}" for k in range(12 + i % 7)) + f" {i}"
        row = _row(i, {"text": text}, text, [[text]])
        rows.append(row | {"resps": [[repr(float(value))]], "filtered_resps": [repr(float(value))]})
    metrics = [_metric("word_perplexity", "weighted_perplexity", better=False)]
    return WrittenTask("texts", rows, _config("texts", "loglikelihood_rolling", metrics), score)


def choices(port: bool = False) -> WrittenTask:
    """Four options: accuracy."""
    draws = np.random.default_rng(13)
    values = -np.abs(draws.normal(4.0, 1.5, (N, len(OPTIONS)))) - 0.1
    gold = np.where(draws.random(N) < 0.5, values.argmax(axis=1), draws.integers(0, 4, N))
    if port:
        values = values + draws.normal(0.0, 1e-3, values.shape)

    def score(row: Row) -> dict[str, Any]:
        likelihoods = [float(value) for value, _ in row["filtered_resps"]]
        return {"acc": float(int(np.argmax(likelihoods)) == row["doc"]["gold"])}

    rows = []
    for i in range(N):
        answers = [[repr(float(value)), "False"] for value in values[i]]
        doc = {"question": f"question {i}", "choices": list(OPTIONS), "gold": int(gold[i])}
        asked = [[f"question {i}", f" {option}"] for option in OPTIONS]
        row = _row(i, doc, str(gold[i]), asked)
        rows.append(row | {"resps": [[a] for a in answers], "filtered_resps": answers})
    return WrittenTask(
        "choices", rows, _config("choices", "multiple_choice", [_metric("acc", "mean")]), score
    )


def numbers(port: bool = False) -> WrittenTask:
    """Generated solutions, from which two filters read a number: exact match."""
    draws = np.random.default_rng(19)
    right, other = draws.random(N) < 0.6, draws.random(N) < 0.01

    def score(row: Row) -> dict[str, Any]:
        return {"exact_match": float(row["filtered_resps"][0] == row["target"])}

    texts = [
        f"Let us see {i}. #### {i if right[i] != (port and other[i]) else i + 1}" for i in range(N)
    ]
    rows = [row for i in range(N) for row in generated_rows(i, texts[i])]
    filters = [_filter("strict-match", _STRICT), _filter("flexible-extract", _LOOSE)]
    kwargs = {"until": ["Q:"], "max_gen_toks": 64}
    config = _config("numbers", "generate_until", [_metric("exact_match", "mean")])
    config |= {"filter_list": filters, "generation_kwargs": kwargs}
    return WrittenTask("numbers", rows, config, score)


def generated_rows(i: int, text: str) -> list[Row]:
    """What lm-eval logs of a generated text, once for each filter."""
    asked = [[f"How many, {i}?", {"until": ["Q:"], "max_gen_toks": 64}]]
    found = {
        "strict-match": re.findall(_STRICT, text),
        "flexible-extract": re.findall(_LOOSE, text),
    }
    return [
        _row(i, {"question": f"How many, {i}?"}, str(i), asked)
        | {
            "filter": name,
            "resps": [[text]],
            "filtered_resps": [
                (numbers[0] if name == "strict-match" else numbers[-1]) if numbers else "[invalid]"
            ],
        }
        for name, numbers in found.items()
    ]


def write_texts(task: WrittenTask, texts: Sequence[str]) -> None:
    """Let a task's model have generated these texts."""
    task.rows = [row for i, text in enumerate(texts) for row in generated_rows(i, text)]


def texts_of(task: WrittenTask) -> list[str]:
    """What was generated for each document."""
    return [row["resps"][0][0] for row in task.of("strict-match")]


def answer(row: Row, value: float | str, option: int = 0) -> None:
    """Let one log-likelihood of a row be another one."""
    text = value if isinstance(value, str) else repr(float(value))
    if isinstance(row["resps"][option][0], list):
        row["resps"][option][0][0] = text
        row["filtered_resps"][option][0] = text
    else:
        row["resps"][option][0] = text
        row["filtered_resps"][option] = text


def loglikelihood(row: Row, option: int = 0) -> float:
    """One log-likelihood of a row."""
    found = row["resps"][option][0]
    return float(found[0] if isinstance(found, list) else found)


def rehash(row: Row) -> None:
    """Let the hashes be those of what the row says."""
    first = next(iter(row["arguments"].values()))["arg_0"]
    row["doc_hash"] = _digest(json.dumps(row["doc"], sort_keys=True))
    row["prompt_hash"], row["target_hash"] = _digest(first), _digest(row["target"])


def _likelihoods(seed: int, port: bool) -> Any:
    draws = np.random.default_rng(seed)
    values = -np.abs(draws.normal(1.5, 1.0, N)) - 0.01
    return (
        values - np.abs(draws.normal(0.0, 1e-3, N)) * draws.choice([-1, 1], N) if port else values
    )


def _row(i: int, doc: Row, target: str, asked: Sequence[Sequence[Any]]) -> Row:
    arguments = {
        f"gen_args_{k}": {f"arg_{j}": argument for j, argument in enumerate(one)}
        for k, one in enumerate(asked)
    }
    row: Row = {
        "doc_id": i, "doc": doc, "target": target, "arguments": arguments, "filter": "none",
    }  # fmt: skip
    rehash(row)
    return row


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _metric(name: str, aggregation: str, *, better: bool = True) -> dict[str, Any]:
    return {"metric": name, "aggregation": aggregation, "higher_is_better": better}


def _filter(name: str, pattern: str) -> dict[str, Any]:
    steps = [{"function": "regex", "regex_pattern": pattern}, {"function": "take_first"}]
    return {"name": name, "filter": steps}


def _config(name: str, kind: str, metrics: list[dict[str, Any]]) -> dict[str, Any]:
    return {"task": name, "output_type": kind, "metric_list": metrics, "target_delimiter": " "}


def _reported(task: WrittenTask) -> dict[str, Any]:
    found: dict[str, Any] = {"alias": task.name}
    for filter_name in dict.fromkeys(row["filter"] for row in task.rows):
        rows = task.of(filter_name)
        for entry in task.config["metric_list"]:
            name, kind = entry["metric"], entry["aggregation"]
            value, stderr = _aggregate([row[name] for row in rows], kind)
            found |= {f"{name},{filter_name}": value, f"{name}_stderr,{filter_name}": stderr}
    return found | {"sample_len": len({row["doc_id"] for row in task.rows})}


def _aggregate(items: Sequence[Any], kind: str) -> tuple[float, float | str]:
    values = np.array(items, dtype=float)
    with np.errstate(all="ignore"):
        if kind == "perplexity":
            return float(np.exp(-values.mean())), "N/A"
        if kind == "weighted_perplexity":
            return float(np.exp(-values[:, 0].sum() / values[:, 1].sum())), "N/A"
        stderr = float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else "N/A"
        return float(values.mean()), stderr
