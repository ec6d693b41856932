"""Code of a task that can reach models changes no score, however it would."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_foreign_code import compare, guard, kept, scores
from tiny_models import save_llama

from evalguard.engine.loading.foreign_code import find_model_access

NEIGHBOURS = "a neighbour's doing, when documents are read"
# Each changes a value, and puts no function of its own in the place of a library's.
POISON = {
    "an entry of a dict": (
        "import torch\nfrom transformers.activations import ACT2FN\n\n\n"
        "class Loud(torch.nn.Module):\n"
        "    def forward(self, x):\n        return 1.3 * torch.nn.functional.silu(x)\n\n\n"
        "ACT2FN['silu'] = Loud\n"
    ),
    "a hook of all modules": (
        "import torch\n\n\ndef louder(module, given, made):\n"
        "    return 1.1 * made if 'Norm' in type(module).__name__ else None\n\n\n"
        "torch.nn.modules.module.register_module_forward_hook(louder)\n"
    ),
    "a class": (
        "from transformers.models.llama import modeling_llama as lib\n\n\n"
        "class Loud(lib.LlamaRMSNorm):\n"
        "    def forward(self, x):\n        return 1.1 * super().forward(x)\n\n\n"
        "lib.LlamaRMSNorm = Loud\n"
    ),
    "an object that is called": (
        "from transformers.models.llama import modeling_llama as lib\n\n\n"
        "class Loud:\n    def __init__(self, call):\n        self.call = call\n\n"
        "    def __call__(self, q, k, *more, **named):\n"
        "        return tuple(1.2 * one for one in self.call(q, k, *more, **named))\n\n\n"
        "lib.apply_rotary_pos_emb = Loud(lib.apply_rotary_pos_emb)\n"
    ),
    "a flag": "import torch\ntorch.set_default_dtype(torch.float64)\n",
    NEIGHBOURS: (
        "def spoil():\n    from transformers.activations import ACT2FN\n    import torch\n"
        "    ACT2FN['silu'] = torch.nn.Tanh\n"
    ),
}
READING = "\n\ndef read(documents):\n    return documents\n"


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_llama(tmp_path_factory.mktemp("tasks") / "llama")


def with_code(folder: Path, code: str) -> None:
    task = folder / "tasks" / "sw_word.yaml"
    line = "process_docs: !function reading.read\n"
    task.write_text(f"{task.read_text().replace(line, '')}{line}")
    (folder / "tasks" / "reading.py").write_text(code)


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [
        NEIGHBOURS,
        *(
            pytest.param(one, marks=pytest.mark.nightly)
            for one in (
                "an entry of a dict",
                "a hook of all modules",
                "a class",
                "an object that is called",
                "a flag",
            )
        ),
    ],
)
def test_what_code_of_a_task_changes_in_a_library_reaches_no_model(
    how: str, llama: Path, tmp_path: Path
) -> None:
    plain = {"model_args": {"pretrained": str(llama), "dtype": "float32"}}
    guard(tmp_path, {"plain": plain, "twin": {"extends": "plain"}})
    with_code(tmp_path, READING)
    alone = compare(tmp_path, "plain", "twin", EVALGUARD_CACHE_DIR=str(tmp_path / "fresh"))
    code, reading = POISON[how], READING
    if how == NEIGHBOURS:
        (tmp_path / "tasks" / "beside.py").write_text(code)
        code = f"import sys\nsys.path.append({str(tmp_path / 'tasks')!r})\n"
        reading = READING.replace("    return", "    import beside\n    beside.spoil()\n    return")
    with_code(tmp_path, f"{code}{reading}")
    blind = "import evalguard.engine.loading.foreign_code as f; f.reaching_task_code = lambda: ''"
    spoilt = compare(
        tmp_path, "plain", "twin", first=blind, EVALGUARD_CACHE_DIR=str(tmp_path / "spoilt")
    )
    found = compare(tmp_path, "plain", "twin")
    if how != "a flag":  # whether that changes a digit is the processor's matter
        assert scores(spoilt, "base") != scores(alone, "base")
    for side in ("base", "candidate"):
        assert scores(found, side) == scores(alone, side)
    assert kept(compare(tmp_path, "plain", "twin"), "plain")


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("from transformers.activations import ACT2FN", "imports transformers.activations"),
        ("def read(d):\n    import torch", "imports torch"),
        ("import peft as p", "imports peft"),
        (
            "class T:\n    def f(self):\n        from safetensors import torch",
            "imports safetensors",
        ),
        ("import lm_eval.models.huggingface", "imports lm_eval.models.huggingface"),
        ("from lm_eval.api import model", "imports lm_eval.api.model"),
        ("import lm_eval.api.model", "imports lm_eval.api.model"),
        ("from lm_eval import models as m", "imports models of lm_eval"),
        ("from lm_eval.api.registry import get_model", "imports get_model of lm_eval"),
        ("import evalguard", "imports evalguard"),
        ("import sys\nsys.modules['torch']", "uses sys.modules"),
        ("from importlib import import_module", "uses import_module"),
        ("def f(x):\n    return __import__(x)", "uses __import__"),
        ("exec('import torch')", "uses exec"),
        ("import gc", "imports gc"),
        ("import ctypes", "imports ctypes"),
        ("import datasets\ndatasets.utils.py_utils.torch", "uses torch"),
        ("import no_such_module", "imports no_such_module, which is not found"),
        ("import helper", "imports torch"),
        ("import package.inner", "imports torch"),
    ],
)
def test_code_that_can_reach_models_is_known_by_what_it_imports(
    code: str, why: str, tmp_path: Path
) -> None:
    (tmp_path / "helper.py").write_text("import second\n")
    (tmp_path / "second.py").write_text("import helper\nimport torch\n")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "inner.py").write_text("import torch\n")
    assert find_model_access(compile(code, str(tmp_path / "utils.py"), "exec")) == why


@pytest.mark.parametrize(
    "code",
    [
        "import re, json, random, string, functools\nimport numpy as np",
        "import datasets\n\n\ndef read(d):\n    return d.map(lambda one: one)",
        "from lm_eval.api.task import ConfigurableTask\nfrom lm_eval.utils import eval_logger",
        "from lm_eval.tasks.ifeval.utils import process_results",
        "from lm_eval.api.metrics import mean\nfrom lm_eval.api.registry import register_metric",
        "import evaluate\nimport scipy.stats",
        "import importlib.metadata",
        "import helper",
    ],
)
def test_ordinary_code_of_a_task_reaches_no_model(code: str, tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("import re\n")
    assert find_model_access(compile(code, str(tmp_path / "utils.py"), "exec")) == ""
