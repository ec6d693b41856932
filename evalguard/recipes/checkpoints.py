"""Checkpoint folders that a recipe reads: of this machine, or of the hub."""

from __future__ import annotations

from pathlib import Path

from evalguard.errors import UsageError


def find_checkpoint(name: str) -> Path:
    """Return the folder of a checkpoint; a hub id's files are fetched.

    Raises:
        UsageError: there is no such folder, and nothing of that name at the hub.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    try:
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(name))
    except Exception as error:
        raise UsageError(
            f"'{name}' is neither a checkpoint folder nor to be had from the hub: {error}"
        ) from error
