"""The environment that a run's numbers belong to."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib import metadata

import evalguard
from evalguard.core.settings import Value

_PACKAGES = (
    "lm_eval", "torch", "transformers", "tokenizers", "datasets", "accelerate", "numpy", "scipy",
)  # fmt: skip


def read_environment() -> dict[str, Value]:
    """Return the versions and the platform of this process, without importing the packages."""
    versions: dict[str, Value] = {"evalguard": evalguard.__version__}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "packages": versions,
    }


def read_environments(
    base: Mapping[str, Value], candidate: Mapping[str, Value]
) -> dict[str, Value]:
    """Return this process's environment, and each model's own: they may have run elsewhere."""
    return {**read_environment(), "base": dict(base), "candidate": dict(candidate)}
