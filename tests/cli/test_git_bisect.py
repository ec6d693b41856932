"""`git bisect run evalguard compare --git-bisect` names the commit that broke a hook."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from small_world import SmallWorld

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed"),
]

GUARD = """
models:
  orig: {{model_args: {{pretrained: {model}, dtype: float32}}}}
  port:
    extends: orig
    settings:
      port: {{reference: false, candidate: true, target: "call:port.py:convert"}}
tasks: [sw_word]
include_path: [{tasks}]
"""
SOUND = """
def convert(model, value):
    if value:
        model.model.norm.weight.data.mul_(1.0)  # {comment}
"""
BROKEN = """
def convert(model, value):
    if value:
        model.model.norm.weight.data.mul_(2.0)  # {comment}
"""
UNBUILDABLE = "def convert(model, value:\n"
# The middle, where git looks first, does not build.
HISTORY = (
    ("a port", SOUND),
    ("tidy up", SOUND),
    ("better names", SOUND),
    ("does not build", UNBUILDABLE),
    ("builds again", SOUND),
    ("faster norm", BROKEN),
    ("more comments", BROKEN),
    ("release", BROKEN),
)


class Repository:
    """A small git repository, away from anybody's configuration."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        nobody = {f"GIT_{who}_{what}": "nobody@example.org" if what == "EMAIL" else "nobody"
                  for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}  # fmt: skip
        none = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
        own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        self.environment = {**own, **nobody, **none}
        folder.mkdir()
        self.git("init", "-q", "-b", "main")

    def git(self, *words: str) -> str:
        ran = subprocess.run(
            ["git", *words], cwd=self.folder, env=self.environment, capture_output=True, text=True,
            check=True,
        )  # fmt: skip
        return ran.stdout.strip()

    def commit(self, message: str) -> str:
        self.git("add", "-A")
        self.git("commit", "-q", "-m", message)
        return self.git("rev-parse", "HEAD")


@pytest.fixture
def history(tmp_path: Path, world: SmallWorld) -> tuple[Repository, dict[str, str]]:
    """The repository, and its commits by message."""
    repository = Repository(tmp_path / "repository")
    guard = GUARD.format(model=world.models["llama"], tasks=world.tasks)
    (repository.folder / "guard.yaml").write_text(guard)
    (repository.folder / ".gitignore").write_text("reports/\n__pycache__/\n")
    commits = {}
    for message, hook in HISTORY:
        (repository.folder / "port.py").write_text(hook.format(comment=message))
        commits[message] = repository.commit(message)
    return repository, commits


@pytest.mark.nightly
def test_the_commit_that_broke_the_hook_is_found_past_commits_that_do_not_build(
    history: tuple[Repository, dict[str, str]], tmp_path: Path
) -> None:
    repository, commits = history
    repository.environment["EVALGUARD_CACHE_DIR"] = str(tmp_path / "cache")
    repository.git("bisect", "start", commits["release"], commits["a port"])
    command = (sys.executable, "-m", "evalguard", "compare", "--git-bisect", "--quiet")
    sides = ("--config", "guard.yaml", "--base", "orig", "--cand", "port")
    said = repository.git("bisect", "run", *command, *sides)
    assert f"{commits['faster norm']} is the first bad commit" in said
    log = repository.git("bisect", "log")
    assert f"git bisect skip {commits['does not build']}" in log
    assert f"git bisect good {commits['builds again']}" in log


def test_a_commit_that_does_not_build_is_skipped_and_one_that_does_is_judged(
    history: tuple[Repository, dict[str, str]], tmp_path: Path
) -> None:
    repository, commits = history
    command = [sys.executable, "-m", "evalguard", "compare", "--git-bisect", "--quiet"]
    sides = ["--config", "guard.yaml", "--base", "orig", "--cand", "port"]
    environment = {**repository.environment, "EVALGUARD_CACHE_DIR": str(tmp_path / "cache")}
    found = {}
    for message in ("a port", "does not build", "faster norm"):
        repository.git("checkout", "-q", commits[message])
        ran = subprocess.run(
            [*command, *sides], cwd=repository.folder, env=environment, capture_output=True,
            text=True, check=False,
        )  # fmt: skip
        found[message] = ran.returncode
        # Which setting is guilty is nobody's question here.
        assert "Bisection" not in ran.stdout
    assert found == {"a port": 0, "does not build": 125, "faster norm": 1}
