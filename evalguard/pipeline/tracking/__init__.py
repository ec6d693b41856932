"""Finished comparisons, sent to experiment trackers after everything local is written."""
