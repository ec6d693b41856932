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

from evalguard.conversion.building import build, unknown_in_build
from evalguard.conversion.planning import plan_conversion
from evalguard.core.settings import BuildRecipe, Setting, Target, Variant
from evalguard.models import identity
from evalguard.run.loading.edited_model import prove_files
from evalguard.run.loading.loading_facts import (
    digest_code,
    digest_weights,
    list_unknown_dependencies,
)

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


def hooked(folder: Path) -> Variant:
    edit = Setting(
        name="edit", reference=1.0, candidate=1.1, target=Target.parse("call:hook.py:edit")
    )
    return Variant(
        name="cand",
        model="hf",
        model_args={"pretrained": str(folder / "model")},
        settings=(edit,),
        code_folder=str(folder),
        allow_code=True,
    )


# What a hook is made of: (files, change).
SEEN: dict[str, tuple[dict[str, str], Change]] = {
    "a module beside it": (
        {"hook.py": hook("from eg_beside import FACTOR"), "eg_beside.py": "FACTOR = 1\n"},
        rewrite("eg_beside.py", "FACTOR = 2\n"),
    ),
    "a package on PYTHONPATH, and what it imports": (
        {
            "hook.py": hook("from eg_pack import FACTOR"),
            "outside/eg_pack/__init__.py": "from eg_pack.inner import FACTOR\n",
            "outside/eg_pack/inner.py": "FACTOR = 1\n",
        },
        rewrite("outside/eg_pack/inner.py", "FACTOR = 2\n"),
    ),
    "a package without __init__.py on PYTHONPATH": (
        {
            "hook.py": hook("from eg_space.inner import FACTOR"),
            "outside/eg_space/inner.py": "FACTOR = 1\n",
        },
        rewrite("outside/eg_space/inner.py", "FACTOR = 2\n"),
    ),
    "a module of a literal name": (
        {
            "hook.py": hook("import importlib\n\nFACTOR = importlib.import_module('eg_l').FACTOR"),
            "eg_l.py": "FACTOR = 1\n",
        },
        rewrite("eg_l.py", "FACTOR = 2\n"),
    ),
    "a module in a linked folder": (
        {"hook.py": hook("from linked.eg_in import FACTOR"), "real/eg_in.py": "FACTOR = 1\n"},
        rewrite("real/eg_in.py", "FACTOR = 2\n"),
    ),
    "an environment variable": (
        {"hook.py": hook("import os\n\nFACTOR = float(os.environ.get('EG_FACTOR', '1.5'))")},
        variable("EG_FACTOR", "2.5"),
    ),
    "a variable by getenv": (
        {"hook.py": hook("from os import getenv\n\nFACTOR = float(getenv('EG_FACTOR') or 1)")},
        variable("EG_FACTOR", "2.5"),
    ),
}  # fmt: skip

