"""A command line as it was typed, to be typed once more for another question."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Collection, Sequence

# shlex puts a word together character by character, each time anew: a name of a megabyte, which a
# stored result may hold, would take hours.
_PIECE = re.compile(
    r"""(?P<blank>[ \t\r\n]+)|(?P<plain>[^ \t\r\n'"\\]+)|'(?P<single>[^']*)'"""
    r"""|"(?P<double>(?:[^"\\]|\\.)*)"|\\(?P<escaped>.)|(?P<open>.)""",
    re.DOTALL,
)
_ESCAPED = re.compile(r'\\(["\\])')


def shell_words(command: str) -> list[str]:
    """Return the words of a command, without their quotes.

    >>> shell_words("evalguard compare --base 'my model'")
    ['evalguard', 'compare', '--base', 'my model']

    Raises:
        ValueError: a quote is not closed, or nothing follows a backslash.
    """
    words: list[list[str]] = []
    inside = False
    for piece in _PIECE.finditer(command):
        kind, text = piece.lastgroup, piece[piece.lastgroup or 0]
        if kind == "open":
            raise ValueError(f"nothing closes {text} in the command")
        if kind != "blank":
            if not inside:
                words.append([])
            words[-1].append(_ESCAPED.sub(r"\1", text) if kind == "double" else text)
        inside = kind != "blank"
    return ["".join(pieces) for pieces in words]


# They say where a report goes, and in which form: another one would take its place.
_OF_OUTPUT = ("-o", "--output", "--format")
_FOR_PROGRAMS = ("--json",)
# Run folders lie there by default: CI jobs say so, and whoever types their commands need not.
DEFAULT_RUN_FOLDERS = "reports"
# They are about a base, and another one has its own.
_OF_BASE = (
    "--base", "--base-model-args", "--base_model_args", "--base-set", "--base_set",
    "--save-reference",
)  # fmt: skip
# They are about a search, and no comparison has them under these names.
_OF_SEARCH = ("--budget", "--jobs", "--over")
_SEARCH_FLAGS = ("--thorough", "--no-thorough")
# What a trace of the same two models is asked with, too.
_OF_TRACE = frozenset(
    {
        "--base", "--cand", "--candidate", "--config", "--tasks", "--include-path", "--model",
        "--base-model-args", "--cand-model-args", "--set", "--base-set", "--num-fewshot", "--seed",
        "--device", "--threads", "--cache-dir", "--output-path",
    }
)  # fmt: skip
# What ``evalguard demo`` compares, wherever there is another guard file.
_SIDES_OF_DEMO = ("--base", "orig", "--cand", "fla-port", "--config", "demo")
_TRACE_FLAGS = frozenset(
    {"--trust-remote-code", "--trust_remote_code", "--allow-code", "--allow_code"}
)


def command_to_repeat(command: str) -> str:
    """Return a command without the files that its report was written to, for a person to read.

    >>> command_to_repeat("evalguard compare --base a -o page.txt --output-path=reports --json")
    'evalguard compare --base a'
    """
    try:
        words = shell_words(command)
    except ValueError:  # nobody typed this
        return command
    remaining = without_options(words, with_value=_OF_OUTPUT, flags=_FOR_PROGRAMS)
    shown = dict(itertools.pairwise(remaining))
    for name in ("--output-path", "--output_path"):
        if shown.get(name) == DEFAULT_RUN_FOLDERS:
            remaining = without_options(remaining, with_value=(name,))
        remaining = [word for word in remaining if word != f"{name}={DEFAULT_RUN_FOLDERS}"]
    return command if remaining == words else shlex.join(remaining)


def as_one_pair(command: str, candidate: str, *, base: str = "") -> str:
    """Return a comparison of several candidates to be typed once more for one pair of models.

    Args:
        base: another base in place of the one that was typed; "": that one.

    >>> as_one_pair("evalguard compare --base a --cand b --cand c --chain", "c", base="b")
    'evalguard compare --base b --cand c'
    """
    try:
        words = shell_words(command_to_repeat(command))
    except ValueError:  # nobody typed this
        return command
    if words[:2] != ["evalguard", "compare"]:
        return command
    dropped = ("--cand", "--candidate", *(_OF_BASE if base else ()))
    remaining = without_options(words[2:], with_value=dropped, flags=("--chain",))
    named = [*(["--base", base] if base else []), "--cand", candidate]
    at = remaining.index("--base") + 2 if "--base" in remaining else 0
    return shlex.join([*words[:2], *remaining[:at], *named, *remaining[at:]])


