"""Finished comparisons shown elsewhere: trackers, GitHub, GitLab."""
