"""Versions that a process reads once."""

from __future__ import annotations

from evalguard.models import identity


def forget_versions() -> None:
    """Have them read anew, here and in the tests after this one."""
    for read_once in (identity.package_versions, identity.kernel_versions):
        read_once.cache_clear()
