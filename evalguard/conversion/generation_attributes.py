"""``generation.X``: attributes of a model's generation config, which generating tasks read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from evalguard.errors import SettingError, nearest

if TYPE_CHECKING:
    import torch

    from evalguard.core.settings import Value


def set_generation(model: torch.nn.Module, values: Mapping[str, tuple[str, Value]]) -> None:
    """Set attributes of the generation config of a loaded model.

    Args:
        values: setting name -> (attribute, value).

    Raises:
        SettingError: the model does not generate, or its generation config has no such attribute
            (nearest names given).
    """
    for setting, (name, value) in values.items():
        config = _generation_config(model, setting)
        known = [one for one in vars(config) if not one.startswith("_")]
        if name not in known:
            raise SettingError(
                f"setting '{setting}': the generation config has no attribute '{name}'"
                f"{nearest(name, known)}",
                hint=f"it has: {', '.join(sorted(known))}",
                setting=setting,
            )
        setattr(config, name, value)


def read_generation(model: torch.nn.Module, setting: str, name: str, asked: Value) -> Value:
    """Read an attribute of the generation config back.

    Raises:
        SettingError: it holds another value than asked.
    """
    found: Value = getattr(_generation_config(model, setting), name)
    if found != asked:
        raise SettingError(
            f"setting '{setting}' did not take: generation.{name} is {found!r}, "
            f"asked was {asked!r}",
            setting=setting,
        )
    return found


def _generation_config(model: torch.nn.Module, setting: str) -> Any:
    config = getattr(model, "generation_config", None)
    if config is None:
        raise SettingError(
            f"setting '{setting}': {type(model).__name__} has no generation config",
            hint="generation.X settings work with transformers models that generate",
            setting=setting,
        )
    return config
