"""A result.json with other content, as if evalguard had written it so: its checksum is right."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from evalguard.core.checksum import with_checksum


def edit_result(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the result.json of a run folder in place."""
    file = folder / "result.json"
    document = json.loads(file.read_text(encoding="utf-8"))
    change(document)
    file.write_text(json.dumps(with_checksum(document)), encoding="utf-8")
