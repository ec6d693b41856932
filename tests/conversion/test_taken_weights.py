"""weights:GLOB puts another checkpoint's tensors where it says, and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
import torch
from torch import nn
from variants import variant

from evalguard.conversion.planning import WeightsEdit, plan_conversion
from evalguard.conversion.taken_parts import take_weights
from evalguard.errors import SettingError


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(3)
        self.mix = nn.Linear(3, 3)
        self.decay = nn.Parameter(torch.ones(3))
        self.register_buffer("steps", torch.ones(2))
        self.register_buffer("angles", torch.ones(2), persistent=False)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.layers = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight


def edit(glob: str, checkpoint: str | None = "other", setting: str = "s") -> WeightsEdit:
    return WeightsEdit(setting=setting, glob=glob, checkpoint=checkpoint)


def sevens(model: nn.Module, checkpoint: str, names: Sequence[str]) -> Mapping[str, torch.Tensor]:
    value = {"other": 7.0, "third": 3.0}[checkpoint]
    state = model.state_dict()
    return {name: torch.full_like(state[name], value) for name in names}


def changed(model: nn.Module, value: float = 7.0) -> set[str]:
    return {name for name, one in model.state_dict().items() if bool((one == value).all())}


@pytest.mark.parametrize(
    ("globs", "names"),
    [
        (["layers.*.norm"], {f"layers.{i}.norm.{n}" for i in (0, 1) for n in ("weight", "bias")}),
        (["layers.1.decay"], {"layers.1.decay"}),
        (
            ["layers.0.mix,layers.1.decay", "layers.1.steps"],
            {"layers.0.mix.weight", "layers.0.mix.bias", "layers.1.decay", "layers.1.steps"},
        ),
        (["head"], {"head.weight"}),
        (["embed"], {"embed.weight"}),
    ],
)
def test_a_glob_names_modules_with_all_inside_or_single_tensors(
    globs: list[str], names: set[str]
) -> None:
    model = Net()
    take_weights(model, [edit(glob, setting=glob) for glob in globs], sevens)
    assert changed(model) == names
    assert model.layers[0].angles.tolist() == [1.0, 1.0]  # no checkpoint holds it


def test_what_is_named_more_closely_follows_that_setting() -> None:
    model = Net()
    edits = [edit("layers.0.norm", None), edit("layers.*"), edit("layers.1.mix.weight", "third")]
    take_weights(model, edits, sevens)
    inside = {name for name in model.state_dict() if name.startswith("layers.")}
    assert changed(model, 3.0) == {"layers.1.mix.weight"}
    own = {"layers.0.norm.weight", "layers.0.norm.bias"}
    assert changed(model) == inside - own - {"layers.1.mix.weight"}


def test_without_settings_or_with_all_as_loaded_nothing_is_read() -> None:
    def never(*_: object) -> Mapping[str, torch.Tensor]:
        raise AssertionError

    model = Net()
    take_weights(model, [], never)
    take_weights(model, [edit("layers.*", None)], never)


def test_a_glob_that_names_nothing_is_an_error_though_its_value_is_null() -> None:
    with pytest.raises(SettingError, match="no module is named 'layer'"):
        take_weights(Net(), [edit("layers.*,layer", None)], sevens)


def test_two_checkpoints_for_one_module_are_refused() -> None:
    edits = [edit("layers.0.mix", setting="a"), edit("layers.*.mix", None, "b")]
    with pytest.raises(SettingError, match=r"'a' and 'b' take layers.0.mix from two places"):
        take_weights(Net(), edits, sevens)


def test_what_the_checkpoint_lacks_is_told_with_the_settings_name() -> None:
    def lacking(*_: object) -> Mapping[str, torch.Tensor]:
        raise SettingError("other lacks 1 of the weights", hint="look")

    with pytest.raises(SettingError, match="setting 's': other lacks 1") as raised:
        take_weights(Net(), [edit("head")], lacking)
    assert raised.value.hint == "look"


def test_a_tensor_that_does_not_take_is_an_error() -> None:
    class Stubborn(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(2, 2)

        def state_dict(self, *args: object, **options: object) -> dict[str, torch.Tensor]:  # type: ignore[override]
            return {"inner.weight": torch.zeros(2, 2)}

    with pytest.raises(SettingError, match=r"did not take: inner.weight is not that of other"):
        take_weights(Stubborn(), [edit("inner")], sevens)


def test_a_value_that_is_no_name_is_refused() -> None:
    with pytest.raises(SettingError, match="3 is not a checkpoint"):
        plan_conversion(variant({"weights:x": 3}))
    planned = plan_conversion(variant({"weights:x": "a", "weights:y": None, "weights:z": "a"}))
    assert planned.checkpoints == ("a",)
    assert planned.edits_model
    assert not planned.needs_worker
