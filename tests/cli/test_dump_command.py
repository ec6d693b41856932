"""``evalguard dump``: a model's activations in files, in the format that ``trace`` reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from small_world import SmallWorld
from test_trace_command import encoders, text

__all__ = ["encoders", "text"]


def dump(run: Any, model: object, *words: object) -> Any:
    return run("dump", model, "--quiet", *words)


@pytest.fixture
def dumped(run: Any, encoders: tuple[Path, Path, Path], tmp_path: Path) -> Path:
    ran = dump(run, encoders[0], "--inputs", encoders[2], "-o", tmp_path / "orig")
    assert ran.code == 0, ran.err
    return tmp_path / "orig"


def test_every_point_of_every_document_is_what_torch_computes(
    dumped: Path, encoders: tuple[Path, Path, Path]
) -> None:
    from transformers import HubertModel

    model, seen = HubertModel.from_pretrained(encoders[0]).eval(), {}
    for name, module in model.named_modules():
        module.register_forward_hook(lambda _m, _a, out, name=name: seen.setdefault(name, out))
    signals = np.load(encoders[2])["input_values"]
    for number in range(2):
        seen.clear()
        with torch.no_grad():
            model(torch.from_numpy(signals[number : number + 1]))
        folder = dumped / f"{number:03}"
        names = [name for name, out in seen.items() if name and isinstance(out, torch.Tensor)]
        assert len(names) > 20
        for name in names:
            own = np.load(folder / f"{name}:out.npy")
            assert np.allclose(own, seen[name].numpy(), rtol=1e-5, atol=1e-6), name
        assert np.array_equal(np.load(folder / "inputs.npz")["input_values"][0], signals[number])
        output = np.load(folder / "(root):out.npy")
        assert np.allclose(output, seen[""].last_hidden_state.numpy(), rtol=1e-5, atol=1e-6)


def test_a_dump_says_its_points_in_order_and_its_precision(dumped: Path) -> None:
    rows = [line.split("\t") for line in (dumped / "points.tsv").read_text().splitlines()]
    assert rows[0] == ["point", "shape", "dtype"]
    points = [row[0] for row in rows[1:]]
    assert {f"{point}.npy" for point in points} == {
        one.name for one in (dumped / "000").glob("*.npy")
    }
    assert points.index("encoder.layers.0:in") < points.index("encoder.layers.1:out")
    assert points[-1] == "(root):out"
    assert yaml.safe_load((dumped / "config.yaml").read_text()) == {
        "precision": "float32", "output": "hidden"
    }  # fmt: skip


def test_a_dump_of_a_model_is_clear_of_it_and_located_in_a_port(
    run: Any, dumped: Path, encoders: tuple[Path, Path, Path]
) -> None:
    """The documents are those that the dump was made of: none is named."""
    base, tanh, _ = encoders
    same = run("trace", "--base", base, "--cand", dumped, "--quiet", "--json")
    assert (same.code, same.document["suspects"]) == (0, [])
    assert len(same.document["documents"]) == 2
    other = run("trace", "--base", tanh, "--cand", dumped, "--quiet")
    assert other.code == 1
    assert "feature_extractor.conv_layers.0.activation" in "".join(other.out.split())


def test_a_dump_of_other_inputs_than_are_traced_is_refused(
    run: Any, dumped: Path, encoders: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    other = np.load(encoders[2])["input_values"] + np.float32(0.1)
    np.savez(tmp_path / "other.npz", input_values=other)
    words = ("--base", encoders[0], "--cand", dumped, "--inputs", tmp_path / "other.npz")
    ran = run("trace", *words, "--quiet")
    assert ran.code == 3
    assert "000 was made of other inputs than are traced: input_values" in ran.err


def test_a_folder_that_is_a_name_of_the_demo_is_the_users_folder(
    run: Any, dumped: Path, encoders: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(dumped.parent)
    assert run("trace", "--base", encoders[0], "--cand", "orig", "--quiet").code == 0


def test_the_documents_of_a_task_and_a_text_are_written_with_their_token_ids(
    run: Any, world: SmallWorld, text: Path, tmp_path: Path
) -> None:
    guard = ("--config", world.guard)
    own = dump(run, "orig", *guard, "--text", text, "-o", tmp_path / "text")
    assert own.code == 0, own.err
    assert np.load(tmp_path / "text/000/inputs.npz")["input_ids"].shape[0] == 1
    words = ("--tasks", "sw_text", "--limit", "3", "-o", tmp_path / "task")
    assert dump(run, "orig", *guard, *words).code == 0
    assert sorted(one.name for one in (tmp_path / "task").iterdir() if one.is_dir()) == [
        "000", "001", "002"
    ]  # fmt: skip
    traced = run(
        "trace", *guard, "--base", "orig", "--cand", tmp_path / "task", "--quiet", "--json"
    )
    assert traced.code == 0, traced.err
    assert len(traced.document["documents"]) == 3


def test_patterns_choose_the_points_and_the_models_output_is_always_there(
    run: Any, encoders: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    words = ("--inputs", encoders[2], "--points", "encoder.layers.*:out")
    assert dump(run, encoders[0], *words, "-o", tmp_path / "few").code == 0
    names = {one.name for one in (tmp_path / "few/000").glob("*.npy")}
    assert "(root):out.npy" in names
    assert {"encoder.layers.0:out.npy", "encoder.layers.1:out.npy"} < names
    assert not any(":in" in name or "feature" in name for name in names)
    refused = dump(run, encoders[0], *words, "--points", "encoder.layer.*", "-o", tmp_path / "none")
    assert refused.code == 2
    assert "--points 'encoder.layer.*' fits no point" in refused.err
    assert sorted(one.name for one in tmp_path.iterdir()) == ["few"]


def test_two_dumps_are_two_sides_of_a_comparison(
    run: Any, world: SmallWorld, text: Path, dumped: Path, encoders: tuple[Path, Path, Path]
) -> None:
    """What the model's class says of its output is not asked of the user."""
    other = dumped.parent / "port"
    assert dump(run, encoders[1], "--inputs", encoders[2], "-o", other).code == 0
    ran = run("compare", "--base", dumped, "--cand", other, "--quiet", "--margin", "1pp")
    assert ran.code in (1, 0), ran.err
    assert "relative_error" in ran.out
    guard = ("--config", world.guard, "--text", text, "--points", "lm_head:out")
    assert dump(run, "orig", *guard, "-o", dumped.parent / "words").code == 0
    told = yaml.safe_load((dumped.parent / "words/config.yaml").read_text())
    assert told["output"] == "logits"


