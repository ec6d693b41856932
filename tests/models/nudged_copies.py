"""Copies of models whose weights are a little larger."""

from __future__ import annotations

import shutil
from pathlib import Path

from safetensors.torch import load_file, save_file


def nudged(folder: Path, target: Path, by: float = 1.05) -> Path:
    """A copy whose weights are a little larger."""
    shutil.copytree(folder, target)
    weights = load_file(target / "model.safetensors")
    changed = {name: tensor * by for name, tensor in weights.items()}
    save_file(changed, target / "model.safetensors", metadata={"format": "pt"})
    return target
