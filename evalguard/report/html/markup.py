"""Markup made in Python: elements with escaped attributes and children."""

from __future__ import annotations

from markupsafe import Markup, escape

Attribute = str | int | float | None


def tag(name: str, *children: object, **attributes: Attribute) -> Markup:
    """Return an element; text among the children is escaped, Markup is taken as it is.

    ``class_`` is ``class``, other underscores are dashes; numbers are rounded to two decimals, and
    attributes of None are left out.
    """
    given = Markup("").join(
        Markup(' {}="{}"').format(_name(key), _text(value))
        for key, value in attributes.items()
        if value is not None
    )
    inside = Markup("").join(escape(child) for child in children)
    return Markup("<{0}{1}>{2}</{0}>").format(Markup(name), given, inside)


def _name(key: str) -> Markup:
    return Markup(key.rstrip("_") if key == "viewBox" else key.rstrip("_").replace("_", "-"))


def _text(value: Attribute) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
