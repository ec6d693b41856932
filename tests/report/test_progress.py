"""Progress tells what is running, and promises no time that it has not measured."""

from __future__ import annotations

import io
import threading

import pytest

from evalguard.page.progress import ProgressLine, ScoringPace, clock_time


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_no_time_is_promised_before_the_first_block() -> None:
    clock = Clock()
    pace = ScoringPace(100, clock)
    clock.now += 5
    assert pace.remaining() is None


def test_the_time_left_follows_from_the_finished_blocks_and_runs_down() -> None:
    clock = Clock()
    pace = ScoringPace(100, clock)
    clock.now += 5
    pace.advance(25, cached=False)
    assert pace.remaining() == pytest.approx(15)
    clock.now += 4
    assert pace.remaining() == pytest.approx(11)
    clock.now += 40
    assert pace.remaining() == 0


def test_blocks_from_the_cache_promise_nothing() -> None:
    clock = Clock()
    pace = ScoringPace(100, clock)
    clock.now += 0.01
    pace.advance(50, cached=True)
    assert pace.remaining() is None
    clock.now += 10
    pace.advance(10, cached=False)
    assert pace.remaining() == pytest.approx(40)


def test_a_finished_task_has_no_time_left() -> None:
    clock = Clock()
    pace = ScoringPace(10, clock)
    clock.now += 1
    pace.advance(10, cached=False)
    assert pace.remaining() is None


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (11.2, "0:12"), (185, "3:05"), (3760, "1:02:40")]
)
def test_durations_read_like_a_clock(seconds: float, text: str) -> None:
    assert clock_time(seconds) == text


def test_a_log_gets_a_plain_line_at_most_every_ten_seconds() -> None:
    clock, stream = Clock(), io.StringIO()
    with ProgressLine(stream=stream, clock=clock) as progress:
        progress.start("fla-port", "lastword", 2048)
        for _ in range(8):
            clock.now += 4
            progress.advance(128)
    assert stream.getvalue() == (
        "fla-port · lastword · 384/2,048 documents · 0:52 left\n"
        "fla-port · lastword · 768/2,048 documents · 0:40 left\n"
    )


def test_names_in_a_line_cannot_act_on_a_terminal() -> None:
    clock, stream = Clock(), io.StringIO()
    progress = ProgressLine(stream=stream, clock=clock)
    progress.start("\x1b[2J" + "x" * 80, "task\n", 2)
    clock.now += 60
    progress.advance(1)
    progress.note("\x1b[31mnote")
    text = stream.getvalue()
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) < 90


def test_quiet_is_silent() -> None:
    clock, stream = Clock(), io.StringIO()
    with ProgressLine(stream=stream, clock=clock, quiet=True, live=True) as progress:
        progress.start("a", "b", 10)
        clock.now += 60
        progress.advance(5)
        progress.note("a note")
    assert stream.getvalue() == ""


def test_a_live_line_is_taken_away_and_notes_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    clock, stream = Clock(), io.StringIO()
    with ProgressLine(stream=stream, clock=clock, live=True) as progress:
        for task in ("lastword", "rolling"):
            progress.start("fla-port", task, 2048)
            clock.now += 4
            progress.advance(512)
            progress.note("[bold] is no markup")
        progress.stop()
        progress.stop()
    text = stream.getvalue()
    assert "fla-port · rolling" in text
    assert "[bold] is no markup" in text
    assert "512/2,048 documents · 0:12 left" in text
    assert text.rstrip().endswith(("\x1b[2K", "\x1b[?25h"))


def test_an_interrupt_takes_the_live_line_away() -> None:
    before = set(threading.enumerate())
    progress = ProgressLine(stream=io.StringIO(), live=True)

    def interrupted() -> None:
        with progress:
            progress.start("a", "b", 3)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    for thread in set(threading.enumerate()) - before:
        thread.join(timeout=60)
        assert not thread.is_alive()


def test_a_stream_that_cannot_be_written_silences_the_display_and_nothing_else() -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(28, "No space left on device")

    with ProgressLine(stream=Full(), live=False) as progress:
        progress.note("loading")
        progress.start("m", "t", 2)
        progress.advance(1)
    assert progress.line().startswith("m · t · 1/2")
