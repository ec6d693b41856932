"""Every document that is written, of one example each; ``python stored_examples.py FILE`` keeps
them as they are written today.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from example_bisections import BY_STATUS
from example_floors import DIVERGENT, SHIFTS, floor_report
from example_nights import a_night
from example_traces import DETAILED
from whole_report import WHOLE

from evalguard.floors.floor_report import floor_document
from evalguard.nights.night_page import night_document
from evalguard.report.compare_document import compare_document
from evalguard.tensors.tensors_report import (
    DuplicateTensors,
    GreatestDifference,
    InvariantResult,
    InvariantTensor,
    Likeness,
    SideCounts,
    TensorDelta,
    TensorSource,
    TensorsReport,
    tensors_document,
)
from evalguard.tensors.tolerances import find_tolerance
from evalguard.tracing.trace_report import trace_document

STORED = Path(__file__).parent / "stored"


def tensors_report() -> TensorsReport:
    """A tensor beyond its tolerance, one that cannot be read, and an invariant that is broken."""
    side = TensorSource(name="base", kind="safetensors", files=("a",), tensors=4, nbytes=4000)
    counts = SideCounts(dtype="float32", shape=(4, 8), zeros=2)
    delta = TensorDelta(
        name="w", candidate_name="v", state="beyond", base=counts, candidate=counts,
        tolerance=find_tolerance(["float32"]), elements=32, mismatched=2, snr=40.0,
        greatest_absolute=GreatestDifference(value=float("inf"), index=(3, 4)),
        likeness=Likeness(kind="structure", name="transposed", rule="transpose: [1, 0]", left=0.0),
    )  # fmt: skip
    unread = dataclasses.replace(delta, name="x", state="unreadable", fault="the file ends")
    broken = InvariantResult(
        name="finite", words="no NaN",
        tensors=(InvariantTensor(name="w", elements=32, violations=1),),
    )  # fmt: skip
    return TensorsReport(
        base=side, candidate=side, deltas=(delta, unread), base_only=("gone", "head"),
        tied={"head": "w"}, duplicates=(DuplicateTensors(side="base", names=("a", "b")),),
        invariants=(broken,), caveats=("something",), version="0",
    )  # fmt: skip


def documents() -> dict[str, Any]:
    """Name of a document to the document, whose schema is that of its first word."""
    return {
        **{
            f"compare {status}": compare_document(dataclasses.replace(WHOLE, bisect=found))
            for status, found in BY_STATUS.items()
            if status in ("minimal", "limit", "diffuse")
        },
        "floor": floor_document(floor_report(*SHIFTS, distribution_shifts=DIVERGENT)),
        "nightly": night_document(a_night()),
        "trace": trace_document(DETAILED),
        "tensors": tensors_document(tensors_report()),
    }


def write_stored(path: Path) -> None:
    """Keep every document as it is written today, one a line."""
    lines = [f"{json.dumps(name)}: {json.dumps(of)}" for name, of in documents().items()]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    write_stored(Path(sys.argv[1]))
