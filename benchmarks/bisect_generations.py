"""Which of eight settings makes it loop: guilty ones planted in what models write, and found.

    python -m benchmarks.bisect_generations --output benchmarks/results/bisect_generations.md

A stub server with eight flags (benchmarks/flagged_server.py), of 15 questions of which one flag
spoils 5; and a trained model (stories260K, where ../shared/data is) with eight settings, of which
one makes it loop, run on to the token limit, or say something else than the base for sure. Every
other setting is one that changes texts at near ties or not at all. One at a time: each setting by
itself on all documents, as its texts come to by those of both ends.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks.flagged_server import FLAGS, LIMIT
from benchmarks.output import deliver
from benchmarks.trained_models import SHARED

SEED, SEEDS = 20261126, 20
SERVED = ("loops", "cut", "valid_json")
QUESTIONS, STORIES = 15, 30
_STORY_TOKENS = 128
# name -> (reference, harmless value, target)
SETTINGS: dict[str, tuple[Any, Any, str]] = {
    "eps": (1e-5, 1.1e-5, "config.rms_norm_eps"),
    "theta": (10000.0, 10000.1, "config.rope_parameters.rope_theta"),
    "early_scale": (0.3535533905932738, 0.35356, "attr:model.layers.0.self_attn.scaling"),
    "late_scale": (0.3535533905932738, 0.35356, "attr:model.layers.4.self_attn.scaling"),
    "first_eps": (1e-5, 1.2e-5, "attr:model.layers.0.input_layernorm.variance_epsilon"),
    "mlp_eps": (1e-5, 1.2e-5, "attr:model.layers.2.post_attention_layernorm.variance_epsilon"),
    "last_eps": (1e-5, 1.3e-5, "attr:model.norm.variance_epsilon"),
    "attention": ("sdpa", "eager", "model_args.attn_implementation"),
}
# kind -> what makes it in about a third of the stories
FAULTS: dict[str, tuple[tuple[str, Any], ...]] = {
    "loops": (("eps", 0.3),),
    "cut": (("theta", 100000.0),),
    "first_difference_beyond_ties": (("early_scale", 1.0), ("late_scale", 0.8)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One planting, and what was found.

    ``spent``, ``alone``: what the search generated, and one setting at a time would have, in
    ``unit``.
    """

    number: int
    kind: str
    guilty: str
    share: float
    documents: int
    named: frozenset[str]
    status: str
    evaluations: float
    spent: int
    alone: int
    unit: str
    seconds: float

    @property
    def exact(self) -> bool:
        return self.named == {self.guilty}


def served(seed: int, number: int, folder: Path) -> Row:
    """A stub server whose answers one flag spoils."""
    draws = random.Random(f"{seed} {number}")
    kind, guilty = SERVED[number % len(SERVED)], draws.choice(FLAGS)
    questions = [f"question {seed} {number} {at}" for at in range(QUESTIONS)]
    plan = folder / "plan.json"
    bad = draws.sample(questions, QUESTIONS // 3)
    plan.write_text(json.dumps({kind: {"flag": guilty, "questions": bad}}))
    lines = [
        {
            "messages": [{"role": "user", "content": question}],
            "response_format": {"type": "json_object"},
        }
        for question in questions
    ]
    (folder / "calls.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = ["python", "-m", "benchmarks.flagged_server", "--port", "{port}", "--plan", str(plan)]
    model = {
        "model": "local-chat-completions",
        "revision": "stub",  # equal flags, equal answers: the base's count for that end
        "model_args": {"model": "stub", "max_retries": 1, "max_gen_toks": LIMIT},
        "serve": {"command": words, "url": "http://127.0.0.1:{port}/v1/chat/completions"},
    }
    settings = {flag: {"reference": 0, "candidate": 1, "target": f"serve.{flag}"} for flag in FLAGS}
    candidate = {"extends": "orig", "settings": settings, "revision": model["revision"]}
    guard = {
        "models": {"orig": model, "port": candidate},
        "requests": str(folder / "calls.jsonl"),
        "gate": {"metrics": {kind: 1.0 if kind == "valid_json" else 0}},
    }
    return _searched(number, kind, guilty, guard, folder)


def local(seed: int, number: int, folder: Path, *, repeats: int = 0) -> Row:
    """A trained model that one setting makes loop, run on, or differ.

    ``repeats``: sampled answers to each document, at temperature 0.8; 0: a greedy one.
    """
    draws = random.Random(f"{seed} {number}")
    kind = sorted(FAULTS)[number % len(FAULTS)]
    guilty, value = draws.choice(FAULTS[kind])
    passages = (SHARED / "stories260K/tinystories_lastword.jsonl").read_text().splitlines()
    begun = {" ".join(json.loads(line)["text"].split()[:16]) for line in passages}
    rows = draws.sample(sorted(begun), STORIES)
    file = folder / "documents.jsonl"
    file.write_text("".join(json.dumps({"context": one, "target": ""}) + "\n" for one in rows))
    task = {
        "task": "stories",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(file)}},
        "test_split": "test",
        "output_type": "generate_until",
        "doc_to_text": "{{context}}",
        "doc_to_target": "{{target}}",
        "generation_kwargs": {"until": ["\n"], "max_gen_toks": _STORY_TOKENS, "do_sample": False},
        "repeats": max(repeats, 1),
        "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
    }
    if repeats:
        task["generation_kwargs"] |= {"do_sample": True, "temperature": 0.8}
    (folder / "stories.yaml").write_text(yaml.safe_dump(task))
    names = draws.sample(sorted(SETTINGS), len(SETTINGS))
    settings = {
        name: {
            "reference": SETTINGS[name][0],
            "candidate": value if name == guilty else SETTINGS[name][1],
            "target": SETTINGS[name][2],
        }
        for name in names
    }
    args = {"pretrained": str((SHARED / "stories260K/hf").resolve()), "dtype": "float32"}
    model = {"model": "hf", "model_args": args}
    guard = {
        "models": {"orig": model, "port": {"extends": "orig", "settings": settings}},
        "tasks": ["stories"],
        "include_path": [str(folder)],
        "gate": {"metrics": {kind: "10%" if kind != "loops" else 0}, "only": [kind]},
    }
    return _searched(number, kind, guilty, guard, folder)


