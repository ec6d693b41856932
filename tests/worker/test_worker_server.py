"""The real worker program answers only well-formed calls, in an order that makes sense."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import evalguard
from evalguard.worker.messages import Beat, Call, CallName, Hello, Refusal, frame_message
from evalguard.worker.pipe import Channel, PipeClosed
from evalguard.worker.process import WorkerProcess, worker_command


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[WorkerProcess]:
    """The program itself; it imports no torch before it loads a model."""
    process = WorkerProcess(
        worker_command(sys.executable),
        env={"PYTHONPATH": str(Path(evalguard.__file__).parent.parent)},
        log=tmp_path / "worker.log",
    )
    yield process
    process.kill()


@pytest.fixture
def channel(worker: WorkerProcess) -> Channel:
    channel = Channel(worker.requests_fd, worker.replies_fd, is_running=worker.is_running)
    hello = channel.exchange(b"", silence=60, timeout=60)
    assert isinstance(hello, Hello)
    assert hello.evalguard == evalguard.__version__
    return channel


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("score", "asked for 'score' before 'load'"),
        ("format_disk", "asked for 'format_disk', which this worker cannot do"),
        ("load", "expected Load as an object, found list []"),
    ],
)
def test_a_call_that_cannot_be_is_refused_and_the_worker_goes_on(
    channel: Channel, name: CallName, problem: str
) -> None:
    for number in (1, 2):
        call = Call(number=number, name=name, argument=[])
        reply = channel.exchange(frame_message(call), silence=60, timeout=60)
        assert isinstance(reply, Refusal)
        assert reply.number == number
        assert reply.failure.message == problem


@pytest.mark.parametrize(
    ("garbage", "problem"),
    [
        (b"GET / HTTP/1.1\r\n", "sent what is not a frame: b'GET / HTTP/1.1"),
        (frame_message(Beat(answered=1)), "sent Beat where a call is expected"),
    ],
)
def test_garbage_from_the_parent_ends_the_worker_with_a_reason(
    worker: WorkerProcess, channel: Channel, garbage: bytes, problem: str
) -> None:
    os.write(worker.requests_fd, garbage)
    with pytest.raises(PipeClosed):
        channel.exchange(b"", silence=60, timeout=60)
    assert worker.fate(wait=60) == "exited with code 1"
    assert problem in worker.log_tail()


def test_a_worker_that_is_told_to_close_ends_by_itself(
    worker: WorkerProcess, channel: Channel
) -> None:
    channel.exchange(
        frame_message(Call(number=1, name="close", argument=None)), silence=60, timeout=60
    )
    assert worker.fate(wait=60) == "exited with code 0"
    assert worker.log_tail() == ""
