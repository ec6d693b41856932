"""Code of a checkpoint, a hook or a task never changes what another model's scores are."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from small_world import write_tasks
from tiny_models import save_llama

from evalguard.conversion.planning import plan_conversion
from evalguard.core.settings import Variant
from evalguard.engine.loading.foreign_code import brings_code

# Each changes every Llama that is computed in its process.
POISON = {
    "a class of transformers": (
        "from transformers.models.llama import modeling_llama as lib\n"
        "_norm = lib.LlamaRMSNorm.forward\n"
        "lib.LlamaRMSNorm.forward = lambda self, x: 1.1 * _norm(self, x)\n"
    ),
    "the default dtype": "import torch\ntorch.set_default_dtype(torch.float64)\n",
    "deterministic algorithms": "import torch\ntorch.use_deterministic_algorithms(True)\n",
    "a function of torch": (
        "import torch\n_silu = torch.nn.functional.silu\n"
        "torch.nn.functional.silu = lambda x, inplace=False: 1.1 * _silu(x)\n"
    ),
}
MODELING = """from transformers import LlamaForCausalLM


class Port(LlamaForCausalLM):
    pass
"""


def save_port(llama: Path, folder: Path, head: str) -> Path:
    """A copy of a model that brings a class of its own, and runs ``head`` when it is imported."""
    shutil.copytree(llama, folder)
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoModelForCausalLM": "modeling_port.Port"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "modeling_port.py").write_text(f"{head}\n{MODELING}")
    return folder


def compare(
    folder: Path, base: str, cand: str, *, first: str = "", **more: str
) -> Mapping[str, object]:
    """Compare in a process that runs the code ``first`` before anything else."""
    code = f"{first}\nfrom evalguard.__main__ import run\nrun()"
    done = subprocess.run(
        [sys.executable, "-c", code, "compare", "--config", "guard.yaml", "--base", base,
         "--cand", cand, "--json", "--bisect", "never", "--track", "none"],
        cwd=folder,
        env={**os.environ, "EVALGUARD_CACHE_DIR": str(folder / "cache"), "HF_HUB_OFFLINE": "1",
             "HF_MODULES_CACHE": str(folder / "modules"),
             "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **more},
        capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert done.returncode in (0, 1, 3), done.stdout + done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def scores(told: Mapping[str, object], side: str) -> list[object]:
    found = told["comparisons"]
    assert isinstance(found, list)
    return [[one["task"], one["metric"], one[side]] for one in found]


def kept(told: Mapping[str, object], model: str) -> bool:
    answers = told["resources"]["answers"]  # type: ignore[index]
    return all(one["kept"] == one["documents"] for one in answers if one["model"] == model)


def guard(folder: Path, models: Mapping[str, object]) -> None:
    write_tasks(folder / "tasks")
    told = {"models": models, "tasks": ["sw_word"], "include_path": "tasks"}
    told |= {"run": {"share_prefixes": False}}
    (folder / "guard.yaml").write_text(json.dumps(told))


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_llama(tmp_path_factory.mktemp("foreign") / "llama")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bring", "what"),
    [
        ("remote code", "a class of transformers"),
        pytest.param("a hook", "a function of torch", marks=pytest.mark.nightly),
        pytest.param("remote code", "the default dtype", marks=pytest.mark.nightly),
        pytest.param("a hook", "deterministic algorithms", marks=pytest.mark.nightly),
    ],
)
def test_a_models_own_code_changes_no_other_models_scores(
    what: str, bring: str, llama: Path, tmp_path: Path
) -> None:
    plain = {"model_args": {"pretrained": str(llama), "dtype": "float32"}}
    models: dict[str, object] = {"plain": plain, "twin": {"extends": "plain"}}
    if bring == "remote code":
        port = str(save_port(llama, tmp_path / "port", POISON[what]))
        models["port"] = {"model_args": {"pretrained": port, "dtype": "float32"},
                          "trust_remote_code": True}  # fmt: skip
    else:
        (tmp_path / "hook.py").write_text(f"{POISON[what]}\n\ndef edit(model, value):\n    pass\n")
        setting = {"reference": 0, "candidate": 1, "target": "call:hook.py:edit"}
        models["port"] = {"extends": "plain", "settings": {"edit": setting}}
    guard(tmp_path, models)
    forwards = compare(tmp_path, "plain", "port")
    backwards = compare(tmp_path, "port", "plain")
    alone = compare(tmp_path, "plain", "twin", EVALGUARD_CACHE_DIR=str(tmp_path / "fresh"))
    afterwards = compare(tmp_path, "plain", "twin")
    wanted = scores(alone, "base")
    assert scores(forwards, "base") == wanted
    assert scores(backwards, "candidate") == wanted
    assert scores(afterwards, "base") == wanted
    if what.startswith("a "):
        assert scores(forwards, "candidate") != wanted


@pytest.mark.slow
@pytest.mark.nightly
def test_a_process_that_read_a_config_with_code_computes_no_model_itself(
    llama: Path, tmp_path: Path
) -> None:
    port = save_port(llama, tmp_path / "port", "")
    config = json.loads((port / "config.json").read_text())
    config |= {"auto_map": {"AutoConfig": "configuration_port.PortConfig"}, "model_type": "port"}
    (port / "config.json").write_text(json.dumps(config))
    (port / "configuration_port.py").write_text(
        f"{POISON['a class of transformers']}from transformers import LlamaConfig\n\n\n"
        "class PortConfig(LlamaConfig):\n    model_type = 'port'\n"
    )
    plain = {"model_args": {"pretrained": str(llama), "dtype": "float32"}}
    guard(tmp_path, {"plain": plain, "twin": {"extends": "plain"}})
    read = (
        "from transformers import AutoConfig\n"
        f"AutoConfig.from_pretrained({str(port)!r}, trust_remote_code=True)\n"
        "from transformers.models.llama.modeling_llama import LlamaRMSNorm\n"
        "assert 'port' in LlamaRMSNorm.forward.__code__.co_filename"
    )
    spoilt = compare(tmp_path, "plain", "twin", first=read)
    alone = compare(tmp_path, "plain", "twin", EVALGUARD_CACHE_DIR=str(tmp_path / "fresh"))
    afterwards = compare(tmp_path, "plain", "twin")
    for side in ("base", "candidate"):
        assert scores(spoilt, side) == scores(alone, side) == scores(afterwards, side)
    assert kept(afterwards, "plain")


def test_code_of_a_checkpoint_counts_only_where_it_is_there_and_may_run(
    llama: Path, tmp_path: Path
) -> None:
    port = str(save_port(llama, tmp_path / "port", ""))

    def brings(**of: object) -> bool:
        variant = Variant(name="m", model="hf", **of)  # type: ignore[arg-type]
        return brings_code(variant, plan_conversion(variant))

    assert brings(model_args={"pretrained": port}, trust_remote_code=True)
    assert not brings(model_args={"pretrained": port})
    assert not brings(model_args={"pretrained": str(llama)}, trust_remote_code=True)
    assert brings(model_args={"pretrained": "nobody/nothing"}, trust_remote_code=True)
    assert brings(model_args={"pretrained": str(llama), "attn_implementation": "kernels/attn"})


PATCHES = (
    "lib.LlamaRMSNorm.forward = other",
    "lib.apply_rotary_pos_emb = other",
    "torch.nn.functional.silu = other",
    "torch.nn.Linear.extra_repr = staticmethod(other)",
    "torch.Tensor.__repr__ = property(other)",
)


def test_a_function_in_place_of_a_librarys_own_is_named_with_its_file(tmp_path: Path) -> None:
    """Each in its turn, and taken back again."""
    for number, patch in enumerate(PATCHES):
        place = patch.partition(" = ")[0]
        owner, _, name = place.rpartition(".")
        (tmp_path / f"patching{number}.py").write_text(
            "import torch\nfrom transformers.models.llama import modeling_llama as lib\n\n\n"
            f"def other(*_, **__):\n    pass\n\n\nkept = vars({owner})['{name}']\n{patch}\n\n\n"
            f"def undo():\n    {place} = kept\n"
        )
    code = (
        "import importlib\nfrom evalguard.engine.loading.foreign_code import list_patches\n"
        "import torch, transformers.models.llama.modeling_llama\n"
        "print(list(list_patches()))\n"
        f"for number in range({len(PATCHES)}):\n"
        "    module = importlib.import_module(f'patching{number}')\n"
        "    print(list(list_patches()))\n    module.undo()\nprint(list(list_patches()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    files = [[str(tmp_path / f"patching{number}.py")] for number in range(len(PATCHES))]
    assert done.stdout.splitlines() == ["[]", *map(str, files), "[]"]
