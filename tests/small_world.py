"""A small world for the whole command: tiny models (good and bad), tasks without code, a guard."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

N = 24
N_LONG = 300
_TEXT = "mara carried the lantern down to harbour because fog had come in early nobody saw"
_WORDS = _TEXT.split()

_TASKS = {
    "sw_word": """
output_type: loglikelihood
doc_to_text: "{{text}}"
doc_to_target: " {{last}}"
metric_list:
  - {metric: perplexity, aggregation: perplexity, higher_is_better: false}
  - {metric: acc, aggregation: mean, higher_is_better: true}
""",
    "sw_text": """
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list: [{metric: word_perplexity}, {metric: bits_per_byte}]
""",
    "sw_choice": """
output_type: multiple_choice
fewshot_split: train
training_split: train
num_fewshot: 1
doc_to_text: "{{text}}"
doc_to_choice: ["lantern", "fog", "harbour", "nobody"]
doc_to_target: gold
metric_list: [{metric: acc}]
""",
    "sw_mcc": """
output_type: multiple_choice
doc_to_text: "{{text}}"
doc_to_choice: ["lantern", "fog", "harbour", "nobody"]
doc_to_target: gold
metric_list: [{metric: mcc}]
""",
    # lm-eval's f1 is for two classes and fails on four.
    "sw_f1": """
output_type: multiple_choice
doc_to_text: "{{text}}"
doc_to_choice: ["lantern", "fog", "harbour", "nobody"]
doc_to_target: gold
metric_list: [{metric: f1}]
""",
}

# `sharp` doubles every logit of a model that knows nothing: that is much worse, for sure.
_GUARD = """
models:
  orig:
    description: a tiny Llama with random weights
    model_args: {{pretrained: {llama}, dtype: float32}}
  same: {{extends: orig}}
  sharp:
    extends: orig
    settings:
      gain: {{reference: 1.0, candidate: 2.0, target: "attr:model.norm.weight"}}
      eps: {{reference: 1.0e-6, candidate: 1.0e-5, target: "config.rms_norm_eps"}}
  soft:
    extends: orig
    settings:
      gain: {{reference: 1.0, candidate: 0.5, target: "attr:model.norm.weight"}}
  other: {{extends: orig, model_args: {{pretrained: {other}}}}}
  not-a-number: {{extends: orig, model_args: {{pretrained: {nan}}}}}
  other-vocabulary: {{extends: orig, model_args: {{pretrained: {vocabulary}}}}}
  other-encoding: {{extends: orig, model_args: {{pretrained: {encoding}}}}}
  flagged:
    extends: orig
    settings:
      flag: {{reference: "0", candidate: "1", target: env.SMALL_WORLD_FLAG}}
pairs: [{{base: orig, cand: sharp}}]
tasks: [sw_word]
include_path: [{tasks}]
run: {{bisect: never}}
"""


@dataclass(frozen=True)
class SmallWorld:
    """Where everything is. ``guard`` names models by what is special about them."""

    folder: Path
    guard: Path
    tasks: Path
    models: Mapping[str, Path]

    def saying(self, run: str = "", more: str = "") -> Path:
        """A guard file of its own that says more: keys of ``run``, keys beside it."""
        text = self.guard.read_text().replace("run: {", f"run: {{{run}, " if run else "run: {")
        path = self.folder / f"guard-{hashlib.sha256((run + more).encode()).hexdigest()[:12]}.yaml"
        path.write_text(f"{text}{more}\n")
        return path


def make_world(folder: Path, llama: Path) -> SmallWorld:
    """Write models, tasks and the guard file; ``llama`` is a tiny model to start from."""
    models = {
        "llama": llama,
        "other": _with_weights(llama, folder / "other", _reversed),
        "nan": _with_weights(llama, folder / "nan", _not_a_number),
        "vocabulary": _with_tokenizer(llama, folder / "vocabulary", _renamed_token),
        "encoding": _with_tokenizer(llama, folder / "encoding", _without_bos),
    }
    tasks = write_tasks(folder / "tasks")
    guard = folder / "guard.yaml"
    guard.write_text(_GUARD.format(tasks=tasks, **models))
    return SmallWorld(folder=folder, guard=guard, tasks=tasks, models=models)


def write_tasks(folder: Path) -> Path:
    """Write the tasks and their documents; ``sw_long`` has more than one block of documents."""
    folder.mkdir()
    rng = random.Random(11)
    for name, number in (("test", N), ("train", 6), ("long", N_LONG)):
        rows = [_row(rng, 5 if name == "long" else 12) for _ in range(number)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, body in {**_TASKS, "sw_long": _TASKS["sw_word"]}.items():
        files = {"test": str(folder / f"{'long' if name == 'sw_long' else 'test'}.jsonl")}
        files["train"] = str(folder / "train.jsonl")
        head = f"task: {name}\ndataset_path: json\ntest_split: test\n"
        head += f"dataset_kwargs: {{data_files: {json.dumps(files)}}}\n"
        (folder / f"{name}.yaml").write_text(f"{head}{body.strip()}\nmetadata: {{version: 1.0}}\n")
    return folder


def _row(rng: random.Random, words: int) -> dict[str, Any]:
    text = " ".join(rng.choice(_WORDS) for _ in range(rng.randint(3, words)))
    return {"text": text, "last": rng.choice(_WORDS), "gold": rng.randrange(4)}


def _with_weights(source: Path, target: Path, edit: Any) -> Path:
    from safetensors.torch import load_file, save_file

    shutil.copytree(source, target)
    weights = load_file(target / "model.safetensors")
    edit(weights)
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    return target


def _reversed(weights: dict[str, Any]) -> None:
    name = "model.layers.1.mlp.down_proj.weight"
    weights[name] = weights[name].flip(0).contiguous()


def _not_a_number(weights: dict[str, Any]) -> None:
    weights["model.layers.0.mlp.down_proj.weight"][0, 0] = float("nan")


def _with_tokenizer(source: Path, target: Path, edit: Any) -> Path:
    shutil.copytree(source, target)
    path = target / "tokenizer.json"
    rules = json.loads(path.read_text())
    edit(rules)
    path.write_text(json.dumps(rules))
    return target


def _renamed_token(rules: dict[str, Any]) -> None:
    """Give the last token that was merged another name, so that the vocabularies differ."""
    vocabulary = rules["model"]["vocab"]
    left, right = rules["model"]["merges"].pop()
    vocabulary["unheard-of"] = vocabulary.pop(left + right)


def _without_bos(rules: dict[str, Any]) -> None:
    """Keep the vocabulary, and split no text at blanks: other tokens come out."""
    rules["pre_tokenizer"] = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True,
                              "use_regex": True}  # fmt: skip


@dataclass(frozen=True)
class Ran:
    """How a command ended and what it wrote."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """The one JSON document on stdout."""
        content: dict[str, Any] = json.loads(self.out)
        return content


def run_here(words: Sequence[object], capfd: pytest.CaptureFixture[str]) -> Ran:
    """Run the command in this process."""
    from evalguard.cli.main import main

    capfd.readouterr()
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    assert isinstance(ended.value.code, int)
    written = capfd.readouterr()
    return Ran(ended.value.code, written.out, written.err)
