"""The domain's types come back from the wire bit for bit; anything else is refused by name."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar, get_origin

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from typing_extensions import TypeAliasType

from evalguard import errors
from evalguard.core.codec import Codec, PlainError, codec_of
from evalguard.core.scorer import ModelDescription, Request, Response, ScoringPolicy
from evalguard.core.settings import BuildRecipe, Constraint, Setting, Target, Value, Variant
from evalguard.core.shown_tokens import GeneratedTokens
from evalguard.errors import EvalguardError, EvaluationError, GuardFileError, SettingError
from evalguard.worker.messages import (
    DESCRIPTION,
    REQUESTS,
    RESPONSES,
    TOKEN_IDS,
    VARIANT,
    Answer,
    Beat,
    Call,
    FrameParser,
    frame_message,
    read_message,
    to_exception,
    to_failure,
    to_frame,
)

TEXTS = st.text(st.characters(), max_size=20)
NUMBERS = st.integers(-(2**70), 2**70)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
MAPPINGS = st.dictionaries(TEXTS, VALUES, max_size=3)
TARGETS = st.sampled_from(
    ["model_args.a", "config.b.c", "attr:x.*.y", "dtype:n.*", "env.E", "build.b", "call:m:f"]
).map(Target.parse)
SETTINGS = st.builds(Setting, name=TEXTS, reference=VALUES, candidate=VALUES, target=TARGETS)
VARIANTS = st.builds(
    Variant,
    name=TEXTS,
    model=TEXTS,
    model_args=MAPPINGS,
    settings=st.lists(SETTINGS, max_size=3).map(tuple),
    constraints=st.lists(st.builds(Constraint, when=MAPPINGS, then=MAPPINGS), max_size=2).map(
        tuple
    ),
    assignment=MAPPINGS,
    build=st.none()
    | st.builds(BuildRecipe, command=st.lists(TEXTS, max_size=3).map(tuple), inputs=MAPPINGS),
    trust_remote_code=st.booleans(),
    allow_pickle=st.booleans(),
    allow_code=st.booleans(),
    code_folder=TEXTS,
)
# Every bit pattern, so every NaN, both zeros, both infinities and the subnormals.
DOUBLES = st.integers(0, 2**64 - 1).map(
    lambda bits: struct.unpack("<d", struct.pack("<Q", bits))[0]
)
RESPONSE = st.builds(
    Response,
    loglikelihood=st.none() | DOUBLES | st.floats(),
    is_greedy=st.none() | st.booleans(),
    text=st.none() | TEXTS,
    token_logprobs=st.none()
    | st.lists(DOUBLES | st.floats(), max_size=5).map(lambda x: np.array(x, dtype=np.float64)),
    top_logprobs=st.none()
    | st.lists(st.dictionaries(TEXTS, st.floats(allow_nan=False), max_size=3), max_size=3).map(
        tuple
    ),
    token_hash=TEXTS,
    n_tokens=st.integers(0, 10**6),
    truncated=st.booleans(),
    message=TEXTS,
    generated=st.none()
    | st.lists(st.integers(-1, 2**31 - 1), max_size=4).map(
        lambda ids: GeneratedTokens.of(ids, [0.5] * len(ids), ids)
    ),
)

POLICY = codec_of(ScoringPolicy, "policy")


def travel(codec: Codec[Any], value: Any) -> Any:
    """Encode, send through a frame, decode."""
    [message] = FrameParser().feed(to_frame({"value": codec.encode(value)}))
    return codec.decode(message["value"])


def bits(number: float | None) -> bytes | None:
    return None if number is None else struct.pack("<d", number)


@given(VARIANTS)
@settings(max_examples=60, deadline=None)
def test_a_variant_comes_back_equal_and_with_its_digest(variant: Variant) -> None:
    back = travel(VARIANT, variant)
    assert back == variant
    assert back.digest == variant.digest
    assert list(back.assignment) == list(variant.assignment)


@given(st.lists(RESPONSE, max_size=4))
@settings(max_examples=100, deadline=None)
def test_responses_come_back_bit_for_bit(responses: list[Response]) -> None:
    back = travel(RESPONSES, responses)
    assert len(back) == len(responses)
    for got, sent in zip(back, responses, strict=True):
        assert bits(got.loglikelihood) == bits(sent.loglikelihood)
        assert replace(got, loglikelihood=None, token_logprobs=None) == replace(
            sent, loglikelihood=None, token_logprobs=None
        )
        if sent.token_logprobs is None:
            assert got.token_logprobs is None
        else:
            assert got.token_logprobs.dtype == np.float64
            assert got.token_logprobs.tobytes() == sent.token_logprobs.tobytes()
            assert got.token_logprobs.flags.writeable


@pytest.mark.parametrize("value", [math.nan, -math.nan, math.inf, -math.inf, -0.0, 5e-324, -1e308])
def test_awkward_floats_survive(value: float) -> None:
    [back] = travel(RESPONSES, [Response(loglikelihood=value)])
    assert bits(back.loglikelihood) == bits(value)


@given(st.lists(st.builds(
    Request,
    task=TEXTS,
    doc_id=st.integers(0, 10**9),
    index=st.integers(0, 10**4),
    kind=st.sampled_from(["loglikelihood", "loglikelihood_rolling", "generate_until"]),
    arguments=st.lists(VALUES, max_size=3).map(tuple),
), max_size=4))  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_requests_come_back_equal(requests: list[Request]) -> None:
    assert travel(REQUESTS, requests) == tuple(requests)


@given(MAPPINGS, st.none() | MAPPINGS, st.lists(TEXTS, max_size=3))
@settings(max_examples=40, deadline=None)
def test_descriptions_come_back_equal(
    effective: Mapping[str, Any], identity: Mapping[str, Any] | None, caveats: list[str]
) -> None:
    description = ModelDescription(
        model_type="hf", effective=effective, identity=identity, caveats=tuple(caveats)
    )
    assert travel(DESCRIPTION, description) == description


@pytest.mark.parametrize(
    "policy",
    [
        ScoringPolicy(),
        ScoringPolicy(token_budget=512, rolling_bos="lm-eval", max_gen_toks=7),
        ScoringPolicy(softmax_dtype="model"),
    ],
)
def test_policies_come_back_equal(policy: ScoringPolicy) -> None:
    assert travel(POLICY, policy) == policy


def test_token_ids_come_back_as_tuples_of_integers() -> None:
    assert travel(TOKEN_IDS, [(1, 2**40), ()]) == ((1, 2**40), ())


def test_numpy_scalars_travel_as_what_they_hold() -> None:
    [back] = travel(RESPONSES, [Response(is_greedy=np.bool_(True), n_tokens=np.int64(3))])  # type: ignore[arg-type]
    assert back.is_greedy is True
    assert back.n_tokens == 3


@pytest.mark.parametrize(
    ("response", "problem"),
    [
        (Response(n_tokens="3"), r"responses\[1\].n_tokens: expected int, found str '3'"),  # type: ignore[arg-type]
        (Response(n_tokens=True), r"responses\[1\].n_tokens: expected int, found bool"),
        (Response(loglikelihood="x"), r"responses\[1\].loglikelihood: expected a float"),  # type: ignore[arg-type]
        (
            Response(token_logprobs=np.zeros(2, dtype=np.float32)),
            r"responses\[1\].token_logprobs: expected an array of float64 with 1 dimensions",
        ),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_where_it_is(response: Response, problem: str) -> None:
    with pytest.raises(PlainError, match=problem):
        RESPONSES.encode((Response(), response))


def test_a_value_that_json_cannot_say_is_refused_where_it_is() -> None:
    variant = Variant(name="v", model="hf", model_args={"a": [1, {"b": object()}]})  # type: ignore[dict-item]
    with pytest.raises(PlainError, match=r"variant.model_args\['a'\]\[1\]\['b'\]: expected a JSON"):
        VARIANT.encode(variant)
    odd: Any = {"a": {1: 2}}
    with pytest.raises(PlainError, match="expected a string as key, found int 1"):
        VARIANT.encode(replace(variant, model_args=odd))


def test_unknown_and_missing_fields_are_named() -> None:
    encoded: Any = POLICY.encode(ScoringPolicy())
    with pytest.raises(PlainError, match="policy: ScoringPolicy has no field 'sede'; did you mean"):
        POLICY.decode({**encoded, "sede": 1})
    encoded.pop("seed")
    with pytest.raises(PlainError, match="ScoringPolicy lacks its field 'seed'"):
        POLICY.decode(encoded)


@pytest.mark.parametrize("text", ["!", "AAAA", "é", 3])
def test_damaged_floats_are_refused(text: object) -> None:
    encoded: Any = RESPONSES.encode((Response(),))
    encoded[0]["token_logprobs"] = text
    with pytest.raises(PlainError, match=r"responses\[0\].token_logprobs"):
        RESPONSES.decode(encoded)


def test_an_unknown_literal_is_refused() -> None:
    encoded: Any = POLICY.encode(ScoringPolicy())
    with pytest.raises(PlainError, match="rolling_bos: expected one of"):
        POLICY.decode({**encoded, "rolling_bos": "twice"})


@dataclass(frozen=True)
class Grown:
    old: str
    new: tuple[float, ...]


def test_a_field_added_to_a_type_travels() -> None:
    assert travel(codec_of(Grown), Grown("a", (0.1, math.inf))) == Grown("a", (0.1, math.inf))
    with pytest.raises(TypeError, match="no codec for <class 'complex'>"):
        codec_of(complex)


@dataclass(frozen=True)
class Asking:
    name: str
    value: Value


@pytest.mark.parametrize(
    "value",
    ["os.system", {"__class__": "Grown", "py/object": "os.system"}, {"__reduce__": ["os.system"]}],
)
def test_what_a_message_names_is_never_looked_up(value: Any) -> None:
    sent = Asking(name="builtins.exit", value=value)
    assert travel(codec_of(Asking), sent) == sent
    with pytest.raises(PlainError, match="has no field '__class__'"):
        codec_of(Asking).decode({"name": "", "value": None, "__class__": "os.system"})


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint8", "int32", "int64", "uint64", "float16", "float32", "float64"]
)
@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_arrays_of_any_type_come_back_bit_for_bit(dtype: str, data: st.DataObject) -> None:
    kind = np.dtype(dtype)
    raw = data.draw(st.lists(st.binary(min_size=kind.itemsize, max_size=kind.itemsize)))
    sent = np.frombuffer(b"".join(raw), dtype=kind) if dtype != "bool" else np.zeros(len(raw), bool)
    for codec in (codec_of(NDArray[kind.type]), codec_of(NDArray[np.generic])):
        back = travel(codec, sent)
        assert (back.dtype, back.shape, back.tobytes()) == (kind, sent.shape, sent.tobytes())


def test_objects_are_no_arrays() -> None:
    with pytest.raises(PlainError, match="expected an array of numbers, found one of object"):
        codec_of(NDArray[np.generic]).encode(np.array([object()], dtype=object))


@pytest.mark.parametrize(
    "message",
    [
        {"kind": "Pickle", "content": {}},
        {"kind": ["Call"], "content": {}},
        {"kind": "Beat"},
        {"kind": "Beat", "content": {"answered": 1}, "more": 1},
        {"kind": "Beat", "content": {"answered": "1"}},
        {"kind": "Beat", "content": []},
    ],
)
def test_messages_that_are_not_exactly_right_are_errors(message: Any) -> None:
    with pytest.raises(errors.WorkerError, match=r"^sent a (message of no known|damaged message)"):
        read_message(message)


@pytest.mark.parametrize(
    "content",
    [Beat(answered=3), Call(number=1, name="close", argument=None), Answer(number=1, value=[1])],
)
def test_messages_come_back_equal(content: Any) -> None:
    [message] = FrameParser().feed(frame_message(content))
    assert read_message(message) == content


@pytest.mark.parametrize(
    "kind",
    [
        errors.EvalguardError,
        errors.UsageError,
        errors.EvaluationError,
        errors.SettingError,
        errors.BuildError,
        errors.WorkerError,
        errors.MisalignedRunsError,
        errors.StoreError,
    ],
)
def test_evalguards_own_errors_keep_class_message_hint_setting_and_exit_code(
    kind: type[EvalguardError],
) -> None:
    sent = kind("what", hint="do")
    sent.setting, sent.target = "first", "config.alpha"
    got = to_exception(to_failure(sent), model="m", log="log")
    assert type(got) is kind
    assert (str(got), got.hint, got.exit_code) == ("what", "do", sent.exit_code)
    assert (got.setting, got.target) == ("first", "config.alpha")


def test_a_guard_file_error_keeps_its_place_and_says_it_once() -> None:
    got = to_exception(
        to_failure(GuardFileError("bad", where="f.yaml:3", hint="h")), model="m", log="log"
    )
    assert isinstance(got, GuardFileError)
    assert (str(got), got.where, got.exit_code) == ("f.yaml:3: bad", "f.yaml:3", 2)


def test_a_subclass_that_the_parent_does_not_know_becomes_its_nearest_known_class() -> None:
    class ShapeError(SettingError):
        pass

    got = to_exception(to_failure(ShapeError("s", hint="h")), model="m", log="log")
    assert type(got) is SettingError


def test_any_other_exception_is_an_evaluation_error_that_names_it_and_the_log() -> None:
    got = to_exception(to_failure(ZeroDivisionError("division by zero")), model="m", log="w.log")
    assert type(got) is EvaluationError
    assert str(got) == "model 'm': ZeroDivisionError: division by zero"
    assert "w.log" in got.hint


def test_what_has_to_be_given_up_comes_through_whole() -> None:
    sent = errors.FallbackError("scores differ", giving_up="share_prefixes", hint="h")
    got = to_exception(to_failure(sent), model="m", log="log")
    assert isinstance(got, errors.FallbackError)
    assert (str(got), got.giving_up, got.hint) == ("scores differ", "share_prefixes", "h")


@pytest.mark.parametrize("dtype", ["O", "V8", "U4", "i4,f8", "no type", 3, "<M8[s]"])
def test_an_array_of_anything_but_numbers_is_refused(dtype: Any) -> None:
    with pytest.raises(PlainError):
        codec_of(NDArray[np.generic]).decode({"dtype": dtype, "shape": [1], "data": "AAAAAAAAAAA="})


def test_arrays_are_known_under_an_alias_as_numpy_declares_them_since_2_5() -> None:
    element = TypeVar("element", bound=np.generic)
    alias = TypeAliasType(
        "alias", np.ndarray[tuple[Any, ...], np.dtype[element]], type_params=(element,)
    )
    value = np.array([1.0, math.nan])
    for kind in (alias[np.float64], alias[np.float64] | None, tuple[alias[np.float64], ...]):
        codec: Codec[Any] = codec_of(kind)
        given: Any = (value,) if get_origin(kind) is tuple else value
        np.testing.assert_array_equal(codec.decode(codec.encode(given)), given)
