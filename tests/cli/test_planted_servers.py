"""No pass among planted breakages of servers: stale prefix caches, and prompts cut to nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from served_stubs import CachingStub, Stub, serving
from small_world import SmallWorld, run_here

NOTHING_KNOWN = 3
WRITTEN = """
dataset_path: json
dataset_kwargs: {{data_files: {{test: {documents}}}}}
test_split: test
task: {name}
output_type: generate_until
doc_to_text: "{{{{text}}}}"
doc_to_target: "{{{{last}}}}"
generation_kwargs: {{until: ["."], max_gen_toks: {most}}}
metric_list: [{{metric: exact_match, aggregation: mean, higher_is_better: true}}]
"""

Compare = Callable[..., tuple[int, str]]


@pytest.fixture
def compared(
    world: SmallWorld, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> Iterator[Compare]:
    """Compare two servers; give the exit code and what a reader sees, on one line."""
    with ExitStack() as stack:

        def compare(
            base: Stub, cand: Stub, task: str = "sw_word", *words: str, length: int | None = 900
        ) -> tuple[int, str]:
            models = {}
            for name, stub in (("served", base), ("port", cand)):
                arguments = {
                    "base_url": stack.enter_context(serving(stub)), "model": "served",
                    "tokenizer": str(world.models["llama"]), "tokenizer_backend": "huggingface",
                    "max_retries": 1, "max_length": length,
                }  # fmt: skip
                models[name] = {
                    "model": "local-completions",
                    "model_args": {k: v for k, v in arguments.items() if v is not None},
                }
            guard = tmp_path / "servers.yaml"
            content = {"models": models, "tasks": [task], "include_path": [str(world.tasks)]}
            guard.write_text(json.dumps(content))
            sides = ("--config", guard, "--base", "served", "--cand", "port", *words)
            ran = run_here(["compare", *sides, "--output-path", tmp_path, "--quiet"], capfd)
            return ran.code, " ".join(f"{ran.out} {ran.err}".split())

        yield compare


@pytest.fixture
def stub(world: SmallWorld) -> Callable[..., CachingStub]:
    return lambda **faults: CachingStub(tokenizer=world.models["llama"], **faults)


def whole_prefix(ids: Sequence[int], end: int) -> object:
    """The only sound key of a block: all that is before its end."""
    return tuple(ids[:end])


def test_servers_with_a_sound_cache_pass(compared: Compare, stub: Any) -> None:
    code, seen = compared(stub(key=whole_prefix), stub(key=whole_prefix), "sw_word", "--strict")
    assert code == 0, seen


# What a stale cache keeps a block under, in place of all tokens up to its end.
STALE: dict[str, dict[str, Any]] = {
    "by its place": {"key": lambda _, end: end},
    "by its place and the first token": {"key": lambda ids, end: (end, ids[0])},
    "by the first block": {"key": lambda ids, end: (end, tuple(ids[:16]))},
    "by the length of the prompt": {"key": lambda ids, end: (end, len(ids))},
    "by its own tokens, with their log-probabilities": {
        "key": lambda ids, end: tuple(ids[end - 16 : end]), "keeps": "logprobs",
    },
    "by its tokens in whatever order": {"key": lambda ids, end: (end, frozenset(ids))},
    "soundly, and found again at half their size": {
        "key": whole_prefix, "on_hit": lambda kept: kept * 0.5,
    },
    "soundly, and found again shifted": {
        "key": whole_prefix, "keeps": "logprobs", "on_hit": lambda kept: kept[::-1].copy(),
    },
}  # fmt: skip


@pytest.mark.parametrize("name", STALE)
def test_a_stale_prefix_cache_does_not_pass(name: str, compared: Compare, stub: Any) -> None:
    code, seen = compared(stub(), stub(**STALE[name]))
    assert code == NOTHING_KNOWN, seen
    assert "cache" in seen, seen


@contextmanager
def written_task(world: SmallWorld, name: str, most: int) -> Iterator[str]:
    """A task in the folder of all tests, for as long as it is needed."""
    documents = str(next(world.folder.rglob("test.jsonl")))
    path = world.tasks / f"{name}.yaml"
    path.write_text(WRITTEN.format(name=name, documents=documents, most=most))
    try:
        yield name
    finally:
        path.unlink()


# Tokens to generate, the context length that is given, options: no prompt has any room.
CUT: dict[str, tuple[int, int | None, tuple[str, ...]]] = {
    "as many tokens as the context": (48, 48, ()),
    "more tokens than the context": (4096, 48, ()),
    "all but one token of the context": (47, 48, ()),
    "more than lm-eval takes a server to read": (2048, None, ()),
    "the command line asks for more": (4, 48, ("--gen-kwargs", "max_gen_toks=64")),
}


@pytest.mark.parametrize("name", CUT)
def test_prompts_that_are_cut_to_nothing_do_not_pass(
    name: str, world: SmallWorld, compared: Compare, stub: Any
) -> None:
    most, length, words = CUT[name]
    with written_task(world, f"sw_cut_{list(CUT).index(name)}", most) as task:
        code, seen = compared(stub(), stub(), task, *words, length=length)
    assert code == NOTHING_KNOWN, seen
    assert "room" in seen, seen
