"""``evalguard tensors``: the answer first, exit codes, files and schemas."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from small_world import Ran

Run = Callable[..., Ran]
WEIGHT = "model.layers.0.mlp.up_proj.weight"


@pytest.fixture
def files(tmp_path: Path) -> None:
    torch.manual_seed(0)
    state = {WEIGHT: torch.randn(48, 64) * 0.02, "model.norm.weight": torch.ones(64)}
    save_file(state, tmp_path / "base.safetensors")
    save_file({k: v.bfloat16() for k, v in state.items()}, tmp_path / "cast.safetensors")
    save_file({**state, WEIGHT: state[WEIGHT] * 1.02}, tmp_path / "scaled.safetensors")
    tuned = state[WEIGHT] * 1.02
    tuned[:, 5] = state[WEIGHT][:, 5]
    save_file({**state, WEIGHT: tuned}, tmp_path / "tuned.safetensors")


def read_schema(run: Run, name: str) -> Any:
    return run("schema", name).document


@pytest.mark.usefixtures("files")
def test_the_answer_comes_first_and_the_exit_code_says_it_too(run: Run) -> None:
    same = run("tensors", "base.safetensors", "base.safetensors")
    assert same.code == 0
    assert same.out.startswith("IDENTICAL: all 2 tensors bit-identical; exit code 0\n")
    cast = run("tensors", "base.safetensors", "cast.safetensors")
    assert cast.code == 0
    assert cast.out.startswith("EQUAL within tolerance: 1 of 2 tensors within tolerance")
    assert "looks like bf16 (bfloat16)" in cast.out
    scaled = run("tensors", "base.safetensors", "scaled.safetensors")
    assert scaled.code == 1
    assert scaled.out.startswith("DIFFERENT: 1 of 2 tensors beyond tolerance, 1 bit-identical")
    assert "looks like scaled (by 1.02)" in scaled.out
    assert "scale: 0.98039" in scaled.out, "the rule that undoes it"
    assert all(len(line) <= 80 for line in scaled.out.splitlines())


@pytest.mark.usefixtures("files")
def test_figures_are_in_the_terms_of_assert_close(run: Run) -> None:
    out = " ".join(run("tensors", "base.safetensors", "scaled.safetensors").out.split())
    assert "mismatched 3,0" in out
    assert "of 3,072 (9" in out
    assert "(up to 1e-05 allowed), greatest relative 0.02 at (" in out
    assert "SNR 34.0 dB" in out


@pytest.mark.usefixtures("files")
def test_the_document_keeps_its_contract(run: Run) -> None:
    schema = read_schema(run, "tensors")
    for candidate in ("base", "cast", "scaled"):
        ran = run("tensors", "base.safetensors", f"{candidate}.safetensors", "--json")
        jsonschema.validate(ran.document, schema, jsonschema.Draft202012Validator)
        assert ran.document["schema"] == "evalguard.tensors/1"
        assert ran.document["exit_code"] == ran.code
        assert list(ran.document) == list(schema["properties"])
        assert not ran.err


def test_what_json_cannot_hold_is_null_and_said(run: Run, tmp_path: Path) -> None:
    save_file({"x": torch.zeros(4)}, tmp_path / "a.safetensors")
    save_file({"x": torch.ones(4)}, tmp_path / "b.safetensors")
    document = run("tensors", "a.safetensors", "b.safetensors", "--json").document
    jsonschema.validate(document, read_schema(run, "tensors"))
    assert document["tensors"][0]["mismatched_relative"] == {"value": None, "index": [0]}
    assert any("relative_l2 is +infinite" in text for text in document["caveats"])


@pytest.mark.usefixtures("files")
def test_reports_are_written_to_files_by_their_suffix(run: Run, tmp_path: Path) -> None:
    outputs = [word for name in ("t.html", "t.json", "t.txt") for word in ("-o", name)]
    ran = run("tensors", "base.safetensors", "scaled.safetensors", *outputs)
    assert ran.code == 1
    assert (tmp_path / "t.html").read_text().startswith("<!doctype html>")
    assert json.loads((tmp_path / "t.json").read_text())["exit_code"] == 1
    assert WEIGHT in (tmp_path / "t.txt").read_text()
    for name, said in (("t.pdf", "form is not known"), ("no/t.html", "there is no folder")):
        refused = run("tensors", "base.safetensors", "scaled.safetensors", "-o", name)
        assert (refused.code, refused.out) == (2, "")
        assert said in refused.err


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("base.safetensors",), "two files or folders are needed"),
        (("base.safetensors", "none"), "there is nothing at none"),
        (("base.safetensors", "cast.safetensors", "--map", "none.yaml"), "cannot be read"),
        (("base.safetensors", "cast.safetensors", "--invariant", "signs"), "sign-consensus"),
        (("base.safetensors", "scaled.safetensors", "--atol", "inf"), "not a finite number"),
        (("base.safetensors", "scaled.safetensors", "--rtol", "nan"), "not a finite number"),
    ],
)
def test_what_cannot_be_done_is_a_usage_error(run: Run, words: tuple[str, ...], said: str) -> None:
    ran = run("tensors", *words)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err
    assert "hint:" in ran.err


def test_a_pickle_and_a_damaged_file_are_known_nothing_about(run: Run, tmp_path: Path) -> None:
    torch.save({"x": torch.ones(2), "code": Path("x")}, tmp_path / "evil.bin")
    save_file({"x": torch.ones(2)}, tmp_path / "a.safetensors")
    ran = run("tensors", "a.safetensors", "evil.bin")
    assert ran.code == 3
    assert "something else than tensors" in ran.err
    (tmp_path / "b.safetensors").write_bytes((tmp_path / "a.safetensors").read_bytes()[:-2])
    cut = run("tensors", "a.safetensors", "b.safetensors")
    assert cut.code == 3
    assert cut.out.startswith("NOT KNOWN: the 1 tensor unreadable; exit code 3")
    assert "the file ends at byte" in cut.out


def test_tensors_without_an_element_are_not_identical(run: Run, tmp_path: Path) -> None:
    save_file({WEIGHT: torch.zeros(0), "b": torch.zeros(3, 0)}, tmp_path / "empty.safetensors")
    ran = run("tensors", "empty.safetensors", "empty.safetensors")
    assert (ran.code, ran.out) == (3, "")
    assert "holds no element" in ran.err


@pytest.mark.usefixtures("files")
def test_an_invariant_alone_decides(run: Run) -> None:
    ran = run("tensors", "base.safetensors", "tuned.safetensors", "--invariant", "sign-consensus")
    assert ran.code == 1
    said = " ".join(ran.out.split())
    assert said.startswith(
        "BROKEN: sign-consensus: 48 of 3,072 elements (1.56%); 64 more are in rows"
    )
    ran = run("tensors", "base.safetensors", "cast.safetensors", "--invariant", "sign-consensus")
    assert ran.code == 0
    said = " ".join(ran.out.split())
    assert said.startswith(
        "HOLDS: sign-consensus in 2 tensors; 64 elements are in rows that were never trained; exit "
    )
    finite = run("tensors", "base.safetensors", "scaled.safetensors", "--invariant", "finite")
    assert finite.code == 0
    assert finite.out.startswith("HOLDS: finite in 2 tensors; exit code 0")


def test_the_table_of_tolerances_gives_its_reasons(run: Run) -> None:
    out = run("tensors", "--tolerances").out
    assert "float32, rocm matmul: rtol 0.01, atol 0.001" in out
    assert "assert_close" in out
    assert "q8_0: SNR 36 dB" in out


def test_schemas_are_printed_by_name(run: Run) -> None:
    assert run("schema").document["$schema"] == run("schema", "guard").document["$schema"]
    assert read_schema(run, "tensors")["$id"] == "evalguard.tensors/1"
    unknown = run("schema", "tensor")
    assert unknown.code == 2
    assert "did you mean 'tensors'" in unknown.err
    assert "schemas: guard, compare, floor, nightly, plan, tensors" in unknown.err


def test_what_is_missing_comes_before_what_is_bit_identical(run: Any, tmp_path: Path) -> None:
    """ "all 2 tensors bit-identical" was the first thing said of a model without its head."""
    from safetensors.numpy import save_file

    both = {name: np.ones((2, 2), dtype=np.float32) for name in ("a", "b")}
    save_file({**both, "head": np.zeros(3, dtype=np.float32)}, tmp_path / "whole.safetensors")
    save_file(both, tmp_path / "part.safetensors")
    ran = run("tensors", tmp_path / "whole.safetensors", tmp_path / "part.safetensors")
    assert ran.code == 1
    assert ran.out.startswith(
        "DIFFERENT: 1 tensor missing on one side, all 2 tensors of both bit-identical;\n"
    )


@pytest.mark.usefixtures("files")
def test_a_side_is_named_in_the_forms_of_every_command(run: Run, tmp_path: Path) -> None:
    typed = run("tensors", "base.safetensors", "hf:./base.safetensors")
    assert typed.code == 0
    assert typed.out.startswith("IDENTICAL")
    (tmp_path / "graph").mkdir()
    (tmp_path / "graph/model.onnx").write_bytes(b"graph")
    (tmp_path / "ov").mkdir()
    for name in ("openvino_model.xml", "openvino_model.bin"):
        (tmp_path / "ov" / name).write_bytes(b"0" * 64)
    (tmp_path / "dump/000").mkdir(parents=True)
    np.save(tmp_path / "dump/000/logits.npy", np.zeros((2, 3), np.float32))
    for side, said in (
        ("http://127.0.0.1:9/v1", "is a server, which shows no weights"),
        ("graph", "is a graph of onnx, whose weights are not read"),
        ("ov/openvino_model.xml", "is a graph of openvino, whose weights are not read"),
        ("ov", "is a graph of openvino, whose weights are not read"),
        ("dump", "is a folder of dumped outputs"),
        ("bse.safetensors", "did you mean 'base.safetensors'?"),
    ):
        ran = run("tensors", "base.safetensors", side)
        assert ran.code == 2, side
        assert said in ran.err
