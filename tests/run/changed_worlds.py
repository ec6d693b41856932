"""A folder with a model, tasks and a guard file; what its model answers, kept answers and all.

    python changed_worlds.py FOLDER CACHE [OPTIONS as JSON]

prints the answers as JSON, for changes that only a new process sees.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GUARD = """
models:
  orig:
    model: hf
    model_args: {pretrained: model, dtype: float32}
tasks: [word, told]
include_path: [tasks]
run: {device: cpu}
"""
WORD = """
task: word
include: base.inc
dataset_path: json
dataset_kwargs: {{data_files: {files}}}
test_split: test
fewshot_split: train
num_fewshot: 1
output_type: loglikelihood
doc_to_text: !function reading.text
doc_to_target: " {{{{last}}}}"
"""
BASE = """
fewshot_delimiter: ". "
metric_list: [{metric: perplexity, aggregation: perplexity, higher_is_better: false}]
"""
TOLD = """
task: told
dataset_path: csv
dataset_kwargs: {{data_files: {{test: {told}}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{text}}}}"
doc_to_target: "lantern"
generation_kwargs: {{until: ["@"], max_gen_toks: 8}}
metric_list: [{{metric: exact_match}}]
"""
READING = (
    "import sys\nfrom pathlib import Path\n\nsys.path.insert(0, str(Path(__file__).parent))\n"
    "from beside import GREETING\n\n"
    "WORD = (Path(__file__).parent / 'word.txt').read_text()\n\n\n"
    "def text(doc):\n    return GREETING + WORD + doc['text']\n"
)
_TEXT = "mara carried the lantern down to harbour because fog had come in early nobody"
WORDS = tuple(_TEXT.split())


def write_world(folder: Path, model: Path) -> Path:
    """Write everything but the cache; ``model`` is copied."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copytree(model, folder / "model")
    template = "{% for m in messages %}{{ m['content'] }} {% endfor %}"
    (folder / "model" / "chat_template.jinja").write_text(template)
    tasks = folder / "tasks"
    tasks.mkdir()
    rows = [
        {"text": " ".join(WORDS[i % 7 : i % 7 + 3 + i % 4]), "last": WORDS[(3 * i) % len(WORDS)]}
        for i in range(9)
    ]
    for name, some in (("test", rows[:6]), ("train", rows[6:])):
        (tasks / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in some))
    (tasks / "told.csv").write_text("text\n" + "".join(f"{row['text']}\n" for row in rows[:3]))
    files = json.dumps({name: str(tasks / f"{name}.jsonl") for name in ("test", "train")})
    (tasks / "word.yaml").write_text(WORD.format(files=files).strip() + "\n")
    (tasks / "told.yaml").write_text(TOLD.format(told=tasks / "told.csv").strip() + "\n")
    (tasks / "base.inc").write_text(BASE.strip() + "\n")
    (tasks / "reading.py").write_text(READING)
    (tasks / "beside.py").write_text("GREETING = 'so '\n")
    (tasks / "word.txt").write_text("then ")
    (folder / "guard.yaml").write_text(GUARD)
    return folder


@dataclass(frozen=True)
class Answers:
    """What a model answered to every request, in order; ``scored``: blocks that were not kept."""

    told: tuple[Any, ...]
    scored: int


def answer(folder: Path, cache: Path, given: Mapping[str, Any]) -> Answers:
    """Let the model of a world answer its tasks, in this process or the worker that it needs.

    It is a run of its own.
    """
    from evalguard.comparison.compare import resolve_request
    from evalguard.config.options import make_options
    from evalguard.engine.run_context import open_run_context
    from evalguard.engine.sources import ModelSource
    from evalguard.engine.task_scores import TaskScoring
    from evalguard.run_token import run_scope
    from evalguard.store.block_cache import ScoreCache

    scored = 0
    put = ScoreCache.put

    def counted(self: Any, *words: Any) -> None:
        nonlocal scored
        scored += 1
        put(self, *words)

    options = make_options(
        None, config=folder / "guard.yaml", cache_dir=cache, allow_code=True, quiet=True, **given
    )
    (source, _), choices = resolve_request("orig", "orig", options)
    assert isinstance(source, ModelSource)
    ScoreCache.put = counted  # type: ignore[method-assign]
    try:
        with run_scope(), open_run_context(choices, options) as place:
            place.executor.scoring = TaskScoring(documents=1000)
            with place.open_model(source) as model:
                place.executor.evaluate(model)
            aside = place.executor.scoring.aside
    finally:
        ScoreCache.put = put  # type: ignore[method-assign]
    told = tuple(
        [task, request.doc_id, response.loglikelihood, response.text]
        for (_, task), pairs in sorted(aside.items())
        for request, response in pairs
    )
    return Answers(told=told, scored=scored)


def answer_afresh(
    folder: Path, cache: Path, given: Mapping[str, Any], env: Mapping[str, str]
) -> Answers:
    """As ``answer``, in a process of its own."""
    done = subprocess.run(
        [sys.executable, __file__, str(folder), str(cache), json.dumps(dict(given))],
        env={**os.environ, "HF_HUB_OFFLINE": "1", **env},
        capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    return Answers(told=tuple(found["told"]), scored=found["scored"])


if __name__ == "__main__":
    found = answer(Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3]))
    print(json.dumps({"told": found.told, "scored": found.scored}))
