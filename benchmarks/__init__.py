"""Measurements whose results are committed; run from the top of the repository."""
