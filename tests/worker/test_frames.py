"""Frames survive any cutting of the stream, and nothing else passes for one."""

from __future__ import annotations

import json
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalguard.errors import WorkerError
from evalguard.worker import messages as frames
from evalguard.worker.messages import FrameParser, to_frame

TEXTS = st.text(st.characters())  # all code points, lone surrogates included
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=10,
)
MESSAGES = st.dictionaries(TEXTS, VALUES, max_size=4)


@given(st.lists(MESSAGES, max_size=4), st.integers(1, 50))
@settings(deadline=None)
def test_messages_come_out_as_they_went_in_however_the_stream_is_cut(
    messages: list[frames.RawMessage], step: int
) -> None:
    stream = b"".join(to_frame(message) for message in messages)
    parser = FrameParser()
    received = []
    for start in range(0, len(stream), step):
        received += parser.feed(stream[start : start + step])
    assert received == messages
    assert parser.remainder == ""


def test_a_pair_of_lone_surrogates_is_not_joined_into_one_character() -> None:
    message: frames.RawMessage = {"text": "\ud83d\ude00"}
    assert FrameParser().feed(to_frame(message)) == [message]


@pytest.mark.parametrize(
    "garbage", [b"Loading weights: 100%\n", b"E\n", b"\x00", b"EVGX1234567890"]
)
def test_garbage_is_an_error_that_shows_it(garbage: bytes) -> None:
    with pytest.raises(WorkerError, match="not a frame") as caught:
        FrameParser().feed(garbage)
    assert repr(garbage) in str(caught.value)


def test_garbage_after_a_good_frame_is_an_error() -> None:
    with pytest.raises(WorkerError, match="not a frame"):
        FrameParser().feed(to_frame({"a": 1}) + b"oops")


def test_another_protocol_version_is_named() -> None:
    frame = struct.pack(">4sHI", frames.MAGIC, 7, 2) + b"{}"
    with pytest.raises(WorkerError, match="speaks protocol 7, this evalguard speaks 1"):
        FrameParser().feed(frame)


def test_a_frame_that_announces_too_much_is_refused_before_its_payload_arrives() -> None:
    header = struct.pack(">4sHI", frames.MAGIC, frames.FRAME_VERSION, frames.MAX_PAYLOAD + 1)
    with pytest.raises(WorkerError, match=r"announced a frame of 268,435,457 bytes"):
        FrameParser().feed(header)


def test_a_message_that_is_too_large_is_never_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "MAX_PAYLOAD", 100)
    with pytest.raises(WorkerError, match="larger than the 100 bytes") as caught:
        to_frame({"text": "x" * 100})
    assert "fewer documents" in caught.value.hint


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        (b"{", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[1]", "not a JSON object"),
        (b"[" * 100_000, "not JSON"),
    ],
)
def test_a_frame_without_a_json_object_is_an_error(payload: bytes, problem: str) -> None:
    frame = struct.pack(">4sHI", frames.MAGIC, frames.FRAME_VERSION, len(payload)) + payload
    with pytest.raises(WorkerError, match=problem):
        FrameParser().feed(frame)


def test_an_unfinished_frame_is_told_from_a_finished_one() -> None:
    frame = to_frame({"a": 1})
    parser = FrameParser()
    parser.feed(frame[:3])
    assert parser.remainder == "3 of ? bytes"
    parser.feed(frame[3:12])
    assert parser.remainder == f"12 of {len(frame)} bytes"
    parser.feed(frame[12:])
    assert parser.remainder == ""


def test_the_format_is_what_the_docstring_says() -> None:
    payload = json.dumps({"a": "é"}, ensure_ascii=False, separators=(",", ":")).encode()
    assert to_frame({"a": "é"}) == b"EVGF\x00\x01\x00\x00\x00" + bytes([len(payload)]) + payload
