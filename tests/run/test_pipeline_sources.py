"""What --base and --cand name: guard file first, then runs, folders and hub ids."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evalguard.comparison.needed_guards import find_guards
from evalguard.config.guard import GuardSet
from evalguard.config.guard_search import load_guards
from evalguard.config.options import CompareOptions
from evalguard.core.settings import Value
from evalguard.engine.sources import (
    ModelSource,
    RunSource,
    SideSpec,
    Source,
    resolve_side,
    with_distinct_names,
)
from evalguard.errors import GuardFileError, UsageError

GUARD = """
models:
  orig: {model_args: {pretrained: org/model, dtype: float32}}
  port:
    extends: orig
    settings:
      scale: {reference: 1.0, candidate: 2.0, target: "attr:model.norm.scale"}
      dtype: {reference: float32, candidate: bfloat16, target: model_args.dtype}
"""


@pytest.fixture
def guards(tmp_path: Path) -> GuardSet:
    (tmp_path / "evalguard.yaml").write_text(GUARD)
    return load_guards(None, cwd=tmp_path, allow_code=False)


@pytest.fixture
def find(guards: GuardSet, tmp_path: Path) -> Any:
    def found(
        spec: str,
        *,
        model_args: dict[str, Value] | None = None,
        assignment: dict[str, Value] | None = None,
        **options: Any,
    ) -> Source:
        side = SideSpec(
            role="cand", spec=spec, model_args=model_args or {}, assignment=assignment or {}
        )
        return resolve_side(side, guards, CompareOptions(**options), cwd=tmp_path)

    return found


def test_a_name_in_the_guard_file_wins_over_a_folder_of_that_name(
    find: Any, tmp_path: Path
) -> None:
    (tmp_path / "port").mkdir()
    source = find("port")
    assert isinstance(source, ModelSource)
    assert source.guard is not None
    assert source.variant.assignment == {"scale": 2.0, "dtype": "bfloat16"}


def test_a_gguf_file_that_is_named_is_a_model_whatever_lies_beside_it(
    find: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "mine"
    (folder / "original").mkdir(parents=True)
    for name in ("m.gguf", "imatrix.npy", "original/w.safetensors"):
        (folder / name).write_bytes(b"")
    found = find("./mine")
    assert isinstance(found, ModelSource)
    assert found.variant.model == "llama_cpp"
    named = find("./mine", model_args={"gguf_file": "m.gguf"})
    assert isinstance(named, ModelSource)
    assert named.variant.model == "hf"


def test_a_folder_is_a_model_under_its_last_name(find: Any, tmp_path: Path) -> None:
    (tmp_path / "models" / "mine").mkdir(parents=True)
    for spec in ("models/mine", "./models/mine", str(tmp_path / "models" / "mine")):
        source = find(spec, model="hf-auto", model_args={"dtype": "float16"})
        assert source.name == "mine"
        assert source.guard is None
        assert source.variant.model == "hf-auto"
        assert source.variant.model_args == {
            "pretrained": str(tmp_path / "models" / "mine"), "dtype": "float16"
        }  # fmt: skip


def test_anything_else_that_looks_like_one_is_a_hub_id(find: Any) -> None:
    source = find("org/model")
    assert (source.name, source.variant.model_args["pretrained"]) == ("org/model", "org/model")
    assert source.misspelt == ""
    assert find("gpt2").misspelt == "models in evalguard.yaml: orig, port"


def test_a_servers_model_is_not_taken_for_a_misspelt_one(find: Any) -> None:
    assert find("gpt2", model="local-completions").misspelt == ""


def test_a_folder_of_an_lm_eval_run_is_a_run(find: Any, tmp_path: Path) -> None:
    run = tmp_path / "results" / "model"
    run.mkdir(parents=True)
    date = "2026-01-01T00-00-00.000000"
    content = {"results": {"t": {"acc,none": 0.5}}, "config": {}, "configs": {"t": {}}}
    (run / f"results_{date}.json").write_text(json.dumps(content))
    rows = [
        {"doc_id": i, "doc_hash": "d", "prompt_hash": "p", "target_hash": "t", "acc": float(i),
         "filter": "none", "metrics": ["acc"], "arguments": {}} for i in range(2)
    ]  # fmt: skip
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (run / f"samples_t_{date}.jsonl").write_text(text)
    for spec in ("results", "results/model", f"results/model/results_{date}.json"):
        source = find(spec)
        assert isinstance(source, RunSource)
        assert source.name in ("results", "model")
        assert source.run.tables[0].n == 2
    with pytest.raises(UsageError, match="is a finished lm-eval run: no model is loaded"):
        find("results", model_args={"dtype": "float32"})


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("prot", "no model 'prot' in evalguard.yaml; did you mean 'port'"),
        ("./gone", "no model or lm-eval run at './gone'"),
        ("/gone/deep", "no model or lm-eval run at '/gone/deep'"),
        ("a/b/c", "no model or lm-eval run at 'a/b/c'"),
        ("~nobody-here/x", "no model or lm-eval run at '~nobody-here/x'"),
        ("  ", "--cand is empty"),
        ("a b", "is neither a model folder"),
        ("/" + "x" * 5000, "no model or lm-eval run"),
        ("/x\0y", "no model or lm-eval run"),
    ],
)
def test_a_name_that_is_nothing_is_refused(find: Any, spec: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        find(spec)


def test_settings_are_assigned_by_value_and_by_word(find: Any) -> None:
    source = find("port", assignment={"scale": "reference", "dtype": "float16"})
    assert source.variant.assignment == {"scale": 1.0, "dtype": "float16"}
    assert find("port", assignment={"scale": "candidate"}).variant.assignment["scale"] == 2.0
    with pytest.raises(UsageError, match="no setting 'scalle'; did you mean 'scale'"):
        find("port", assignment={"scalle": 1.0})
    with pytest.raises(UsageError, match="has no setting 'scale'"):
        find("org/model", assignment={"scale": 1.0})


def test_model_arguments_are_added_unless_a_setting_owns_them(find: Any) -> None:
    source = find("orig", model_args={"revision": "r1", "dtype": "float16"})
    assert source.variant.model_args == {
        "pretrained": "org/model", "dtype": "float16", "revision": "r1"
    }  # fmt: skip
    with pytest.raises(UsageError, match="'dtype' is what setting 'dtype' of 'port' sets"):
        find("port", model_args={"dtype": "float16"})
    with pytest.raises(UsageError, match="trust_remote_code is an option of its own"):
        find("orig", model_args={"trust_remote_code": True})


def test_trust_is_the_users_for_both_kinds_of_models(find: Any) -> None:
    for spec in ("orig", "org/model"):
        assert not find(spec).variant.trust_remote_code
        assert find(spec, trust_remote_code=True).variant.trust_remote_code


def test_two_sides_of_one_name_are_told_apart(find: Any) -> None:
    same = with_distinct_names(find("orig"), find("orig"))
    assert [source.name for source in same] == ["orig (base)", "orig (candidate)"]
    different = with_distinct_names(find("orig"), find("port"))
    assert [source.name for source in different] == ["orig", "port"]


def test_a_broken_guard_file_matters_only_where_a_name_may_be_in_it(tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "hydra.yaml").write_text("defaults: [a]\n")
    (tmp_path / "run").mkdir()
    for specs in (("run", "org/model"), ("./gone", "a/b")):
        guards, notes = find_guards(specs, CompareOptions(), cwd=tmp_path)
        assert guards.names == ()
        assert len(notes) == 1
        assert "configs/hydra.yaml" in notes[0]
    with pytest.raises(GuardFileError):
        find_guards(("run", "name"), CompareOptions(), cwd=tmp_path)
    named = CompareOptions(config=Path("configs/hydra.yaml"))
    with pytest.raises(GuardFileError):
        find_guards(("run", "run"), named, cwd=tmp_path)


def test_a_folder_of_the_users_wins_over_a_name_of_the_demo(tmp_path: Path) -> None:
    demo = load_guards(None, cwd=tmp_path, allow_code=False)
    side = SideSpec(role="base", spec="orig", model_args={}, assignment={})

    def found() -> Source:
        return resolve_side(side, demo, CompareOptions(), cwd=tmp_path)

    named = found()
    assert isinstance(named, ModelSource)
    assert named.guard is not None
    (tmp_path / "orig").mkdir()
    own = found()
    assert isinstance(own, ModelSource)
    assert own.guard is None
    assert own.variant.model_args == {"pretrained": str(tmp_path / "orig")}


def test_a_misspelt_folder_gets_the_nearest_one_and_stays_a_hub_id(
    find: Any, tmp_path: Path
) -> None:
    (tmp_path / "models" / "original").mkdir(parents=True)
    (tmp_path / "original").mkdir()
    for spec in ("./orignal", "models/./orignal"):
        with pytest.raises(UsageError, match="does not exist; did you mean 'original'"):
            find(spec)
    # Nearer to the folder than to the guard file's "orig"; and a hub id of that name may be there.
    for spec in ("orignal", "models/orignal"):
        assert find(spec).misspelt.startswith("did you mean 'original'?"), spec
    assert find("org/gpt2").misspelt == ""


@pytest.mark.parametrize("role", ["base", "cand"])
@pytest.mark.parametrize("rest", [b"", b"\x00" * 12, bytes(range(256))])
@pytest.mark.parametrize("name", ["wiki.kld", "logits", "model.gguf"])
def test_a_logits_file_of_llama_cpp_is_refused_and_the_gguf_asked_for(
    guards: GuardSet, tmp_path: Path, role: str, rest: bytes, name: str
) -> None:
    (tmp_path / name).write_bytes(b"_logits_" + rest)
    side = SideSpec(role=role, spec=name, model_args={}, assignment={})
    with pytest.raises(UsageError, match=f"--{role} {name} is a logits file") as refused:
        resolve_side(side, guards, CompareOptions(), cwd=tmp_path)
    assert "name the GGUF" in refused.value.hint
