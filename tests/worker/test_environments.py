"""Environments of models: made once for what they hold, found again, and repaired."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalguard.core.settings import OwnEnvironment
from evalguard.errors import BuildError, UsageError
from evalguard.worker.environments import (
    clean_environment,
    find_python,
    list_environments,
    pin_requirements,
    prepare_interpreter,
    prepare_worker_interpreter,
    remove_environments,
    worker_variables,
)

Wheel = Callable[..., Path]


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Wheel:
    """Writes wheels into a folder that pip is told to look in, and nowhere else."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PATH", os.pathsep.join(["/usr/bin", "/bin"]))  # without uv

    def write(name: str, version: str, needs: str = "") -> Path:
        file = folder / f"{name}-{version}-py3-none-any.whl"
        about = f"{name}-{version}.dist-info"
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        metadata += f"Requires-Dist: {needs}\n" if needs else ""
        with zipfile.ZipFile(file, "w") as wheel:
            wheel.writestr(f"{name}.py", f"__version__ = '{version}'\n")
            wheel.writestr(f"{about}/METADATA", metadata)
            wheel.writestr(
                f"{about}/WHEEL",
                "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            )
            wheel.writestr(f"{about}/RECORD", f"{name}.py,,\n{about}/METADATA,,\n{about}/WHEEL,,\n")
        return file

    return write


def version_in(python: str, name: str) -> str:
    code = f"import {name}; print({name}.__version__)"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True,
                          env=clean_environment()).stdout.strip()  # fmt: skip


@pytest.mark.slow
def test_requirements_become_an_environment_that_is_made_once(
    wheels: Wheel, tmp_path: Path
) -> None:
    wheels("planted", "1.0")
    wheels("planted", "2.0")
    own, cache = OwnEnvironment(requirements=("planted==1.0",)), tmp_path / "cache"
    first = prepare_interpreter(own, {}, cache, name="m")
    assert version_in(first.python, "planted") == "1.0"
    assert "planted-1.0" in first.packages
    before = Path(first.python).lstat().st_mtime_ns
    assert prepare_interpreter(own, {}, cache, name="m") == first
    assert Path(first.python).lstat().st_mtime_ns == before
    second = prepare_interpreter(own, {"planted": "2.0"}, cache, name="m")
    assert version_in(second.python, "planted") == "2.0"
    assert len(list_environments(cache)) == 2
    # One that does not start any more is made anew.
    Path(first.python).unlink()
    assert version_in(prepare_interpreter(own, {}, cache, name="m").python, "planted") == "1.0"
    gone = remove_environments(cache, [Path(second.python).parent.parent.name[:8]])
    assert [one.requirements for one in gone] == [("planted==2.0",)]
    assert len(list_environments(cache)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("needs", ["", "numpy"])
def test_a_worker_has_numpy_whether_its_library_brings_it_or_not(
    wheels: Wheel, tmp_path: Path, needs: str
) -> None:
    wheels("planted", "1.0", needs=needs)
    wheels("numpy", "2.0")
    own, cache = OwnEnvironment(requirements=("planted==1.0",)), tmp_path / "cache"
    found = prepare_worker_interpreter(own, {}, cache, name="m")
    assert version_in(found.python, "numpy") == "2.0"
    assert prepare_worker_interpreter(own, {}, cache, name="m") == found
    assert (found == prepare_interpreter(own, {}, cache, name="m")) is bool(needs)


@pytest.mark.slow
def test_packages_that_exclude_each_other_are_an_error_with_what_pip_says(
    wheels: Wheel, tmp_path: Path
) -> None:
    wheels("planted", "1.0", needs="other<2")
    wheels("other", "2.0")
    own = OwnEnvironment(requirements=("planted", "other==2.0"))
    with pytest.raises(
        BuildError, match=r"of 'm' cannot be made of planted, other==2\.0"
    ) as caught:
        prepare_interpreter(own, {}, tmp_path / "cache", name="m")
    assert "conflict" in str(caught.value).lower() or "other<2" in str(caught.value)
    assert list_environments(tmp_path / "cache") == []
    assert "PIP_FIND_LINKS" in caught.value.hint


@pytest.mark.parametrize(
    ("packages", "pinned"),
    [
        ({}, ("torch>=2", "Transformer_Lens[x]==3.5.1; python_version > '3'", "typeguard")),
        ({"torch": "2.13.0"}, ("torch==2.13.0", "Transformer_Lens[x]==3.5.1; python_version > '3'",
                               "typeguard")),
        ({"transformer-lens": "2.3.0 typeguard<3"},
         ("torch>=2", "transformer-lens[x]==2.3.0; python_version > '3'", "typeguard<3")),
        ({"torch": "1 new==3"}, ("torch==1", "Transformer_Lens[x]==3.5.1; python_version > '3'",
                                 "typeguard", "new==3")),
    ],
)  # fmt: skip
def test_a_setting_pins_its_package_and_what_it_needs(
    packages: dict[str, str], pinned: tuple[str, ...]
) -> None:
    wanted = ("torch>=2", "Transformer_Lens[x]==3.5.1; python_version > '3'", "typeguard")
    assert pin_requirements(wanted, packages) == pinned


def test_a_version_of_a_package_that_nobody_requires_is_refused() -> None:
    with pytest.raises(UsageError, match=r"package\.torhc: .*; did you mean 'torch'"):
        pin_requirements(["torch"], {"torhc": "1"})


@given(st.lists(st.sampled_from(["a", "b-c", "d_e", "f.g"]), unique=True, min_size=1))
def test_what_no_setting_names_stays_as_it_is(names: list[str]) -> None:
    assert pin_requirements(names, {}) == tuple(names)


@pytest.mark.parametrize(
    ("python", "said"),
    [("no-such-python", "no Python interpreter"), ("true", "does not run as a Python interpreter")],
)
def test_an_interpreter_that_is_none_is_refused(python: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        find_python(python)


def test_a_link_stays_a_link_so_that_its_packages_are_found(tmp_path: Path) -> None:
    link = tmp_path / "python"
    link.symlink_to(sys.executable)
    assert find_python(str(link)).python == str(link)


def test_a_worker_elsewhere_sees_this_package_and_nothing_else_of_this_environment(
    tmp_path: Path,
) -> None:
    variables = worker_variables(tmp_path)
    folder = Path(str(variables["PYTHONPATH"]))
    assert [one.name for one in folder.iterdir()] == ["evalguard"]
    assert worker_variables(tmp_path) == variables
    assert variables["PYTHONHOME"] is None


def test_of_environments_that_are_no_more_whole_nothing_is_listed(tmp_path: Path) -> None:
    marker = tmp_path / "envs" / "abc" / "evalguard-environment.json"
    marker.parent.mkdir(parents=True)
    marker.write_text("{", encoding="utf-8")
    assert list_environments(tmp_path) == []
    marker.write_text(json.dumps({"requirements": ["a"], "version": "3.11.7"}), encoding="utf-8")
    assert [one.requirements for one in list_environments(tmp_path)] == [("a",)]
    with pytest.raises(UsageError, match="no environment is called 'x'"):
        remove_environments(tmp_path, ["x"])
