"""A traced model that brings code is in a process of its own: the other side stays what it is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from test_foreign_code import POISON, save_port
from tiny_models import save_llama
from transformers import AutoModelForCausalLM

import evalguard
from evalguard.bisect.settings.module_settings import take_modules_from
from evalguard.core.scorer import ScoringPolicy
from evalguard.core.settings import Variant
from evalguard.engine.sources import ModelSource
from evalguard.run_token import current_run, run_of, run_scope
from evalguard.tracing import both_sides as loaded_sides
from evalguard.tracing import model_apart as open_apart
from evalguard.tracing.traced_sides import TracedSide
from evalguard.worker.client import WorkerScorer

POLICY = ScoringPolicy(device="cpu")

TEXT = "Mara carried the lantern down to the harbour because the fog had come in early."


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = save_llama(tmp_path_factory.mktemp("apart") / "llama")
    (folder.parent / "text.txt").write_text(TEXT)
    return folder


def edited(llama: Path, folder: Path, dtype: torch.dtype = torch.float32) -> Path:
    """A copy with a scaled matrix behind another layout, in another dtype."""
    model = AutoModelForCausalLM.from_pretrained(llama)
    with torch.no_grad():
        model.model.layers[0].self_attn.v_proj.weight *= 4
        model.model.layers[0].self_attn.o_proj.weight /= 4
        model.model.layers[1].mlp.down_proj.weight *= 1.25
    model.to(dtype).save_pretrained(folder)
    for file in llama.glob("tokenizer*"):
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


def traced(base: Path, candidate: Path, text: Path, memory: str) -> dict[str, Any]:
    """Everything that is measured, as JSON has it."""
    found = evalguard.trace(
        base, candidate, text=[text], memory=memory, detail=True, write=False, quiet=True
    )
    told: dict[str, Any] = found.to_dict()
    names = ("layers", "suspects", "other_layouts", "details", "twin", "unaligned")
    return {name: told[name] for name in names}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("memory", ["lockstep", "sequential"])
def test_a_model_in_a_process_of_its_own_is_traced_as_one_in_this_to_the_last_bit(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, memory: str
) -> None:
    other = edited(llama, tmp_path / "other", dtype)
    text = llama.parent / "text.txt"
    here = traced(llama, other, text, memory)
    monkeypatch.setattr(loaded_sides, "has_own_process", lambda variant: variant.name != "llama")
    opened = []

    def noted(source: ModelSource, *words: Any, **given: Any) -> TracedSide:
        opened.append(source.name)
        return open_apart.open_apart(source, *words, **given)

    monkeypatch.setattr(loaded_sides, "open_apart", noted)
    assert traced(llama, other, text, memory) == here
    assert opened == ["other"]
    relaid = {f"model.layers.0.self_attn.{one}_proj" for one in "vo"}
    recorded_in_16_bits = memory == "sequential" and dtype is torch.bfloat16
    cancelling = set() if recorded_in_16_bits else relaid
    assert {one["module"] for one in here["other_layouts"]} == cancelling
    assert {one["module"] for one in here["suspects"]} == {
        "model.layers.1.mlp.down_proj",
        *(relaid - cancelling),
    }


def traced_elsewhere(
    folder: Path, base: Path, candidate: Path, text: Path, *words: str, first: str = ""
) -> Mapping[str, Any]:
    """Trace in a process that runs the code ``first`` before anything else."""
    code = f"{first}\nfrom evalguard.__main__ import run\nrun()"
    done = subprocess.run(
        [sys.executable, "-c", code, "trace", "--base", str(base), "--cand", str(candidate),
         "--text", str(text), "--trust-remote-code", "--json", *words],
        cwd=folder,
        env={**os.environ, "EVALGUARD_CACHE_DIR": str(folder / "cache"), "HF_HUB_OFFLINE": "1",
             "HF_MODULES_CACHE": str(folder / "modules"),
             "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def activations(told: Mapping[str, Any], side: str) -> dict[str, object]:
    """Sums of a side's own activations, at every point."""
    return {
        one["point"]: one["accumulated"][f"sum_{side}"]
        for one in told["layers"]
        if one["accumulated"] is not None
    }


@pytest.mark.slow
@pytest.mark.nightly
def test_code_that_a_traced_model_brings_changes_the_other_model_in_neither_order(
    llama: Path, tmp_path: Path
) -> None:
    text = llama.parent / "text.txt"
    port = save_port(llama, tmp_path / "port", POISON["a class of transformers"])
    clean = save_port(llama, tmp_path / "clean", "")
    alone = traced_elsewhere(tmp_path, llama, llama, text)
    as_base = traced_elsewhere(tmp_path, llama, port, text)
    as_candidate = traced_elsewhere(tmp_path, port, llama, text)
    guard = tmp_path / "one-at-a-time.yaml"
    guard.write_text("run: {memory: sequential}")
    in_turn = traced_elsewhere(tmp_path, port, clean, text, "--config", str(guard))
    wanted = activations(alone, "base")
    assert wanted
    assert activations(as_base, "base") == wanted
    assert activations(as_candidate, "candidate") == wanted
    assert activations(in_turn, "candidate") == wanted
    for told in (as_base, as_candidate, in_turn):
        assert told["first"]["module"] == "model.layers.0.input_layernorm"
    assert activations(as_base, "candidate") == activations(as_candidate, "base") != wanted


@pytest.mark.slow
@pytest.mark.nightly
def test_a_process_that_code_was_brought_into_traces_no_model_itself(
    llama: Path, tmp_path: Path
) -> None:
    text = llama.parent / "text.txt"
    port = save_port(llama, tmp_path / "port", POISON["a class of transformers"])
    load = (
        "from transformers import AutoModelForCausalLM\n"
        f"AutoModelForCausalLM.from_pretrained({str(port)!r}, trust_remote_code=True)"
    )
    alone = traced_elsewhere(tmp_path, llama, llama, text)
    spoilt = traced_elsewhere(tmp_path, llama, llama, text, first=load)
    assert activations(spoilt, "base") == activations(alone, "base")
    assert activations(spoilt, "candidate") == activations(alone, "candidate")


@pytest.mark.slow
def test_modules_of_another_model_beside_code_that_a_model_brings_are_kept_for_the_run(
    llama: Path, tmp_path: Path
) -> None:
    port = save_port(llama, tmp_path / "port", "")
    base = Variant(name="base", model="hf", model_args={"pretrained": str(llama)})
    candidate = replace(
        base, name="port", model_args={"pretrained": str(port)}, trust_remote_code=True
    )
    taken = take_modules_from(base, candidate, {"m": "model.layers.0.mlp"})
    mixed = replace(taken, assignment={"m": taken.settings[0].reference})
    told = {}
    # what its code reads is declared, but not what it does to modules beside it
    mixed = replace(mixed, inputs={})
    with run_scope():
        for name, variant in (("port", candidate), ("left", taken), ("mixed", mixed)):
            log = tmp_path / f"{name}.log"
            with closing(
                WorkerScorer(variant, POLICY, cache_dir=tmp_path / "c", log=log)
            ) as worker:
                told[name] = worker.describe()
        assert told["port"].identity is not None
        assert told["left"].identity is not None
        assert run_of(told["mixed"].identity) == current_run()
    (caveat,) = (one for one in told["mixed"].caveats if "not kept" in one)
    assert "modules of another model are in one process with code" in caveat
