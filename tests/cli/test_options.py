"""What is typed reaches the comparison, in either spelling; what cannot be meant is refused."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from pydantic import ValidationError

from evalguard.cli.click_options import Command, add_options, explain_move
from evalguard.cli.option_groups import take_all
from evalguard.comparison.typed_command import typed_comparison
from evalguard.config.declared_options import declare, declared_keys, declared_options
from evalguard.config.gate_entry import GateEntry
from evalguard.config.guard_search import load_guards
from evalguard.config.options import CompareOptions, make_options, with_run_of
from evalguard.config.run_entry import entry_of
from evalguard.core.gate import Gate
from evalguard.errors import EXIT_USAGE, EvalguardError, UsageError
from evalguard.harness.task_options import TaskOptions

SPELLINGS: dict[str, tuple[tuple[str, ...], object]] = {
    "cluster": (("--cluster", "passage"), "passage"),
    "tasks": (("--tasks", "a, b"), ("a", "b")),
    "requests": (("--requests", "calls.jsonl"), Path("calls.jsonl")),
    "include_path": (("--include-path", "x", "--include_path", "y"), (Path("x"), Path("y"))),
    "base_model_args": (("--base_model_args", "dtype=float32,n=1"), {"dtype": "float32", "n": 1}),
    "cand_model_args": (("--cand-model-args", '{"dtype": "float16"}'), {"dtype": "float16"}),
    "cand_set": (("--set", "a=reference", "--set", "b=0.5"), {"a": "reference", "b": 0.5}),
    "base_set": (("--base_set", "a=true"), {"a": True}),
    "limit": (("--limit", "0.5"), 0.5),
    "num_fewshot": (("--num_fewshot", "5"), 5),
    "seed": (("--seed", "7"), 7),
    "apply_chat_template": (("--apply_chat_template",), True),
    "gen_kwargs": (("--gen_kwargs", "temperature=0.5"), {"temperature": 0.5}),
    "confirm_run_unsafe_code": (("--confirm_run_unsafe_code",), True),
    "batch_size": (("--batch_size", "auto"), "auto"),
    "scorer": (("--scorer", "harness"), "harness"),
    "floor": (("--floor", "floor.json"), Path("floor.json")),
    "verify_scorer": (("--verify_scorer", "4"), 4),
    "distributions": (("--distributions", "lockstep"), "lockstep"),
    "save_reference": (("--save-reference", "base.parquet"), Path("base.parquet")),
    "device": (("--device", "cpu"), "cpu"),
    "threads": (("--threads", "2"), 2),
    "trust_remote_code": (("--trust_remote_code",), True),
    "allow_code": (("--allow_code",), True),
    "allow_differing": (("--allow_differing", "prompt", "--allow-differing", "tokens"),
                        frozenset({"prompt", "tokens"})),
    "margin": (("--margin", "2"), 2.0),
    "fail_on": (("--fail_on", "any_degradation"), "any-degradation"),
    "confidence": (("--confidence", "0.9"), 0.9),
    "gate_limits": (("--gate_metric", "kl_mean=0.01", "--gate-metric", "same_top1=1"),
                    {"kl_mean": 0.01, "same_top1": 1}),
    "sequential": (("--sequential",), True),
    "bisect": (("--bisect", "always"), "always"),
    "strict": (("--strict",), True),
    "git_bisect": (("--git_bisect",), True),
    "output_path": (("--output_path", "out"), Path("out")),
    "output": (("-o", "a.txt", "--output", "b.json"), (Path("a.txt"), Path("b.json"))),
    "output_format": (("--format", "json"), "json"),
    "cache_dir": (("--cache_dir", "c"), Path("c")),
    "execution": (("--execution", "ray?actors=2"), "ray?actors=2"),
    "use_cache": (("--no_cache",), False),
    "history": (("--history", "nightly.sqlite"), Path("nightly.sqlite")),
    "track": (("--track", "wandb", "--track", "mlflow"), ("wandb", "mlflow")),
    "quiet": (("-q",), True),
    "model": (("--model", "vllm"), "vllm"),
    "config": (("--config", "g.yaml"), Path("g.yaml")),
}  # fmt: skip


class SeenError(EvalguardError):
    """Ends the command once its options were seen."""


@pytest.fixture
def seen(run: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the options that a command line gives to ``compare``."""

    def options_of(*words: str) -> CompareOptions:
        found: list[CompareOptions] = []

        def compare(base: str, candidate: str, **given: Any) -> None:
            assert (base, candidate) == ("a", "b")
            found.append(make_options(None, **given))
            raise SeenError("seen")

        monkeypatch.setattr("evalguard.comparison.compare.compare", compare)
        run("compare", "--base", "a", "--cand", "b", *words)
        return found[0]

    return options_of


