"""Noise measured: one computation in several precisions and batch shapes, on this machine."""
