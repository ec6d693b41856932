"""``evalguard trace``: the module at which error is introduced, from the command line."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch
from small_world import SmallWorld
from tiny_models import save_gemma2

from evalguard.tracing import trace_run
from evalguard.tracing.trace_report import trace_schema

TEXT = "Mara carried the lantern down to the harbour because the fog had come in early."


@pytest.fixture
def text(tmp_path: Path) -> Path:
    file = tmp_path / "story.txt"
    file.write_text(f"{TEXT}\n")
    return file


@pytest.fixture(scope="module")
def encoders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """A HuBERT, one with another activation in front of its layers, and inputs of both."""
    from transformers import HubertConfig, HubertModel

    folder = tmp_path_factory.mktemp("encoders")
    torch.manual_seed(0)
    config = HubertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
        conv_dim=(16, 16), conv_stride=(5, 2), conv_kernel=(10, 3), num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=4,
    )  # fmt: skip
    HubertModel(config).save_pretrained(folder / "hubert")
    shutil.copytree(folder / "hubert", folder / "tanh")
    told = json.loads((folder / "tanh/config.json").read_text())
    told["feat_extract_activation"] = "gelu_new"
    (folder / "tanh/config.json").write_text(json.dumps(told))
    signal = np.random.default_rng(0).normal(size=(2, 400)).astype(np.float32)
    np.savez(folder / "signal.npz", input_values=signal)
    return folder / "hubert", folder / "tanh", folder / "signal.npz"


def trace(
    run: Any, world: SmallWorld, candidate: object, *words: object, base: str = "orig"
) -> Any:
    sides = ("--config", world.guard, "--base", base, "--cand", candidate)
    return run("trace", *sides, "--quiet", *words)


def test_the_guilty_weight_is_named_in_a_text_of_ones_own(
    run: Any, world: SmallWorld, text: Path
) -> None:
    ran = trace(run, world, "other", "--text", text)
    assert ran.code == 1, ran.err
    assert ran.out.startswith("LOCATED: model.layers.1.mlp.down_proj is the first module beyond")
    assert "weights" in ran.out.splitlines()[1]
    assert max(map(len, ran.out.splitlines())) <= 80
    assert "1 document, " in ran.out
    (folder,) = Path("reports").iterdir()
    assert folder.name.endswith("-orig-vs-other-trace")
    assert {one.name for one in folder.iterdir()} == {"trace.json", "trace.html"}


def test_a_trace_is_shown_again_in_every_format_and_no_other(
    run: Any, world: SmallWorld, text: Path
) -> None:
    told = trace(run, world, "other", "--text", text, "--json").document
    folder = told["folder"]
    assert json.loads(run("report", folder, "--format", "json").out) == told
    page = run("report", folder, "--format", "html").out
    assert page.lower().startswith("<!doctype html>")
    shown = run("report", folder).out
    assert shown.startswith("LOCATED")
    assert run("report", folder, "--format", "text").out == shown
    assert run("report", folder, "-o", "trace.dat", "--format", "json").out == ""
    assert json.loads(Path("trace.dat").read_text()) == told
    assert run("report", folder, "--format", "junit").code == 2
    assert run("report", folder, "-o", "-", "--format", "json").code == 2
    assert not Path("-").exists()


def test_two_models_that_do_not_fit_side_by_side_are_loaded_in_turn(
    run: Any, world: SmallWorld, text: Path
) -> None:
    in_turn = ("--config", world.saying("memory: sequential"), "--text", text)
    ran = trace(run, world, "other", *in_turn, "--json")
    assert ran.code == 1, ran.err
    assert ran.document["first"]["module"] == "model.layers.1.mlp.down_proj"
    assert {one["verdict"] for one in ran.document["hyperparameters"]} == {"equal"}
    ran = trace(run, world, "other-encoding", *in_turn)
    assert ran.code == 3
    assert "reads other token ids of story.txt" in ran.err


def test_a_model_beside_itself_is_clear(run: Any, world: SmallWorld, text: Path) -> None:
    ran = trace(run, world, "same", "--text", text)
    assert ran.code == 0, ran.err
    assert ran.out.startswith("CLEAR: no module introduces more error than rounding does")
    assert "Configuration: nothing differs" in ran.out


def test_beside_a_base_that_is_nan_itself_nothing_is_clear(
    run: Any, world: SmallWorld, text: Path
) -> None:
    ran = trace(run, world, "not-a-number", "--text", text, base="not-a-number")
    assert ran.code == 3, ran.out
    said = " ".join(ran.out.split())
    assert said.startswith("UNKNOWN: where the error comes from is not known: from model.layers.0.")
    assert "the base itself is nan or infinite" in said


def test_as_json_it_is_one_document_that_the_schema_knows(
    run: Any, world: SmallWorld, text: Path, tmp_path: Path
) -> None:
    files = (tmp_path / "t.html", tmp_path / "t.txt", tmp_path / "t.json")
    written = [word for file in files for word in ("-o", file)]
    ran = trace(run, world, "sharp", "--text", text, "--json", "--detail", *written)
    assert ran.code == 1, ran.err
    document = ran.document
    jsonschema.Draft202012Validator(trace_schema()).validate(document)
    assert document["first"]["module"] == "model.layers.0.input_layernorm"
    assert document["suspects"][0]["module"] == "model.norm"
    assert any(one["point"].startswith("model.norm:") for one in document["details"])
    (read,) = document["documents"]
    assert (read["name"], len(read["token_texts"])) == ("story.txt", read["tokens"])
    assert document["tokens"] == read["tokens"]
    differing = [one for one in document["hyperparameters"] if one["verdict"] == "differs"]
    assert [one["name"] for one in differing] == ["norm_eps"]
    assert json.loads(files[2].read_text())["first"] == document["first"]
    page, plain = (file.read_text() for file in files[:2])
    for shown in (page, plain):
        assert "LOCATED: model.layers.0.input_layernorm" in shown
        assert "norm_eps 1e-06 in the base, 1e-05 in the candidate" in " ".join(shown.split())


@pytest.mark.parametrize("changed", ["base", "cand"])
@pytest.mark.parametrize("loading", ["lockstep", "sequential"])
def test_documents_are_not_those_of_other_models_of_the_same_names(
    run: Any, world: SmallWorld, changed: str, loading: str
) -> None:
    words = ("--config", world.guard, "--base", "orig", "--cand", "other", "--quiet")
    own = run("compare", *words, "--tasks", "sw_choice", "--json").document
    dtype = (f"--{changed}-model-args", "dtype=bfloat16")
    newer = run("compare", *words, *dtype, "--tasks", "sw_choice", "--json").document
    assert newer["run_folder"] != own["run_folder"]
    words = ("--config", world.saying(f"memory: {loading}"), *words[2:], "--tasks", "sw_choice")
    asked = (*words, "--limit", "2", "--json", "--swap", "0")
    document = run("trace", *asked).document
    # One after the other, the base is loaded after documents are chosen: what it was is told.
    unknown = loading == "sequential" and changed == "base"
    assert document["run"] == (None if unknown else own["run_folder"])
    assert (newer["run_folder"] in document["chosen"]) == unknown
    (Path(own["run_folder"]) / "result.json").unlink()
    document = run("trace", *asked).document
    assert document["run"] is None
    assert newer["run_folder"] in document["chosen"]
    assert 'id="trace"' not in (Path(newer["run_folder"]) / "report.html").read_text()


def test_the_documents_that_moved_most_are_traced_and_the_run_shows_it(
    run: Any, world: SmallWorld
) -> None:
    words = ("--config", world.guard, "--base", "orig", "--cand", "other", "--quiet")
    compared = run("compare", *words, "--tasks", "sw_word,sw_choice", "--json").document
    folder = Path(compared["run_folder"])
    assert 'id="trace"' not in (folder / "report.html").read_text()
    ran = trace(run, world, "other", "--limit", "3", "--json", "--swap", "0")
    assert ran.code == 1, ran.err
    document = ran.document
    assert document["run"] == compared["run_folder"]
    assert document["chosen"].startswith("3 of sw_choice that moved most on acc in ")
    moved = [abs(one["drift"]) for one in document["documents"]]
    assert len(moved) == 3
    assert moved == sorted(moved, reverse=True)
    assert min(moved) > 0.0
    assert 'id="trace"' in (folder / "report.html").read_text()
    again = run("report", folder, "-o", "again.html")
    assert again.code == 0
    assert "model.layers.1.mlp.down_proj" in Path("again.html").read_text()
    shown = run("report", document["folder"])
    assert (shown.code, shown.out.partition(":")[0]) == (0, "LOCATED")
    named = trace(run, world, "other", "--documents", "3,1", "--json", "--swap", "0").document
    assert [one["doc_id"] for one in named["documents"]] == [3, 1]
    refused = trace(run, world, "other", "--documents", "999")
    assert refused.code == 2
    assert "the last comparison scored no such document of sw_choice" in refused.err


@pytest.mark.parametrize("harm", ["damaged", "gone"])
def test_a_comparison_that_is_lost_while_its_models_are_traced_takes_no_trace_with_it(
    run: Any, world: SmallWorld, harm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("--config", world.guard, "--base", "orig", "--cand", "other", "--quiet")
    compared = run("compare", *words, "--tasks", "sw_choice", "--json").document
    file = Path(compared["run_folder"]) / "result.json"
    trace_both = trace_run._trace

    def lose(*given: Any) -> Any:
        report = trace_both(*given)
        file.write_text("{") if harm == "damaged" else file.unlink()
        return report

    monkeypatch.setattr(trace_run, "_trace", lose)
    ran = trace(run, world, "other", "--limit", "2", "--json")
    assert ran.code == 1, ran.err
    assert ran.document["run"] == compared["run_folder"]
    (said,) = (one for one in ran.document["caveats"] if "can no longer be read" in one)
    assert str(file.parent) in said
    assert (Path(ran.document["folder"]) / "trace.json").is_file()
    assert "does not show this trace" in ran.err


@pytest.mark.slow
def test_what_a_suspect_is_worth_is_measured_on_the_task(run: Any, world: SmallWorld) -> None:
    ran = trace(run, world, "other", "--tasks", "sw_word", "--limit", "2", "--swap", "1", "--json")
    assert ran.code == 1, ran.err
    first = ran.document["first"]
    assert first["module"] == "model.layers.1.mlp.down_proj"
    assert isinstance(first["swap_sigma"], float)
    assert ran.document["swap_task"].startswith("sw_word ")
    assert ran.document["suspects"][0]["swap_sigma"] == first["swap_sigma"]


@pytest.mark.slow
def test_without_a_comparison_the_first_documents_of_the_task_are_traced(
    run: Any, world: SmallWorld
) -> None:
    ran = trace(run, world, "other", "--tasks", "sw_text", "--limit", "2", "--json")
    assert ran.code == 1, ran.err
    assert [one["doc_id"] for one in ran.document["documents"]] == [0, 1]
    assert "2 of sw_text, its first ones" in ran.document["chosen"]
    ran = trace(run, world, "other", "--tasks", "sw_text", "--documents", "2,999")
    assert ran.code == 2
    assert "task sw_text has no such document" in ran.err


def test_an_encoder_of_signals_takes_its_inputs_from_a_file(
    run: Any, world: SmallWorld, encoders: tuple[Path, Path, Path]
) -> None:
    """ggml #915: GELU by its tanh form is named, at the feature extractor."""
    base, candidate, signal = encoders
    ran = trace(run, world, candidate, "--inputs", signal, "--json", base=str(base))
    assert ran.code == 1, ran.err
    document = ran.document
    assert document["first"]["module"] == "feature_extractor.conv_layers.0.activation"
    (one,) = [h for h in document["hyperparameters"] if h["verdict"] == "differs"]
    assert (one["base"], one["candidate"]) == ("gelu (erf)", "gelu (tanh)")
    assert [one["tokens"] for one in document["documents"]] == [400, 400]
    refused = trace(run, world, candidate, "--text", signal.parent / "none.txt", base=str(base))
    assert refused.code == 2


