"""Adapter to experiment trackers: W&B, trackio, MLflow. None is imported before it is used."""

from __future__ import annotations

from evalguard.tracking.sending import save_night, send_run
from evalguard.tracking.wandb_configured import wandb_is_configured

__all__ = ["save_night", "send_run", "wandb_is_configured"]
