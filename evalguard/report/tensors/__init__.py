"""Compared tensors and measured noise: the terminal, the page, and the JSON contracts."""
