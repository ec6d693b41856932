"""Tensors on disk, read lazily: safetensors, torch, GGUF and numpy files, and folders of them."""

from __future__ import annotations

from evalguard.store.tensor_files.opening import TensorFiles, open_tensors
from evalguard.store.tensor_files.stored import StoredTensor
from evalguard.store.tensor_files.stored_weights import StoredWeight, list_stored_weights

__all__ = ["StoredTensor", "StoredWeight", "TensorFiles", "list_stored_weights", "open_tensors"]