@pytest.mark.slow
def test_activations_in_files_are_traced_by_a_name_map(
    run: Any, world: SmallWorld, text: Path, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(world.models["other"]).eval()
    ids = trace(run, world, "same", "--text", text, "--json", "--detail").document
    found: dict[str, np.ndarray[Any, Any]] = {}
    for number, layer in enumerate(model.model.layers):
        layer.mlp.down_proj.register_forward_hook(
            lambda _m, _i, out, at=number: found.update({f"ffn_out-{at}": out.detach().numpy()})
        )
        layer.mlp.down_proj.register_forward_pre_hook(
            lambda _m, given, at=number: found.update({f"ffn_in-{at}": given[0].detach().numpy()})
        )
    tokenizer = world.models["llama"] / "tokenizer.json"
    from tokenizers import Tokenizer

    encoded = Tokenizer.from_file(str(tokenizer)).encode(TEXT).ids
    assert len(encoded) == ids["tokens"]
    with torch.no_grad():
        model(torch.tensor([encoded]))
    dump = tmp_path / "dump"
    dump.mkdir()
    np.savez(dump / "step.npz", **found)
    (dump / "config.yaml").write_text("rms_norm_eps: 9.99999997e-07\n")
    names = tmp_path / "map.yaml"
    names.write_text(
        'map:\n- {base: "model.layers.*.mlp.down_proj:out", cand: "ffn_out-*"}\n'
        '- {base: "model.layers.*.mlp.down_proj:in", cand: "ffn_in-*"}\n'
    )
    ran = trace(run, world, dump, "--map", names, "--text", text, "--json")
    assert ran.code == 1, ran.err
    assert ran.document["first"]["module"] == "model.layers.1.mlp.down_proj"
    states = {one["name"]: one["verdict"] for one in ran.document["hyperparameters"]}
    assert states["norm_eps"] == "equal as float32"
    two = trace(run, world, dump, "--map", names, "--text", text, "--text", text)
    assert two.code == 2
    assert "holds activations of 1 sequences, and 2 are traced" in two.err


def test_ctrl_c_in_a_pass_leaves_no_half_trace(
    run: Any, world: SmallWorld, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from evalguard.tracing.measure.passes import TracedSequences

    passes = TracedSequences.run

    def interrupted(self: Any, what: str, *given: Any, **more: Any) -> Any:
        if what == "candidate":
            raise KeyboardInterrupt
        return passes(self, what, *given, **more)

    monkeypatch.setattr(TracedSequences, "run", interrupted)
    ran = trace(run, world, "other", "--text", text, "--json")
    assert ran.code == 130
    assert ran.document["error"]["message"] == "interrupted while tracing"
    assert list(Path("reports").iterdir()) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--base", "orig"), "--cand is missing"),
        (("--cand", "orig"), "--base is missing"),
        (("--base", "orig", "--cand", "same", "--limit", "0"), "--limit"),
        (("--base", "orig", "--cand", "same", "--documents", "a"), "'a' is not the number of"),
        (("--base", "orig", "--cand", "same", "--text", "none.txt"), "No such file"),
        (("--base", "orig", "--cand", "same", "--inputs", "a.csv"), "says no format"),
        (("--base", "orig", "--cand", "same", "-o", "trace.pdf"), "says no format of a trace"),
        (("--base", "orig", "--cand", "same", "--text", "a", "--documents", "1"), "leave out one"),
        (("--base", "orig", "--cand", "nowhere/at/all", "--text", "a"), "no model or lm-eval run"),
    ],
)
def test_what_makes_no_sense_is_refused(
    refused: Any, world: SmallWorld, words: tuple[str, ...], message: str
) -> None:
    assert message in refused(2, "trace", "--config", world.guard, *words).err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("\n", "is empty"),
        (TEXT * 40, "tokens, and the models read 48"),
        (b"\xff\xfe", "is not UTF-8"),
    ],
)
def test_a_text_that_cannot_be_read_whole_is_refused(
    refused: Any, world: SmallWorld, tmp_path: Path, content: str | bytes, message: str
) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    sides = ("--config", world.guard, "--base", "orig", "--cand", "other")
    assert message in refused(2, "trace", *sides, "--text", file).err


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"input_ids": [[1, 2, 99999]]}, "token id 99999 is not in the vocabulary"),
        ({"input_ids": [[1.5]]}, "not whole numbers"),
        ({"input_ids": [[1], [1, 2]]}, "lists of different lengths"),
        ({"input_ids": [[1], [2]], "attention_mask": [[1]]}, "different numbers of sequences"),
        ({"input_ids": "abc"}, "holds no numbers"),
        ({}, "holds no arrays"),
    ],
)
def test_inputs_that_no_model_could_read_are_refused(
    refused: Any, world: SmallWorld, tmp_path: Path, inputs: object, message: str
) -> None:
    file = tmp_path / "a.json"
    file.write_text(json.dumps(inputs))
    sides = ("--config", world.guard, "--base", "orig", "--cand", "other")
    assert message in refused(2, "trace", *sides, "--inputs", file).err


