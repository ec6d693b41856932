"""A hook is its file and the modules beside it that it imports."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from evalguard.conversion.code import code_digest, load_function, local_sources
from evalguard.errors import SettingError

HOOK = """
import json
from eg_helper import factor
import eg_parts.deep as deep

def scaled(value):
    from eg_late import offset
    return value * factor + deep.number + offset
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    before, path = set(sys.modules), list(sys.path)
    (tmp_path / "hook.py").write_text(HOOK)
    (tmp_path / "eg_helper.py").write_text("factor = 2\n")
    (tmp_path / "eg_late.py").write_text("from eg_parts import other\noffset = 0\n")
    (tmp_path / "eg_parts").mkdir()
    (tmp_path / "eg_parts" / "__init__.py").write_text("")
    (tmp_path / "eg_parts" / "deep.py").write_text("from . import near\nnumber = near.number\n")
    (tmp_path / "eg_parts" / "near.py").write_text("number = 1\n")
    (tmp_path / "eg_parts" / "other.py").write_text("import eg_helper\n")
    (tmp_path / "unused.py").write_text("")
    yield tmp_path
    sys.path[:] = path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def test_every_module_beside_a_file_is_found_through_any_import_statement(folder: Path) -> None:
    assert local_sources(folder / "hook.py", folder) == {
        "eg_helper": folder / "eg_helper.py",
        "eg_late": folder / "eg_late.py",
        "eg_parts": folder / "eg_parts" / "__init__.py",
        "eg_parts.deep": folder / "eg_parts" / "deep.py",
        "eg_parts.near": folder / "eg_parts" / "near.py",
        "eg_parts.other": folder / "eg_parts" / "other.py",
    }


@pytest.mark.parametrize("where", ["hook.py:scaled", "hook:scaled"])
@pytest.mark.parametrize(
    ("file", "old", "new", "result"),
    [
        ("eg_helper.py", "2", "3", 31),
        ("eg_parts/near.py", "1", "7", 27),
        ("eg_late.py", "0", "5", 26),
    ],
)
def test_an_edited_neighbour_runs_anew_and_changes_the_digest(
    folder: Path, where: str, file: str, old: str, new: str, result: int
) -> None:
    sys.path.append(str(folder))
    before = code_digest(where, folder=str(folder))
    assert load_function(where, folder=str(folder), allowed=True)(10) == 21
    assert load_function(where, folder=str(folder), allowed=True)(10) == 21
    edit(folder / file, old, new)
    assert code_digest(where, folder=str(folder)) != before
    assert load_function(where, folder=str(folder), allowed=True)(10) == result


def test_a_file_that_is_not_imported_does_not_count(folder: Path) -> None:
    before = code_digest("hook.py:scaled", folder=str(folder))
    edit(folder / "unused.py", "", "x = 1\n")
    assert code_digest("hook.py:scaled", folder=str(folder)) == before


def test_the_digest_does_not_depend_on_where_the_folder_is(folder: Path, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    before = code_digest("hook.py:scaled", folder=str(folder))
    moved.mkdir()
    for name in ("hook.py", "eg_helper.py", "eg_late.py", "eg_parts"):
        (folder / name).rename(moved / name)
    assert code_digest("hook.py:scaled", folder=str(moved)) == before


def test_two_neighbours_of_one_name_are_refused(folder: Path) -> None:
    load_function("hook.py:scaled", folder=str(folder), allowed=True)
    other = folder / "other"
    other.mkdir()
    (other / "hook.py").write_text("import eg_helper\ndef f(model, value): pass\n")
    (other / "eg_helper.py").write_text("")
    with pytest.raises(SettingError, match=r"'eg_helper' from .*other.*for another hook"):
        load_function("other/hook.py:f", folder=str(folder), allowed=True)


def test_a_neighbour_never_stands_in_for_a_library(folder: Path) -> None:
    (folder / "json.py").write_text("raise RuntimeError('not the library')\n")
    assert load_function("hook.py:scaled", folder=str(folder), allowed=True)(10) == 21
