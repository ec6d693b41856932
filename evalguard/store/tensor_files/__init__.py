"""Tensors on disk, read lazily: safetensors, torch, GGUF and numpy files, and folders of them."""

from __future__ import annotations

from evalguard.store.tensor_files.opening import TensorFiles, open_tensors
from evalguard.store.tensor_files.stored import StoredTensor

__all__ = ["StoredTensor", "TensorFiles", "open_tensors"]
