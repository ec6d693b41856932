"""``serve.FLAG``: how a flag gets onto the command line of a server."""

from __future__ import annotations

import pytest

from evalguard.core.settings import Value
from evalguard.engine.loading.serving import put_flags


@pytest.mark.parametrize(
    ("command", "flags", "expected"),
    [
        ("serve m", {"dtype": "fp8"}, "serve m --dtype fp8"),
        ("serve --dtype auto m", {"dtype": None}, "serve m"),
        ("serve --dtype=auto m", {"dtype": None}, "serve m"),
        ("serve --dtype auto --port 1", {"dtype": "fp8"}, "serve --dtype fp8 --port 1"),
        ("serve --dtype=auto m", {"dtype": "fp8"}, "serve --dtype=fp8 m"),
        ("serve --kv_cache=a", {"kv-cache": "b"}, "serve --kv_cache=b"),
        ("serve --seed -1 --x", {"seed": 3}, "serve --seed 3 --x"),
        ("serve --scale 1", {"scale": 0.5}, "serve --scale 0.5"),
        ("serve m", {"eager": True}, "serve m --eager"),
        ("serve --eager m", {"eager": True}, "serve --eager m"),
        ("serve --eager m", {"eager": False}, "serve m"),
        ("serve m", {"eager": False, "seed": None}, "serve m"),
        ("serve -c 1 m", {"-c": 2}, "serve -c 2 m"),
        ("serve --lora a b --x", {"lora": ["c", "d"]}, "serve --lora c d --x"),
        ("serve --lora=a --x", {"lora": ["c", "d"]}, "serve --lora c d --x"),
        ("serve --dtype-k a", {"dtype": "b"}, "serve --dtype-k a --dtype b"),
        ("--dtype x", {"dtype": "b"}, "--dtype x --dtype b"),  # the program itself is no flag
    ],
)
def test_a_flag_takes_the_place_of_the_one_that_is_there(
    command: str, flags: dict[str, Value], expected: str
) -> None:
    assert put_flags(command.split(), flags) == expected.split()


def test_a_mapping_is_json() -> None:
    assert put_flags(["serve"], {"config": {"level": 3}}) == ["serve", "--config", '{"level": 3}']


def test_a_command_with_the_value_that_it_has_is_the_same_command() -> None:
    words = ["serve", "--dtype=auto", "--port", "1"]
    assert put_flags(words, {"dtype": "auto", "port": 1}) == words