@pytest.mark.parametrize("name", SPELLINGS)
def test_an_option_is_understood_with_dashes_and_with_underscores(seen: Any, name: str) -> None:
    words, expected = SPELLINGS[name]
    for mark in "-_":
        spelt = [
            f"--{word[2:].replace('-', '_').replace('_', mark)}" if word.startswith("--") else word
            for word in words
        ]
        assert getattr(seen(*spelt), name) == expected


def test_what_is_not_given_is_left_to_the_guard_file(seen: Any) -> None:
    given = seen()
    assert given == make_options(None, command=given.command)


def test_every_option_of_the_python_api_can_be_typed_or_stands_in_the_guard_file() -> None:
    others = set(CompareOptions.__dataclass_fields__) - set(SPELLINGS)
    moved = {name for name in others if explain_move(f"--{name.replace('_', '-')}") is not None}
    assert others - moved == {"write", "command", "today"}


@dataclass(frozen=True, slots=True, kw_only=True)
class WithRounds(CompareOptions):
    rounds: int | None = declare(
        None,
        group="Scoring",
        metavar="N",
        at_least=1,
        expected="a number of rounds",
        help="Rounds of scoring.",
        key="How often a document is scored.",
    )


def test_an_option_that_is_declared_stands_in_help_guard_file_api_and_typed_command() -> None:
    command = click.command("compare", cls=Command)(add_options(*take_all(of=WithRounds))(_given))
    helped = CliRunner().invoke(command, ["--help"]).output
    assert re.search(
        r"^Scoring:\n(  .*\n)*  --rounds N +Rounds of scoring\.$", helped, re.MULTILINE
    )
    typed = CliRunner().invoke(command, ["--rounds", "3"], standalone_mode=False).return_value
    assert typed["rounds"] == 3
    assert CliRunner().invoke(command, ["--rounds", "0"]).exit_code == EXIT_USAGE

    run = entry_of(WithRounds)
    assert run.model_validate({"rounds": 3}).model_dump(exclude_none=True) == {"rounds": 3}
    said = run.model_json_schema()["properties"]["rounds"]
    assert said["description"] == "How often a document is scored."
    with pytest.raises(ValidationError, match="greater than or equal to 1"):
        run.model_validate({"rounds": 0})
    assert with_run_of(WithRounds(rounds=3), WithRounds()) == WithRounds(rounds=3)
    assert with_run_of(WithRounds(rounds=3), WithRounds(rounds=2)) == WithRounds(rounds=2)

    assert make_options(WithRounds(), rounds=3) == WithRounds(rounds=3)
    with pytest.raises(UsageError, match="option rounds: 0 is not a number of rounds"):
        make_options(WithRounds(), rounds=0)

    words = "evalguard compare --base a --cand b --rounds 3"
    assert typed_comparison("a", "b", WithRounds(rounds=3)) == words


def _given(**given: Any) -> dict[str, Any]:
    return given


@pytest.mark.parametrize("command", ["compare", "bisect", "plan", "floor", "trace", "nightly"])
@pytest.mark.parametrize(
    ("typed", "now"),
    [
        ("--token_budget=512", "--token-budget is now `run: {token_budget: N}` of the guard file"),
        ("--no-bisect-thorough", "of the guard file, or `evalguard bisect --no-thorough`"),
        ("--baseline", "--baseline is now `--base RUN`, or `--base RUN:NAME`"),
        ("--reference", "--reference is now `--save-reference FILE` to write it"),
        ("--no_history", "--no-history is now `--history none`"),
        ("--broken_documents", "--broken-documents is now `gate: {broken_documents: N}`"),
    ],
)
def test_an_option_that_has_moved_says_where_it_is_now(
    refused: Any, command: str, typed: str, now: str
) -> None:
    assert now in refused(2, command, typed, "x").err