def test_models_that_read_other_tokens_are_refused(
    refused: Any, world: SmallWorld, text: Path
) -> None:
    sides = ("--config", world.guard, "--base", "orig", "--text", text)
    found = refused(3, "trace", *sides, "--cand", "other-vocabulary")
    assert "have different vocabularies" in found.err
    found = refused(3, "trace", *sides, "--cand", "other-encoding")
    assert "other-encoding reads other token ids of story.txt than orig" in found.err


def test_a_finished_run_and_a_served_model_have_no_activations(
    refused: Any, world: SmallWorld, text: Path, tmp_path: Path
) -> None:
    guard = tmp_path / "served.yaml"
    guard.write_text(
        "models:\n  served: {model: local-completions, model_args: {model: a, base_url: "
        "'http://127.0.0.1:1/v1/completions'}}\n"
    )
    sides = ("--config", guard, "--base", world.models["llama"], "--text", text)
    found = refused(2, "trace", *sides, "--cand", "served")
    assert "is of model type 'local-completions', which shows no activations" in found.err


def test_two_architectures_without_common_names_are_refused(
    refused: Any, world: SmallWorld, encoders: tuple[Path, Path, Path]
) -> None:
    found = refused(
        3, "trace", "--base", world.models["llama"], "--cand", encoders[0], "--inputs", encoders[2]
    )
    assert "have no module in common" in found.err


