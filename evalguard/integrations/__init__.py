"""W&B and other trackers, GitHub, GitLab. None is imported before it is used."""
