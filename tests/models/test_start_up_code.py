"""What Python runs before all else counts in the identity of scores."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import evalguard
from evalguard.start_up import start_up_code

PACKAGE = Path(evalguard.__file__).parent

START = "from evalguard.start_up import start_up_code\nprint(start_up_code())"


def started_with(folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", START], capture_output=True, text=True, check=True,
        env={"PYTHONPATH": f"{folder}:{PACKAGE.parent}", "PATH": ""},
    )  # fmt: skip
    return done.stdout


@pytest.mark.parametrize("name", ["sitecustomize", "usercustomize"])
def test_what_a_customize_module_does_counts(tmp_path: Path, name: str) -> None:
    nothing = started_with(tmp_path)
    (tmp_path / f"{name}.py").write_text("A = 1\n")
    first = started_with(tmp_path)
    (tmp_path / f"{name}.py").write_text("A = 2\n")
    second = started_with(tmp_path)
    assert len({nothing, first, second}) == 3
    assert started_with(tmp_path) == second


def test_what_a_customize_module_imports_counts(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import eg_patches\n")
    (tmp_path / "eg_patches.py").write_text("A = 1\n")
    first = started_with(tmp_path)
    (tmp_path / "eg_patches.py").write_text("A = 2\n")
    assert started_with(tmp_path) != first


def test_lines_of_path_files_that_are_code_count_with_what_they_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))

    def digest() -> str:
        start_up_code.cache_clear()
        return start_up_code()

    found = [digest()]
    (tmp_path / "eg.pth").write_text("# a comment\n/some/folder\n")
    assert digest() == found[0]
    (tmp_path / "eg.pth").write_text("import eg_hook; eg_hook.patch()\n")
    found.append(digest())
    (tmp_path / "eg_hook.py").write_text("def patch(): ...\n")
    found.append(digest())
    (tmp_path / "eg_hook.py").write_text("def patch(): pass\n")
    found.append(digest())
    assert len(set(found)) == 4
    monkeypatch.undo()
    start_up_code.cache_clear()
