"""Settings that evalguard derived are written to guard files under names that can be read back."""

from __future__ import annotations

from pathlib import Path

from guard_texts import load

from evalguard.config.guard_writing import guard_text
from evalguard.core.settings import Setting, Target, Variant

NAMES = (
    "weights.norms (all 31, plus a constant, +1)",
    "weights.norms (all 31, plus a constant +1)",
    "weights.layers.1, layers.2 (swapped)",
    "rope_theta",
)


def settings(names: tuple[str, ...]) -> tuple[Setting, ...]:
    return tuple(
        Setting(
            name=name,
            reference=1,
            candidate=2 + number,
            target=Target.parse(f"config.x{number}"),
        )
        for number, name in enumerate(names)
    )


def read_back(folder: Path, names: tuple[str, ...]) -> dict[str, object]:
    """Name -> candidate value of the settings that are read from what was written."""
    variant = Variant(
        name="repaired",
        model="hf",
        model_args={"pretrained": "org/port"},
        settings=settings(names),
        assignment={setting.name: setting.candidate for setting in settings(names)},
    )
    written = guard_text({"repaired": variant}, {}, head="x")
    found = load(folder, written).variants["repaired"].settings
    return {setting.name: setting.candidate for setting in found}


def test_names_in_words_become_names_of_a_guard_file_and_none_is_lost(tmp_path: Path) -> None:
    assert read_back(tmp_path, NAMES) == {
        "weights.norms-all-31-plus-a-constant-+1": 2,
        "weights.norms-all-31-plus-a-constant-+1--2": 3,
        "weights.layers.1-layers.2-swapped": 4,
        "rope_theta": 5,
    }