def test_what_has_moved_to_the_guard_file_is_a_key_of_it(tmp_path: Path) -> None:
    values = {
        "N": "2",
        "P": "0.01",
        "SECONDS": "2.5",
        "TEXT": "Be brief.",
        "TASK": "t",
        "FIELD": "f",
    }
    moved = (
        explain_move(f"--{name.replace('_', '-')}") for name in declared_options(CompareOptions)
    )
    for error in filter(None, moved):
        key = re.search(r"`([a-z]+: \{.*?\})` of the guard file", str(error))
        if key is not None:
            written = re.sub(r"\b[A-Z]+\b", lambda word: values.get(word[0], word[0]), key[1])
            (tmp_path / "guard.yaml").write_text(written)
            load_guards(tmp_path / "guard.yaml", cwd=tmp_path, allow_code=False)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--limit", "0"), "'0' is neither a number of documents nor a share below 1"),
        (("--limit", "1.5"), "'1.5' is neither"),
        (("--limit", "nan"), "'nan' is neither"),
        (("--limit", "inf"), "'inf' is neither"),
        (("--batch-size", "0"), "'0' is neither a positive number nor auto"),
        (("--batch-size", "auto:4"), "'auto:4' is neither a positive number nor auto"),
        (("--set", "novalue"), "'novalue' is not NAME=VALUE"),
        (
            ("--gate-metric", "kl_mean=0.1", "--gate-metric", "kl_mean=0.2"),
            "--gate-metric kl_mean is given twice: 0.1 and 0.2",
        ),
        (("--base-model-args", "dtype"), "--base-model-args: 'dtype' is not NAME=VALUE"),
        (("--cand-model-args", "{broken"), "--cand-model-args: not JSON"),
        (("--margin", "-1"), "points (1pp) or a share (2%), not -1"),
        (("--confidence", "1"), "1.0 is not in the range"),
        (("--fail-on", "marge"), "'marge' is not one of"),
        (("--allow-differing", "all"), "'all' is not one of"),
        (("--num-fewshot", "many"), "'many' is not a valid integer"),
        (("--taks", "x"), "No such option '--taks'"),
        (("--samples", '{"t": [1]}'), "lm-eval's --samples is not supported"),
    ],
)
def test_a_value_that_cannot_be_meant_is_refused(
    refused: Any, words: tuple[str, ...], message: str
) -> None:
    assert message in refused(2, "compare", "--base", "a", "--cand", "b", *words).err


def test_a_command_that_does_not_exist_names_the_nearest(refused: Any) -> None:
    ran = refused(2, "compere", "--base", "a")
    assert "no such command 'compere'; did you mean 'compare'?" in ran.err
    assert "commands: bisect, cache, card, check, compare, demo, dump," in ran.err


def test_usage_errors_point_at_the_help(refused: Any) -> None:
    assert "hint: evalguard compare --help" in refused(2, "compare").err


def test_without_a_command_the_help_is_shown(run: Any) -> None:
    ran = run()
    assert (ran.code, ran.out) == (2, "")
    assert "evalguard compare --base A --cand B" in ran.err


def test_the_help_names_every_exit_code(run: Any) -> None:
    ran = run("--help")
    assert ran.code == 0
    for code in (
        "0 passed",
        "1 regressed",
        "2 usage",
        "3 failed",
        "4 undecided",
        "130",
        "143",
    ):
        assert code in ran.out


def test_the_version_is_that_of_the_package(run: Any) -> None:
    import evalguard

    assert run("--version").out == f"evalguard {evalguard.__version__}\n"


def test_a_chat_template_is_not_chosen_by_a_name_that_would_have_no_effect() -> None:
    assert TaskOptions(apply_chat_template=True).multiturn
    with pytest.raises(UsageError, match="chat template 'rag'") as error:
        TaskOptions(apply_chat_template="rag")
    assert 'model_args.chat_template_args: {"chat_template": "rag"}' in error.value.hint


def test_a_chat_templates_name_can_be_typed(seen: Any) -> None:
    assert seen("--apply_chat_template", "rag").apply_chat_template == "rag"
    assert seen("--apply_chat_template", "--strict").apply_chat_template is True


@pytest.mark.parametrize("command", ["compare", "bisect", "trace"])
def test_models_without_their_options_are_told_these(run: Any, command: str) -> None:
    ran = run(command, "original", "my port")
    assert (ran.code, ran.out) == (2, "")
    assert "models are named by options, --base and --cand" in ran.err
    assert f"evalguard {command} --base original --cand 'my port'" in ran.err
    other = run(command, "--base", "original", "--cand", "port", "stray")
    assert "unexpected extra argument" in other.err


def test_a_key_of_the_gate_that_is_an_option_is_declared_with_the_option_alone() -> None:
    said = GateEntry.model_json_schema()["properties"]
    declared = declared_keys(CompareOptions, "gate")
    assert {*declared} == {"margin", "fail_on", "confidence", "broken_documents"}
    for name, one in declared.items():
        assert said[name]["description"] == one.option.key
        assert name not in vars(GateEntry)["__annotations__"]
        assert name not in vars(Gate)["__annotations__"]
