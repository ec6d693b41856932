"""Short ways to write a variant with settings."""

from __future__ import annotations

from typing import Any

from evalguard.core.settings import Setting, Target, Value, Variant


def variant(targets: dict[str, Value], **fields: Any) -> Variant:
    """A variant with one setting for each target, all at the given values (reference: null)."""
    settings = tuple(
        Setting(name=f"s{i}", reference=None, candidate=value, target=Target.parse(text))
        for i, (text, value) in enumerate(targets.items())
    )
    given = {"name": "port", "model": "hf", "model_args": {"pretrained": "somewhere"}, **fields}
    assignment = {setting.name: setting.candidate for setting in settings}
    return Variant(settings=settings, assignment=assignment, **given)
