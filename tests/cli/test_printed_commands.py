"""Every command that evalguard prints runs as it is printed, where it was printed."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from small_world import Ran, SmallWorld

pytestmark = pytest.mark.slow

Run = Callable[..., Ran]
_COMMAND = re.compile(
    r"(?:^ *|: |; |\()((?:evalguard (?!nightly 20|bisect derives)|wandb sync ).*)"
)
_PLACEHOLDER = re.compile(r"\b(RUN|FILE|MODEL|FOLDER)\b|…")
_JUDGES = ("compare", "demo", "bisect", "trace", "nightly", "tensors")


def printed(text: str) -> list[str]:
    """The commands in a text, in their order; a line that ends in a backslash goes on."""
    lines = re.sub(r"\\\n", "", text).splitlines()
    found = [match[1].rstrip() for line in lines for match in _COMMAND.finditer(line)]
    return list(dict.fromkeys(found))


def run_all(run: Run, text: str, *, least: int = 1) -> dict[str, Ran]:
    """Run all commands that a text holds; each must end with a result."""
    commands = printed(text)
    assert len(commands) >= least, text
    ran = {}
    for command in commands:
        assert not _PLACEHOLDER.search(command), command
        program, *words = shlex.split(command)
        if program == "wandb":
            assert Path(words[-1]).is_dir(), command
            continue
        ran[command] = run(*words)
        expected = (0, 1) if words[0] in _JUDGES else (0,)
        assert ran[command].code in expected, f"{command}\n{ran[command].err}"
    return ran


@pytest.fixture
def guard(world: SmallWorld, tmp_path: Path) -> Path:
    """The guard file in a folder with a blank in its name, below the current one."""
    folder = tmp_path / "my guards"
    folder.mkdir()
    file = folder / "port's guard.yaml"
    file.write_text(world.guard.read_text())
    return file.relative_to(tmp_path)


@pytest.fixture
def folders(world: SmallWorld, tmp_path: Path) -> tuple[str, str]:
    """Two model folders with blanks in their names, by relative paths."""
    shutil.copytree(world.models["llama"], tmp_path / "the original")
    shutil.copytree(world.models["other"], tmp_path / "my port")
    return "./the original", "./my port"


@pytest.mark.parametrize(
    "more",
    [
        (),
        ("-v",),
        pytest.param(("--bisect", "always"), marks=pytest.mark.nightly),  # bisect's own are below
    ],
)
def test_those_of_a_comparison_run(run: Run, guard: Path, more: tuple[str, ...]) -> None:
    shown = run("compare", "--config", guard, "--base", "orig", "--cand", "sharp", *more)
    run_all(run, shown.out)


def test_the_proof_of_a_bisection_passes_and_its_trace_and_report_run(
    run: Run, guard: Path
) -> None:
    shown = run("bisect", "--config", guard, "--base", "orig", "--cand", "sharp")
    assert shown.code == 1, shown.err
    ran = run_all(run, shown.out, least=2)
    proof = next(found for command, found in ran.items() if "=reference" in command)
    assert proof.code == 0
    assert any(command.startswith("evalguard report ") for command in ran)


def test_a_bisection_whose_budget_is_spent_goes_on_by_its_command(run: Run, guard: Path) -> None:
    asked = ("bisect", "--config", guard, "--base", "orig", "--cand", "sharp")
    shown = run(*asked, "--budget", "0.01")
    assert "--resume" in shown.out, shown.out + shown.err
    run_all(run, shown.out)


def test_those_of_two_folders_run(
    run: Run, world: SmallWorld, folders: tuple[str, str], tmp_path: Path
) -> None:
    base, candidate = folders
    asked = ("--base", base, "--cand", candidate, "--tasks", "sw_word,sw_text")
    asked += ("--include-path", str(world.tasks), "--margin", "0.0001")
    for job in ("compare", "bisect", "trace"):
        run_all(run, run(job, *asked[: 6 if job == "trace" else None], *(
            ("--include-path", str(world.tasks)) if job == "trace" else ()
        )).out)  # fmt: skip


def test_those_of_several_candidates_and_of_a_chain_run(run: Run, guard: Path) -> None:
    asked = ("compare", "--config", guard, "--base", "orig", "--cand", "sharp", "--cand", "other")
    run_all(run, run(*asked).out)
    run_all(run, run(*asked, "--chain").out)
    run_all(run, run(*asked, "-v", "--bisect", "auto").out, least=2)


# Models of the demo's names, and of others; neither can be loaded.
OWN_GUARDS = {
    "no guard file": "",
    "one with other models": "models:\n  mine: {pretrained: ./nothing}\n",
    "one with models of these names": "models:\n  orig: {pretrained: ./nothing}\n"
    "  fla-port: {pretrained: ./nothing}\n",
}


# tests/test_demo_run.py runs the demo and its proof with every change; its trace takes a minute.
@pytest.mark.nightly
@pytest.mark.parametrize("beside", OWN_GUARDS)
def test_those_of_the_demo_run_whatever_guard_file_lies_there(
    run: Run, tmp_path: Path, beside: str
) -> None:
    if OWN_GUARDS[beside]:
        (tmp_path / "evalguard.yaml").write_text(OWN_GUARDS[beside])
    shown = run("demo", "--device", "cpu")
    assert shown.code == 1, shown.err
    ran = run_all(run, shown.out, least=2)
    assert any(command.startswith("evalguard trace ") for command in ran), shown.out
    if beside == "one with other models":
        for command, found in ran.items():
            if command.startswith("evalguard trace "):
                run_all(run, found.out)


def test_those_of_a_night_and_of_its_pairs_run_without_a_guard_file_that_is_found(
    run: Run, guard: Path
) -> None:
    shown = run("nightly", "--config", guard, "-q")
    assert shown.code == 1, shown.err
    for command, found in run_all(run, shown.out).items():
        if command.startswith("evalguard report"):
            pair = run_all(run, found.out)
            assert any("--config" in one for one in pair), "the guard file's names are meant"


def test_those_of_a_comparison_from_python_run_with_its_guard_file_and_tasks(
    run: Run, guard: Path, world: SmallWorld
) -> None:
    import evalguard

    for options in ({}, {"bisect": "always"}, {"tasks": ["sw_text"], "limit": 12}):
        found = evalguard.compare("orig", "sharp", config=guard, quiet=True, **options)
        shown = found.render(width=80, color=False)
        ran = run_all(run, shown)
        assert any("--config" in command for command in ran)
        assert "--today" not in shown


def test_what_a_tracker_did_not_take_is_sent_by_its_command(
    run: Run, guard: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    asked = ("compare", "--config", guard, "--base", "orig", "--cand", "same", "--track", "wandb")
    shown = run(*asked)
    assert "wandb sync" in shown.out
    run_all(run, shown.out, least=2)


def test_those_of_plans_floors_and_of_a_first_guard_file_run(
    run: Run, guard: Path, tmp_path: Path
) -> None:
    for words in (
        ("plan", "--config", guard, "--base", "orig", "--cand", "sharp", "--pilot", "8"),
        ("floor", "--config", guard, "--base", "orig", "--limit", "8"),
        ("check", guard),
        ("models", "--config", guard),
    ):
        shown = run(*words)
        assert shown.code == 0, shown.err
        for command in printed(shown.out):
            assert "..." not in command, command
    made = run("init", "a guard.yaml")
    assert printed(made.err) == ["evalguard models --config 'a guard.yaml'"]


def asked(world: SmallWorld, base: str, candidate: Path | str) -> tuple[str, ...]:
    of = ("--base", str(world.models.get(base, Path(base))), "--cand", str(candidate))
    return (*of, "--tasks", "sw_word", "--include-path", str(world.tasks))


def test_scores_that_are_no_numbers_lead_to_the_tensor_that_holds_one(
    run: Run, world: SmallWorld
) -> None:
    shown = run("compare", *asked(world, "llama", world.models["nan"]))
    ran = run_all(run, shown.out, least=2)
    tensors = next(one for command, one in ran.items() if " tensors " in command)
    trace = next(one for command, one in ran.items() if " trace " in command)
    assert tensors.code == trace.code == 1
    assert "model.layers.0.mlp.down_proj.weight" in tensors.out
    told = " ".join(trace.out.split())
    assert "first nan or infinite value is at model.layers.0.mlp.down_proj:out" in told
    assert "model.layers.0.mlp.down_proj.weight holds such values" in told
    assert "(sw_word " in told
    run_all(run, trace.out)


@pytest.mark.parametrize(
    ("job", "candidate"),
    [
        ("compare", "encoding"),
        ("trace", "vocabulary"),
        pytest.param("compare", "vocabulary", marks=pytest.mark.nightly),
        pytest.param("trace", "encoding", marks=pytest.mark.nightly),
    ],
)
def test_token_ids_that_differ_lead_to_the_search_of_the_tokenizer(
    run: Run, world: SmallWorld, job: str, candidate: str
) -> None:
    shown = run(job, *asked(world, "llama", world.models[candidate]))
    assert shown.code == 3
    ran = run_all(run, shown.err)
    (search,) = ran.values()
    told = " ".join(search.out.split())
    assert "tokenizer moves sw_word perplexity by" in told
    assert "evalguard trace" not in told, "it would be refused"


@pytest.fixture
def granite(world: SmallWorld, tmp_path: Path) -> tuple[Path, Path]:
    """A Granite, and the same weights with a config that says that they are a Llama's."""
    import json

    import torch
    from transformers import GraniteConfig, GraniteForCausalLM

    source = json.loads((world.models["llama"] / "config.json").read_text())
    shared = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
              "num_attention_heads", "num_key_value_heads", "max_position_embeddings",
              "bos_token_id", "eos_token_id", "tie_word_embeddings")  # fmt: skip
    sizes = {name: source[name] for name in shared if name in source}
    torch.manual_seed(0)
    config = GraniteConfig(
        **sizes, embedding_multiplier=3.0, logits_scaling=0.2, residual_multiplier=0.5,
        attention_multiplier=0.2, initializer_range=0.3,
    )  # fmt: skip
    folders = tmp_path / "granite", tmp_path / "read as llama"
    for folder in folders:
        shutil.copytree(world.models["llama"], folder)
        GraniteForCausalLM(config).eval().save_pretrained(folder)
        torch.manual_seed(0)
    shutil.copy(folders[0] / "model.safetensors", folders[1] / "model.safetensors")
    written = folders[1] / "config.json"
    told = json.loads(written.read_text())
    written.write_text(
        json.dumps({**told, "architectures": ["LlamaForCausalLM"], "model_type": "llama"})
    )
    return folders