def as_comparison(command: str) -> str:
    """Return a command to be typed once more as a comparison; "" where it was no such question.

    >>> as_comparison("evalguard bisect --base a --budget 9 --cand b")
    'evalguard compare --base a --cand b'
    """
    anew = command_to_repeat(command)
    try:
        words = shell_words(anew)
    except ValueError:  # nobody typed this
        return ""
    if words[:1] != ["evalguard"] or words[1:2] not in (["compare"], ["demo"], ["bisect"]):
        return ""
    if words[1] != "bisect":
        return anew
    remaining = without_options(words[2:], with_value=_OF_SEARCH, flags=_SEARCH_FLAGS)
    return shlex.join(["evalguard", "compare", *remaining])


def as_bisection(command: str) -> str:
    """Return a comparison to be typed once more as a bisection; "" where it was no such question.

    >>> as_bisection("evalguard compare --base a --bisect never --cand b")
    'evalguard bisect --base a --cand b'
    """
    try:
        words = shell_words(command_to_repeat(command))
    except ValueError:  # nobody typed this
        return ""
    if words[:2] != ["evalguard", "compare"]:
        return ""
    remaining = without_options(words[2:], with_value=("--bisect",))
    return shlex.join(["evalguard", "bisect", *remaining])


def as_trace(command: str) -> str:
    """Return a comparison or a bisection to be typed once more as a trace of its two models.

    "" where it was no such question, or one about several candidates.

    >>> as_trace("evalguard compare --base a --cand b --limit 9 --device cpu --margin 2")
    'evalguard trace --base a --cand b --device cpu'
    >>> as_trace("evalguard demo --set rope_theta=reference")
    'evalguard trace --base orig --cand fla-port --config demo --set rope_theta=reference'
    """
    return _about_models(command, "trace", of=("compare", "bisect"))


def as_tokenizer_search(command: str) -> str:
    """Return a comparison, bisection or trace to be typed once more to search the tokenizer.

    "" where it was no such question, or one that names no task.

    >>> as_tokenizer_search("evalguard trace --base a --cand b --tasks t --text story.txt")
    'evalguard bisect --base a --cand b --tasks t --allow-differing tokens'
    """
    asked = traced_as_comparison(command) or as_comparison(command)
    search = as_bisection(asked) if asked else ""
    try:
        words = without_options(
            shell_words(search), with_value=("--allow-differing", "--allow_differing")
        )
    except ValueError:  # nobody typed this
        return ""
    names = {word.partition("=")[0] for word in words}
    known = "--tasks" in names or "--config" in names or "/" not in " ".join(words)
    return shlex.join([*words, "--allow-differing", "tokens"]) if words and known else ""


def planned_as_comparison(command: str) -> str:
    """Return a plan to be typed once more as the comparison that was planned; "" likewise.

    >>> planned_as_comparison("evalguard plan --base a --cand b --pilot 32 --limit 900")
    'evalguard compare --base a --cand b --limit 900'
    """
    try:
        words = shell_words(command_to_repeat(command))
    except ValueError:  # nobody typed this
        return ""
    names = [word.partition("=")[0] for word in words]
    if words[:2] != ["evalguard", "plan"] or "--run" in names:
        return ""
    remaining = without_options(
        words[2:], with_value=("--pilot", "--power"), flags=("-v", "--verbose")
    )
    return shlex.join(["evalguard", "compare", *remaining])


def traced_as_comparison(command: str) -> str:
    """Return a trace to be typed once more as a comparison of its two models; "" likewise."""
    return _about_models(command, "compare", of=("trace",))


def _about_models(command: str, job: str, *, of: Collection[str]) -> str:
    """A command with what a trace and a comparison share of another one's words."""
    try:
        words = shell_words(command_to_repeat(command))
    except ValueError:  # nobody typed this
        return ""
    if words[:2] == ["evalguard", "demo"]:
        words = ["evalguard", "compare", *_SIDES_OF_DEMO, *words[2:]]
    if words[:1] != ["evalguard"] or len(words) < 2 or words[1] not in of:
        return ""
    shared: list[str] = []
    following = iter(words[2:])
    for word in following:
        name, equals, _ = word.partition("=")
        if name.replace("_", "-") in _OF_TRACE:
            shared += (
                [word] if equals else [word, *[value for value in [next(following, "")] if value]]
            )
        elif word in _TRACE_FLAGS:
            shared.append(word)
    names = [word.partition("=")[0] for word in shared]
    both = "--base" in names and sum(name in ("--cand", "--candidate") for name in names) == 1
    return shlex.join(["evalguard", job, *shared]) if both else ""


def without_options(
    words: Sequence[str], *, with_value: Collection[str], flags: Collection[str] = ()
) -> list[str]:
    """Return the words without some options, those ``with_value`` together with it."""
    remaining: list[str] = []
    following = iter(words)
    for word in following:
        name, equals, _ = word.partition("=")
        if name in with_value:
            if not equals:
                next(following, None)
        elif name not in flags and word[:2] not in with_value:  # -oFILE
            remaining.append(word)
    return remaining
