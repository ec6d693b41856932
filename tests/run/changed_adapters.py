"""Adapters that change, by a stand-in for peft that reads what peft reads: config and weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from world_changes import Case, scaled, text

_PEFT = """import json
from importlib.metadata import version
from pathlib import Path

import torch
from safetensors.torch import load_file

__version__ = "0.17.0"


class PeftModel:
    @staticmethod
    def from_pretrained(model, folder, **_):
        scaling = json.loads((Path(folder) / "adapter_config.json").read_text())["lora_alpha"]
        update = load_file(Path(folder) / "adapter_model.safetensors")["update"]
        with torch.no_grad():
            model.model.norm.weight.add_(scaling * update)
        return model
"""


def with_adapter(folder: Path) -> None:
    import torch
    from safetensors.torch import save_file

    (folder / "front" / "peft").mkdir(parents=True)
    (folder / "front" / "peft" / "__init__.py").write_text(_PEFT)
    (folder / "adapter").mkdir()
    (folder / "adapter" / "adapter_config.json").write_text('{"lora_alpha": 0.5}')
    size = json.loads((folder / "model" / "config.json").read_text())["hidden_size"]
    update = {"update": torch.linspace(-1.0, 1.0, size)}
    save_file(update, folder / "adapter" / "adapter_model.safetensors", {"format": "pt"})
    guard = folder / "guard.yaml"
    guard.write_text(guard.read_text().replace("dtype", f"peft: {folder / 'adapter'}, dtype"))


def with_two_adapters(folder: Path) -> None:
    with_adapter(folder)
    shutil.copytree(folder / "adapter", folder / "other")
    (folder / "other" / "adapter_config.json").write_text('{"lora_alpha": 0.9}')


_WITH_PEFT = {"PYTHONPATH": "{folder}/front"}
ADAPTERS: dict[str, Case] = {
    "weights of an adapter, times kept": Case(
        scaled("adapter/adapter_model.safetensors"),
        prepare=with_adapter, afresh=True, env=_WITH_PEFT,
    ),
    "config of an adapter, times kept": Case(
        text("adapter/adapter_config.json", "0.5", "0.7", keep_times=True),
        prepare=with_adapter, afresh=True, env=_WITH_PEFT,
    ),
    "another adapter": Case(
        text("guard.yaml", "/adapter,", "/other,"),
        prepare=with_two_adapters,
        afresh=True, env=_WITH_PEFT,
    ),
}  # fmt: skip