def test_another_class_of_model_leads_to_a_trace_and_to_its_layers(
    run: Run, world: SmallWorld, granite: tuple[Path, Path]
) -> None:
    question = (*asked(world, str(granite[0]), granite[1]), "--gate-metric", "kl_mean=1e-9")
    shown = run("compare", *question)
    assert shown.code == 1, shown.err
    ran = run_all(run, shown.out, least=2)
    assert any("--over layers" in command for command in ran)
    trace = " ".join(next(one.out for command, one in ran.items() if " trace " in command).split())
    assert "is 0.33333 times the base's, cosine 1.000000" in trace
    assert "Likely why: architecture GraniteForCausalLM in the base, LlamaForCausalLM" in trace
    searched = run("bisect", *question)
    assert "Cause: model" not in searched.out


def test_below_the_margin_the_setting_that_moves_is_named(run: Run, guard: Path) -> None:
    guard.write_text(guard.read_text() + "\ngate: {margin: 1000, advisory: [acc]}\n")
    shown = run("compare", "--config", guard, "--base", "orig", "--cand", "sharp")
    assert shown.code == 0, shown.err
    ran = run_all(run, shown.out)
    search = next(one for command, one in ran.items() if " bisect " in command)
    assert "gain" in " ".join(search.out.split()).partition("Cause:")[2]


def test_a_rounding_that_nobody_declared_leads_to_the_weights(
    run: Run, world: SmallWorld, tmp_path: Path
) -> None:
    import numpy as np
    from safetensors.numpy import load_file, save_file

    from evalguard.core.precision_vote import round_integer

    folder = tmp_path / "three bits"
    shutil.copytree(world.models["llama"], folder)
    weights = load_file(folder / "model.safetensors")
    rounded = {
        name: np.ascontiguousarray(round_integer(one, 3)) if one.ndim == 2 else one
        for name, one in weights.items()
    }
    save_file(rounded, folder / "model.safetensors", metadata={"format": "pt"})
    shown = run("trace", *asked(world, "llama", folder))
    assert shown.code == 1, shown.err
    told = " ".join(shown.out.split())
    assert "weights: weight looks rounded to 3 bits (per row)" in told
    assert "no setting, quantization_config or dtype says so" in told
    ran = run_all(run, shown.out)
    assert any(command.startswith("evalguard tensors ") for command in ran)