def test_modules_of_another_model_are_refused_for_an_encoder_and_not_left_out(
    refused: Any, world: SmallWorld, encoders: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    base, candidate, signal = encoders
    target = "module:encoder.layers.0"
    layer = {"reference": str(base), "candidate": None, "target": target}
    port = {"model_args": {"pretrained": str(candidate)}, "settings": {"layer": layer}}
    guard = tmp_path / "guard.yaml"
    guard.write_text(
        json.dumps({"models": {"hubert": {"model_args": {"pretrained": str(base)}}, "port": port}})
    )
    sides = ("--config", guard, "--base", "hubert", "--cand", "port", "--inputs", signal)
    found = refused(3, "trace", *sides, "--set", "layer=reference")
    assert "setting 'layer' takes modules of another model" in found.err


@pytest.mark.slow
def test_another_architecture_with_the_same_names_is_traced_with_a_caveat(
    run: Any, world: SmallWorld, text: Path, tmp_path: Path
) -> None:
    gemma = save_gemma2(tmp_path / "gemma")
    ran = trace(run, world, gemma, "--text", text)
    assert ran.code == 1, ran.err
    assert "of different classes (LlamaForCausalLM, Gemma2ForCausalLM)" in " ".join(ran.out.split())


def test_without_any_document_the_ways_to_name_one_are_told(
    refused: Any, world: SmallWorld, tmp_path: Path
) -> None:
    two = (world.models["llama"], world.models["other"])
    found = refused(2, "trace", "--base", two[0], "--cand", two[1], "--output-path", tmp_path)
    assert "no documents to trace" in found.err
    assert "--text FILE" in found.err


def test_a_folder_of_a_gguf_file_that_arguments_name_is_a_model_and_no_dump(
    run: Any, world: SmallWorld, text: Path, tmp_path: Path
) -> None:
    (tmp_path / "q").mkdir()
    (tmp_path / "q/model.gguf").write_bytes(b"GGUF")
    words = ("--cand-model-args", "gguf_file=model.gguf", "--text", text)
    ran = trace(run, world, tmp_path / "q", *words)
    assert ran.code == 3
    assert "activation" not in ran.err
    if importlib.util.find_spec("xllamacpp") or importlib.util.find_spec("llama_cpp"):
        return
    alone = trace(run, world, tmp_path / "q", "--text", text)
    assert alone.code == 2
    assert "model type 'llama_cpp' needs xllamacpp" in alone.err
