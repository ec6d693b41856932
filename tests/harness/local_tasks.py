"""Small lm-eval tasks of every output type, and a made-up model whose answers are a hash."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from grouped_tasks import write_groups

from evalguard.core.scorer import Request, Response
from evalguard.harness.requests import TaskRequests
from evalguard.harness.task_options import TaskOptions
from evalguard.harness.tasks import load_tasks

N = 24
_WORDS = "the quick brown fox jumps over a lazy dog while seven wizards box it up"

_TASKS = {
    "eg_lastword": """
output_type: loglikelihood
doc_to_text: "{{text.split(' ')[:-1]|join(' ')}}"
doc_to_target: "{{' '+text.split(' ')[-1]}}"
metric_list:
  - {metric: perplexity, aggregation: perplexity, higher_is_better: false}
  - {metric: acc, aggregation: mean, higher_is_better: true}
""",
    "eg_rolling": """
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list:
  - metric: word_perplexity
  - metric: byte_perplexity
  - metric: bits_per_byte
""",
    "eg_choice": """
output_type: multiple_choice
training_split: train
fewshot_split: train
num_fewshot: 2
doc_to_text: "Q: {{text}} A:"
doc_to_choice: "{{choices}}"
doc_to_target: gold
metric_list:
  - {metric: acc, aggregation: mean, higher_is_better: true}
  - {metric: acc_norm, aggregation: mean, higher_is_better: true}
  - {metric: mcc}
""",
    "eg_generate": """
output_type: generate_until
doc_to_text: "Count: {{text}} ="
doc_to_target: "{{gold}}"
repeats: 2
generation_kwargs: {until: ["."], max_gen_toks: 8}
filter_list:
  - {name: strict, filter: [{function: take_first}]}
  - name: digits
    filter:
      - {function: regex, regex_pattern: "(\\\\d+)"}
      - {function: take_first}
metric_list:
  - {metric: exact_match, aggregation: mean, higher_is_better: true}
""",
    "eg_custom": """
output_type: loglikelihood
doc_to_text: "{{text}}"
doc_to_target: " end"
process_results: !function code.process
metric_list:
  - {metric: half, aggregation: !function code.midpoint, higher_is_better: true}
  - {metric: sometimes, aggregation: mean, higher_is_better: true}
  - {metric: broken, aggregation: mean, higher_is_better: false}
""",
    "eg_unsafe": """
output_type: loglikelihood
unsafe_code: true
doc_to_text: "{{text}}"
doc_to_target: " end"
""",
    "eg_picture": """
output_type: generate_until
doc_to_image: text
doc_to_text: "{{text}}"
doc_to_target: " end"
""",
}

_CODE = """
def process(doc, results):
    print("a task that writes to stdout")
    ((ll, greedy),) = results
    scores = {"half": ll, "broken": float("nan") if doc["gold"] == 0 else ll, "undeclared": -ll}
    if doc["gold"] > 0:
        scores["sometimes"] = greedy
    return scores


def midpoint(items):
    return (min(items) + max(items)) / 2


def fails(doc, results):
    raise KeyError("no such field")
"""


def write_tasks(folder: Path) -> Path:
    """Write every task, its data, a group and its Python file; return the folder."""
    rng = random.Random(7)
    rows = [_row(rng, i) for i in range(N)]
    _write(folder / "test.jsonl", rows)
    _write(folder / "train.jsonl", [_row(rng, i) for i in range(40)])
    (folder / "code.py").write_text(_CODE)
    for name, body in _TASKS.items():
        write_task(folder, name, body)
    write_groups(folder)
    (folder / "group.yaml").write_text("group: eg_group\ntask: [eg_lastword, eg_choice]\n")
    return folder


def write_task(folder: Path, name: str, body: str, *, tag: str = "eg_tag") -> None:
    """Write one task over the folder's data."""
    head = f"task: {name}\ntag: {tag}\ndataset_path: json\ntest_split: test\n"
    files = {"test": str(folder / "test.jsonl"), "train": str(folder / "train.jsonl")}
    head += f"dataset_kwargs: {{data_files: {json.dumps(files)}}}\n"
    (folder / f"{name}.yaml").write_text(head + body.lstrip("\n") + "metadata: {version: 3.0}\n")


def _row(rng: random.Random, i: int) -> dict[str, Any]:
    text = " ".join(rng.choice(_WORDS.split()) for _ in range(rng.randint(4, 12)))
    choices = ["yes", "surely not", "maybe", "é"]
    return {"text": f"{text} {i}", "choices": choices, "gold": rng.randrange(4)}


def _write(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def answer(kind: str, arguments: Sequence[Any], *, model: str = "m") -> Response:
    """A model whose answers depend on nothing but its name and the request."""
    text = json.dumps([model, kind, list(arguments)], sort_keys=True)
    digest = hashlib.sha256(text.encode()).digest()
    if kind == "generate_until":
        return Response(text=f"{digest[0] % 4} or {digest[1]}", token_hash=digest.hex())
    scores = -np.frombuffer(digest[:4], dtype=np.uint8).astype(np.float64) / 100 - 1e-3
    return Response(
        loglikelihood=float(scores.sum()),
        is_greedy=None if kind == "loglikelihood_rolling" else digest[5] % 2 == 0,
        token_logprobs=scores,
        token_hash=digest.hex(),
        n_tokens=4,
    )


def answers(requests: Sequence[Request], *, model: str = "m") -> list[Response]:
    """Answer requests in their order."""
    return [answer(request.kind, request.arguments, model=model) for request in requests]


def fake_lm(*, model: str = "m") -> Any:
    """The same model as an lm-eval LM."""
    from lm_eval.api.model import LM

    class FakeLM(LM):
        tokenizer_name = "fake"

        def loglikelihood(self, requests: Any) -> Any:
            found = [answer("loglikelihood", request.args, model=model) for request in requests]
            return [(response.loglikelihood, response.is_greedy) for response in found]

        def loglikelihood_rolling(self, requests: Any) -> Any:
            found = [answer("loglikelihood_rolling", r.args, model=model) for r in requests]
            return [response.loglikelihood for response in found]

        def generate_until(self, requests: Any) -> Any:
            return [answer("generate_until", r.args, model=model).text for r in requests]

        def apply_chat_template(self, messages: Any, add_generation_prompt: bool = True) -> str:
            return render_chat(messages, add_generation_prompt)

        def chat_template(self, chat_template: Any = False) -> str:
            return "fake template"

    return FakeLM()


def render_chat(messages: Sequence[Mapping[str, str]], add_generation_prompt: bool) -> str:
    """A chat template."""
    text = "".join(f"<{message['role']}>{message['content']}" for message in messages)
    return text + ("<assistant>" if add_generation_prompt else "")


def build(folder: Path, name: str, **options: Any) -> TaskRequests:
    """The requests of a task of a folder."""
    chosen = TaskOptions(include_paths=(folder,), **options)
    return load_tasks([name], options=chosen).requests(name)
