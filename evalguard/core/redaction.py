"""Redaction: keys, tokens and passwords are used, and never shown, recorded or made a digest of.

Prefixes are those that the services document (Hugging Face, GitHub, GitLab, AWS, Slack, npm,
...). A hash is not a secret: what is only long and random stays.
"""

from __future__ import annotations

import errno
import re
import shlex
import traceback
from collections.abc import Iterator, Mapping, Sequence

from evalguard.core.settings import Setting, Value

HF_HINT = "HF_HOME=FOLDER names another place for what the Hugging Face libraries keep"
_REFUSED = {
    errno.EACCES: "no write permission",
    errno.EPERM: "no write permission",
    errno.EROFS: "the file system is read-only",
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk is full",
}
# A home folder that does not exist. Elsewhere these say that a file is missing.
_NO_HOME = (errno.ENOENT, errno.ENOTDIR)


def unwritable(error: BaseException, environment: Mapping[str, str]) -> str | None:
    """Return what could not be written in Hugging Face's folder, and why; None for anything else.

    Args:
        error: its causes are looked at, too.
        environment: variables of the process.
    """
    for cause in _causes(error):
        if not isinstance(cause, OSError) or not isinstance(cause.filename, str):
            continue
        if not any(_lies_in(cause.filename, home) for home in _homes(environment)):
            continue
        if cause.errno in _REFUSED or cause.errno in _NO_HOME:
            why = _REFUSED.get(cause.errno) or cause.strerror or str(cause)
            return f"{cause.filename} cannot be written: {why}"
    return None


def _lies_in(path: str, folder: str) -> bool:
    ending = folder.rstrip("/\\")
    return path == ending or path.startswith((f"{ending}/", f"{ending}\\"))


def _homes(variables: Mapping[str, str]) -> list[str]:
    """Where the libraries keep things, as they look it up."""
    cache = variables.get("XDG_CACHE_HOME") or f"{variables.get('HOME', '')}/.cache"
    named = [variables.get(name) for name in ("HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE")]
    return [f"{cache}/huggingface", *(name for name in named if name)]


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__


