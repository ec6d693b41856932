"""Build recipes: cached by content, never half-built, and clear when they fail."""

from __future__ import annotations

import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from variants import variant

from evalguard.conversion import building
from evalguard.conversion.building import build, find_build
from evalguard.conversion.planning import plan_conversion
from evalguard.core.settings import BuildRecipe, Value, Variant
from evalguard.errors import BuildError, UsageError
from evalguard.run_token import this_run

SCRIPT = """
import os, pathlib, sys, time
source, bits, output = sys.argv[1:4]
with open(sys.argv[4].removeprefix("runs:"), "a") as log:
    log.write("x")
out = pathlib.Path(output)
out.mkdir()
(out / "half").write_text("")
print("cwd", os.getcwd())
if bits == "0":
    print("line 1"); print("cannot use 0 bits", file=sys.stderr); sys.exit(3)
if bits == "99":
    time.sleep(600)
time.sleep(0.3)
(out / "weights").write_text(pathlib.Path(source).read_text() + bits)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    guard = tmp_path / "guard"
    guard.mkdir()
    (guard / "convert.py").write_text(SCRIPT)
    (guard / "source.txt").write_text("weights ")
    return guard


def recipe(folder: Path, **changes: object) -> BuildRecipe:
    made = BuildRecipe(
        command=("python", "convert.py", "{source}", "{bits}", "{output}", f"runs:{folder}/runs"),
        inputs={"source": "source.txt", "bits": 8},
        output="model",
        folder=str(folder),
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def made(
    folder: Path,
    bits: Value = None,
    *,
    of: BuildRecipe | None = None,
    allow: bool = True,
    timeout: float | None = None,
) -> Path:
    targets: dict[str, Value] = {} if bits is None else {"build.bits": bits}
    one: Variant = variant(targets, build=of or recipe(folder), allow_code=allow)
    return build(one, plan_conversion(one), folder.parent / "cache", timeout=timeout)


def runs(folder: Path) -> int:
    file = folder / "runs"
    return len(file.read_text()) if file.exists() else 0


def test_a_release_builds_anew_only_where_its_recipes_changed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipes = folder.parent / "recipes"
    shutil.copytree(building.RECIPES, recipes, ignore=shutil.ignore_patterns("__pycache__"))
    built = made(folder)
    monkeypatch.setattr("evalguard.__version__", "99.0")
    monkeypatch.setattr(building, "RECIPES", recipes)
    assert made(folder) == built
    assert runs(folder) == 1
    with (recipes / "checkpoints.py").open("a") as file:
        file.write("EDITED = 1\n")
    assert made(folder) != built
    assert runs(folder) == 2


def test_a_command_makes_the_output_in_a_folder_of_its_own_once(folder: Path) -> None:
    built = made(folder)
    assert (built / "weights").read_text() == "weights 8"
    assert made(folder) == built
    assert runs(folder) == 1
    assert list(folder.parent.glob("cache/builds/.*-*")) == []


def test_a_recipe_that_looks_for_the_folder_it_writes_in_is_not_built_anew(folder: Path) -> None:
    """As torch and transformers do; the folder has another name once the build is whole."""
    script = folder / "convert.py"
    script.write_text(f"import os, sys\nos.stat(os.path.dirname(sys.argv[3]))\n{SCRIPT}")
    assert made(folder) == made(folder)
    assert runs(folder) == 1


def test_a_build_that_is_there_is_found_and_none_is_made(folder: Path) -> None:
    one = variant({}, build=recipe(folder), allow_code=True)
    cache = folder.parent / "cache"
    assert find_build(one, plan_conversion(one), cache) is None
    assert runs(folder) == 0
    made(folder)
    assert find_build(one, plan_conversion(one), cache) == made(folder)


def test_a_build_setting_makes_another_output(folder: Path) -> None:
    assert (made(folder, 4) / "weights").read_text() == "weights 4"
    assert made(folder, 8) == made(folder)


@pytest.mark.parametrize("file", ["source.txt", "convert.py"])
def test_a_changed_input_or_script_is_built_anew(folder: Path, file: str) -> None:
    first = made(folder)
    path = folder / file
    path.write_text(path.read_text() + "# changed" if file == "convert.py" else "other ")
    assert made(folder) != first
    assert runs(folder) == 2


@pytest.mark.parametrize("form", ["command", "call"])
def test_a_recipe_imports_its_neighbours_and_is_built_anew_when_one_changes(
    folder: Path, form: str
) -> None:
    (folder / "eg_suffix.py").write_text("SUFFIX = 'a'\n")
    (folder / "make.py").write_text(
        "import sys\nimport eg_suffix\n"
        "def make(output):\n    open(output, 'w').write(eg_suffix.SUFFIX)\n"
        "if __name__ == '__main__':\n    make(sys.argv[1])\n"
    )
    command = ("python", "make.py", "{output}") if form == "command" else ()
    call = "" if form == "command" else "make.py:make"
    one = recipe(folder, command=command, call=call, inputs={})
    first = made(folder, of=one)
    assert first.read_text() == "a"
    (folder / "eg_suffix.py").write_text("SUFFIX = 'b'\n")
    second = made(folder, of=one)
    assert second.read_text() == "b"
    assert second != first


def test_a_failed_build_shows_the_end_of_its_log_and_leaves_nothing(folder: Path) -> None:
    with pytest.raises(BuildError, match=r"'port' failed with exit status 3:") as raised:
        made(folder, 0)
    assert "cannot use 0 bits" in str(raised.value)
    log = Path(raised.value.hint.removeprefix("the whole log: "))
    assert "line 1" in log.read_text()
    assert [p for p in log.parent.iterdir() if p.is_dir()] == []
    with pytest.raises(BuildError):  # the half-built folder is not taken for the result
        made(folder, 0)
    assert runs(folder) == 2


def test_a_recipe_that_refuses_its_inputs_is_quoted_without_what_libraries_said(
    folder: Path,
) -> None:
    (folder / "make.py").write_text(
        "from evalguard.errors import BuildError\n"
        "def make(output):\n"
        "    print('Failed to load a kernel')\n"
        "    raise BuildError('bits: 9 is not known', hint='one of: 4, 8')\n"
    )
    with pytest.raises(BuildError) as raised:
        made(folder, of=recipe(folder, command=(), call="make.py:make", inputs={}))
    words = str(raised.value).splitlines()
    assert words[1:] == ["  bits: 9 is not known", "  one of: 4, 8"]
    log = Path(raised.value.hint.removeprefix("the whole log: ")).read_text()
    assert "Failed to load a kernel" in log
    assert "bits: 9 is not known" in log


def test_a_build_that_makes_no_output_fails(folder: Path) -> None:
    with pytest.raises(BuildError, match="made no 'elsewhere'"):
        made(folder, of=recipe(folder, output="elsewhere", command=("true",)))


def test_a_build_that_takes_too_long_is_stopped(folder: Path) -> None:
    with pytest.raises(BuildError, match="was stopped after 2 seconds"):
        made(folder, 99, timeout=2)


def test_a_killed_builds_leftovers_are_not_used(folder: Path) -> None:
    built = made(folder)
    entry = built.parent
    stale = entry.with_name(f".{entry.name.partition('-')[0]}-killed")
    entry.rename(stale)
    (stale / "model" / "weights").unlink()
    assert (made(folder) / "weights").read_text() == "weights 8"
    assert not stale.exists()


def test_a_build_in_use_is_held_beside_others_that_use_it(folder: Path) -> None:
    import fcntl

    entry = made(folder).parent
    assert made(folder).parent == entry
    with open(entry.with_name(f"{entry.name}.used"), "r+b") as used:
        fcntl.flock(used, fcntl.LOCK_SH | fcntl.LOCK_NB)
        with pytest.raises(BlockingIOError):
            fcntl.flock(used, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_two_builders_build_once(folder: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: made(folder), range(2))
    assert first == second
    assert runs(folder) == 1


def test_two_processes_build_once(folder: Path) -> None:
    here = [str(Path(__file__).parent), *sys.path]
    code = (
        f"import sys; sys.path[:0] = {here!r}; from pathlib import Path; "
        f"from test_building import made; print(made(Path({str(folder)!r})))"
    )
    command = [sys.executable, "-c", code]
    this_run()  # theirs, too
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = {process.communicate(timeout=500)[0] for process in both}
    assert len(outputs) == 1
    assert runs(folder) == 1


def test_code_that_is_not_allowed_is_not_run(folder: Path) -> None:
    with pytest.raises(UsageError, match="not allowed to run"):
        made(folder, allow=False)
    assert runs(folder) == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"command": ("no-such-program-here",)}, "cannot start no-such-program-here"),
        (
            {"command": ("true", "{bitz}")},
            "reads 'bitz', which is not an input; did you mean 'bits'",
        ),
        ({"output": "../outside"}, "not inside the build folder"),
        ({"output": "/outside"}, "not inside the build folder"),
    ],
)
def test_recipes_that_cannot_run_are_errors(
    folder: Path, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(BuildError, match=message):
        made(folder, of=recipe(folder, **changes))


def test_arguments_are_never_read_by_a_shell(folder: Path) -> None:
    one = recipe(folder, command=("touch", "{output}", "a; touch b"), output="model")
    built = made(folder, of=one)
    assert sorted(p.name for p in built.parent.iterdir()) == ["a; touch b", "model"]


CALL = """
from pathlib import Path
def merge(output, bits, source=None):
    print("merging with", bits)
    if bits == 0:
        raise ValueError("no bits")
    output.mkdir()
    (output / "weights").write_text(f"{bits} {Path.cwd().name != 'guard'}")
