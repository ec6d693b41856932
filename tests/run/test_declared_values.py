"""What the files of a model in another library say is known, a recipe's output included."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from evalguard.comparison.checks.side_differences import list_side_differences, with_declared
from evalguard.conversion.building import build
from evalguard.conversion.planning import plan_conversion
from evalguard.core.compare_report import RunIdentity
from evalguard.core.scorer import ModelDescription
from evalguard.core.settings import BuildRecipe, Variant
from evalguard.engine.scored_side import ScoredSide
from evalguard.engine.sources import ModelSource

HUGGINGFACE = {"model_type": "mistral", "sliding_window": 4096, "rms_norm_eps": 1e-5}


def write_gguf(file: Path) -> None:
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tensor("token_embd.weight", np.ones((4, 32), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def side(name: str, model_type: str, **sections: object) -> ScoredSide:
    told = ModelDescription(model_type=model_type, configuration=sections)  # type: ignore[arg-type]
    return ScoredSide(identity=RunIdentity(name=name, digest=name), tables=(), description=told)


def differences(base: Variant, port: Variant, cache: Path) -> list[str]:
    sides = side("base", "hf", config=HUGGINGFACE), side("port", "llama_cpp")
    sources = (
        ModelSource(name="base", variant=base),
        ModelSource(name="port", variant=port),
    )
    first, second = with_declared(sources, sides, cache)
    found = list_side_differences(
        (first.identity, second.identity),
        (first.description, second.description),
        (first.declared, second.declared),
    )
    return [one.text for one in found if one.part == "configs"]


BASE = Variant(name="base", model="hf", model_args={"pretrained": "./mistral"})


@pytest.fixture
def built(tmp_path: Path) -> Variant:
    write_gguf(tmp_path / "a.gguf")
    recipe = BuildRecipe(
        command=("cp", "{source}", "{output}"), inputs={"source": "a.gguf"}, output="model.gguf",
        folder=str(tmp_path),
    )  # fmt: skip
    return Variant(name="port", model="llama_cpp", model_args={}, build=recipe, allow_code=True)


def test_a_window_that_llama_cpp_does_not_have_differs_in_a_file(tmp_path: Path) -> None:
    write_gguf(tmp_path / "a.gguf")
    port = Variant(
        name="port", model="llama_cpp", model_args={"pretrained": str(tmp_path / "a.gguf")}
    )
    assert differences(BASE, port, tmp_path) == ["attention_window 4096 -> none"]


def test_what_a_recipe_made_is_read_as_well(tmp_path: Path, built: Variant) -> None:
    build(built, plan_conversion(built), tmp_path / "cache")
    assert differences(BASE, built, tmp_path / "cache") == ["attention_window 4096 -> none"]


def test_files_that_cannot_be_read_cost_no_verdict(tmp_path: Path, built: Variant) -> None:
    assert differences(BASE, built, tmp_path / "cache") == []  # what was made is not kept
    damaged = tmp_path / "b.gguf"
    damaged.write_bytes(b"GGUF" + bytes(8))
    port = Variant(name="port", model="llama_cpp", model_args={"pretrained": str(damaged)})
    assert differences(BASE, port, tmp_path) == []
