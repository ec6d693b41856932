"""Finished comparisons shown elsewhere: trackers, GitHub, GitLab, JUnit.

None is imported before it is used.
"""
