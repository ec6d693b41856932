"""attr: edits reach the attribute that exists, keep its type, and are read back."""

from __future__ import annotations

import pytest
import torch

from evalguard.conversion.edits import read_attribute, set_attribute
from evalguard.conversion.planning import AttributeEdit
from evalguard.core.settings import Value
from evalguard.errors import SettingError


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scaling = 0.5
        self.window: int | None = None
        self.cap: float | None = 50.0
        self.causal = True
        self.mode = "chunk"
        self.sizes = (4, 4)
        self.proj = torch.nn.Linear(3, 3, bias=False, dtype=torch.bfloat16)
        self.register_buffer("frequencies", torch.ones(3))
        self.act = torch.nn.functional.silu

    @property
    def fixed(self) -> float:
        return 1.0


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([Block(), Block()])
        self.head = torch.nn.Linear(3, 3, bias=False, dtype=torch.bfloat16)
        self.head.weight = self.layers[0].proj.weight  # tied


def edit(attribute: str, value: Value, glob: str = "layers.*") -> AttributeEdit:
    return AttributeEdit(setting="s", glob=glob, attribute=attribute, value=value)


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("scaling", 0.25), ("scaling", 2), ("window", 16), ("cap", None), ("causal", False),
        ("mode", "recurrent"), ("sizes", [2, 8]), ("frequencies", 2.0),
        ("frequencies", [1.0, 2.0, 3.0]),
    ],
)  # fmt: skip
def test_an_attribute_takes_a_value_of_its_type(attribute: str, value: Value) -> None:
    model = Model()
    set_attribute(model, edit(attribute, value))
    assert read_attribute(model, edit(attribute, value)) == value
    held = [getattr(block, attribute) for block in model.layers]
    if attribute == "frequencies":
        expected = torch.tensor(value).expand(3)
        assert all(torch.equal(one, expected) for one in held)
    else:
        assert all(one == (tuple(value) if isinstance(value, list) else value) for one in held)


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("scaling", "big"),
        ("causal", 1),
        ("mode", 3),
        ("sizes", 3),
        ("act", "gelu"),
    ],
)
def test_an_attribute_refuses_another_type(attribute: str, value: Value) -> None:
    with pytest.raises(SettingError, match="cannot take"):
        set_attribute(Model(), edit(attribute, value))


def test_a_parameter_is_filled_in_its_own_dtype_and_read_back_rounded() -> None:
    model = Model()
    set_attribute(model, edit("weight", 0.1, "layers.1.proj"))
    weight = model.layers[1].proj.weight
    assert weight.dtype == torch.bfloat16
    assert read_attribute(model, edit("weight", 0.1, "layers.1.proj")) == 0.10009765625


def test_filling_a_tied_parameter_leaves_the_module_outside_alone() -> None:
    model = Model()
    before = model.head.weight.clone()
    set_attribute(model, edit("weight", 0.0, "layers.0.proj"))
    assert torch.equal(model.head.weight, before)
    assert not model.layers[0].proj.weight.any()


@pytest.mark.parametrize(
    ("attribute", "value", "message"),
    [
        pytest.param("frequencies", [1.0, 2.0], r"shape \(3,\) and cannot take", id="no broadcast"),
        pytest.param("scalin", 1.0, r"layers\.0\.scalin does not exist.*'scaling'", id="unknown"),
        pytest.param("proj", 1.0, "is a submodule", id="submodule"),
        pytest.param("fixed", 2.0, "cannot be set", id="read-only property"),
    ],
)
def test_what_cannot_be_set_is_refused_with_the_reason(
    attribute: str, value: Value, message: str
) -> None:
    with pytest.raises(SettingError, match=message):
        set_attribute(Model(), edit(attribute, value))


def test_an_absent_parameter_is_refused() -> None:
    with pytest.raises(SettingError, match="absent in this model"):
        set_attribute(Model(), edit("bias", 1.0, "layers.*.proj"))


def test_a_value_that_does_not_stay_is_found_when_read_back() -> None:
    model = Model()
    set_attribute(model, edit("scaling", 0.25))
    model.layers[1].scaling = 0.5
    with pytest.raises(
        SettingError, match=r"did not take: layers\.1\.scaling is 0\.5, asked was 0\.25"
    ):
        read_attribute(model, edit("scaling", 0.25))
