"""What can change a score is part of its key: each case with real files, changed for real."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from small_world import write_tasks
from tiny_models import save_llama

from evalguard.conversion.building import build, is_built_by_every_run
from evalguard.conversion.planning import plan_conversion
from evalguard.core.settings import BuildRecipe, Variant
from evalguard.engine.loading.known_models import digest_code, digest_weights
from evalguard.errors import UsageError
from evalguard.models import identity
from evalguard.run_token import run_scope

Change = Callable[[Path, pytest.MonkeyPatch], None]


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def rewrite(path: str, text: str) -> Change:
    return lambda folder, _: write(folder, {path: text})


def variable(name: str, value: str) -> Change:
    return lambda _, patch: patch.setenv(name, value)


def hook(head: str) -> str:
    return f"{head}\n\n\ndef edit(model, value):\n    model.scale(FACTOR * value)\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write(tmp_path, {"model/config.json": "{}", "model/model.safetensors": "weights"})
    for name in ("outside", "real"):
        (tmp_path / name).mkdir()
    (tmp_path / "linked").symlink_to("real")
    monkeypatch.syspath_prepend(str(tmp_path / "outside"))
    return tmp_path


def test_an_installed_package_that_is_edited_in_place_counts_by_its_files(folder: Path) -> None:
    digest = (
        "from evalguard.conversion.installed_packages import digest_packages\n"
        "print(digest_packages(('eg_lib',)))"
    )
    write(folder, {"outside/eg_lib/__init__.py": "", "outside/eg_lib/deep/m.py": "A = 1\n"})
    found = []
    for text in ("A = 1\n", "A = 2\n"):
        write(folder, {"outside/eg_lib/deep/m.py": text})
        told = subprocess.run(
            [sys.executable, "-c", digest],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert "package eg_lib" in told.stdout
        found.append(told.stdout)
    assert found[0] != found[1]
    variant = Variant(name="m", model="hf", model_args={"pretrained": str(folder / "model")})
    assert {"package transformers", "package tokenizers", "package lm_eval"} <= set(
        digest_code(variant, plan_conversion(variant))
    )


@pytest.mark.parametrize("place", ["model/.hidden/one.safetensors", "shared/one.safetensors"])
def test_weights_that_an_index_names_count_wherever_they_lie(folder: Path, place: str) -> None:
    name = os.path.relpath(folder / place, folder / "model")
    index = json.dumps({"weight_map": {"a": name}})
    write(folder, {place: "1", "model/model.safetensors.index.json": index})
    variant = Variant(name="m", model="hf", model_args={"pretrained": str(folder / "model")})
    before = digest_weights(variant, variant.model_args)
    write(folder, {place: "2"})
    assert digest_weights(variant, variant.model_args) != before


@pytest.mark.parametrize("name", ["MKL_CBWR", "ONEDNN_MAX_CPU_ISA", "CUBLAS_WORKSPACE_CONFIG"])
def test_variables_of_arithmetic_libraries_are_part_of_the_identity(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.delenv(name, raising=False)
    before = identity.arithmetic_variables()
    monkeypatch.setenv(name, "COMPATIBLE")
    assert identity.arithmetic_variables() != before


CONVERT = "import pathlib, sys\npathlib.Path(sys.argv[-1]).mkdir()\n"

# What a build that declares its inputs is made anew for: (command, files, inputs, change); {here}
# is the test's folder.
BUILDS: dict[str, tuple[tuple[str, ...], dict[str, str], tuple[str, ...], Change]] = {
    "a module that python -m runs": (
        ("python", "-m", "eg_tool.convert", "{output}"),
        {"outside/eg_tool/__init__.py": "", "outside/eg_tool/convert.py": CONVERT},
        (),
        rewrite("outside/eg_tool/convert.py", CONVERT + "A = 1\n"),
    ),
    "an input in --base=/path": (
        ("python", "convert.py", "--base={here}/model", "{output}"),
        {"convert.py": CONVERT},
        (),
        rewrite("model/model.safetensors", "others"),
    ),
    "a file that the script opens by name": (
        ("python", "convert.py", "{output}"),
        {"convert.py": CONVERT, "data/side.txt": "1"},
        ("data/side.txt",),
        rewrite("data/side.txt", "2"),
    ),
    "a folder whose names are read": (
        ("python", "convert.py", "{output}"),
        {"convert.py": CONVERT, "shards/1.txt": ""},
        ("shards",),
        rewrite("shards/2.txt", ""),
    ),
    "a module beside the script": (
        ("python", "convert.py", "{output}"),
        {"convert.py": CONVERT, "deep/beside.py": "A = 1\n"},
        (),
        rewrite("deep/beside.py", "A = 2\n"),
    ),
    "an input of a command that is no Python": (
        ("sh", "run.sh", "{here}/model", "{output}"),
        {"run.sh": 'mkdir "$2"\n'},
        (),
        rewrite("model/model.safetensors", "others"),
    ),
    "a program's own text": (
        ("sh", "run.sh", "{output}"),
        {"run.sh": 'mkdir "$1"\n'},
        (),
        rewrite("run.sh", 'mkdir "$1" # \n'),
    ),
    "a module on PYTHONPATH that the script imports": (
        ("python", "convert.py", "{output}"),
        {"convert.py": "import eg_far\n" + CONVERT, "outside/eg_far.py": "A = 1\n"},
        (),
        rewrite("outside/eg_far.py", "A = 2\n"),
    ),
}


def built_by(
    folder: Path, command: tuple[str, ...], inputs: tuple[str, ...] | None = None
) -> Variant:
    words = tuple(word.replace("{here}", str(folder)) for word in command)
    recipe = BuildRecipe(command=words, inputs={}, output="model", folder=str(folder))
    named = None if inputs is None else {name: str(folder / name) for name in inputs}
    return Variant(name="m", model="hf", model_args={}, build=recipe, allow_code=True, inputs=named)


def built_in_a_run(variant: Variant, cache: Path) -> Path:
    with run_scope():
        first = build(variant, plan_conversion(variant), cache)
        assert build(variant, plan_conversion(variant), cache) == first, "one run builds once"
    return first


@pytest.fixture
def between_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """No run is going on: each has a token of its own."""
    monkeypatch.delenv("EVALGUARD_THIS_RUN", raising=False)


@pytest.mark.usefixtures("between_runs")
@pytest.mark.parametrize("what", BUILDS)
def test_an_edit_of_what_a_build_declares_builds_anew_and_nothing_else_does(
    folder: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    command, files, inputs, change = BUILDS[what]
    write(folder, files)
    monkeypatch.setenv("PYTHONPATH", str(folder / "outside"))
    variant, cache = built_by(folder, command, inputs), folder / "cache"
    first = built_in_a_run(variant, cache)
    write(folder, {"notes.txt": "nobody reads this"})
    assert built_in_a_run(variant, cache) == first
    change(folder, monkeypatch)
    assert built_in_a_run(variant, cache) != first
    write(folder, files)
    (folder / "shards/2.txt").unlink(missing_ok=True)
    if what not in ("an input in --base=/path", "an input of a command that is no Python"):
        assert built_in_a_run(variant, cache) == first, "an edit taken back finds what was built"


@pytest.mark.usefixtures("between_runs")
@pytest.mark.parametrize("what", BUILDS)
def test_a_build_that_declares_nothing_is_made_once_by_every_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    command, files, _, _ = BUILDS[what]
    write(folder, files)
    monkeypatch.setenv("PYTHONPATH", str(folder / "outside"))
    variant = built_by(folder, command)
    assert is_built_by_every_run(variant)
    made = {built_in_a_run(variant, folder / "cache") for _ in range(2)}
    assert len(made) == 2


@pytest.mark.usefixtures("between_runs")
def test_evalguards_own_recipes_declare_what_they_read(folder: Path) -> None:
    recipe = BuildRecipe(
        call="evalguard.recipes.checkpoints:find_checkpoint", folder=str(folder), output="model"
    )
    variant = Variant(name="m", model="hf", model_args={}, build=recipe, allow_code=True)
    assert not is_built_by_every_run(variant)
    assert is_built_by_every_run(replace(variant, build=replace(recipe, call="recipe.py:convert")))


@pytest.mark.usefixtures("between_runs")
def test_an_input_that_is_not_there_is_an_error(folder: Path) -> None:
    write(folder, {"convert.py": CONVERT})
    variant = built_by(folder, ("python", "convert.py", "{output}"), ("abesnt.txt",))
    with pytest.raises(UsageError, match=r"inputs names abesnt\.txt, which cannot be read"):
        built_in_a_run(variant, folder / "cache")


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_llama(tmp_path_factory.mktemp("stale") / "llama")


def scored_again(folder: Path, more: dict[str, str], words: tuple[str, ...] = ()) -> int:
    """Run the comparison; return how many documents the candidate answered anew."""
    done = subprocess.run(
        [sys.executable, "-m", "evalguard", "compare", "--config", "guard.yaml", "--base", "base",
         "--cand", "cand", "--json", "--bisect", "never", "--track", "none", *words],
        cwd=folder,
        env={**os.environ, "EVALGUARD_CACHE_DIR": str(folder / "cache"), "HF_HUB_OFFLINE": "1",
             "PYTHONPATH": os.pathsep.join([str(folder / "outside"), *filter(None, sys.path)]),
             **more},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stdout + done.stderr
    answers = json.loads(done.stdout)["resources"]["answers"]
    (candidate,) = (one for one in answers if one["model"] == "cand")
    return int(candidate["documents"]) - int(candidate["kept"])


HOOK = (
    "FACTOR = float(open('factor.txt').read())\n\n\n"
    "def edit(model, value):\n    import torch\n\n    with torch.no_grad():\n"
    "        model.model.norm.weight.mul_(FACTOR * value)\n"
)


# Keys of what a hook reads are held by test_code_of_others.py with every change.
@pytest.mark.nightly
def test_scores_of_a_hook_are_for_one_run_unless_somebody_says_what_it_reads(
    llama: Path, tmp_path: Path
) -> None:
    write_tasks(tmp_path / "tasks")
    write(tmp_path, {"hook.py": HOOK, "factor.txt": "1.5"})
    setting = {"reference": 1.0, "candidate": 1.1, "target": "call:hook.py:edit"}
    base = {"model_args": {"pretrained": str(llama), "dtype": "float32"}}

    def declare(**inputs: list[str]) -> None:
        guard = {
            "models": {"base": base, "cand": {"extends": "base", "settings": {"edit": setting}}},
            "tasks": ["sw_word"],
            "include_path": "tasks",
        }
        guard["models"]["cand"] |= inputs  # type: ignore[index]
        (tmp_path / "guard.yaml").write_text(json.dumps(guard))

    declare()
    assert scored_again(tmp_path, {}) > 0
    (run,) = {
        json.loads(about.read_text())["model"].get("run")
        for about in tmp_path.glob("cache/scores/v1/*/about.json")
    } - {None}
    assert scored_again(tmp_path, {}) > 0
    assert scored_again(tmp_path, {}, ("--unchanged-since", run)) == 0
    declare(inputs=["factor.txt"])
    assert scored_again(tmp_path, {}) > 0
    assert scored_again(tmp_path, {}) == 0
    write(tmp_path, {"factor.txt": "2.5"})
    assert scored_again(tmp_path, {}) > 0
    write(tmp_path, {"factor.txt": "1.5"})
    assert scored_again(tmp_path, {}) == 0
