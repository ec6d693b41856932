"""Every command line of the README and the tutorial runs, and ends as the page says.

The tutorial's files and commands are taken as they stand. Of other pages, a machine without a
network has no hub: lambada_openai is the demo's task of last words here, and the two folders are
the demo's model and a copy of it with another rotary base.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from served_stubs import ModelStub, serving
from small_world import Ran, run_here

ROOT = Path(__file__).parent.parent.parent
SKILL = "skills/evalguard/SKILL.md"
pytestmark = pytest.mark.slow

# What a page says -> what is there without a network; few documents, so that it takes seconds.
_FEW = 400
_HERE = {
    "tasks: [lambada_openai]": f"tasks: [evalguard_lastword]\nrun: {{limit: {_FEW}}}",
    "--tasks lambada_openai": f"--tasks evalguard_lastword --limit {_FEW}",
    "reference: 0.0625, candidate: 0.0668": "reference: 0.22360679774997896, candidate: 0.2391",
}
_JUDGES = ("compare", "bisect", "nightly", "trace", "tensors")
# What a test has not: llama.cpp and vLLM. The command gets as far as that.
_LACKING = {
    ".gguf": (2, "pip install xllamacpp"),
    "vllm:": (2, "pip install vllm"),
}


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
    (folder / "my-port-Q4_K_M.gguf").write_bytes(b"GGUF")
    for name in ("original", "my-port"):
        python(
            folder,
            f"-m lm_eval --model hf --model_args pretrained=./{name} --tasks evalguard_lastword "
            f"--include_path {ROOT / 'tasks'} --limit 60 --log_samples --device cpu "
            f"--output_path results/{name}",
        )
    return folder


def python(folder: Path, words: str) -> None:
    done = subprocess.run(
        [sys.executable, *shlex.split(words)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The address of a server of completions, of the demo's model."""
    stub = ModelStub(tokenizer=ROOT / "demo/model", shape="vllm", notes={"model": "served"})
    with serving(stub) as address:
        yield address.removesuffix("/v1/completions")


@pytest.fixture
def evalguard(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], server: str
) -> Callable[[Path, str], Ran]:
    """Runs a command line of a page in a folder: in this process, which has imported torch."""

    def run(folder: Path, line: str) -> Ran:
        line = line.replace("http://127.0.0.1:8000", server)
        monkeypatch.chdir(folder)
        monkeypatch.setenv("EVALGUARD_CACHE_DIR", str(folder / "cache"))
        program, job, *words = shlex.split(line, comments=True)
        assert program == "evalguard"
        ran = run_here([job, *words], capfd)
        lacking = next((told for what, told in _LACKING.items() if what in line), None)
        expected = (lacking[0],) if lacking else (0, 1) if job in _JUDGES else (0,)
        assert ran.code in expected, f"{line}\n{ran.out}\n{ran.err}"
        assert lacking is None or lacking[1] in ran.out + ran.err
        return ran

    return run


@pytest.mark.parametrize("name", ["README.md", "docs/finished-runs.md", SKILL])
def test_every_command_of_a_page_runs_in_a_folder_with_two_models(
    folder: Path, name: str, evalguard: Callable[[Path, str], Ran]
) -> None:
    lines = commands(name)
    assert len(lines) >= 3
    if name == "README.md":
        (folder / "evalguard.yaml").write_text(guard(name), "utf-8")
    for line in lines:
        if line != "evalguard demo":  # of tests/cli/test_printed_commands.py
            evalguard(folder, line)


def test_the_tutorial_runs_as_printed_in_an_empty_folder_and_ends_with_a_repair_that_passes(
    tmp_path: Path, evalguard: Callable[[Path, str], Ran]
) -> None:
    blocks = re.findall(
        r"```(\w+)\n(.*?)```", (ROOT / "docs/tutorial.md").read_text("utf-8"), re.DOTALL
    )
    (tmp_path / "ours.py").write_text(next(text for kind, text in blocks if kind == "python"))
    python(tmp_path, "ours.py")
    ended = []
    for kind, text in blocks:
        if kind == "yaml":
            name = "questions.yaml" if text.startswith("task:") else "evalguard.yaml"
            (tmp_path / name).write_text(text, "utf-8")
        if kind == "console":
            ended += [evalguard(tmp_path, line) for line in text.splitlines()]
    assert [ran.code for ran in ended] == [0, 0, 1, 1, 1, 0]
    *_, compared, bisected, declared, repaired = ended
    assert "REGRESSED: questions" in compared.out
    assert "Cause: config.rope_parameters.rope_theta" in bisected.out
    assert "Cause: rope_theta" in declared.out
    assert "--set rope_theta=reference" in declared.out
    assert "PASSED" in repaired.out
