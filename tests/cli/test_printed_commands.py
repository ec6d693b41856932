"""Every command that evalguard prints runs as it is printed, where it was printed."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from small_world import Ran, SmallWorld

pytestmark = pytest.mark.slow

Run = Callable[..., Ran]
_COMMAND = re.compile(r"(?:^ *|: |; |\()((?:evalguard (?!nightly 20)|wandb sync ).*)")
_PLACEHOLDER = re.compile(r"\b(RUN|FILE|MODEL|FOLDER)\b|…")
_JUDGES = ("compare", "bisect", "trace", "nightly")


def printed(text: str) -> list[str]:
    """The commands in a text, in their order; a line that ends in a backslash goes on."""
    lines = re.sub(r"\\\n", "", text).splitlines()
    found = [match[1].rstrip() for line in lines for match in _COMMAND.finditer(line)]
    return list(dict.fromkeys(found))


def run_all(run: Run, text: str, *, least: int = 1) -> dict[str, Ran]:
    """Run all commands that a text holds; each must end with a result."""
    commands = printed(text)
    assert len(commands) >= least, text
    ran = {}
    for command in commands:
        assert not _PLACEHOLDER.search(command), command
        program, *words = shlex.split(command)
        if program == "wandb":
            assert Path(words[-1]).is_dir(), command
            continue
        ran[command] = run(*words)
        expected = (0, 1) if words[0] in _JUDGES else (0,)
        assert ran[command].code in expected, f"{command}\n{ran[command].err}"
    return ran


@pytest.fixture
def guard(world: SmallWorld, tmp_path: Path) -> Path:
    """The guard file in a folder with a blank in its name, below the current one."""
    folder = tmp_path / "my guards"
    folder.mkdir()
    file = folder / "port's guard.yaml"
    file.write_text(world.guard.read_text())
    return file.relative_to(tmp_path)


@pytest.fixture
def folders(world: SmallWorld, tmp_path: Path) -> tuple[str, str]:
    """Two model folders with blanks in their names, by relative paths."""
    shutil.copytree(world.models["llama"], tmp_path / "the original")
    shutil.copytree(world.models["other"], tmp_path / "my port")
    return "./the original", "./my port"


@pytest.mark.parametrize("more", [(), ("-v",), ("--bisect", "always"), ("--margin", "1000")])
def test_those_of_a_comparison_run(run: Run, guard: Path, more: tuple[str, ...]) -> None:
    shown = run("compare", "--config", guard, "--base", "orig", "--cand", "sharp", *more)
    run_all(run, shown.out)


def test_the_proof_of_a_bisection_passes_and_its_trace_and_report_run(
    run: Run, guard: Path
) -> None:
    shown = run("bisect", "--config", guard, "--base", "orig", "--cand", "sharp")
    assert shown.code == 1, shown.err
    ran = run_all(run, shown.out, least=2)
    proof = next(found for command, found in ran.items() if "=reference" in command)
    assert proof.code == 0
    assert any(command.startswith("evalguard report ") for command in ran)


def test_a_bisection_whose_budget_is_spent_goes_on_by_its_command(run: Run, guard: Path) -> None:
    asked = ("bisect", "--config", guard, "--base", "orig", "--cand", "sharp")
    shown = run(*asked, "--budget", "0.01")
    assert "--resume" in shown.out, shown.out + shown.err
    run_all(run, shown.out)


def test_those_of_two_folders_run(
    run: Run, world: SmallWorld, folders: tuple[str, str], tmp_path: Path
) -> None:
    base, candidate = folders
    asked = ("--base", base, "--cand", candidate, "--tasks", "sw_word,sw_text")
    asked += ("--include-path", str(world.tasks), "--margin", "0.0001")
    for job in ("compare", "bisect", "trace"):
        run_all(run, run(job, *asked[: 6 if job == "trace" else None], *(
            ("--include-path", str(world.tasks)) if job == "trace" else ()
        )).out)  # fmt: skip


def test_those_of_several_candidates_and_of_a_chain_run(run: Run, guard: Path) -> None:
    asked = ("compare", "--config", guard, "--base", "orig", "--cand", "sharp", "--cand", "other")
    run_all(run, run(*asked).out, least=2)
    run_all(run, run(*asked, "--chain").out, least=2)
    run_all(run, run(*asked, "-v", "--bisect", "auto").out, least=2)


def test_those_of_a_night_and_of_its_pairs_run_without_a_guard_file_that_is_found(
    run: Run, guard: Path
) -> None:
    shown = run("nightly", "--config", guard, "-q")
    assert shown.code == 1, shown.err
    for command, found in run_all(run, shown.out).items():
        if command.startswith("evalguard report"):
            pair = run_all(run, found.out)
            assert any("--config" in one for one in pair), "the guard file's names are meant"


def test_those_of_a_comparison_from_python_run_with_its_guard_file_and_tasks(
    run: Run, guard: Path, world: SmallWorld
) -> None:
    import evalguard

    for options in ({}, {"bisect": "always"}, {"tasks": ["sw_text"], "limit": 12}):
        found = evalguard.compare("orig", "sharp", config=guard, quiet=True, **options)
        shown = found.render(width=80, color=False)
        ran = run_all(run, shown)
        assert any("--config" in command for command in ran)
        assert "--today" not in shown


def test_what_a_tracker_did_not_take_is_sent_by_its_command(
    run: Run, guard: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    asked = ("compare", "--config", guard, "--base", "orig", "--cand", "same", "--track", "wandb")
    shown = run(*asked)
    assert "wandb sync" in shown.out
    run_all(run, shown.out, least=2)


def test_those_of_plans_floors_and_of_a_first_guard_file_run(
    run: Run, guard: Path, tmp_path: Path
) -> None:
    for words in (
        ("plan", "--config", guard, "--base", "orig", "--cand", "sharp", "--pilot", "8"),
        ("floor", "--config", guard, "--base", "orig", "--limit", "8"),
        ("check", guard),
        ("models", "--config", guard),
    ):
        shown = run(*words)
        assert shown.code == 0, shown.err
        for command in printed(shown.out):
            assert "..." not in command, command
    made = run("init", "a guard.yaml")
    assert printed(made.err) == ["evalguard models --config 'a guard.yaml'"]
