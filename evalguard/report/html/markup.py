"""Markup made in Python: elements with escaped attributes and children."""

from __future__ import annotations

from typing import TYPE_CHECKING

from markupsafe import Markup, escape

if TYPE_CHECKING:
    pass


Attribute = str | int | float | None


def make_tag(name: str, *children: object, **attributes: Attribute) -> Markup:
    """Return an element; text among the children is escaped, Markup is taken as it is.

    ``class_`` is ``class``, other underscores are dashes; numbers are rounded to two decimals, and
    attributes of None are left out.
    """
    given = "".join(
        f' {_attribute_name(key)}="{escape(_attribute_text(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    inside = "".join(map(escape, children))
    return Markup(f"<{name}{given}>{inside}</{name}>")  # every part of it is escaped


def _attribute_name(key: str) -> str:
    return key if key == "viewBox" else key.rstrip("_").replace("_", "-")


def _attribute_text(value: str | int | float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
