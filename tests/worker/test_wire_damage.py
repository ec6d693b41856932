"""Whatever arrives through the pipe, in either direction, is understood or is one kind of error."""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalguard.core.codec import PlainError
from evalguard.core.scorer import ModelDescription, Request, Response, ScoringPolicy
from evalguard.core.settings import BuildRecipe, Constraint, Setting, Target, Variant
from evalguard.errors import WorkerError
from evalguard.worker.messages import (
    CALLS,
    Answer,
    Beat,
    Call,
    Chat,
    Failure,
    FrameParser,
    Hello,
    Load,
    Refusal,
    frame_message,
    read_message,
    to_frame,
)

VARIANT = Variant(
    name="m",
    model="hf",
    model_args={"pretrained": "x", "n": [1, {"a": None}]},
    settings=(Setting(name="s", reference=1, candidate="b", target=Target.parse("config.s")),),
    constraints=(Constraint(when={"s": 1}, then={"s": "b"}),),
    assignment={"s": "b"},
    build=BuildRecipe(command=("x",), inputs={"a": 1}),
)
REQUEST = Request(task="t", doc_id=0, index=0, kind="loglikelihood", arguments=("a", "b"))
RESPONSE = Response(loglikelihood=-1.0, is_greedy=True, token_logprobs=np.array([-1.0]))
ARGUMENTS: dict[str, Any] = {
    "load": Load(
        variant=VARIANT,
        policy=ScoringPolicy(),
        cache_dir="/c",
        import_path=("/p",),
        reusable=True,
    ),
    "reassign": VARIANT,
    "encode": (REQUEST,),
    "score": (REQUEST,),
    "render_chat": Chat(messages=({"role": "user", "content": "c"},), add_generation_prompt=True),
    "close": None,
}
VALUES: dict[str, Any] = {
    "load": ModelDescription(model_type="hf", effective={"s": 1}, identity={"a": 1}),
    "reassign": ModelDescription(model_type="hf"),
    "encode": ((1, 2), ()),
    "score": (RESPONSE,),
    "render_chat": "text",
    "close": None,
}
ENCODED = [CALLS[name].argument.encode(value) for name, value in ARGUMENTS.items()]
ENCODED += [CALLS[name].value.encode(value) for name, value in VALUES.items()]
FAILURE = Failure(kind="UsageError", message="m", hint="h", where="", giving_up="", expected=True)
MESSAGES = [
    Hello(evalguard="1", python="3", protocol=2),
    Beat(answered=1),
    Call(number=1, name="score", argument=[]),
    Answer(number=1, value={"a": 1}),
    Refusal(number=1, failure=FAILURE),
]

DEEP = json.loads("[" * 900 + "]" * 900)
JUNK = st.one_of(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    st.sampled_from([10**300, float("nan"), "\ud800", "====", "AAAA", "A" * 12, DEEP, {"a": DEEP}]),
    st.recursive(st.none(), lambda x: st.lists(x, max_size=2) | st.dictionaries(st.text(), x)),
)


def places(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield above
    if isinstance(value, (dict, list)):
        inner = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in inner:
            yield from places(item, (*above, key))


def changed(data: st.DataObject, value: Any) -> Any:
    """Return a copy of ``value`` with junk at one place, or without what is there."""
    place = data.draw(st.sampled_from(list(places(value))))
    junk = data.draw(JUNK)
    if not place:
        return junk
    whole = copy.deepcopy(value)
    inner = whole
    for key in place[:-1]:
        inner = inner[key]
    if data.draw(st.booleans()) and isinstance(inner, dict):
        del inner[place[-1]]
    else:
        inner[place[-1]] = junk
    return whole


@settings(deadline=None, max_examples=200)
@given(st.data(), st.sampled_from(sorted(CALLS)), st.sampled_from(ENCODED))
def test_an_argument_or_value_with_junk_anywhere_is_read_or_refused(
    data: st.DataObject, name: str, encoded: Any
) -> None:
    damaged = changed(data, encoded)
    for codec in (CALLS[name].argument, CALLS[name].value):
        with contextlib.suppress(PlainError):
            codec.decode(damaged)


@settings(deadline=None, max_examples=200)
@given(st.data(), st.sampled_from(MESSAGES))
def test_a_message_with_junk_anywhere_is_read_or_refused(data: st.DataObject, sent: Any) -> None:
    (message,) = FrameParser().feed(frame_message(sent))
    damaged = changed(data, message)
    with contextlib.suppress(WorkerError):
        read_message(damaged if isinstance(damaged, dict) else {"kind": damaged})


@settings(deadline=None, max_examples=200)
@given(st.binary(), st.lists(st.integers(0, 60), max_size=4), st.integers(1, 7))
def test_bytes_from_nowhere_are_parsed_or_refused(
    noise: bytes, flips: list[int], size: int
) -> None:
    frame = bytearray(to_frame({"kind": "Beat", "content": {"answered": 3}}))
    for flip in flips:
        frame[flip % len(frame)] ^= 1 << (flip % 8)
    for stream in (noise, bytes(frame) + noise, b"EVGF\x00\x01\x00\x00\x00\x02" + noise):
        parser = FrameParser()
        with contextlib.suppress(WorkerError):
            for start in range(0, len(stream), size):
                for message in parser.feed(stream[start : start + size]):
                    read_message(message)


@pytest.mark.parametrize("kind", ["Answer", "Call", "Beat", "nothing"])
def test_what_is_nested_as_deep_as_json_allows_is_an_error_and_no_crash(kind: str) -> None:
    message = {
        "kind": kind,
        "content": {"number": 1, "value": DEEP, "name": DEEP, "answered": DEEP},
    }
    (parsed,) = FrameParser().feed(to_frame(message))
    with pytest.raises(WorkerError):
        read_message(parsed)
    for form in CALLS.values():
        for codec in (form.argument, form.value):
            with pytest.raises(PlainError):
                codec.decode(DEEP)
