"""Finished runs of lm-eval, read back from its results and samples files."""
