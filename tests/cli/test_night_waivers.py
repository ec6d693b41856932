"""Which waivers count is decided once, by the day on which a night began."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

import pytest
from pairs_here import PairsHere
from small_world import Ran, SmallWorld

from evalguard.config.options import CompareOptions
from evalguard.errors import UsageError

Run = Callable[..., Ran]


class Midnight:
    """A clock whose day ends as the first pair is compared, and again before the night goes on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.day = 1
        for module in ("nights.night", "engine.pair_waivers"):
            monkeypatch.setattr(f"evalguard.{module}.datetime", self)

    def now(self, zone: timezone) -> datetime:
        return datetime(2026, 3, self.day, 23, 59, tzinfo=zone)

    def passes(self, _: str = "") -> None:
        self.day += 1


@pytest.mark.parametrize(("until", "code"), [("2026-03-01", 0), ("2026-02-28", 1)])
def test_a_waiver_that_ends_at_midnight_holds_for_the_whole_night_or_for_none_of_it(
    run: Run,
    world: SmallWorld,
    pairs_here: type[PairsHere],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    until: str,
    code: int,
) -> None:
    clock = Midnight(monkeypatch)
    pairs_here.before = staticmethod(clock.passes)
    waiver = f"{{task: sw_word, metric: perplexity, up_to: 1000, until: {until}, reason: known}}"
    pairs = (f"{{base: orig, cand: {one}, accept: [{waiver}]}}" for one in ("sharp", "soft"))
    guard = tmp_path / "night.yaml"
    text = world.guard.read_text()
    guard.write_text(text.replace("[{base: orig, cand: sharp}]", f"[{', '.join(pairs)}]"))
    found = run("nightly", "--config", guard, "-q", "--json")
    assert (found.code, clock.day) == (code, 3)
    said = [any("EXPIRED" in one for one in pair["waivers"]) for pair in found.document["pairs"]]
    assert said == [bool(code)] * 2


@pytest.mark.parametrize("day", ["20260301", "2026-3-1", "2026-02-30", "today", 20260301])
def test_a_day_is_written_as_in_the_guard_file(day: object) -> None:
    with pytest.raises(UsageError, match=r"option today: .* is not a day, YYYY-MM-DD"):
        CompareOptions(today=day)  # type: ignore[arg-type]
