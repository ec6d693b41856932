"""Arithmetic on stored tensors: names, differences, what a difference looks like; pure."""
