"""call: hooks run only when allowed, edit in place, and fail by name."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from variants import variant

from evalguard.conversion.edits import apply
from evalguard.conversion.planning import plan_conversion
from evalguard.conversion.readback import read_edits
from evalguard.conversion.user_functions import load_function
from evalguard.core.settings import Value
from evalguard.errors import SettingError, UsageError

HOOKS = """
import torch

def scale(model, value):
    model.weight.mul_(value)

def clear(model, value):
    model.weight.zero_()
    model.cleared = value

clear.read_back = lambda model: model.cleared

def ignore(model, value):
    pass

ignore.read_back = lambda model: "as before"

def fail(model, value):
    raise ValueError("cannot quantise this")

def leave(model, value):
    raise SystemExit(0)

def replace(model, value):
    return torch.nn.Linear(2, 2)

NUMBER = 3
"""


@pytest.fixture
def folder(tmp_path: Path) -> str:
    (tmp_path / "hooks.py").write_text(HOOKS)
    (tmp_path / "broken.py").write_text("import nothing_of_that_name\n")
    return str(tmp_path)


def run(folder: str, function: str, value: Value = 2.0, *, allow: bool = True) -> dict[str, Value]:
    model = torch.nn.Linear(2, 2, bias=False)
    planned = plan_conversion(variant({f"call:{function}": value}))
    apply(model, planned, code_folder=folder, allow_code=allow)
    return read_edits(model, planned, code_folder=folder, allow_code=allow)


def test_a_hook_edits_the_model_and_is_recorded_as_called(folder: str) -> None:
    assert run(folder, "hooks.py:scale") == {"s0": {"called": 2.0}}


def test_a_hook_may_read_its_value_back(folder: str) -> None:
    assert run(folder, "hooks.py:clear", "zero") == {"s0": "zero"}


def test_a_hook_that_reads_back_another_value_did_not_take(folder: str) -> None:
    with pytest.raises(
        SettingError, match=r"'s0' did not take: call:hooks\.py:ignore is 'as before'"
    ):
        run(folder, "hooks.py:ignore", "int8")


def test_a_hooks_exception_names_the_hook_and_the_reason(folder: str) -> None:
    with pytest.raises(SettingError, match=r"call:hooks\.py:fail failed with ValueError: cannot"):
        run(folder, "hooks.py:fail")


def test_a_hook_that_exits_does_not_end_the_run_with_its_code(folder: str) -> None:
    with pytest.raises(SettingError, match="failed with SystemExit: 0"):
        run(folder, "hooks.py:leave")


def test_a_hook_may_not_return_another_model(folder: str) -> None:
    with pytest.raises(SettingError, match="returned a Linear"):
        run(folder, "hooks.py:replace")


def test_code_that_is_not_allowed_is_not_even_imported(folder: str) -> None:
    Path(folder, "hooks.py").write_text("raise SystemExit('imported')")
    with pytest.raises(UsageError, match="not allowed to run"):
        run(folder, "hooks.py:scale", allow=False)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("hooks.py:scael", "has no function 'scael'; did you mean 'scale'"),
        ("hooks.py:NUMBER", "has no function 'NUMBER'"),
        ("hoks.py:scale", "there is no file .*hoks.py"),
        ("broken.py:scale", "fails to import: ModuleNotFoundError"),
        ("no.such.package:scale", "cannot import no.such.package"),
    ],
)
def test_functions_that_cannot_be_found_are_errors(
    folder: str, function: str, message: str
) -> None:
    with pytest.raises(SettingError, match=message):
        run(folder, function)


def test_a_function_of_an_installed_module_can_be_named() -> None:
    assert load_function("textwrap:dedent", folder="", allowed=True)("  a") == "a"


def package(folder: Path, name: str, answer: str) -> str:
    """A package of a name that no other test imports: a process imports a name once."""
    (folder / name).mkdir(parents=True)
    (folder / name / "convert.py").write_text(f"def take(*_):\n    return {answer!r}\n")
    return str(folder)


def test_a_module_beside_the_guard_file_is_found_from_any_folder(tmp_path: Path) -> None:
    where, folder = "eg_moved.convert:take", package(tmp_path / "a", "eg_moved", "a")
    assert "eg_moved" not in sys.modules
    assert load_function(where, folder=folder, allowed=True)() == "a"


def test_what_is_installed_wins_over_a_module_beside_the_guard_file(tmp_path: Path) -> None:
    (tmp_path / "textwrap.py").write_text("raise SystemExit('imported')")
    where = "textwrap:dedent"
    assert load_function(where, folder=str(tmp_path), allowed=True)("  a") == "a"


def test_an_error_says_where_a_module_was_looked_for(folder: str) -> None:
    with pytest.raises(SettingError) as refused:
        run(folder, "no_such_module:scale")
    assert f"beside the guard file, in {folder}" in refused.value.hint
    assert "PYTHONPATH=FOLDER" in refused.value.hint
    with pytest.raises(SettingError) as refused:
        load_function("no_such_module:scale", folder="", allowed=True)
    assert "guard file, in" not in refused.value.hint
