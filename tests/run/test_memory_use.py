"""Whether two models are in memory together: as asked, else by what their files come to."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evalguard.core.scorer import ModelDescription
from evalguard.core.settings import Variant
from evalguard.engine import memory
from evalguard.engine.memory import MemoryPolicy, expected_bytes
from evalguard.models.machine import weight_bytes
from evalguard.tensor_files.loaded_weights import read_loaded_weights


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, str]]:
    """What room was looked for; there is none."""
    found: list[tuple[int, str]] = []
    monkeypatch.setattr(
        memory, "fits_in_memory", lambda size, device: bool(found.append((size, device)))
    )
    return found


@pytest.fixture
def model(tiny_llama: Path) -> Callable[..., Variant]:
    def variant(name: str = "m", **arguments: Any) -> Variant:
        return Variant(
            name=name, model="hf", model_args={"pretrained": str(tiny_llama), **arguments}
        )

    return variant


def description(parameters: int) -> ModelDescription:
    return ModelDescription(model_type="hf", dtype="float32", device="cpu", parameters=parameters)


def test_what_is_asked_for_is_not_measured(asked: Any, model: Any) -> None:
    for use, both, servers in (("lockstep", True, 2), ("sequential", False, 1)):
        policy = MemoryPolicy(use)
        assert policy.takes((model(), model()), "cpu") is both
        assert policy.takes_beside(description(10), model(), loaded=False) is both
        assert policy.servers == servers
    assert asked == []
    assert MemoryPolicy("auto").servers == 2


def test_a_model_takes_its_numbers_in_the_dtype_that_it_is_loaded_in(
    model: Any, tiny_llama: Path
) -> None:
    numbers = read_loaded_weights(tiny_llama).numbers
    assert numbers is not None
    for dtype, size in (("auto", 4), ("float32", 4), ("bfloat16", 2), ("float64", 8)):
        assert expected_bytes(model(dtype=dtype)) == numbers * size


def test_a_model_of_the_hub_takes_what_was_downloaded_of_it(
    model: Any, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def here(source: str, revision: str, subfolder: str) -> Path | None:
        return tiny_llama if (source, revision, subfolder) == ("owner/name", "step2", "") else None

    monkeypatch.setattr(memory, "checkpoint_folder", here)
    assert expected_bytes(model(pretrained="owner/name", revision="step2")) > 0
    assert expected_bytes(model(pretrained="owner/name")) == 0


def test_files_of_no_known_form_take_their_size(
    model: Any, tiny_llama: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(tiny_llama, tmp_path / "odd")
    (folder / "model.safetensors").write_bytes(b"damaged")
    assert expected_bytes(model(pretrained=str(folder))) == len(b"damaged")


def test_two_models_need_the_room_of_both_and_an_unknown_one_that_of_the_other(
    asked: Any, model: Any
) -> None:
    size = expected_bytes(model())
    policy = MemoryPolicy("auto")
    for other in (model(), model(pretrained="not-here")):
        assert not policy.takes((model(), other), "cuda")
    assert asked == [(2 * size, "cuda")] * 2


def test_beside_a_loaded_model_the_other_needs_its_own_room_and_no_less_than_that_models(
    asked: Any, model: Any
) -> None:
    policy, size = MemoryPolicy("auto"), expected_bytes(model())
    small, large = description(1), description(size)
    policy.takes_beside(small, model(), loaded=True)
    policy.takes_beside(small, model(), loaded=False)
    policy.takes_beside(large, model(), loaded=True)
    own = weight_bytes(size, "float32")
    assert [room for room, _ in asked] == [size, size + 4, own]
