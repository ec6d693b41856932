"""Every command line of the README and the tutorial runs, and ends as the page says.

The tutorial's files and commands are taken as they stand. Of other pages, a machine without a
network has no hub: lambada_openai is the demo's task of last words here, and the two folders are
the demo's model and a copy of it with another rotary base.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
pytestmark = pytest.mark.slow

# What a page says -> what is there without a network; few documents, so that it takes seconds.
_HERE = {
    "lambada_openai": "evalguard_lastword",
    "reference: 0.0625, candidate: 0.0668": "reference: 0.22360679774997896, candidate: 0.2391",
}
_JUDGES = ("compare", "bisect", "demo", "nightly")


def here(text: str) -> str:
    for said, there in _HERE.items():
        text = text.replace(said, there)
    return text


def page(name: str) -> str:
    return here((ROOT / name).read_text("utf-8"))


def commands(name: str) -> list[str]:
    """The lines of a page's console blocks that call evalguard, in their order."""
    blocks = re.findall(r"```console\n(.*?)```", page(name), re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [line for line in lines if re.match(r"evalguard [a-z]", line)]


def guard(name: str) -> str:
    """The guard file that a page shows."""
    found = re.search(r"```yaml\n(models:.*?)```", page(name), re.DOTALL)
    assert found is not None
    return found[1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the models and the finished lm-eval runs that the pages speak of."""
    folder = tmp_path_factory.mktemp("reader")
    for name, base in (("original", 4000.0), ("my-port", 100000.0), ("my-port-int8", 4000.0)):
        shutil.copytree(ROOT / "demo/model", folder / name)
        file = folder / name / "config.json"
        config = json.loads(file.read_text("utf-8"))
        assert config["rope_parameters"]["rope_theta"] == 4000.0
        config["rope_parameters"]["rope_theta"] = base
        file.write_text(json.dumps(config), "utf-8")
    for name in ("original", "my-port"):
        run(
            folder,
            f"-m lm_eval --model hf --model_args pretrained=./{name} --tasks evalguard_lastword "
            f"--include_path {ROOT / 'tasks'} --limit 60 --log_samples --device cpu "
            f"--output_path results/{name}",
        )
    return folder


def run(folder: Path, words: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "EVALGUARD_CACHE_DIR": str(folder / "cache"),
        "WANDB_MODE": "disabled",
    }
    done = subprocess.run(
        [sys.executable, *shlex.split(words, comments=True)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode in (0, 1), f"{words}\n{done.stdout}\n{done.stderr}"
    return done


def evalguard(folder: Path, line: str) -> subprocess.CompletedProcess[str]:
    done = run(folder, f"-m {line}")
    judges = line.split()[1] in _JUDGES
    assert done.returncode == 0 or judges, f"{line}\n{done.stdout}\n{done.stderr}"
    return done


@pytest.mark.parametrize("name", ["README.md", "docs/finished-runs.md"])
def test_every_command_of_a_page_runs_in_a_folder_with_two_models(folder: Path, name: str) -> None:
    lines = commands(name)
    assert len(lines) >= 3
    if name != "docs/finished-runs.md":
        (folder / "evalguard.yaml").write_text(guard(name), "utf-8")
    for line in lines:
        evalguard(folder, line)


def test_the_tutorial_runs_as_printed_in_an_empty_folder_and_ends_with_a_repair_that_passes(
    tmp_path: Path,
) -> None:
    blocks = re.findall(
        r"```(\w+)\n(.*?)```", (ROOT / "docs/tutorial.md").read_text("utf-8"), re.DOTALL
    )
    (tmp_path / "ours.py").write_text(next(text for kind, text in blocks if kind == "python"))
    run(tmp_path, "ours.py")
    ended = []
    for kind, text in blocks:
        if kind == "yaml":
            name = "questions.yaml" if text.startswith("task:") else "evalguard.yaml"
            (tmp_path / name).write_text(text, "utf-8")
        if kind == "console":
            ended += [evalguard(tmp_path, line) for line in text.splitlines()]
    assert [done.returncode for done in ended] == [0, 0, 1, 1, 1, 0]
    *_, compared, bisected, declared, repaired = ended
    assert "REGRESSED: questions" in compared.stdout
    assert "Cause: config.rope_parameters.rope_theta" in bisected.stdout
    assert "Cause: rope_theta" in declared.stdout
    assert "--set rope_theta=reference" in declared.stdout
    assert "PASSED" in repaired.stdout
