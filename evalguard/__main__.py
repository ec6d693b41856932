"""``python -m evalguard``."""

from __future__ import annotations

from evalguard.cli import main

if __name__ == "__main__":
    main()
