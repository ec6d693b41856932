"""Skewed documents: an estimate that they do not make too sure, and verdicts that few carry."""
