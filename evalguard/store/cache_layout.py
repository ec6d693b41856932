"""Names of what lies in a cache folder."""

from __future__ import annotations

BLOCK_KINDS = ("scores", "references", "divergences")
"""Kinds of blocks, each in a folder of its own."""

LAYOUT = "v1"
"""The number of the layout: a later one gets a folder of its own beside this one."""

BLOCK_SUFFIX = ".parquet"
ABOUT_FILE = "about.json"
