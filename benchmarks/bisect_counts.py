"""Counts: the outcomes of many plantings, kept in a file that can grow over many runs."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from benchmarks.bisect_outcomes import OURS, outcome
from evalguard import bisect

Key = tuple[str, int, float, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Outcomes of plantings ``first`` to ``first + runs - 1`` of one cell, added up."""

    case: str
    n: int
    effect: float
    search: str
    first: int
    runs: int
    exacts: int
    valids: int
    innocents: int
    cost_sum: float
    cost_squares: float
    seconds: float

    @property
    def key(self) -> Key:
        """Which cell it is."""
        return self.case, self.n, self.effect, self.search

    @property
    def exact(self) -> float:
        """Share of the runs with the exact set."""
        return self.exacts / self.runs

    @property
    def valid(self) -> float:
        """Share of the runs with a valid fix."""
        return self.valids / self.runs

    @property
    def innocent(self) -> float:
        """Share of the runs that named an innocent."""
        return self.innocents / self.runs

    @property
    def cost(self) -> float:
        """Mean, in full evaluations."""
        return self.cost_sum / self.runs

    @property
    def cost_error(self) -> float:
        """Standard error of the mean cost; NaN of a single run."""
        if self.runs < 2:
            return math.nan
        variance = (self.cost_squares - self.runs * self.cost**2) / (self.runs - 1)
        return math.sqrt(max(variance, 0.0) / self.runs)


def counted(key: Key, first: int, runs: int, seed: int) -> Counts:
    """Search some plantings of a cell."""
    case, n, effect, search = key
    start = time.process_time()
    found = [outcome(*key, number, seed) for number in range(first, first + runs)]
    return Counts(
        case=case, n=n, effect=effect, search=search, first=first, runs=runs,
        exacts=sum(o.exact for o in found),
        valids=sum(o.valid for o in found),
        innocents=sum(o.innocent for o in found),
        cost_sum=sum(o.cost for o in found),
        cost_squares=sum(o.cost**2 for o in found),
        seconds=time.process_time() - start,
    )  # fmt: skip


@cache
def code_digest(search: str) -> str:
    """Hex digest of the code that a search's counts depend on: others are not added to them.

    What is compared with depends on what plants and on an oracle's refusals, not on our search.
    """
    ours, here = Path(bisect.__file__).parent, Path(__file__).parent
    parts = ["outcomes", "planting"]
    files = sorted((ours / "search").glob("*.py"))
    if search not in OURS:
        parts = ["baselines", *parts]
        files = [ours.parent / "core" / "question.py"]
    files += [here / f"bisect_{part}.py" for part in parts]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]


def append(file: Path, counts: Counts, seed: int) -> None:
    """Add a line, whole or not at all."""
    with file.open("a", encoding="utf-8") as stream:
        stream.write(_line(code_digest(counts.search), seed, counts) + "\n")


def _line(code: str, seed: int, counts: Counts) -> str:
    return json.dumps({"code": code, "seed": seed, **asdict(counts)})


def read(file: Path, seed: int, *, any_code: bool = False) -> dict[Key, Counts]:
    """Add up the lines of this seed and, unless ``any_code``, of this code."""
    found: dict[Key, list[Counts]] = {}
    for code, its_seed, counts in _parts(file):
        if its_seed == seed and (any_code or code == code_digest(counts.search)):
            found.setdefault(counts.key, []).append(counts)
    return {key: _sum(parts) for key, parts in found.items()}


def sums(files: Iterable[Path]) -> Iterator[str]:
    """Yield the lines of some files added up: one for each cell, seed and version of the code.

    A file of these lines can be added to: plantings are counted from the first without a gap.
    """
    found: dict[tuple[Key, int, str], list[Counts]] = {}
    for file in files:
        for code, seed, counts in _parts(file):
            found.setdefault((counts.key, seed, code), []).append(counts)
    for (_, seed, code), parts in sorted(found.items()):
        yield _line(code, seed, _sum(parts))


def _parts(file: Path) -> Iterator[tuple[str, int, Counts]]:
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    for line in lines:
        fields = json.loads(line)
        yield fields.pop("code"), fields.pop("seed"), Counts(**fields)


def _sum(parts: Iterable[Counts]) -> Counts:
    """As one; plantings that are there twice count once."""
    by_first = {part.first: part for part in parts}
    first, *rest = (by_first[at] for at in sorted(by_first))
    total = asdict(first)
    for part in rest:
        for name in ("runs", "exacts", "valids", "innocents", "cost_sum", "cost_squares"):
            total[name] += getattr(part, name)
        total["seconds"] += part.seconds
    return Counts(**total)