_TOKENS = (
    # "hf_" is the beginning of innocent names, too: a token has digits or capitals, or is long.
    r"hf_(?:(?=[A-Za-z]*[0-9]|[a-z]*[A-Z])[A-Za-z0-9]{16,}|[a-z]{30,})",
    r"api_org_[A-Za-z0-9]{20,}",
    r"gh[opsur]_[A-Za-z0-9]{20,}",
    r"github_pat_\w{20,}",
    r"gl(?:pat|oas|dt|rt|cbt|ptt|ft|soat|imt|agent|ffct)-[\w.-]{16,}",
    r"(?:AKIA|ASIA)[0-9A-Z]{16}(?![0-9A-Za-z])",
    r"xox[a-z]-[\w-]{10,}",
    r"xapp-[\w-]{16,}",
    r"npm_[A-Za-z0-9]{30,}",
    r"pypi-[\w-]{50,}",
    r"AIza[\w-]{35,}",
    r"ya29\.[\w-]{20,}",
    r"SG\.[\w-]{16,}\.[\w-]{16,}",
    r"nvapi-[\w-]{30,}",
    r"(?:gsk|r8)_[A-Za-z0-9]{30,}",
    r"wandb_v1_\w{20,}",
    r"[sr]k_(?:live|test)_[A-Za-z0-9]{16,}",
    # "sk-" as well: a key ends in a long run with digits, a name in words.
    r"sk-(?:[a-z0-9]{1,12}-){0,3}(?=[A-Za-z_]*[0-9])[A-Za-z0-9_]{16,}[\w-]*",
    # A JSON Web Token: what begins with eyJ is base64 of '{"'.
    r"eyJ[\w-]{8,}(?:\.[\w-]*){2,}",
)
_PEM = (
    r"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----"
    r"(?s:.*?-----END (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----|.*)"  # a cut one: to the end
)
# A password may hold an @ or a /, and stand there without a user; a long user alone is a token.
_USERINFO = r"(?<=://)(?:[^/\s:@]*:(?:[^/\s]+|(?![0-9]+[/?#])[^\s@]{1,100})|[^/\s:@]{20,})(?=@)"
_SIGNED = (
    r"(?<=[?&;])(?i:sig|(?:x-(?:amz|goog)-)?signature|x-(?:amz|goog)-security-token)"
    r"=[^\s&\"'<>]+"
)
_BEARER = r"(?<=[Bb]earer )(?=[A-Za-z_.~+/=-]*[0-9]|\S{24})[\w.~+/=-]{8,}"
# Each begins where a word does: a megabyte of beginnings is read once, not once for each of them.
SHAPES = re.compile(rf"(?<![\w-])(?:{'|'.join(_TOKENS)})|{_PEM}|{_USERINFO}|{_SIGNED}|{_BEARER}")
"""Finds what is a secret by its shape."""
REDACTED = "***"
_PASSES = 5  # at most: a shell joins 'abc'def to one word, which is *** after two
# add_bos_token, prefix_token_id, tokens or tokenizer hold no secret: "token" alone is one, or
# after these.
_OF = (
    "access|account|admin|api|auth|bearer|client|deploy|encryption|github|gitlab|hf|hub"
    "|huggingface|id|jwt|master|npm|oauth|openai|private|pypi|refresh|sas|secret|security|service"
    "|session|shared|signing|ssh|wandb"
)
_NAME = (
    rf"(?:(?:[\w.-]*[_.-])?(?:(?:{_OF})[_-]?(?:access[_-]?)?(?:token|key|pat)(?:[_-]id)?s?"
    r"|credentials?|authorization|cookies?|(?:basic|http|proxy)[_-]?auth|(?-i:pwd|Pwd))"
    r"|[\w.-]*(?:passwords?|passwd|passphrase|secrets?)|auth"
    r"|(?-i:[A-Z][A-Z0-9_]*_(?:TOKEN|KEY|PASS|PWD|PAT)S?)|(?:--?|[\w.-]*\.)?token)"
)
# Quotes may be escaped themselves: JSON in a string of JSON.
_QUOTED = (
    r"\"(?:\\.|[^\"\\])*\"?|'(?:\\.|[^'\\])*'?"
    r"|(?P<quote>\\+[\"'])(?:(?!(?<!\\)(?P=quote)).)*(?:(?P=quote))?"
)
# Authorization: Bearer ...: the word is not a secret, what follows it is.
_SCHEME = r"(?:(?i:Basic|Bearer|Digest|Token)\s+)?"
_PLAIN = r"[^\s,\"'{}\[\]()]"
_VALUE = (
    # What is redacted ends there: no bracket behind it is taken for a part of it.
    rf"{_SCHEME}(?:{re.escape(REDACTED)}(?!{_PLAIN})|{_QUOTED}|\{{[^{{}}]*\}}?|\[[^\[\]]*\]?"
    rf"|(?:{_PLAIN}|[^\s,\"'](?={_PLAIN}))+)"
)
_EQUALS = r"\\*[\"']?\s*[=:]\s*"
_SECRET_NAME = re.compile(rf"(?i:{_NAME})")
_FLAG = re.compile(rf"--?(?i:{_NAME})")
# "unexpected token: '}'" is a sentence about a token of a text; those of services have digits.
_SENTENCE = r"(?<=[A-Za-z] )(?i:token):\s(?!\S*[0-9]\S{7}|\S{7,}[0-9])"
_PAIR = re.compile(
    rf"(?<![\w.-])(?!{_SENTENCE})(?P<name>(?i:{_NAME}))(?P<equals>{_EQUALS})(?:{_VALUE})",
    re.DOTALL,
)
_TWO_WORDS = re.compile(rf"(?<![\w-])(?P<flag>--?(?i:{_NAME})[ \t]+)(?!-)(?:{_VALUE})", re.DOTALL)
# Plain data as Python and JSON show it: ['--token', 'x'], ('Authorization', 'x'), and
# {'name': 'api_key', 'value': 'x'}.
_STRING = r"(?:\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*')"
_SHOWN = re.compile(
    rf"(?P<head>[\"']--?(?i:{_NAME})[\"'],\s*(?![\"']-)"
    rf"|[\[(][\"'](?i:{_NAME})[\"'],\s*(?={_STRING}[\])])"
    rf"|[\"']name[\"']:\s*[\"'](?i:{_NAME})[\"'],\s*[\"']value[\"']:\s*){_STRING}",
    re.DOTALL,
)
# A header is one to its end: Digest and cookies hold several values.
_HEADER = re.compile(
    r"(?P<head>(?<![\w-])(?i:(?:set-)?cookie|(?:proxy-)?authorization:\s*digest)\s*[:= ]\s*)"
    r"(?![\s\"'{\[])[^\n'\r]+"
)


