"""The package has one name, and what installs an extra is said as evalguard came here."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from evalguard import installation
from evalguard.installation import DISTRIBUTION, extra_command, namesake_note

ROOT = Path(__file__).parent.parent
_KEPT = ("benchmarks/results/", "reports/", "tests/")


def texts() -> dict[str, str]:
    """Every text file of the repository, but for recorded results, reports and tests."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    names = [name for name in listed.split("\0") if name and not name.startswith(_KEPT)]
    found = {}
    for name in names:
        try:
            found[name] = (ROOT / name).read_text("utf-8")
        except (UnicodeDecodeError, OSError):
            continue
    return found


def test_the_package_is_spelled_in_one_way_and_never_as_the_other_projects() -> None:
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    assert re.search(r'^name = "(.+)"$', project, re.MULTILINE).group(1) == DISTRIBUTION  # type: ignore[union-attr]
    spelling = re.compile(r"\blm[-_. ]?evalguard\b", re.IGNORECASE)
    installed = re.compile(r"(?:pip install|EVALGUARD_INSTALL:|uv add)[^\n#`]*")
    own = {DISTRIBUTION, DISTRIBUTION.replace("-", "_")}
    for name, text in texts().items():
        assert set(spelling.findall(text)) <= own, name
        for line in installed.findall(text):
            bare = re.search(r"(?<![\w/.-])evalguard(?![\w/.-])", line)
            assert not bare, f"{name}: {line}"
            if name.endswith((".md", ".yml", ".yaml")) and DISTRIBUTION in line:
                # until there is a release, no registry has it
                assert "@ git+" in line or ".whl" in line, f"{name}: {line}"


@pytest.mark.parametrize(
    ("told", "command"),
    [
        (None, f"pip install '{DISTRIBUTION}[ray]'"),
        ({"url": "file:///", "dir_info": {"editable": True}}, "pip install -e '/[ray]'"),
        ({"url": "file:///", "dir_info": {}}, "pip install '/[ray]'"),
        ({"url": "file:///nowhere/a.whl", "archive_info": {}}, "pip install 'ray[client]>=2.30'"),
        (
            {"url": "https://h/e", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
            f"pip install '{DISTRIBUTION}[ray] @ git+https://h/e@abc'",
        ),
        (
            {"url": "https://h/e.whl", "archive_info": {}},
            f"pip install '{DISTRIBUTION}[ray] @ https://h/e.whl'",
        ),
    ],
)
def test_an_extra_is_installed_from_where_evalguard_came(
    monkeypatch: pytest.MonkeyPatch, told: dict[str, object] | None, command: str
) -> None:
    text = None if told is None else json.dumps(told)
    needed = ["numpy", "ray[client]>=2.30; extra == 'ray'", "mlflow; extra == 'mlflow'"]
    asked = SimpleNamespace(read_text=lambda _: text, requires=needed)
    monkeypatch.setattr("importlib.metadata.distribution", lambda _: asked)
    installation._origin.cache_clear()
    try:
        assert extra_command("ray") == command
    finally:
        installation._origin.cache_clear()


def test_the_other_projects_package_in_the_same_folder_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "evalguard").mkdir()
    monkeypatch.setattr(installation, "__file__", str(tmp_path / "evalguard" / "installation.py"))
    (tmp_path / "lm_evalguard-0.2.0.dist-info").mkdir()
    assert namesake_note() == ""
    (tmp_path / "evalguard-1.2.dist-info").mkdir()
    assert f"pip uninstall evalguard {DISTRIBUTION}" in namesake_note()