UNKNOWN = {
    "a module under a computed name": "import importlib\n\n"
    "FACTOR = importlib.import_module('eg_' + 'x').FACTOR",
    "importlib under another name": "from importlib import import_module as get\n\n"
    "FACTOR = get('eg_' + 'x').FACTOR",
    "a file that it reads": "FACTOR = float(open('factor.txt').read())",
    "a reader under another name": "from numpy import load as got\nFACTOR = got('factor.npy')",
    "a reader that is handed on": "FACTOR = len(list(map(open, ['factor.txt'])))",
    "a table that it reads": "import pandas\nFACTOR = len(pandas.read_excel('factor.xlsx'))",
    "modules looked for elsewhere": "import sys\n\nsys.path.insert(0, '/x')\nFACTOR = 1",
    "getenv under another name": "from os import getenv as get\n\nFACTOR = get('EG_FACTOR')",
    "all variables": "import os\n\nFACTOR = len(os.environ)",
    "another program": "import subprocess\n\nFACTOR = subprocess.run(['x'])",
    "text as code": "FACTOR = eval('1')",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write(tmp_path, {"model/config.json": "{}", "model/model.safetensors": "weights"})
    for name in ("outside", "real"):
        (tmp_path / name).mkdir()
    (tmp_path / "linked").symlink_to("real")
    monkeypatch.syspath_prepend(str(tmp_path / "outside"))
    return tmp_path


def code_of(variant: Variant) -> dict[str, str] | None:
    return digest_code(variant, plan_conversion(variant), variant.model_args)


@pytest.mark.parametrize("what", SEEN)
def test_an_edit_of_what_a_hook_uses_changes_its_key(
    folder: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    files, change = SEEN[what]
    write(folder, files)
    before = code_of(hooked(folder))
    assert before is not None
    assert code_of(hooked(folder)) == before
    change(folder, monkeypatch)
    assert code_of(hooked(folder)) not in (before, None)


def test_a_package_of_an_editable_install_counts_by_its_files(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import site

    places = list(sys.path)
    write(folder, {"hook.py": hook("from eg_dev import FACTOR"), "src/eg_dev.py": "FACTOR = 1\n",
                   "site-packages/eg_dev.pth": f"{folder / 'src'}\n"})  # fmt: skip
    monkeypatch.setattr(sys, "path", places)
    site.addsitedir(str(folder / "site-packages"))
    before = code_of(hooked(folder))
    assert before is not None
    write(folder, {"src/eg_dev.py": "FACTOR = 2\n"})
    assert code_of(hooked(folder)) not in (before, None)


@pytest.mark.parametrize("what", UNKNOWN)
def test_where_a_hooks_text_does_not_tell_nothing_is_kept_and_that_is_said(
    folder: Path, what: str
) -> None:
    write(folder, {"hook.py": hook(UNKNOWN[what])})
    variant = hooked(folder)
    assert prove_files(variant, plan_conversion(variant), variant.model_args, None) is None
    assert list_unknown_dependencies(variant, plan_conversion(variant), variant.model_args)[
        0
    ].startswith("hook.py")


def test_a_hook_that_only_edits_the_model_or_sets_variables_is_kept(folder: Path) -> None:
    head = "import os\n\nos.environ['EG_SET'] = '1'\nFACTOR = 1"
    write(folder, {"hook.py": hook(head) + "    model.eval()\n"})
    assert code_of(hooked(folder)) is not None


def test_a_default_that_a_hook_sets_while_loading_is_no_change(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("EG_DEFAULT", raising=False)
    write(
        folder, {"hook.py": hook("import os\n\nFACTOR = os.environ.setdefault('EG_DEFAULT', '1')")}
    )
    before = code_of(hooked(folder))
    monkeypatch.setenv("EG_DEFAULT", "1")
    assert code_of(hooked(folder)) == before


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
        code_of(variant) or ()
    )


MODELING = "import os\n\nfrom .eg_near import A\n\nB = os.environ.get('EG_B')\n"


@pytest.mark.parametrize("config", ["config.json", "tokenizer_config.json"])
@pytest.mark.parametrize("change", [
    rewrite("other/eg_modeling.py", MODELING + "C = 1\n"),
    rewrite("other/eg_near.py", "A = 2\n"),
    variable("EG_B", "2"),
], ids=["its text", "what it imports", "a variable that it reads"])  # fmt: skip
def test_remote_code_in_another_folder_counts(
    folder: Path, monkeypatch: pytest.MonkeyPatch, config: str, change: Change
) -> None:
    named = {"auto_map": {"AutoThing": [f"{folder / 'other'}--eg_modeling.Thing", None]}}
    write(folder, {f"model/{config}": json.dumps(named), "other/eg_modeling.py": MODELING,
                   "other/eg_near.py": "A = 1\n"})  # fmt: skip
    variant = Variant(
        name="m",
        model="hf",
        model_args={"pretrained": str(folder / "model")},
        trust_remote_code=True,
    )
    before = code_of(variant)
    assert before is not None
    change(folder, monkeypatch)
    assert code_of(variant) not in (before, None)


def test_remote_code_that_is_not_here_is_not_kept(folder: Path) -> None:
    named = {"auto_map": {"AutoModel": "nobody/nothing--modeling.Thing"}}
    write(folder, {"model/config.json": json.dumps(named)})
    args = {"pretrained": str(folder / "model")}
    variant = Variant(name="m", model="hf", model_args=args, trust_remote_code=True)
    assert code_of(variant) is None


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
    "a shell script, what it runs": (
        ("sh", "run.sh", "{output}"),
        {"run.sh": f'{sys.executable} "$(dirname "$0")/convert.py" "$1"\n', "convert.py": CONVERT},
        rewrite("convert.py", CONVERT + "A = 1\n"),
    ),
    "a command line for a shell": (
        ("sh", "-c", f"{sys.executable} {{here}}/convert.py {{output}}"),
        {"convert.py": CONVERT},
        rewrite("convert.py", CONVERT + "A = 1\n"),
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


def test_a_build_whose_code_cannot_be_known_is_made_anew_by_every_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = "import importlib\nimportlib.import_module('js' + 'on')\n"
    write(folder, {"convert.py": head + CONVERT})
    variant = built_by(folder, ("python", "convert.py", "{output}"))
    assert unknown_in_build(variant, plan_conversion(variant))[0].startswith("convert.py:2")
    monkeypatch.setenv("EVALGUARD_THIS_RUN", "0" * 8)
    first = build(variant, plan_conversion(variant), folder / "cache")
    assert build(variant, plan_conversion(variant), folder / "cache") == first
    monkeypatch.setenv("EVALGUARD_THIS_RUN", "1" * 8)
    assert build(variant, plan_conversion(variant), folder / "cache") != first


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


WHOLE = {
    "a package on PYTHONPATH": (SEEN["a package on PYTHONPATH, and what it imports"], True),
    "a file": (({"hook.py": hook("FACTOR = float(open('factor.txt').read())"), "factor.txt": "1.5"},
                rewrite("factor.txt", "2.5")), False),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", WHOLE)
def test_a_change_is_scored_anew_and_nothing_else_is(
    name: str, llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (files, change), kept = WHOLE[name]
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
    assert (scored_again(tmp_path, {}) == 0) == kept
    change(tmp_path, monkeypatch)
    assert scored_again(tmp_path, {}) > 0
