"""What JSON Schemas say of a field, from the docstring of its record."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping

from evalguard.report.contract.forms import (
    annotations_of,
    form_of,
)

# What fields of a name are in every record that does not say it of its own.
COMMON_FIELDS: Mapping[str, str] = {
    "name": "Its name.",
    "settings": "Names of settings.",
    "task": "Name of the task.",
    "filter": "lm-eval's filter.",
    "metric": "Metric.",
    "n": "Documents.",
    "base": "The side that is compared with.",
    "candidate": "The side that is judged.",
    "doc_id": "Number of the document in its task.",
    "request": "Number of the request among those of its document.",
    "position": "Position in its text.",
    "token_id": "Token id.",
    "elements": "How many.",
    "confidence": "Of two-sided intervals.",
    "outcome": "What it came to.",
    "state": "What it came to.",
    "seed": "Of what is drawn at random.",
    "reason": "Why.",
    "caveats": "What to know before relying on it.",
    "notes": "What else is to be said, one line each.",
    "created": "UTC time, ISO 8601.",
    "command": 'Command line; "" for a call from Python.',
    "environment": "Versions and platform.",
    "version": "Version of evalguard.",
    "not_compared": "What was left out.",
}


_ENTRY = re.compile(r"^    (\w+(?:, \w+)*): ", re.MULTILINE)
_WITHIN = re.compile(r"``(\w+)``: ([^;.]+)")


def describe_fields(kind: type) -> dict[str, str]:
    """Return what is said of each field and property of a record, where something is.

    In the docstring: an entry under "Attributes", or ````name````: and a clause within another one;
    of a property its own docstring; else what is said of that name in every record.
    """
    doc = inspect.getdoc(kind) or ""
    parts = _ENTRY.split(doc.partition("\nAttributes:\n")[2].partition("\n\n")[0])
    entries = dict(zip(parts[1::2], (" ".join(one.split()) for one in parts[2::2]), strict=True))
    own = {name: text for names, text in entries.items() for name in names.split(", ")}
    within = dict(_WITHIN.findall(" ".join(entries.values())))
    found = {}
    for name in annotations_of(kind):
        property_doc = inspect.getdoc(getattr(kind, name, None)) if name in _added(kind) else None
        text = own.get(name) or property_doc or within.get(name) or COMMON_FIELDS.get(name)
        if text:
            found[name] = say_in_json(text)
    return found


def say_in_json(text: str) -> str:
    """A text of a docstring in the words of JSON, as a sentence."""
    text = " ".join(text.split()).replace("``", "")
    for ours, theirs in (("None", "null"), ("True", "true"), ("False", "false")):
        text = re.sub(rf"\b{ours}\b", theirs, text)
    text = text.replace("()", "[]").replace(" No part of a report's equality.", "").rstrip(";,")
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith('.') else '.'}" if text else ""


def _added(kind: type) -> frozenset[str]:
    return frozenset(form_of(kind).add.values())
