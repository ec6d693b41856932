"""Interpreters of other Python versions, for tests that make environments with them.

``EVALGUARD_PYTHONS`` lists interpreters that are not on PATH, separated by ``:``.
"""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest


def interpreter(version: str) -> str:
    """The interpreter of a Python version; a missing one fails the night: it is not a skip."""
    listed = filter(None, os.environ.get("EVALGUARD_PYTHONS", "").split(":"))
    for candidate in (*listed, shutil.which(f"python{version}")):
        if candidate is None:
            continue
        print_version = "import sys; print('%d.%d' % sys.version_info[:2])"
        found = subprocess.run([candidate, "-c", print_version], capture_output=True, text=True)
        if found.returncode == 0 and found.stdout.strip() == version:
            return candidate
    pytest.fail(f"no Python {version}: neither python{version} on PATH nor in EVALGUARD_PYTHONS")
