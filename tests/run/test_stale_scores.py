"""What can change a score is part of its key: each case with real files, changed for real."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from small_world import write_tasks
from tiny_models import save_llama

from evalguard.conversion.building import build, describe_build
from evalguard.conversion.planning import plan_conversion
from evalguard.core.settings import BuildRecipe, Variant
from evalguard.models import identity
from evalguard.run.loading.loaded_files import digest_code, digest_weights

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
        "from evalguard.run.loading.installed_packages import digest_packages\n"
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

# (command, files, change); {here} is the test's folder.
BUILDS: dict[str, tuple[tuple[str, ...], dict[str, str], Change]] = {
    "python -m": (
        ("python", "-m", "eg_tool.convert", "{output}"),
        {"outside/eg_tool/__init__.py": "", "outside/eg_tool/convert.py": CONVERT},
        rewrite("outside/eg_tool/convert.py", CONVERT + "A = 1\n"),
    ),
    "an input in --base=/path": (
        ("python", "convert.py", "--base={here}/model", "{output}"),
        {"convert.py": CONVERT},
        rewrite("model/model.safetensors", "others"),
    ),
    "a side file that the script opens by name": (
        ("python", "convert.py", "{output}"),
        {
            "convert.py": "A = open(__file__.replace('convert.py', 'side.txt')).read()\n" + CONVERT,
            "side.txt": "1",
        },
        rewrite("side.txt", "2"),
    ),
    "a side file of a text": (
        ("python", "-I", "-c", "A = open('{here}/side.txt').read()\n" + CONVERT, "{output}"),
        {"side.txt": "1"},
        rewrite("side.txt", "2"),
    ),
    "a folder whose names are read": (
        ("python", "-B", "convert.py", "{output}"),
        {
            "convert.py": "import os\nos.listdir(os.path.dirname(__file__) + '/shards')\n"
            + CONVERT,
            "shards/1.txt": "",
        },
        rewrite("shards/2.txt", ""),
    ),
    "an input of a command that is no Python": (
        ("sh", "run.sh", "{here}/model", "{output}"),
        {"run.sh": 'mkdir "$2"\n'},
        rewrite("model/model.safetensors", "others"),
    ),
    "a program's own text": (
        ("sh", "run.sh", "{output}"),
        {"run.sh": 'mkdir "$1"\n'},
        rewrite("run.sh", 'mkdir "$1" # \n'),
    ),
    "a module on PYTHONPATH that the script imports": (
        ("python", "convert.py", "{output}"),
        {"convert.py": "import eg_far\n" + CONVERT, "outside/eg_far.py": "A = 1\n"},
        rewrite("outside/eg_far.py", "A = 2\n"),
    ),
    "a variable that the script reads": (
        ("python", "convert.py", "{output}"),
        {"convert.py": "import os\nA = os.environ.get('EG_A')\n" + CONVERT},
        variable("EG_A", "2"),
    ),
}


def built_by(folder: Path, command: tuple[str, ...]) -> Variant:
    words = tuple(word.replace("{here}", str(folder)) for word in command)
    recipe = BuildRecipe(command=words, inputs={}, output="model", folder=str(folder))
    return Variant(name="m", model="hf", model_args={}, build=recipe, allow_code=True)


@pytest.mark.parametrize("what", BUILDS)
def test_an_edit_of_what_a_build_uses_builds_anew(
    folder: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    command, files, change = BUILDS[what]
    write(folder, files)
    monkeypatch.setenv("PYTHONPATH", str(folder / "outside"))
    variant = built_by(folder, command)
    first = build(variant, plan_conversion(variant), folder / "cache")
    assert build(variant, plan_conversion(variant), folder / "cache") == first
    change(folder, monkeypatch)
    assert build(variant, plan_conversion(variant), folder / "cache") != first


def test_a_build_that_does_what_nobody_can_check_is_made_anew_by_every_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder, {"convert.py": "import subprocess\nsubprocess.run(['true'])\n" + CONVERT})
    variant = built_by(folder, ("python", "convert.py", "{output}"))
    plan = plan_conversion(variant)
    monkeypatch.setenv("EVALGUARD_THIS_RUN", "0" * 8)
    first = build(variant, plan, folder / "cache")
    assert build(variant, plan, folder / "cache") == first
    (note,) = describe_build(variant, plan, folder / "cache")
    assert note.startswith("every run builds it anew: convert.py starts another program")
    monkeypatch.setenv("EVALGUARD_THIS_RUN", "1" * 8)
    assert build(variant, plan, folder / "cache") != first


def test_of_a_command_that_is_no_python_the_report_says_what_is_not_seen(folder: Path) -> None:
    write(folder, {"run.sh": 'mkdir "$1"\n'})
    variant = built_by(folder, ("sh", "run.sh", "{output}"))
    (note,) = describe_build(variant, plan_conversion(variant), folder / "cache")
    assert note.startswith("its build runs sh, which is no Python")
    assert "inputs:" in note


def test_a_build_whose_input_is_edited_back_is_found_again(folder: Path) -> None:
    command, files, _ = BUILDS["a side file that the script opens by name"]
    write(folder, files)
    variant = built_by(folder, command)
    first = build(variant, plan_conversion(variant), folder / "cache")
    write(folder, {"side.txt": "2"})
    assert build(variant, plan_conversion(variant), folder / "cache") != first
    write(folder, files)
    assert build(variant, plan_conversion(variant), folder / "cache") == first


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


# What a hook of a comparison reads: (files, change).
WHOLE: dict[str, tuple[dict[str, str], Change]] = {
    "a module found before the neighbour": (
        {"hook.py": hook("from eg_beside import FACTOR"), "eg_beside.py": "FACTOR = 1\n"},
        rewrite("outside/eg_beside.py", "FACTOR = 2\n"),
    ),
    "a file": (
        {"hook.py": hook("FACTOR = float(open('factor.txt').read())"), "factor.txt": "1.5"},
        rewrite("factor.txt", "2.5"),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["a file", pytest.param("a module found before the neighbour", marks=pytest.mark.nightly)],
)
def test_a_change_is_scored_anew_and_nothing_else_is(
    name: str, llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, change = WHOLE[name]
    write_tasks(tmp_path / "tasks")
    write(tmp_path, files)
    scales = (
        "def edit(model, value):\n    import torch\n\n    with torch.no_grad():\n"
        "        model.model.norm.weight.mul_(FACTOR * value)\n"
    )
    head = files["hook.py"].partition("def edit")[0]
    write(tmp_path, {"hook.py": head + scales})
    setting = {"reference": 1.0, "candidate": 1.1, "target": "call:hook.py:edit"}
    guard = {
        "models": {
            "base": {"model_args": {"pretrained": str(llama), "dtype": "float32"}},
            "cand": {"extends": "base", "settings": {"edit": setting}},
        },
        "tasks": ["sw_word"],
        "include_path": "tasks",
    }
    (tmp_path / "guard.yaml").write_text(json.dumps(guard))
    assert scored_again(tmp_path, {}) > 0
    assert scored_again(tmp_path, {}) == 0
    change(tmp_path, monkeypatch)
    assert scored_again(tmp_path, {}) > 0
    write(tmp_path, {name: text for name, text in files.items() if name != "hook.py"})
    (tmp_path / "outside/eg_beside.py").unlink(missing_ok=True)
    assert scored_again(tmp_path, {}) == 0