def is_secret(name: str) -> bool:
    """Whether what stands under this name is a secret: ``token``, ``api_key``, ``HF_TOKEN``."""
    return _SECRET_NAME.fullmatch(name) is not None


def redact_value(value: Value, name: str = "") -> Value:
    """Return ``value`` with every secret in it replaced by ``***``.

    Args:
        value: plain data; mappings are looked through by name, lists for a flag before its value
            (``--token``, then it) and for pairs, texts for what looks like a token.
        name: what the value stands under, the last part of a dotted name.
    """
    if is_secret(name) and value is not None and not isinstance(value, bool):
        return REDACTED
    if isinstance(value, Mapping):
        named = value.get("name")
        inner_name = named if isinstance(named, str) and is_secret(named) else ""
        return {
            key: redact_value(inner, inner_name if inner_name and key == "value" else key)
            for key, inner in value.items()
        }
    if isinstance(value, (list, tuple)):
        return _redacted_list(value)
    return redacted_text(value) if isinstance(value, str) else value


def shown_value(value: Value, setting: Setting) -> Value:
    """A setting's value as it may be shown: its name or its target's may be a secret's."""
    if is_secret(setting.name):
        return redact_value(value, setting.name)
    return redact_value(value, setting.target.path.rpartition(".")[2])


def redacted_text(text: str) -> str:
    """Return text (a command line, a message) with ``NAME=secret`` and known tokens replaced."""
    for _ in range(_PASSES):
        before, text = text, _redacted_once(text)
        if text == before:
            break
    return text


def _redacted_once(text: str) -> str:
    text = SHAPES.sub(REDACTED, text)
    text = _HEADER.sub(rf"\g<head>{REDACTED}", text)
    text = _PAIR.sub(rf"\g<name>\g<equals>{REDACTED}", text)
    text = _TWO_WORDS.sub(rf"\g<flag>{REDACTED}", text)
    return _SHOWN.sub(rf"\g<head>{REDACTED}", text)


def redacted_traceback(error: BaseException) -> str:
    """Return a traceback without secrets: it quotes messages and lines of code."""
    lines = traceback.format_exception(type(error), error, error.__traceback__)
    return redacted_text("".join(lines)).rstrip("\n")


def redacted_command(words: Sequence[str]) -> str:
    """Return a command line as a shell reads it, without the secrets of its words.

    Words are looked at before they are quoted: quoting would take a secret apart.
    """
    return shlex.join(_redacted_words(words))


def _redacted_words(words: Sequence[str]) -> Iterator[str]:
    before = ""
    for word in words:
        name, equals, _ = word.partition("=")
        if _FLAG.fullmatch(before) and not word.startswith("-"):
            yield REDACTED
        elif equals and is_secret(name.lstrip("-")):
            yield f"{name}={REDACTED}"
        else:
            yield redacted_text(word)
        before = word


def _redacted_list(values: Sequence[Value]) -> list[Value]:
    pair = len(values) == 2 and isinstance(values[0], str) and is_secret(values[0])
    before: Value = ""
    redacted: list[Value] = []
    for index, value in enumerate(values):
        flagged = isinstance(before, str) and _FLAG.fullmatch(before) is not None
        follows = isinstance(value, str) and not value.startswith("-")
        secret = (flagged and follows) or (pair and index == 1)
        redacted.append(redact_value(value, "token" if secret else ""))
        before = value
    return redacted
