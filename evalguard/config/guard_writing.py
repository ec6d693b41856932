"""Guard files written: lines that change settings, the template, and the schema."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any

import yaml

from evalguard.config.guard_shape import GuardFile
from evalguard.core.settings import Setting, Value, Variant
from evalguard.errors import StoreError, UsageError

SCHEMA_ID = "urn:evalguard:guard-file:1"


def build_guard_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a guard file, as plain data."""
    made = GuardFile.model_json_schema(by_alias=True)
    _close(made)
    made.pop("title", None)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA_ID,
        "title": "evalguard guard file",
        **made,
    }


def _close(node: object) -> None:
    """Refuse keys that match no pattern: pydantic does, its schema leaves that open."""
    if isinstance(node, dict):
        if "patternProperties" in node:
            node.setdefault("additionalProperties", False)
        for value in node.values():
            _close(value)
    elif isinstance(node, list):
        for value in node:
            _close(value)


TEMPLATE = Path(__file__).with_name("template.yaml").read_text(encoding="utf-8")


def write_template(path: Path, *, force: bool = False) -> None:
    """Write the template to ``path``, whole or not at all.

    Raises:
        UsageError: if the file exists and ``force`` is not given, or the path is a folder.
        StoreError: if it cannot be written.
    """
    if path.is_dir():
        raise UsageError(f"{path} is a folder", hint=f"name a file: {path / 'evalguard.yaml'}")
    if path.exists() and not force:
        raise UsageError(f"{path} exists and is left alone", hint="--force overwrites it")
    half = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        try:
            half.write_text(TEMPLATE, encoding="utf-8")
            half.replace(path)
        finally:
            half.unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror}") from error


_INDENT = "  "


def settings_excerpt(
    model: str, settings: Mapping[str, Setting], values: Mapping[str, Value], was: Mapping[str, str]
) -> str:
    """Return the entries of ``values`` as they should stand under the model, in YAML.

    Args:
        settings: of the model, by name.
        values: setting -> its new candidate value.
        was: setting -> its candidate value until now, in words.
    """
    lines = ["models:", f"{_INDENT}{as_yaml(model)}:", f"{_INDENT * 2}settings:"]
    for name, value in values.items():
        setting = settings[name]
        before = was[name].replace("\n", " ")
        lines += [
            f"{_INDENT * 3}{as_yaml(name)}:",
            f"{_INDENT * 4}reference: {as_yaml(setting.reference)}",
            f"{_INDENT * 4}candidate: {as_yaml(value)}  # was {before}",
            f"{_INDENT * 4}target: {as_yaml(str(setting.target))}",
        ]
    return "\n".join(lines)


def as_yaml(value: Value) -> str:
    """Return a value on one line, so that a guard file reads it back as it is."""
    text = yaml.safe_dump(value, default_flow_style=True, width=inf, allow_unicode=True)
    return str(text).removesuffix("...\n").strip()


def guard_text(models: Mapping[str, Variant], more: Mapping[str, Value], *, head: str) -> str:
    """Return a guard file of models as they are assigned now, and of other blocks.

    Args:
        models: by the name they shall have; each setting's value becomes its candidate value.
        more: further keys of a guard file: tasks, gate, run ...
        head: a comment for the first line.
    """
    document = {"models": {name: _entry(variant) for name, variant in models.items()}, **more}
    text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=100)
    return f"# {head}\n{text}"


def _entry(variant: Variant) -> dict[str, Value]:
    entry: dict[str, Value] = {"model": variant.model, "model_args": dict(variant.model_args)}
    if variant.environment is not None:
        own = variant.environment
        entry |= {"python": own.python} if own.python else {}
        entry |= {"requirements": [*own.requirements]} if own.requirements else {}
    if variant.inputs is not None:
        entry["inputs"] = list(variant.inputs)
    if variant.revision:
        entry["revision"] = variant.revision
    if variant.settings:
        names = _names_of(variant.settings)
        entry["settings"] = {
            names[setting.name]: {
                "reference": setting.reference,
                "candidate": variant.assignment[setting.name],
                "target": str(setting.target),
            }
            for setting in variant.settings
        }
    allowed = {"trust_remote_code": variant.trust_remote_code, "allow_pickle": variant.allow_pickle}
    return {**entry, **{name: True for name, allows in allowed.items() if allows}}


def _names_of(settings: Sequence[Setting]) -> dict[str, str]:
    """Settings' names as a guard file may have them; those that are derived hold words."""
    names: dict[str, str] = {}
    for setting in settings:
        plain = re.sub(r"[^A-Za-z0-9_.+-]+", "-", setting.name).strip("-.+")
        same = sum(1 for name in names.values() if name == plain or name.startswith(f"{plain}--"))
        names[setting.name] = f"{plain}--{same + 1}" if same else plain
    return names