def _searched(number: int, kind: str, guilty: str, guard: dict[str, Any], folder: Path) -> Row:
    import evalguard

    file = folder / "guard.yaml"
    file.write_text(yaml.safe_dump(guard, sort_keys=False))
    began = time.perf_counter()
    result = evalguard.bisect_settings(
        "orig", "port", config=file, cache_dir=folder / "cache", device="cpu", threads=1,
        write=False, quiet=True,
    )  # fmt: skip
    report = result.report.bisect
    if report is None:
        raise RuntimeError(f"{kind}, {guilty}: {result.report.bisect_reason}")
    (search, *_) = report.searches
    assert search.written is not None
    assert search.one_at_a_time is not None
    tokens = search.written.tokens, search.one_at_a_time.tokens
    known = None not in tokens
    spent = search.written.tokens if known else search.written.characters
    alone = search.one_at_a_time.tokens if known else search.one_at_a_time.characters
    return Row(
        number=number,
        kind=kind,
        guilty=guilty,
        share=search.drift_sigma or 0.0,
        documents=search.n,
        named=frozenset(one.setting for one in report.culprits),
        status=report.status,
        evaluations=report.evaluations,
        spent=spent or 0,
        alone=alone or 0,
        unit="tokens" if known else "characters",
        seconds=time.perf_counter() - began,
    )


def main() -> None:
    """Plant, search, and print the table or write it to a file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, help="write the table there")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--only", choices=("served", "local"))
    options = parser.parse_args()
    found = {
        name: [*_told(plant, options)]
        for name, plant in (("served", served), ("local", local))
        if options.only in (None, name)
    }
    deliver(report(found, options), options.output)


def _told(plant: Any, options: argparse.Namespace) -> Iterator[Row]:
    for number in range(options.seeds):
        with tempfile.TemporaryDirectory() as place:
            row = plant(options.seed, number, Path(place))
        print(_line(row), flush=True)
        yield row


_TITLES = {
    "served": f"A stub server with eight flags, {QUESTIONS} questions",
    "local": f"A trained model with eight settings, {STORIES} stories",
}


def report(found: dict[str, list[Row]], options: argparse.Namespace) -> Iterator[str]:
    """Yield the tables."""
    yield "# Which of eight settings makes it loop\n"
    yield (
        f"`python -m benchmarks.bisect_generations --seeds {options.seeds} --seed {options.seed} "
        "--output FILE`\n"
    )
    yield (
        "One of eight settings spoils a part of the texts; the gate holds that figure to its "
        "limit. Generated: by the probes of the search, beside what each setting by itself on all "
        "documents would have written; both ends, which the comparison wrote, and the judged "
        "repair are in neither.\n"
    )
    for name, rows in found.items():
        spent, alone = sum(row.spent for row in rows), sum(row.alone for row in rows)
        innocent = sum(bool(row.named - {row.guilty}) for row in rows)
        yield f"## {_TITLES[name]}\n"
        yield (
            f"Exactly the guilty one was named in **{sum(row.exact for row in rows)} of "
            f"{len(rows)}**, an innocent one in **{innocent}**; the searches generated "
            f"**{spent / alone:.0%}** of what one at a time would have "
            f"(at most {max(row.spent / row.alone for row in rows):.0%}).\n"
        )
        yield "| | figure | guilty | drift | named | status | FE | generated | one at a time | s |"
        yield "|---" * 10 + "|"
        yield from map(_line, rows)
        yield ""


def _line(row: Row) -> str:
    named = "exactly this" if row.exact else f"**{', '.join(sorted(row.named)) or 'nobody'}**"
    cells = [
        row.number, row.kind, row.guilty, f"{row.share:.0%} of {row.documents}", named, row.status,
        f"{row.evaluations:.1f}", f"{row.spent:,} {row.unit} ({row.spent / row.alone:.0%})",
        f"{row.alone:,}", f"{row.seconds:.0f}",
    ]  # fmt: skip
    return "| " + " | ".join(map(str, cells)) + " |"


if __name__ == "__main__":
    main()
