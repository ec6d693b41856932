"""Installed packages, what Python runs first, and evalguard's own code, changed.

Of models here, and of those of a library in an environment of its own.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from world_changes import Case, hooked, scaled, text

import evalguard


def overlay(folder: Path, package: str, inner: str, old: str, new: str) -> None:
    """Put a package before the installed one: links to its files, but for one that is edited."""
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    source, target = Path(spec.origin).parent, folder / "front" / package
    *above, last = Path(inner).parts
    for part in ("", *above):
        source, target = source / part, target / part
        target.mkdir(parents=True, exist_ok=True)
        for one in source.iterdir():
            if one.name != "__pycache__" and not (target / one.name).exists():
                (target / one.name).symlink_to(one)
        nearer = (*above, last)[("", *above).index(part)] if part in ("", *above) else last
        (target / nearer).unlink()
        if nearer != last:
            (target / nearer).mkdir()
    told = (source / last).read_text()
    assert old in told
    (target / last).write_text(told.replace(old, new))


def patched_library(folder: Path, _: pytest.MonkeyPatch) -> None:
    overlay(
        folder, "transformers", "models/llama/modeling_llama.py",
        "return self.weight * hidden_states", "return 1.5 * self.weight * hidden_states",
    )  # fmt: skip


def with_a_copy_of_evalguard(folder: Path) -> None:
    shutil.copytree(
        Path(evalguard.__file__).parent, folder / "front" / "evalguard",
        ignore=shutil.ignore_patterns("__pycache__"),
    )  # fmt: skip


def of_a_runtime(folder: Path) -> None:
    guard = folder / "guard.yaml"
    guard.write_text(
        guard.read_text().replace("model: hf", f"model: hf\n    python: {sys.executable}")
    )


def hooked_runtime(folder: Path) -> None:
    hooked(folder)
    of_a_runtime(folder)


def runtime_with_a_copy(folder: Path) -> None:
    of_a_runtime(folder)
    with_a_copy_of_evalguard(folder)


_FRONT = {"PYTHONPATH": "{folder}/front"}
_SITE = (
    "import json\n\nF = 1.0\nread = json.loads\n\n\n"
    "def loads(*words, **named):\n    found = read(*words, **named)\n"
    "    if isinstance(found, dict) and 'rms_norm_eps' in found:\n"
    "        found['rms_norm_eps'] *= F\n    return found\n\n\njson.loads = loads\n"
)


def customized(name: str) -> Callable[[Path], None]:
    def prepare(folder: Path) -> None:
        (folder / "front").mkdir(exist_ok=True)
        (folder / "front" / f"{name}.py").write_text(_SITE)

    return prepare


RESPONSES = text(
    "front/evalguard/models/hf/responses.py",
    "def build_likelihood_responses(", "EDITED = 1\n\n\ndef build_likelihood_responses(",
)  # fmt: skip
REPORTS = text(
    "front/evalguard/report/compare_terminal.py",
    "def render_terminal(",
    "EDITED = 1\n\n\ndef render_terminal(",
)
RUN: dict[str, Case] = {
    "a library patched in place": Case(patched_library, afresh=True, env=_FRONT),
    "sitecustomize patches what a library calls": Case(
        text("front/sitecustomize.py", "F = 1.0", "F = 1e5"),
        prepare=customized("sitecustomize"), afresh=True, env=_FRONT,
    ),
    "usercustomize": Case(
        text("front/usercustomize.py", "F = 1.0", "F = 1e5"),
        prepare=customized("usercustomize"), matters=None, afresh=True, env=_FRONT,
    ),
    "evalguard's scoring code": Case(
        RESPONSES, prepare=with_a_copy_of_evalguard, matters=None, afresh=True, env=_FRONT
    ),
    "evalguard's reports": Case(
        REPORTS,
        prepare=with_a_copy_of_evalguard, matters=False, scored=False, afresh=True, env=_FRONT,
    ),
    "weights of a model in an environment of its own": Case(
        scaled("model/model.safetensors"), prepare=of_a_runtime, afresh=True
    ),
    "evalguard's scoring code, for a model in an environment of its own": Case(
        RESPONSES, prepare=runtime_with_a_copy, matters=None, afresh=True, env=_FRONT
    ),
    "a hook of a model in an environment of its own": Case(
        text("hook.py", "F = 1.5", "F = 2.5", keep_times=True),
        prepare=hooked_runtime, scored=None, afresh=True,  # nothing is kept
    ),
    "evalguard's reports, for a model in an environment of its own": Case(
        REPORTS,
        prepare=runtime_with_a_copy, matters=False, scored=False, afresh=True, env=_FRONT,
    ),
    "threads of a model in an environment of its own": Case(
        lambda *_: None, prepare=of_a_runtime, matters=None, afresh=True,
        env={"OMP_NUM_THREADS": "1"}, after={"OMP_NUM_THREADS": "2"},
    ),
    "a variable of MKL, of a model in an environment of its own": Case(
        lambda *_: None, prepare=of_a_runtime, matters=None, afresh=True,
        after={"MKL_CBWR": "COMPATIBLE"},
    ),
}  # fmt: skip
