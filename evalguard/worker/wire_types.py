"""The domain's types on the wire: Variant, ScoringPolicy, Request, Response, ModelDescription."""

from __future__ import annotations

from evalguard.core.divergence import Divergence
from evalguard.core.plain import Codec, codec_of
from evalguard.core.reference import Reference
from evalguard.core.scorer import (
    ModelDescription,
    Request,
    Response,
)
from evalguard.core.settings import (
    Variant,
)

VARIANT: Codec[Variant] = codec_of(Variant, "variant")
REQUESTS: Codec[tuple[Request, ...]] = codec_of(tuple[Request, ...], "requests")
RESPONSES: Codec[tuple[Response, ...]] = codec_of(tuple[Response, ...], "responses")
DESCRIPTION: Codec[ModelDescription] = codec_of(ModelDescription, "description")
TOKEN_IDS: Codec[tuple[tuple[int, ...], ...]] = codec_of(tuple[tuple[int, ...], ...], "token ids")
REFERENCE: Codec[Reference] = codec_of(Reference, "reference")
DIVERGENCE: Codec[Divergence] = codec_of(Divergence, "divergence")
