"""What can change a score is in its place in the cache, to the byte; what cannot is not.

Every case makes a world of its own in a folder of its own, changes one thing in it, and looks where
the scores of a model would be kept.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from read_versions import forget_versions

import evalguard
from evalguard.comparison.compare import resolve_request
from evalguard.config.options import CompareOptions, make_options
from evalguard.core.scorer import Scorer
from evalguard.engine.choices import Choices
from evalguard.engine.executor import Executor
from evalguard.engine.loading.lazy_scorer import is_loaded
from evalguard.engine.loading.load_scorer import load_scorer
from evalguard.engine.run_context import open_run_context
from evalguard.engine.sources import ModelSource
from evalguard.harness.tasks import load_tasks
from evalguard.models import identity
from evalguard.page.progress import ProgressLine

GUARD = """
models:
  orig:
    model: hf
    model_args: {pretrained: model, dtype: float32}
    settings:
      gain: {reference: 1.0, candidate: 1.0, target: "attr:model.norm.weight"}
      eps: {reference: 1.0e-6, candidate: 1.0e-6, target: config.rms_norm_eps}
tasks: [keyed, told]
include_path: [tasks]
run: {token_budget: 1024}  # measured in every world anew, it would differ now and then
"""
CHOICE = """
task: keyed
dataset_path: json
dataset_kwargs: {{data_files: {files}}}
test_split: test
training_split: train
fewshot_split: train
num_fewshot: 1
output_type: multiple_choice
doc_to_text: "{{{{text}}}}"
doc_to_choice: [lantern, fog]
doc_to_target: gold
metric_list: [{{metric: acc}}]
"""
TOLD = """
task: told
dataset_path: json
dataset_kwargs: {{data_files: {files}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{text}}}}"
doc_to_target: "lantern"
generation_kwargs: {{until: ["."], max_gen_toks: 4}}
metric_list: [{{metric: exact_match}}]
"""
Places = frozenset[tuple[str, str]]

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class World:
    """A folder with a guard file, a model and two tasks."""

    folder: Path

    def edit(self, name: str, old: str, new: str) -> None:
        path = self.folder / name
        text = path.read_text()
        assert old in text, f"{old} is not in {name}"
        path.write_text(text.replace(old, new, 1))

    def places(self, **given: Any) -> Places:
        """Where the scores of the model would be kept."""
        with afresh():
            return self._places(given)

    def _places(self, given: Mapping[str, Any]) -> Places:
        source, choices, options = self._chosen(given)
        cache = self.folder / "cache"
        scorer = load_scorer(source.variant, choices.policy, cache_dir=cache)
        executor = Executor(
            tasks=load_tasks(choices.tasks, options=choices.task_options),
            kept=cache,
            progress=ProgressLine(quiet=options.quiet, live=False),
            chat=bool(choices.task_options.apply_chat_template),
        )
        places = places_of(executor, scorer)
        scorer.close()
        return places

    def remembered(self, **given: Any) -> Remembered:
        """Where a run looks for the scores of the model, which it loads only if it has to."""
        with afresh():
            source, choices, options = self._chosen(given)
            with open_run_context(choices, options) as place:
                scorer = place.load(source).scorer
                loaded = is_loaded(scorer)
                places = places_of(place.executor, scorer)
                scorer.close()
        return Remembered(places=places, loaded=loaded)

    def _chosen(self, given: Mapping[str, Any]) -> tuple[ModelSource, Choices, CompareOptions]:
        own = {"config": self.folder / "guard.yaml", "cache_dir": self.folder / "cache"}
        options = make_options(None, **{**own, **given})
        (source, _), choices = resolve_request("orig", "orig", options)
        assert isinstance(source, ModelSource)
        return source, choices, options


@dataclass(frozen=True)
class Remembered:
    """Where the scores would be kept, and whether the model was loaded to find that out."""

    places: Places
    loaded: bool


def places_of(executor: Executor, scorer: Scorer) -> Places:
    key = executor.store.key(scorer)
    assert key is not None
    return frozenset(
        (key, block.digest)
        for task in executor.tasks.names
        for block in executor.blocks(executor.requests(task, scorer))
    )


@contextmanager
def afresh() -> Iterator[None]:
    """As in a process of its own: nothing that was read once, here and in the tests after it."""
    forget_versions()
    before = list(sys.path)
    try:
        yield
    finally:
        sys.path[:] = before
        forget_versions()


def make_world(folder: Path, llama: Path) -> World:
    shutil.copytree(llama, folder / "model")
    (folder / "tasks").mkdir()
    for split, texts in {"test": ["mara", "the fog"], "train": ["boat", "bell", "pier"]}.items():
        rows = [{"text": f"{text} came early", "gold": len(text) % 2} for text in texts]
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / "tasks" / f"{split}.jsonl").write_text(lines)
    files = json.dumps({s: str(folder / "tasks" / f"{s}.jsonl") for s in ("test", "train")})
    (folder / "tasks" / "keyed.yaml").write_text(CHOICE.format(files=files).strip() + "\n")
    (folder / "tasks" / "told.yaml").write_text(TOLD.format(files=files).strip() + "\n")
    (folder / "guard.yaml").write_text(GUARD)
    template = "{% for m in messages %}{{ m['content'] }} {% endfor %}"
    (folder / "model" / "chat_template.jinja").write_text(template)
    return World(folder)


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory, tiny_llama: Path) -> Places:
    found = make_world(tmp_path_factory.mktemp("usual"), tiny_llama).places()
    assert len(found) == 2
    return found


@pytest.fixture
def world(tmp_path: Path, tiny_llama: Path) -> World:
    return make_world(tmp_path, tiny_llama)


Change = Callable[[World, pytest.MonkeyPatch], Mapping[str, Any] | None]


def text(name: str, old: str, new: str) -> Change:
    return lambda world, _: world.edit(name, old, new)


def option(**given: Any) -> Change:
    return lambda *_: given


def one_weight_byte(world: World, _: pytest.MonkeyPatch) -> None:
    path = world.folder / "model" / "model.safetensors"
    data, before = bytearray(path.read_bytes()), path.stat()
    data[-1] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # as a careless copy leaves it


def version_of(package: str) -> Change:
    def change(_: World, patch: pytest.MonkeyPatch) -> None:
        if package == "evalguard":
            patch.setattr(evalguard, "__version__", "9.9")
        real = metadata.version
        patch.setattr(metadata, "version", lambda n: "9.9" if n == package else real(n))

    return change


def setting_of(module: Any, name: str, value: Any) -> Change:
    return lambda _, patch: patch.setattr(module, name, lambda *_: value)


# What is written in the files of a model, a task, a guard file, and beside them.
FILES: dict[str, Change] = {
    "a byte of the weights": one_weight_byte,
    "config": text("model/config.json", '"rms_norm_eps": 1e-06', '"rms_norm_eps": 2e-06'),
    "length of the context": text("model/config.json", "_embeddings\": 48", "_embeddings\": 47"),
    "generation config": text("model/generation_config.json", "{", '{"no_repeat_ngram_size": 2,'),
    "tokenizer": text("model/tokenizer.json", '_prefix_space": false', '_prefix_space": true'),
    "tokenizer config": text("model/tokenizer_config.json", '_token": "<s>"', '_token": "</s>"'),
    "data": text("tasks/test.jsonl", "mara came", "mara game"),
    "prompt": text("tasks/keyed.yaml", '"{{text}}"', '"{{text}}:"'),
    "choices": text("tasks/keyed.yaml", "fog]", "fogs]"),
    "few-shot examples": text("tasks/train.jsonl", "bell came", "bell game"),
    "number of few-shot examples": text("tasks/keyed.yaml", "num_fewshot: 1", "num_fewshot: 2"),
    "where generation ends": text("tasks/told.yaml", 'until: ["."]', 'until: [","]'),
    "a setting of the model": text("guard.yaml", "candidate: 1.0,", "candidate: 1.5,"),
    "a setting of the config": text("guard.yaml", "candidate: 1.0e-6", "candidate: 1.0e-5"),
    "dtype": text("guard.yaml", "dtype: float32", "dtype: bfloat16"),
    "attention": text("guard.yaml", "float32}", "float32, attn_implementation: eager}"),
    "an argument of the model": text("guard.yaml", "float32}", "float32, max_length: 40}"),
}  # fmt: skip

# What is chosen for a run.
CHOSEN: dict[str, Change] = {
    "batch size": option(batch_size=3),
    "scorer": option(scorer="harness"),
    "token budget": option(token_budget=512),
    "shared prefixes": option(share_prefixes=False),
    "how whole texts are read": option(rolling_bos="once"),
    "threads": option(threads=2),
    "few-shot seed": option(seed=5),
    "chat template": option(apply_chat_template=True),
    "system instruction": option(system_instruction="Be brief.", apply_chat_template=True),
    "generation arguments": option(gen_kwargs={"max_gen_toks": 3}),
    "number of few-shot examples": option(num_fewshot=0),
}

# Where it runs: what the machine and the installation are.
AROUND: dict[str, Change] = {
    **{f"version of {p}": version_of(p) for p in
       ("torch", "transformers", "tokenizers", "lm_eval", "numpy", "accelerate")},
    "evalguard's own code": setting_of(identity, "scoring_code", "edited"),
    "what Python runs first": setting_of(identity, "start_up_code", "edited"),
    "kind of device": setting_of(identity, "device_name", "cuda (another)"),
    "what attention became": setting_of(identity, "attention_implementation", "flash_attention_2"),
}  # fmt: skip

CHANGES = {f"{of}: {name}": change for of, table in
           (("files", FILES), ("chosen", CHOSEN), ("around", AROUND))
           for name, change in table.items()}  # fmt: skip


def renamed(world: World, _: pytest.MonkeyPatch) -> None:
    (world.folder / "model").rename(world.folder / "moved")
    world.edit("guard.yaml", "pretrained: model", "pretrained: moved")


def through_a_link(world: World, _: pytest.MonkeyPatch) -> None:
    (world.folder / "model").rename(world.folder / "moved")
    (world.folder / "model").symlink_to("moved")


def touched(world: World, _: pytest.MonkeyPatch) -> None:
    for path in world.folder.rglob("*"):
        os.utime(path, (1, 1))


def beside_the_weights(world: World, _: pytest.MonkeyPatch) -> None:
    (world.folder / "model" / ".cache").mkdir()
    (world.folder / "model" / ".cache" / "downloaded").touch()


def other_order(world: World, _: pytest.MonkeyPatch) -> None:
    world.edit(
        "guard.yaml", "pretrained: model, dtype: float32", "dtype: float32, pretrained: model"
    )
    world.edit("guard.yaml", "reference: 1.0, candidate: 1.0", "candidate: 1.0, reference: 1.0")
    lines = (world.folder / "guard.yaml").read_text().splitlines()
    gain, eps = next(x for x in lines if "gain" in x), next(x for x in lines if "eps" in x)
    text = "\n".join(lines).replace(gain, "#").replace(eps, f"{eps}\n{gain}")
    (world.folder / "guard.yaml").write_text(text)
    task = (world.folder / "tasks" / "keyed.yaml").read_text().splitlines()
    (world.folder / "tasks" / "keyed.yaml").write_text("\n".join(reversed(task)))


def from_elsewhere(world: World, patch: pytest.MonkeyPatch) -> Mapping[str, Any]:
    patch.chdir(world.folder)
    return {"config": Path("guard.yaml")}


SAME: dict[str, Change] = {
    "another folder": lambda *_: None,
    "another name of the model's folder": renamed,
    "a link to the folder": through_a_link,
    "times of the files": touched,
    "hidden files beside the weights": beside_the_weights,
    "order of keys": other_order,
    "another working folder": from_elsewhere,
    "version of evalguard": version_of("evalguard"),
    "what it is called": text("guard.yaml", "  orig:\n", "  orig:\n    description: x\n"),
    "what a setting is called": text("guard.yaml", "      gain: ", "      zeal: "),
    "gate": option(margin=2.0, confidence=0.9),
    "progress": option(quiet=True),
    "timeout": option(timeout=100.0),
    "order of tasks": option(tasks=("told", "keyed")),
    "where results go": option(output_path=Path("elsewhere"), write=False),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_can_change_a_score_changes_its_place(
    world: World, usual: Places, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    given = CHANGES[what](world, monkeypatch) or {}
    changed = world.places(**given)
    if what.startswith("files: ") and what.split(": ")[1] in TASK_OF:
        # Of the task that was changed; the other one's scores are still good.
        assert len(changed - usual) == TASK_OF[what.split(": ")[1]]
    else:
        assert changed - usual


# How many of the two tasks a change of task files concerns.
TASK_OF = {
    "data": 2, "prompt": 1, "choices": 1, "few-shot examples": 1,
    "number of few-shot examples": 1, "where generation ends": 1,
}  # fmt: skip


@pytest.mark.parametrize("what", SAME)
def test_what_cannot_change_a_score_leaves_it_where_it_is(
    world: World, usual: Places, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    assert world.places(**(SAME[what](world, monkeypatch) or {})) == usual


# Set by hand inside this process; what they stand for shows in files, versions and variables.
_BY_HAND = {
    "around: kind of device", "around: what attention became", "around: evalguard's own code",
    "around: what Python runs first",
}  # fmt: skip


@pytest.mark.parametrize("what", sorted(CHANGES.keys() - _BY_HAND) + sorted(SAME))
def test_a_remembered_model_has_its_scores_where_the_loaded_one_has_them(
    world: World, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    before = world.remembered()
    again = world.remembered()
    assert (before.loaded, again.loaded) == (True, False)
    assert again.places == before.places
    given = ({**CHANGES, **SAME})[what](world, monkeypatch) or {}
    assert world.remembered(**given).places == world.places(**given)
