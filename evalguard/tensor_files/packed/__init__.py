"""Quantised weights as checkpoints pack them, found by their parts: the tensors they stand for."""
