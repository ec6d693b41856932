"""A package is installed where an installer has listed it, in a folder of any name."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest

from evalguard.conversion.user_functions import is_installed

RECORD = (
    "carried/__init__.py,,\ncarried/inner/deep.py,,\nalone.py,,\n../../bin/carried,,\n"
    '"with,comma.py",,\ncarried-1.0.dist-info/RECORD,,\n'
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What ``pip install --target`` leaves, and a file that somebody put beside it."""
    place = tmp_path / "layer"
    told = place / "carried-1.0.dist-info"
    told.mkdir(parents=True)
    (told / "RECORD").write_text(RECORD)
    (place / "broken-1.0.dist-info").mkdir()
    monkeypatch.setattr(sys, "path", [*sys.path, str(place)])
    return place


@pytest.mark.parametrize(
    "name", ["carried/__init__.py", "carried/inner/deep.py", "alone.py", "with,comma.py"]
)
def test_what_an_installer_has_listed_is_installed(folder: Path, name: str) -> None:
    assert is_installed(folder / name)


@pytest.mark.parametrize(
    "name", ["mine.py", "carried.py", "bin/carried", "carriedtoo/a.py", "__pycache__/alone.pyc"]
)
def test_what_lies_beside_it_is_not(folder: Path, name: str) -> None:
    assert not is_installed(folder / name)


def test_a_folder_that_python_does_not_search_has_nothing_installed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p != str(folder)])
    assert not is_installed(folder / "carried" / "__init__.py")


def test_a_checkout_that_is_installed_for_editing_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """setuptools leaves an .egg-info beside the source, other tools nothing at all."""
    (tmp_path / "mine.egg-info").mkdir()
    (tmp_path / "mine.egg-info" / "top_level.txt").write_text("mine\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    assert not is_installed(tmp_path / "mine" / "__init__.py")


def carry(package: str, folder: Path) -> Path:
    """Put an installed package into a folder of its own, as ``pip install --target`` does."""
    folder.mkdir(parents=True)
    found = importlib.metadata.distribution(package)
    tops = {Path(str(file)).parts[0] for file in found.files or ()} - {"..", "__pycache__"}
    for name in tops:
        (folder / name).symlink_to(Path(str(found.locate_file(name))))
    return folder


@pytest.mark.slow
def test_lm_eval_in_a_folder_of_its_own_patches_no_library(tmp_path: Path) -> None:
    """Its own functions in its own classes were taken for a stranger's, who patched it."""
    layer = carry("lm_eval", tmp_path / "layer")
    (layer / "mine.py").write_text("import lm_eval.api.model as lib\nlib.LM.other = lambda s: 0\n")
    code = (
        "import lm_eval.api.model, lm_eval.models.huggingface\n"
        "from evalguard.engine.loading.foreign_code import list_patches\n"
        "assert lm_eval.__file__.startswith(" + repr(str(layer)) + "), lm_eval.__file__\n"
        "print(sorted(list_patches()))\nimport mine\nprint(sorted(list_patches()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(layer), *filter(None, sys.path)])},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines() == ["[]", f"['{layer / 'mine.py'}']"]
