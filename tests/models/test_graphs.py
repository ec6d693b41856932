"""Folders with exported graphs: what is refused before any library is asked."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from evalguard.errors import UsageError
from evalguard.models.runtimes.graphs import load
from evalguard.models.runtimes.runtime import RuntimeArguments

DEMO = Path(__file__).parents[2] / "demo" / "model"


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    """A folder as the recipe writes it; its graph is never read here."""
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(DEMO / name, tmp_path / name)
    (tmp_path / "model.onnx").write_bytes(b"graph")
    return tmp_path


def refusal(folder: Path, kind: str = "onnx", **given: Any) -> UsageError:
    arguments = RuntimeArguments(model_type=kind, given={"pretrained": str(folder), **given})
    with pytest.raises(UsageError) as caught:
        load(arguments)
    return caught.value


def test_a_graph_that_is_named_itself_is_the_one_of_its_folder(exported: Path) -> None:
    error = refusal(exported / "model.onnx", file="model.onnx")
    assert "is the graph already" in str(error)
    (exported / "other.onnx").write_bytes(b"graph")
    error = refusal(exported / "model.onnx", optimization="most")  # behind the choice of a graph
    assert "model_args.optimization: 'most' is not known" in str(error)


def test_a_folder_without_a_graph_says_what_makes_one(exported: Path) -> None:
    (exported / "model.onnx").unlink()
    error = refusal(exported)
    assert "has 0 graphs" in str(error)
    assert "evalguard.recipes.onnx:export" in error.hint


def test_of_several_graphs_one_has_to_be_named(exported: Path) -> None:
    (exported / "onnx").mkdir()
    (exported / "onnx" / "model_q4.onnx").write_bytes(b"graph")
    error = refusal(exported)
    assert "has 2 graphs" in str(error)
    assert "model.onnx, onnx/model_q4.onnx" in error.hint
    error = refusal(exported, file="onnx/model_q8.onnx")
    assert "no graph 'onnx/model_q8.onnx'; did you mean 'onnx/model_q4.onnx'" in str(error)


def test_a_file_outside_of_the_folder_is_no_graph_of_it(exported: Path, tmp_path: Path) -> None:
    inside = exported / "inside"
    inside.mkdir()
    shutil.copy(exported / "model.onnx", inside / "own.onnx")
    assert "no graph '../model.onnx'" in str(refusal(inside, file="../model.onnx"))


def test_a_length_that_nothing_tells_is_asked_for(exported: Path) -> None:
    (exported / "config.json").unlink()
    error = refusal(exported)
    assert "how many tokens the model reads" in str(error)
    assert error.hint == "set model_args.max_length"


@pytest.mark.parametrize(
    ("kind", "given", "said"),
    [
        ("onnx", {"optimization": "al"}, "'al' is not known; did you mean 'all'"),
        ("onnx", {"precision": "f32"}, "takes no argument 'precision'"),
        ("openvino", {"precision": "fp32"}, "'fp32' is not known"),
        ("openvino", {"optimization": "all"}, "takes no argument 'optimization'"),
    ],
)
def test_arguments_of_the_other_library_are_refused(
    kind: str, given: dict[str, Any], said: str, exported: Path
) -> None:
    assert said in str(refusal(exported, kind, **given))
