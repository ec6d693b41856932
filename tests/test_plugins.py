"""Trackers and recipes of other packages: installed, found by name, and never run unasked."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tracked_examples import example

from evalguard.config.guard_search import load_guards
from evalguard.config.options import CompareOptions
from evalguard.config.trust import require_code_allowed
from evalguard.conversion.building import build
from evalguard.conversion.planning import plan_conversion
from evalguard.engine.tracker_choice import choose_sinks
from evalguard.errors import BuildError, GuardFileError, UsageError
from evalguard.plugins import RECIPES, TRACKERS
from evalguard.publish.tracking import send_run

PACKAGE = Path(__file__).parent.parent / "evalguard"
TRACKER = """
import json, pathlib
from evalguard.core.tracked_run import Sent

def send(job, run):
    pathlib.Path(job.folder, "sent.json").write_text(json.dumps(dict(run.scalars)))
    return Sent(sink="whatever", state="sent", place="sent.json")
"""
RECIPE = """
def make(output, text):
    output.write_text(text)
"""

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Install a package of one module with entry points, as pip leaves it."""

    def installed(package: str, text: str, **entry_points: str) -> None:
        site = tmp_path / "site" / package
        info = site / f"{package}-1.5.dist-info"
        info.mkdir(parents=True)
        (site / f"{package}.py").write_text(text)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.5\n")
        groups = (f"[evalguard.{group}]\n{line}\n" for group, line in entry_points.items())
        (info / "entry_points.txt").write_text("\n".join(groups))
        monkeypatch.syspath_prepend(site)
        monkeypatch.setenv(
            "PYTHONPATH", os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])
        )

    return installed


def test_a_tracker_of_another_package_is_found_by_its_name_and_gets_the_figures(
    install: Install, tmp_path: Path
) -> None:
    install("theirs", TRACKER, trackers="lines = theirs:send")
    assert choose_sinks(["lines", "mlflow"]) == ("mlflow", "lines")
    assert TRACKERS.list_names() == ("wandb", "trackio", "mlflow", "lines")
    run = example(tmp_path)
    sent = send_run("lines", run, folder=tmp_path)
    assert (sent.sink, sent.state, sent.place) == ("lines", "sent", "sent.json"), sent
    assert json.loads((tmp_path / "sent.json").read_text()) == dict(run.scalars)
    assert "theirs" not in sys.modules, "it runs in a process of its own"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import no_such_module", "cannot be imported: ModuleNotFoundError: No module named"),
        ("raise SystemExit(0)", "cannot be imported: SystemExit"),
        ("", "cannot be imported: AttributeError"),
        ("send = 3", "is no function"),
        ("def send(job, run): return 3", "returned int"),
    ],
)
def test_a_broken_tracker_is_named_with_the_package_that_brings_it(
    install: Install, tmp_path: Path, text: str, reason: str
) -> None:
    install("broken", text, trackers="lines = broken:send")
    sent = send_run("lines", example(tmp_path), folder=tmp_path)
    assert sent.state == "failed"
    assert f"broken:send of broken 1.5 {reason}" in sent.reason


def test_an_unknown_tracker_is_refused_with_what_there_is_and_how_one_is_added(
    install: Install,
) -> None:
    install("theirs", "raise AssertionError", trackers="lines = theirs:send")
    with pytest.raises(UsageError, match="no tracker 'line'; did you mean 'lines'") as refused:
        CompareOptions(track=("line",))
    assert "wandb, trackio, mlflow, lines; installing a package" in refused.value.hint
    assert "evalguard.trackers" in refused.value.hint


def test_two_packages_with_one_name_are_refused(install: Install) -> None:
    install("one", TRACKER, trackers="lines = one:send")
    install("two", TRACKER, trackers="lines = two:send")
    with pytest.raises(UsageError, match=r"one:send of one 1\.5") as refused:
        choose_sinks(["lines"])
    assert "two:send of two 1.5" in str(refused.value)


def test_a_name_of_evalguards_own_stands_for_that(install: Install) -> None:
    install("theirs", "raise AssertionError", trackers="wandb = theirs:send")
    assert TRACKERS.find("wandb").distribution == ""
    assert [one.origin for one in TRACKERS.find_shadowed("wandb")] == ["theirs:send of theirs 1.5"]
    assert TRACKERS.find_shadowed("mlflow") == ()


