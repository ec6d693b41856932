"""A trace that compares nothing, little, or not what it was asked to, is never CLEAR."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_world import Ran, SmallWorld
from tokenizers import Tokenizer

from evalguard.core.trace_points import ModelInputs, token_inputs
from evalguard.tracing.measure.forced_trace import record_activations
from evalguard.tracing.measure.rounded_products import rounded_products

Arrays = dict[str, np.ndarray[Any, Any]]
Change = Callable[[list[Arrays]], object]
TEXTS = ("the red fish swims to a far shore", "a small stone lies on the road")
LAYERS = ("model.layers.0", "model.layers.1")
WITH_ALL = ""


@pytest.fixture(scope="module")
def sequences(world: SmallWorld) -> list[ModelInputs]:
    tokenizer = Tokenizer.from_file(str(world.models["llama"] / "tokenizer.json"))
    return [token_inputs(tokenizer.encode(text).ids) for text in TEXTS]


@pytest.fixture(scope="module")
def healthy(world: SmallWorld, sequences: list[ModelInputs]) -> list[Arrays]:
    """What flows in the base itself, as a port of it would write it."""
    return record(world, "llama", sequences)


@pytest.fixture(scope="module")
def faulty(world: SmallWorld, sequences: list[ModelInputs]) -> list[Arrays]:
    """What flows in a model with one wrong weight, in the last layer."""
    return record(world, "other", sequences)


def record(
    world: SmallWorld, model: str, sequences: list[ModelInputs], *, half: bool = False
) -> list[Arrays]:
    """``half``: as an engine that multiplies in float16, and sums in float32."""
    from transformers import AutoModelForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(world.models[model], dtype=torch.float32)
    products = rounded_products(lambda one: one.half().float()) if half else nullcontext()
    with products, record_activations(loaded.eval(), sequences, memory=2**30) as found:
        return [
            {name: found.read(number, name) for name in found.names(number)}
            for number in range(len(sequences))
        ]


@pytest.fixture
def traced(
    run: Any, world: SmallWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Ran]:
    """Trace a dump with these arrays, under a map if there is one."""
    monkeypatch.chdir(tmp_path)
    texts: list[str] = []
    for number, text in enumerate(TEXTS):
        (tmp_path / f"{number}.txt").write_text(text)
        texts += ["--text", f"{number}.txt"]

    def trace(dump: list[Arrays], names: str = "", base: str = "same") -> Ran:
        for number, arrays in enumerate(dump):
            (tmp_path / "dump" / f"{number}").mkdir(parents=True)
            np.savez(tmp_path / "dump" / f"{number}" / "step.npz", **arrays)  # type: ignore[arg-type]
        (tmp_path / "map.yaml").write_text(names)
        told = ["--map", "map.yaml"] if names else []
        found: Ran = run(
            "trace", "--config", world.guard, "--base", base, "--cand", "dump", *texts, *told
        )
        return found

    return trace


def only(*parts: str) -> Change:
    """Keep the points whose name holds one of these."""

    def change(dump: list[Arrays]) -> None:
        for arrays in dump:
            for name in list(arrays):
                if not any(part in name for part in parts):
                    del arrays[name]

    return change


def without(*parts: str) -> Change:
    def change(dump: list[Arrays]) -> None:
        for arrays in dump:
            for name in [one for one in arrays if any(part in one for part in parts)]:
                del arrays[name]

    return change


def each(change: Callable[[np.ndarray[Any, Any]], Any], *parts: str) -> Change:
    """Change the arrays whose name holds one of these parts; all, where there are none."""

    def changed(dump: list[Arrays]) -> None:
        for arrays in dump:
            for name in arrays:
                if not parts or any(part in name for part in parts):
                    arrays[name] = np.asarray(change(arrays[name]))

    return changed


def rename(old: str, new: str) -> Change:
    def change(dump: list[Arrays]) -> None:
        for arrays in dump:
            for name in [one for one in arrays if old in one]:
                arrays[name.replace(old, new, 1)] = arrays.pop(name)

    return change


def both(*changes: Change) -> Change:
    def change(dump: list[Arrays]) -> None:
        for one in changes:
            one(dump)

    return change


def transposed(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return values.swapaxes(-1, -2)


def of_one_document(parts: str) -> Change:
    return lambda dump: without(parts)(dump[1:])


# What a dump holds, its name map, and what the first line says.
LITTLE: dict[str, tuple[Change, str, str]] = {
    "layers are transposed": (each(transposed, *LAYERS), "", "could not be, as model.layers.0"),
    "one point is transposed": (each(transposed, "1.mlp.up_proj:out"), "", "1 of "),
    "all is transposed": (each(transposed), "", ""),
    "the layers are one row": (each(np.ravel, *LAYERS), "", "could not be"),
    "half of the width": (each(lambda a: a[..., : a.shape[-1] // 2], *LAYERS), "", "could not be"),
    "a token is missing": (each(lambda a: a[:, 1:]), "", ""),
    "the last token's logits alone": (
        each(lambda a: a[:, -1:], "lm_head:out", "(root)"), "", "",
    ),
    "no elements": (each(lambda a: a[:, :0], *LAYERS), "", "could not be"),
    "embeddings alone": (only("embed_tokens"), "", "no module up to model.layers.0"),
    "the first layer alone": (only("embed_tokens", "layers.0."), "", "no module up to"),
    "all but the output": (without("lm_head", "model.norm:out", "model:out", "(root)"), "", ""),
    "names of another model": (rename("", "blk."), "", "no tensor of"),
    "names of layers that are not there": (
        both(rename("layers.1", "layers.7"), without("lm_head", "norm:", "model:out", "(root)")),
        "",
        "no module up to model.layers.1",
    ),
    "one document of two": (lambda dump: dump.pop(), "", "sequences"),
    "three documents for two": (lambda dump: dump.append(dump[0]), "", "sequences"),
    "a layer in one document alone": (of_one_document("layers.1"), "", "not in 1 of 2 sequences"),
    "nothing in the second": (of_one_document(WITH_ALL), "", ""),
    "a rule that no tensor has": (
        without("mlp:out"), 'map: [{base: "model.layers.*.mlp:out", cand: "ffn-*"}]',
        "a rule of the name map gives no point",
    ),
    "a rule for no module": (
        rename("model.layers.1.mlp.up_proj:out", "up-1"),
        'map: [{base: "model.layers.*.mlp.upp_proj:out", cand: "up-*"}]',
        "a rule of the name map gives no point",
    ),
    "all is ignored": (lambda dump: None, 'ignore: ["**"]', "ignore"),
    "another document": (lambda dump: dump.reverse(), "", ""),
    "zeros": (each(np.zeros_like), "", "LOCATED"),
    "not a number": (each(lambda a: a * np.nan, *LAYERS), "", "LOCATED"),
    "token ids for logits": (each(lambda a: a.argmax(-1), *LAYERS), "", "could not be"),
}  # fmt: skip


@pytest.mark.parametrize("of", ["healthy", pytest.param("faulty", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", LITTLE)
def test_what_compares_little_is_not_clear(
    name: str, of: str, request: pytest.FixtureRequest, traced: Callable[..., Ran]
) -> None:
    change, names, said = LITTLE[name]
    dump = [dict(arrays) for arrays in request.getfixturevalue(of)]
    change(dump)
    found = traced(dump, names)
    assert found.code in (1, 2, 3), found.out
    assert "CLEAR" not in found.out
    if of == "healthy":
        assert said in " ".join(f"{found.out} {found.err}".split())


@pytest.mark.parametrize(
    "change",
    [
        lambda dump: None,
        only("lm_head:out"),
        only("layers.1", "lm_head:out"),
        each(lambda a: a[0]),
        lambda dump: [arrays.update(own_cache=np.ones(3)) for arrays in dump],
    ],
    ids=["all of it", "the output alone", "the last layer", "without the batch", "more than it"],
)
def test_a_healthy_port_that_shows_its_output_is_clear_and_a_faulty_one_is_not(
    change: Change, healthy: list[Arrays], traced: Callable[..., Ran]
) -> None:
    dump = [dict(arrays) for arrays in healthy]
    change(dump)
    found = traced(dump)
    assert found.code == 0, found.out + found.err
    assert found.out.startswith("CLEAR: no module introduces more error")


def test_a_base_that_is_nan_itself_makes_nothing_clear(
    world: SmallWorld, sequences: list[ModelInputs], traced: Callable[..., Ran]
) -> None:
    found = traced(record(world, "nan", sequences), base="not-a-number")
    assert found.code == 3
    assert "CLEAR" not in found.out


@pytest.mark.parametrize(
    ("model", "config", "code", "said"),
    [
        ("llama", "", 1, "computed in float16"),
        ("llama", "precision: float16", 0, "CLEAR"),
        ("other", "precision: float16", 1, "LOCATED: model.layers.1"),
        ("llama", "precision: float16\nrms_norm_eps: 1e-5", 0, "norm_eps 1e-06 in the base, 1e-05"),
    ],
    ids=["not said", "said", "a fault behind it", "an epsilon of its own"],
)
def test_a_dump_says_in_its_config_what_is_rounding_and_what_it_computes_with(
    model: str, config: str, code: int, said: str, world: SmallWorld,
    sequences: list[ModelInputs], traced: Callable[..., Ran], tmp_path: Path,
) -> None:  # fmt: skip
    (tmp_path / "dump").mkdir()
    (tmp_path / "dump" / "config.yaml").write_text(config or "{}")
    found = traced(record(world, model, sequences, half=True))
    assert found.code == code, found.out + found.err
    assert said in " ".join(found.out.split())
