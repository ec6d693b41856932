"""SideView: one side of a comparison, with its settings, as a page names it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from evalguard.core.compare_report import RunIdentity, SettingState
from evalguard.core.settings import Value
from evalguard.page.safe_text import printable
from evalguard.page.table import Table

_SHOWN_DIGEST = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingView:
    """One setting of a side; values as they stand in a guard file.

    ``changed``: the value asked for is not the reference.
    """

    name: str
    value: str
    reference: str
    candidate: str
    target: str
    effective: str
    changed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SideView:
    """One side; ``about`` is its description with the digest's first digits, on one line."""

    name: str
    kind: str
    description: str
    digest: str
    about: str
    settings: tuple[SettingView, ...]

    @property
    def table(self) -> Table:
        """Its settings."""
        return Table(
            headings=["setting", "value", "read back", "reference", "candidate", "target"],
            rows=[
                [
                    setting.name,
                    setting.value,
                    setting.effective,
                    setting.reference,
                    setting.candidate,
                    setting.target,
                ]
                for setting in self.settings
            ],
        )


def side_view(side: RunIdentity) -> SideView:
    """Return a side as texts."""
    digest = printable(side.digest)
    short = f"digest {digest[:_SHOWN_DIGEST]}" if digest else ""
    description = printable(side.description)
    return SideView(
        name=printable(side.name),
        kind=side.kind,
        description=description,
        digest=digest,
        about=", ".join(part for part in (description, short) if part),
        settings=tuple(map(_setting_view, side.settings)),
    )


def value_text(value: Value) -> str:
    """Return a setting's value as it stands in a guard file, a number with few digits."""
    if isinstance(value, float):
        return f"{value:.6g}"
    return printable(value if isinstance(value, str) else json.dumps(value))


def flatten_entries(
    values: Mapping[str, Value], *, within: str = ""
) -> tuple[tuple[str, str], ...]:
    """Return (name, value) of a mapping's entries; of one inside it "outer.inner"."""
    entries: list[tuple[str, str]] = []
    for key, value in values.items():
        name = f"{within}{printable(str(key))}"
        if isinstance(value, Mapping) and value:
            entries += flatten_entries(value, within=f"{name}.")
        else:
            entries.append((name, value_text(value)))
    return tuple(entries)


def _setting_view(setting: SettingState) -> SettingView:
    return SettingView(
        name=printable(setting.name),
        value=value_text(setting.value),
        reference=value_text(setting.reference),
        candidate=value_text(setting.candidate),
        target=printable(setting.target),
        effective=value_text(setting.effective),
        changed=setting.value != setting.reference,
    )
