"""Tensors on disk, read lazily: safetensors, torch, GGUF and numpy files, and folders of them."""
