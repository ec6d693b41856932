"""Run folders, caches and histories as today's version writes them.

``python tests/stored_files/write_files.py FILE.tar.xz`` compares, traces and keeps a few nights of
tiny models, and packs what lies there then. Tests read the archives that are committed and make
none: a version that writes otherwise gets an archive of its own beside the earlier ones. All is
made in one folder of the same name on every machine, and what is kept says nothing of the machine.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from datetime import datetime, tzinfo
from pathlib import Path
from unittest import mock

HERE = Path(__file__).parent
# Runs name models, tasks and folders by whole paths.
PLACE = Path("/tmp/evalguard-stored-files")

_GUARD = """\
models:
  orig: {model_args: {pretrained: llama, dtype: float32}}
  sharp:
    extends: orig
    settings:
      gain: {reference: 1.0, candidate: 2.0, target: "attr:model.norm.weight"}
      eps: {reference: 1.0e-6, candidate: 1.0e-5, target: "config.rms_norm_eps"}
  soft:
    extends: orig
    settings:
      gain: {reference: 1.0, candidate: 0.5, target: "attr:model.norm.weight"}
  other: {extends: orig, model_args: {pretrained: world/other}}
  port: {extends: orig, model_args: {pretrained: port}}
pairs: [{base: orig, cand: port}]
tasks: [sw_word]
include_path: [world/tasks, tasks]
run: {bisect: never, limit: 12}
"""
_GROUP = """\
group: sw_group
task: [sw_word, sw_choice]
aggregate_metric_list: [{metric: acc, aggregation: mean, weight_by_size: true}]
metadata: {version: 1.0}
"""
_WRITTEN = """\
task: sw_written
dataset_path: json
test_split: test
dataset_kwargs: {{data_files: {{test: {file}}}}}
output_type: generate_until
doc_to_text: "{{{{text}}}}"
doc_to_target: "{{{{last}}}}"
generation_kwargs: {{until: ["\\n\\n"], max_gen_toks: 8}}
metric_list: [{{metric: exact_match}}]
metadata: {{version: 1.0}}
"""

_PAIR = ("--base", "orig", "--cand")
_COMPARE = ("compare", *_PAIR)
_TO = "--output-path"
_NIGHT = ("nightly", "--history", "nights.sqlite", _TO, "nights")
# How each ends, and the file that keeps what it prints.
_COMMANDS = (
    (1, "", *_COMPARE, "sharp", "--bisect", "always", _TO, "bisected"),
    (0, "", *_COMPARE, "other", "--tasks", "sw_group,sw_written", "--distributions", "lockstep",
     _TO, "grouped"),
    (1, "several.json", *_COMPARE, "soft", "--cand", "sharp", "--json", _TO, "several"),
    (1, "", *_COMPARE, "sharp", "--save-reference", "reference.parquet", _TO, "referenced"),
    (0, "floor.json", "floor", "--base", "orig", "--vary", "repeat", "--json"),
    (0, "plan.json", "plan", *_PAIR, "sharp", "--pilot", "8", "--json"),
    (1, "", "trace", *_PAIR, "other", "--limit", "2", _TO, "traced"),
    (1, "", "tensors", "llama", "world/other", "-o", "tensors.json"),
    (2, "error.json", *_COMPARE, "shrap", "--json"),
    (0, "", "dump", "orig", "--limit", "1", "--points", "model.layers.0:out", "-o", "dumped"),
    (0, "", *_NIGHT),
)  # fmt: skip
_NEXT_NIGHT = (1, "", *_NIGHT)


class _Clock(datetime):
    """Three in the morning, of a day that passes when the script says so."""

    day = 28

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:
        return datetime(2026, 11, cls.day, 3, tzinfo=tz)


# Of a server that was asked when its run was killed.
ANSWERS_OF = {"url": "http://127.0.0.1:8000/v1/completions"}
ANSWER = {"loglikelihood": -1.5, "is_greedy": True, "n_tokens": 4}

# What is read again: pages are made anew, and the models are larger than all else.
_READ = (".json", ".jsonl", ".parquet", ".sqlite", ".npy", ".npz", ".tsv", ".yaml")
_NOT_KEPT = ("llama", "port", "world", "tasks", "evalguard.yaml")
_WRITTEN_AT = 1_796_040_000  # 2026-11-30


def make_place(folder: Path, llama: Path) -> None:
    """Put models, tasks and a guard file into a folder; ``llama`` is what all of them are made of.

    ``port`` is another model than ``orig``.
    """
    from small_world import make_world

    world = make_world(folder / "world", llama)
    shutil.copytree(world.models["other"], folder / "port")
    (folder / "evalguard.yaml").write_text(_GUARD)
    (folder / "tasks").mkdir()
    (folder / "tasks" / "group.yaml").write_text(_GROUP)
    written = _WRITTEN.format(file=json.dumps(str(world.tasks / "test.jsonl")))
    (folder / "tasks" / "written.yaml").write_text(written)


def _write_all() -> None:
    from tiny_models import save_llama

    make_place(PLACE, save_llama(PLACE / "llama"))
    os.chdir(PLACE)
    for code, file, *words in _COMMANDS:
        _run(code, file, words)
    _double_the_last_norm(PLACE / "port" / "model.safetensors")
    _Clock.day += 1
    code, file, *words = _NEXT_NIGHT
    _run(code, file, words)
    _keep_answers(PLACE / "cache" / "answers" / "0123456789abcdef.jsonl")


def _run(code: int, file: str, words: list[str]) -> None:
    from evalguard.cli.main import main

    print(" ".join(words))
    out, err = io.StringIO(), io.StringIO()
    ended: object = None
    with redirect_stdout(out), redirect_stderr(err):
        try:
            main(words)
        except SystemExit as end:
            ended = end.code
    if ended != code:
        raise SystemExit(f"exit code {ended}, not {code}\n{out.getvalue()}{err.getvalue()}")
    if file:
        Path(file).write_text(out.getvalue())


def _double_the_last_norm(weights: Path) -> None:
    from safetensors.torch import load_file, save_file

    found = load_file(weights)
    save_file(found | {"model.norm.weight": found["model.norm.weight"] * 2}, weights)


def _keep_answers(path: Path) -> None:
    from evalguard.core.scorer import Response
    from evalguard.store.answer_journal import AnswerFile

    file = AnswerFile(path, facts=ANSWERS_OF, revision="of November")
    file.add("r1", Response(**ANSWER))
    file.close()


def _kept() -> Iterator[Path]:
    for path in sorted(PLACE.rglob("*")):
        place = path.relative_to(PLACE)
        # Digests of installed packages are of files of this machine.
        of_machine = place.parts[:4] == ("cache", "facts", "v1", "files")
        kept = place.parts[0] not in _NOT_KEPT and not of_machine
        if kept and path.suffix in _READ and path.is_file():
            yield path


def _pack(archive: Path) -> None:
    with tarfile.open(archive, "w:xz", preset=9) as packed:
        for path in _kept():
            entry = tarfile.TarInfo(str(path.relative_to(PLACE)))
            entry.size, entry.mtime = path.stat().st_size, _WRITTEN_AT
            with path.open("rb") as file:
                packed.addfile(entry, file)


def _settle(stack: ExitStack) -> None:
    """Have runs keep all here, name no kernel of this machine, and begin when the clock says."""
    of_runs = {"EVALGUARD_CACHE_DIR": str(PLACE / "cache"), "WANDB_MODE": "disabled",
               "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "OMP_NUM_THREADS": "1",
               "CUDA_VISIBLE_DEVICES": ""}  # fmt: skip
    stack.enter_context(mock.patch.dict(os.environ, of_runs))
    stack.enter_context(mock.patch("platform.platform", return_value="Linux"))
    from pairs_here import PairsHere  # processes of their own would name it

    stack.enter_context(mock.patch("evalguard.nights.night.PairRunner", PairsHere))
    for of_times in ("comparison.judge", "nights.night", "tracing.both_sides"):
        stack.enter_context(mock.patch(f"evalguard.{of_times}.datetime", _Clock))


if __name__ == "__main__":
    target = Path(sys.argv[1]).absolute()
    sys.path[:0] = [str(HERE.parent), str(HERE.parent / "cli")]
    with ExitStack() as around:
        PLACE.mkdir()
        around.callback(shutil.rmtree, PLACE)
        _settle(around)
        _write_all()
        _pack(target)
    print(f"{target.stat().st_size} bytes")