"""


def test_a_call_recipe_runs_in_its_own_process_and_folder(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder / "merge.py").write_text(CALL)
    call = recipe(folder, command=(), call="merge.py:merge")
    assert (made(folder, 4, of=call) / "weights").read_text() == "4 True"
    assert capfd.readouterr().out == ""
    with pytest.raises(BuildError, match="ValueError: no bits"):
        made(folder, 0, of=call)
    with pytest.raises(BuildError, match="has no function 'marge'"):
        made(folder, 4, of=replace(call, call="merge.py:marge"))


def test_a_call_recipe_is_told_which_inputs_its_function_does_not_have(folder: Path) -> None:
    (folder / "merge.py").write_text(CALL)
    call = recipe(folder, command=(), call="merge.py:merge")
    with pytest.raises(BuildError) as raised:
        made(folder, of=replace(call, inputs={"bits": 8, "sorce": "x"}))
    assert "unexpected keyword argument 'sorce'; did you mean 'source'?" in str(raised.value)
    assert "its inputs: bits, source" in str(raised.value)
    assert "Traceback" not in str(raised.value)
    with pytest.raises(BuildError, match="missing a required argument: 'bits'"):
        made(folder, of=replace(call, inputs={}))


def test_an_own_recipe_is_not_started_with_an_input_that_it_does_not_take(folder: Path) -> None:
    call = recipe(folder, command=(), call="evalguard.recipes.gguf:convert")
    for inputs, found in (({"tpe": "F16"}, "no input 'tpe'; did you mean 'type'"),
                          ({"add_bos": "no"}, "takes bool | None, not 'no'")):  # fmt: skip
        with pytest.raises(UsageError) as raised:
            made(folder, of=replace(call, inputs=inputs))
        assert found in str(raised.value)


def test_a_call_recipe_is_built_anew_when_its_file_changes(folder: Path) -> None:
    call = recipe(folder, command=(), call="merge.py:merge")
    (folder / "merge.py").write_text(CALL)
    first = made(folder, of=call)
    (folder / "merge.py").write_text(CALL.replace("{bits} ", "{bits}-"))
    assert made(folder, of=call) != first