def test_evalguards_own_are_there_whatever_is_installed() -> None:
    assert all(callable(TRACKERS.find(name).load()) for name in TRACKERS.built_in)
    for function in RECIPES.built_in.values():
        module, _, name = function.partition(":")
        tree = ast.parse((PACKAGE.parent / f"{module.replace('.', '/')}.py").read_text())
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_a_guard_file_that_was_only_found_sends_to_no_tracker_of_another_package(
    install: Install, tmp_path: Path
) -> None:
    install("theirs", "raise AssertionError", trackers="lines = theirs:send")
    (tmp_path / "evalguard.yaml").write_text("models: {m: {}}\nrun: {track: [lines, wandb]}\n")
    guard = load_guards(None, cwd=tmp_path, allow_code=False).guards[0]
    with pytest.raises(UsageError, match=r"run\.track names 'lines'.*theirs 1\.5") as refused:
        choose_sinks((), guard)
    assert "--config evalguard.yaml" in refused.value.hint
    assert choose_sinks(["none"], guard) == ()
    assert choose_sinks(["lines"], guard) == ("lines",)
    for config, allow in ((Path("evalguard.yaml"), False), (None, True)):
        trusted = load_guards(config, cwd=tmp_path, allow_code=allow).guards[0]
        assert choose_sinks((), trusted) == ("wandb", "lines")
    assert "theirs" not in sys.modules


@pytest.mark.parametrize("track", ["wandb", "[trackio, mlflow]", "none"])
def test_evalguards_own_trackers_need_no_trust(tmp_path: Path, track: str) -> None:
    (tmp_path / "evalguard.yaml").write_text(f"models: {{m: {{}}}}\nrun: {{track: {track}}}\n")
    guard = load_guards(None, cwd=tmp_path, allow_code=False).guards[0]
    assert set(choose_sinks((), guard)) == set(guard.run.track or ()) - {"none"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("models: {m: {}}\nrun: {track: wanbd}\n", "evalguard.yaml:2: run.track: there is no"),
        ("models: {m: {}}\nrun: {track: [none, wandb]}\n", "evalguard.yaml:2: run.track: none"),
        ("models:\n  m: {build: {call: ggfu}}\n", "no recipe 'ggfu'; did you mean 'gguf'?"),
    ],
)
def test_a_guard_file_with_an_unknown_name_is_refused_at_its_line(
    tmp_path: Path, text: str, said: str
) -> None:
    (tmp_path / "evalguard.yaml").write_text(text)
    with pytest.raises(GuardFileError) as refused:
        load_guards(None, cwd=tmp_path, allow_code=False)
    assert said in str(refused.value)


def test_a_recipe_stands_for_its_function_and_needs_trust_by_either_name(tmp_path: Path) -> None:
    (tmp_path / "evalguard.yaml").write_text(
        "models:\n  short: {build: {call: gguf}}\n"
        "  long: {build: {call: 'evalguard.recipes.gguf:convert'}}\n"
    )
    guards = load_guards(None, cwd=tmp_path, allow_code=False)
    assert guards.find("short")[1].build == guards.find("long")[1].build
    for name in ("short", "long"):
        with pytest.raises(UsageError, match="the build recipe calls"):
            require_code_allowed(*guards.find(name))


def test_a_recipe_of_another_package_builds(install: Install, tmp_path: Path) -> None:
    install("theirs", RECIPE, recipes="write = theirs:make")
    guard = tmp_path / "evalguard.yaml"
    guard.write_text("models: {m: {build: {call: write, inputs: {text: hello}}}}\n")
    _, variant = load_guards(guard, cwd=tmp_path, allow_code=False).find("m")
    made = build(variant, plan_conversion(variant), tmp_path / "cache")
    assert made.read_text() == "hello"
    assert "theirs" not in sys.modules


def test_a_broken_recipe_is_named_with_the_package_that_brings_it(
    install: Install, tmp_path: Path
) -> None:
    install("broken", "import no_such_module", recipes="write = broken:make")
    guard = tmp_path / "evalguard.yaml"
    guard.write_text("models: {m: {build: {call: write}}}\n")
    _, variant = load_guards(guard, cwd=tmp_path, allow_code=False).find("m")
    with pytest.raises(BuildError) as failed:
        build(variant, plan_conversion(variant), tmp_path / "cache")
    assert "'broken:make': cannot import broken: ModuleNotFoundError" in str(failed.value)
    assert "it is a recipe of broken 1.5" in str(failed.value)


@pytest.mark.parametrize("words", [["--help"], ["compare", "--help-all"]])
def test_help_searches_nothing_that_is_installed(words: list[str]) -> None:
    code = (
        f"import sys, evalguard.cli\ntry: evalguard.cli.main({words!r})\nexcept SystemExit: pass\n"
        "assert 'importlib.metadata' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
