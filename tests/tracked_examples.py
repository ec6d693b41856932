"""A tracked run with one of everything."""

from __future__ import annotations

from pathlib import Path

from evalguard.core.tracked_run import Alert, TrackedRun, TrackedTable


def example(folder: Path) -> TrackedRun:
    """A run whose file lies in ``folder``."""
    file = folder / "result.json"
    file.write_text('{"exit_code": 1}', encoding="utf-8")
    table = TrackedTable(columns=("document", "prompt"), rows=((7, "A b"),))
    return TrackedRun(
        name="orig vs port",
        job_type="compare",
        group="pull request 7",
        tags=("regressed", "port"),
        config={"base": {"name": "orig"}, "gate": {"margin": 1.0}},
        scalars={
            "lambada/acc/sigma": 1.465,
            "gate/exit_code": 1.0,
            "a*b,strict-match/acc/n_used": 7.0,
        },
        charts=("lambada/acc/sigma",),
        summary={"state": "regressed", "lambada/acc/outcome": "regressed"},
        tables={"moved_documents": table},
        pages={"forest": "<svg>here</svg>"},
        files={"result.json": str(file)},
        alert=Alert(title="port regressed", text="by 1.5 sigma"),
    )
