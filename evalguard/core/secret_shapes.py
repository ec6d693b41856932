"""Secrets that are known by their shape, wherever they stand: tokens of services, keys, URLs.

Prefixes are those that the services document (Hugging Face, GitHub, GitLab, AWS, Slack, npm,
...). A hash is not a secret: what is only long and random stays.
"""

from __future__ import annotations

import re

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
