"""evalguard's model types in plain lm-eval."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import lm_eval
import pytest
from lm_eval.api.registry import model_registry
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

from evalguard.models.registered import RuntimeLM
from evalguard.models.runtimes.types import RUNTIME_TYPES

ROOT = Path(__file__).parent.parent.parent
TASKS = ROOT / "tasks"


def evaluate(model: Any) -> dict[str, Any]:
    found = lm_eval.simple_evaluate(
        model=model,
        tasks=["evalguard_lastword"],
        task_manager=TaskManager(include_path=str(TASKS), include_defaults=False),
        limit=6,
        bootstrap_iters=0,
    )
    assert found is not None
    results: dict[str, Any] = found["results"]["evalguard_lastword"]
    return results


def test_lm_evals_own_evaluation_of_a_type_gives_the_values_of_its_hugging_face_model() -> None:
    told: dict[str, Any] = {"pretrained": str(ROOT / "demo" / "model"), "dtype": "float32"}
    ours = evaluate(RuntimeLM("transformers", **told))
    theirs = evaluate(HFLM(**told, device="cpu"))
    for name, value in theirs.items():
        assert ours[name] == (value if isinstance(value, str) else pytest.approx(value, rel=1e-4))


@pytest.mark.parametrize("name", [n for n in RUNTIME_TYPES if n != "transformers"])
def test_every_type_is_registered_and_takes_no_name_of_lm_evals(name: str) -> None:
    theirs = name in lm_eval.models.MODEL_MAPPING
    registered = model_registry.get(f"evalguard-{name}" if theirs else name)
    assert issubclass(registered, RuntimeLM)
    assert not theirs or "evalguard" not in lm_eval.models.MODEL_MAPPING[name]


@pytest.mark.slow
def test_lm_evals_command_knows_the_types_and_says_what_is_missing(tmp_path: Path) -> None:
    kind = next((n for n in ("rwkv", "fla", "llama_cpp") if RUNTIME_TYPES[n].missing), None)
    if kind is None:
        pytest.skip("all packages are here")
    done = subprocess.run(
        [
            sys.executable, "-m", "evalguard.models.registered", "run", "--model", kind,
            "--model_args", f"pretrained={tmp_path}", "--tasks", "evalguard_lastword",
            "--include_path", str(TASKS),
        ],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode != 0
    assert f"model type '{kind}' needs" in done.stderr
