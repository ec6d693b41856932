"""The domain's types on the wire: Variant, ScoringPolicy, Request, Response, ModelDescription."""

from __future__ import annotations

from typing import Any

from evalguard.execution.codec import (
    BOOLEAN,
    FLOAT,
    FLOATS,
    INTEGER,
    PLAIN,
    TEXT,
    Codec,
    WireError,
    mapping,
    optional,
    record,
    rooted,
    sequence,
)
from evalguard.scorer import ModelDescription, Request, Response, ScoringPolicy
from evalguard.settings import (
    TARGET_KINDS,
    BuildRecipe,
    Constraint,
    Setting,
    Target,
    Value,
    Variant,
)


def one_of(*choices: Value) -> Codec[Any]:
    """Return the codec of a literal type."""

    def check(value: Any) -> Any:
        if any(value is choice or value == choice for choice in choices):
            return value
        raise WireError(f"expected one of {list(choices)}, found {value!r}")

    return Codec(check, check)


_VALUES = mapping(PLAIN)

_TARGET = record(Target, kind=one_of(*TARGET_KINDS), path=TEXT, attribute=TEXT)
_SETTING = record(
    Setting,
    name=TEXT,
    reference=PLAIN,
    candidate=PLAIN,
    target=_TARGET,
    alternatives=sequence(PLAIN),
)
_CONSTRAINT = record(Constraint, when=_VALUES, then=_VALUES)
_BUILD = record(
    BuildRecipe,
    command=sequence(TEXT),
    call=TEXT,
    output=TEXT,
    inputs=_VALUES,
    folder=TEXT,
)

VARIANT: Codec[Variant] = rooted(
    "variant",
    record(
        Variant,
        name=TEXT,
        model=TEXT,
        model_args=_VALUES,
        settings=sequence(_SETTING),
        constraints=sequence(_CONSTRAINT),
        assignment=_VALUES,
        build=optional(_BUILD),
        trust_remote_code=BOOLEAN,
        allow_pickle=BOOLEAN,
        allow_code=BOOLEAN,
        code_folder=TEXT,
    ),
)

POLICY: Codec[ScoringPolicy] = rooted(
    "policy",
    record(
        ScoringPolicy,
        batch_size=optional(INTEGER),
        token_budget=INTEGER,
        scorer=one_of("fast", "full logits", "harness"),
        share_prefixes=BOOLEAN,
        device=TEXT,
        rolling_bos=one_of("lm-eval", "once"),
        seed=INTEGER,
        threads=INTEGER,
        max_gen_toks=optional(INTEGER),
        softmax_dtype=one_of("float32", "model"),
    ),
)

REQUESTS: Codec[tuple[Request, ...]] = rooted(
    "requests",
    sequence(
        record(
            Request,
            task=TEXT,
            doc_id=INTEGER,
            index=INTEGER,
            kind=one_of("loglikelihood", "loglikelihood_rolling", "generate_until"),
            arguments=sequence(PLAIN),
        )
    ),
)

RESPONSES: Codec[tuple[Response, ...]] = rooted(
    "responses",
    sequence(
        record(
            Response,
            loglikelihood=optional(FLOAT),
            is_greedy=optional(BOOLEAN),
            text=optional(TEXT),
            token_logprobs=optional(FLOATS),
            token_hash=TEXT,
            n_tokens=INTEGER,
            truncated=BOOLEAN,
        )
    ),
)

DESCRIPTION: Codec[ModelDescription] = rooted(
    "description",
    record(
        ModelDescription,
        model_type=TEXT,
        effective=_VALUES,
        identity=optional(_VALUES),
        vocabulary_digest=TEXT,
        vocabulary_size=INTEGER,
        max_length=INTEGER,
        dtype=TEXT,
        device=TEXT,
        parameters=INTEGER,
        gives_rows=BOOLEAN,
        environment=_VALUES,
        computation=_VALUES,
        caveats=sequence(TEXT),
    ),
)

TOKEN_IDS: Codec[tuple[tuple[int, ...], ...]] = rooted("token ids", sequence(sequence(INTEGER)))
