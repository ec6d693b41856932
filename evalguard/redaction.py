"""Redaction: keys, tokens and passwords are used, and never shown, recorded or made a digest of."""

from __future__ import annotations

import re
from collections.abc import Mapping

from evalguard.settings import Value

REDACTED = "***"

# add_bos_token, prefix_token_id or tokenizer hold no secret: "token" alone is one, or after these.
_NAME = (
    r"(?:(?:[\w.-]*[_.-])?(?:(?:access|api|auth|bearer|hf|hub|id|private|refresh|secret|session)"
    r"[_-]?(?:token|key)(?:[_-]id)?|(?:client)?secret|password|passwd|passphrase|credentials?"
    r"|authorization|cookie)"
    r"|(?-i:[A-Z][A-Z0-9_]*_(?:TOKEN|KEY|PASS))|token)"
)
_SECRET_NAME = re.compile(rf"(?i:{_NAME}s?)")
_PAIR = re.compile(
    rf"(?<![\w.-])(?P<name>(?i:{_NAME}s?))(?P<equals>[\"']?\s*[=:]\s*)"
    # Authorization: Bearer ...: the word is no secret, what follows it is.
    r"(?P<value>(?:(?i:Basic|Bearer|Digest|Token)\s+)?(?:\"[^\"]*\"|'[^']*'|[^\s,\"'}\]]+))"
)
_TOKEN = re.compile(
    r"\bhf_[A-Za-z0-9]{16,}|\bsk-[A-Za-z0-9_-]{16,}|\bgh[opsur]_[A-Za-z0-9]{20,}"
    r"|\bgithub_pat_\w{20,}|\bglpat-[\w.-]{16,}|\bAKIA[0-9A-Z]{16}\b|\bxox[abpr]-[\w-]{10,}"
    r"|\bAIza[\w-]{35,}|\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"
    r"|(?<=[Bb]earer )[\w.~+/=-]{8,}"
    # A password may hold an @, and stand there without a user; signed addresses are as good as one.
    r"|(?<=://)[^/\s:@]*:[^/\s]+(?=@)"
    r"|(?<=[?&])(?i:sig|(?:x-(?:amz|goog)-)?signature)=[^\s&\"'<>]+"
)


def is_secret(name: str) -> bool:
    """Whether what stands under this name is a secret: ``token``, ``api_key``, ``HF_TOKEN``."""
    return _SECRET_NAME.fullmatch(name) is not None


def redacted(value: Value, name: str = "") -> Value:
    """Return ``value`` with every secret in it replaced by ``***``.

    Args:
        value: plain data; mappings are looked through by name, texts for what looks like a token.
        name: what the value stands under, the last part of a dotted name.
    """
    if isinstance(value, Mapping):
        return {key: redacted(inner, key) for key, inner in value.items()}
    if is_secret(name) and value is not None and not isinstance(value, bool):
        return REDACTED
    if isinstance(value, list):
        return [redacted(inner) for inner in value]
    return redacted_text(value) if isinstance(value, str) else value


def redacted_text(text: str) -> str:
    """Return text (a command line, a message) with ``NAME=secret`` and known tokens replaced."""
    return _TOKEN.sub(REDACTED, _PAIR.sub(rf"\g<name>\g<equals>{REDACTED}", text))