def test_a_name_map_is_proposed_for_a_ports_dump_and_trace_takes_it_as_printed(
    run: Any, dumped: Path, encoders: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    """A port under names of its own, one kind transposed, with a fault behind the first layer."""
    base, _, signals = encoders
    kinds = {
        "ffn": ("encoder.layers.{}.feed_forward:out", True),
        "layer": ("encoder.layers.{}.final_layer_norm:out", False),
    }
    for number in range(2):
        folder = tmp_path / f"port/{number:03}"
        folder.mkdir(parents=True)
        values = {}
        for own, (point, transposed) in kinds.items():
            for layer in range(2):
                one = np.load(dumped / f"{number:03}" / f"{point.format(layer)}.npy")
                values[f"{own}-{layer}"] = one[0].T if transposed else one
        values["layer-1"] = values["layer-1"] * np.float32(1.01)
        values["result"] = np.load(dumped / f"{number:03}/(root):out.npy") * np.float32(1.0001)
        values["scratch"] = np.zeros((3, 5), dtype=np.float32)
        np.savez(folder / "all.npz", **values)
    words = ("--inputs", signals, "--port", tmp_path / "port", "-o", tmp_path / "again")
    ran = dump(run, base, *words)
    assert ran.code == 0, ran.err
    proposed = yaml.safe_load((tmp_path / "again/names.yaml").read_text())
    rules = {one["cand"]: one for one in proposed["map"]}
    assert set(rules) == {"ffn-*", "layer-*", "result"}
    assert rules["result"]["base"] == "(root):out"
    assert rules["ffn-*"]["transpose"] == [1, 0]
    assert "# scratch" in (tmp_path / "again/names.yaml").read_text()
    command = next(line for line in ran.out.splitlines() if line.startswith("Next: evalguard "))
    traced = run(*command.removeprefix("Next: evalguard ").split(), "--quiet")
    assert traced.code == 1, traced.err
    assert "LOCATED: encoder.layers.1 is the first module" in " ".join(traced.out.split())


def test_the_command_that_comes_next_names_the_guard_file_of_the_model(
    run: Any, world: SmallWorld, text: Path, tmp_path: Path
) -> None:
    asked = ("--config", world.guard, "--text", text, "--points", "model.layers.*:out")
    assert dump(run, "orig", *asked, "-o", tmp_path / "port").code == 0
    words = (*asked, "--port", tmp_path / "port", "-o", tmp_path / "again")
    ran = dump(run, "orig", *words)
    command = next(line for line in ran.out.splitlines() if line.startswith("Next: evalguard "))
    traced = run(*command.removeprefix("Next: evalguard ").split(), "--quiet")
    assert traced.code == 0, traced.err


@pytest.mark.parametrize("there", ["file", "full folder"])
def test_nothing_that_is_there_is_overwritten(
    run: Any, encoders: tuple[Path, Path, Path], tmp_path: Path, there: str
) -> None:
    target = tmp_path / "there"
    if there == "file":
        target.write_text("mine")
    else:
        target.mkdir()
        (target / "mine.txt").write_text("mine")
    ran = dump(run, encoders[0], "--inputs", encoders[2], "-o", target)
    assert ran.code == 2
    assert str(target) in ran.err
    assert (target if there == "file" else target / "mine.txt").read_text() == "mine"


def test_a_disk_that_refuses_leaves_nothing(
    run: Any,
    encoders: tuple[Path, Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    saved = []

    def save(file: Path, *_: object, **__: object) -> None:
        saved.append(file)
        if len(saved) > 5:
            raise OSError(28, "No space left on device")
        Path(file).write_bytes(b"half")

    monkeypatch.setattr("evalguard.tracing.dump_activations.np.save", save)
    ran = dump(run, encoders[0], "--inputs", encoders[2], "-o", tmp_path / "out/dump")
    assert ran.code == 3
    assert "the disk is full" in ran.err
    assert list((tmp_path / "out").iterdir()) == []


def test_a_finished_run_and_a_server_have_no_activations_to_write(
    run: Any, tmp_path: Path, world: SmallWorld
) -> None:
    ran = dump(run, "http://127.0.0.1:9/v1", "--text", world.guard, "-o", tmp_path / "x")
    assert ran.code == 2
    assert "no activations" in ran.err.replace("\n", " ")
    assert not (tmp_path / "x").exists()


def test_without_documents_the_ways_to_name_one_are_told(
    run: Any, world: SmallWorld, tmp_path: Path
) -> None:
    ran = dump(run, world.models["llama"], "-o", tmp_path / "x")
    assert ran.code == 2
    assert "--text FILE" in ran.err
    assert json.dumps(ran.err).count("comparison of the two") == 0


@pytest.mark.parametrize("model", ["./no-such-model", "http://127.0.0.1:9/v1", ""])
def test_what_cannot_be_dumped_is_named_as_it_was_typed(
    refused: Any, encoders: tuple[Path, Path, Path], model: str
) -> None:
    ran = refused(2, "dump", model, "--inputs", encoders[2], "-o", "out")
    assert "MODEL" in ran.err
    assert "--base" not in ran.err
