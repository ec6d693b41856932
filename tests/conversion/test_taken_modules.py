"""module:GLOB puts another model's modules where it says, code and all, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from variants import variant

from evalguard.conversion.planning import ModuleEdit, plan_conversion, read_module_source
from evalguard.conversion.taken_parts import take_modules
from evalguard.core.settings import Value
from evalguard.errors import SettingError


class Block(nn.Module):
    def __init__(self, width: int, scale: float, inner: int) -> None:
        super().__init__()
        self.scale = scale
        self.up = nn.Linear(width, inner)
        self.down = nn.Linear(inner, width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        return x + self.scale * self.down(self.up(x))


class Other(Block):
    """The same modules, and another call."""

    def forward(self, x: torch.Tensor, *, bias: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return x + bias


class Longer(Block):
    """Other code that takes all that a block takes, and more."""

    def forward(self, x: torch.Tensor, mask: Any = None, bias: float = 1.0) -> torch.Tensor:
        return 2.0 * x


class Swallowing(Block):
    def forward(self, x: torch.Tensor, **more: Any) -> torch.Tensor:  # type: ignore[override]
        return x


class Net(nn.Module):
    def __init__(
        self,
        seed: int,
        *,
        scale: float = 1.0,
        width: int = 4,
        inner: int = 6,
        block: type[Block] = Block,
    ) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.config = SimpleNamespace(is_encoder_decoder=False)
        self.embed = nn.Embedding(7, width)
        self.layers = nn.ModuleList([block(width, scale, inner) for _ in range(3)])
        self.head = nn.Linear(width, 7, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        x = self.embed(input_ids)
        for layer in self.layers:
            x = layer(x, mask=attention_mask)
        return self.head(x)


def logits(model: nn.Module) -> torch.Tensor:
    ids = torch.tensor([[1, 2, 3]])
    with torch.no_grad():
        return model(ids, torch.ones_like(ids))


def edit(glob: str, value: Value = "base", setting: str = "s") -> ModuleEdit:
    return ModuleEdit(
        setting=setting, glob=glob, value=value, source=read_module_source(setting, value)
    )


def take(model: nn.Module, base: nn.Module, *edits: ModuleEdit) -> dict[str, Value]:
    return take_modules(model, edits, lambda _: base)


def test_all_parts_of_the_base_make_the_base() -> None:
    base, port = Net(1, scale=0.5, inner=9), Net(2)
    take(port, base, edit("layers.*"), edit("embed", setting="e"), edit("head", setting="h"))
    assert torch.equal(logits(port), logits(base))
    assert port.layers[1].scale == 0.5


def test_only_what_is_named_is_replaced_and_a_tied_module_outside_keeps_its_weights() -> None:
    base, port, before = Net(1), Net(2), Net(2)
    told = take(port, base, edit("layers.1,embed"))
    assert told == {"s": "base"}
    assert port.layers[1] is base.layers[1]
    assert torch.equal(port.layers[0].up.weight, before.layers[0].up.weight)
    assert torch.equal(port.head.weight, before.head.weight)
    assert not torch.equal(port.embed.weight, before.embed.weight)


def test_what_is_named_more_closely_follows_that_setting_in_either_direction() -> None:
    base, port = Net(1, scale=0.5), Net(2)
    own = port.layers[0].up, port.layers[2].down
    take(
        port,
        base,
        edit("layers.0.up", None, "own"),
        edit("layers.0", setting="layer"),
        edit("layers.2", None, "stays"),
        edit("layers.2.up", setting="inner"),
    )
    assert port.layers[0].scale == 0.5  # the base's layer, around the model's own projection
    assert port.layers[0].up is own[0]
    assert port.layers[2].scale == 1.0
    assert port.layers[2].up is base.layers[2].up
    assert port.layers[2].down is own[1]


def test_modules_that_are_one_to_the_bit_are_read_back_as_the_models_own() -> None:
    same, scaled, port = Net(2), Net(2, scale=1.0000001), Net(2)
    assert take(port, same, edit("layers.*"), edit("head", setting="h")) == {"s": None, "h": None}
    assert take(Net(2), scaled, edit("layers.0"))["s"] == "base"
    hooked = Net(2)
    hooked.layers[0].up.register_forward_hook(lambda *_: None)
    told = take(Net(2), hooked, edit("layers.0"), edit("layers.1", setting="t"))
    assert told == {"s": "base", "t": None}


def test_a_layer_without_what_other_settings_name_inside_it_is_compared_by_itself() -> None:
    base, port = Net(1), Net(2)
    inner = [edit("layers.0.up", setting="up"), edit("layers.0.down", setting="down")]
    told = take(port, base, edit("layers.0", setting="own"), *inner)
    assert told == {"own": None, "up": "base", "down": "base"}


def test_with_all_as_loaded_no_other_model_is_loaded() -> None:
    def never(_: object) -> nn.Module:
        raise AssertionError

    assert take_modules(Net(1), [], never) == {}
    assert take_modules(Net(1), [edit("layers.*", None)], never) == {"s": None}
    with pytest.raises(SettingError, match="no module is named 'layer'"):
        take_modules(Net(1), [edit("layer", None)], never)


@pytest.mark.parametrize(
    ("base", "glob", "message"),
    [
        (lambda: Net(1, width=5), "layers.0.up", r"layers.0.up of base has other shapes"),
        (lambda: Net(1, width=5), "layers.0", r"not run with layers.0 of base \(layers.0.up"),
        (lambda: Net(1, block=Other), "layers.0", r"called otherwise: Other.forward\(self, x, b"),
        (lambda: Net(1, block=Swallowing), "layers.0", r"called otherwise: Swallowing.forward"),
        (lambda: nn.Sequential(nn.Linear(4, 4)), "layers.0", "layers.0 of base is not there"),
    ],
)
def test_what_does_not_fit_is_an_error_that_says_why(
    base: Callable[[], nn.Module], glob: str, message: str
) -> None:
    with pytest.raises(SettingError, match=message) as raised:
        take(Net(2), base(), edit(glob))
    assert raised.value.hint


def test_other_code_that_takes_the_same_calls_is_taken() -> None:
    base, port = Net(1, block=Longer), Net(2)
    take(port, base, edit("layers.1"))
    assert isinstance(port.layers[1], Longer)


def test_two_models_for_one_module_are_refused() -> None:
    edits = [edit("layers.0", setting="a"), edit("layers.*", "third", "b")]
    with pytest.raises(SettingError, match=r"'a' and 'b' take layers.0 from two places: base and"):
        take(Net(2), Net(1), *edits)


def test_a_model_with_settings_of_its_own_is_read_from_a_mapping() -> None:
    value: Value = {
        "model_args": {"pretrained": "orig", "dtype": "float32"},
        "settings": {"attr:model.layers.*.self_attn.scaling": 0.25},
    }
    plan = plan_conversion(variant({"module:model.layers.0": value, "module:model.norm": "a@v2"}))
    sources = {one.name: one for one in plan.module_sources}
    assert [str(one.target) for one in sources["orig"].settings] == [
        "attr:model.layers.*.self_attn.scaling"
    ]
    assert sources["a"].model_args == {"pretrained": "a", "revision": "v2"}
    assert plan.checkpoints == ("a@v2", "orig")
    assert plan.edits_model
    assert not plan.needs_worker


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (3, "3 is not a model"),
        ("", "'' is not a model"),
        ({"settings": {}}, "is not a model"),
        ({"model_args": {"pretrained": "a"}, "more": 1}, "is not a model"),
        ({"model_args": {"pretrained": "a", "peft": "b"}}, "a model with model_args.peft"),
        (
            {"model_args": {"pretrained": "a"}, "settings": {"call:x.py:f": 1}},
            r"call:x.py:f of the model that modules are taken from cannot be taken",
        ),
    ],
)
def test_a_value_that_is_no_model_is_refused(value: Value, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        plan_conversion(variant({"module:x": value}))
