"""A command line as it was typed, to be typed once more for another question."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence

from evalguard.shell_words import shell_words

# They say where a report goes: another one would take its place.
_OF_OUTPUT = ("-o", "--output", "--format")

# They are about a base, and another one has its own.
_OF_BASE = (
    "--base", "--baseline", "--base-model-args", "--base_model_args", "--base-set", "--base_set",
    "--reference",
)  # fmt: skip

# They are about a search, and no comparison has them under these names.
_OF_SEARCH = ("--budget", "--jobs")
_SEARCH_FLAGS = ("--thorough", "--no-thorough")

# A search's options under the names that a comparison has for them.
_AS_COMPARED = {
    "--bisect-budget": "--budget",
    "--bisect-jobs": "--jobs",
    "--bisect-thorough": "--thorough",
    "--no-bisect-thorough": "--no-thorough",
}


def asked_anew(command: str) -> str:
    """Return a command without the files that its report was written to.

    >>> asked_anew("evalguard compare --base a -o page.txt --cand b")
    'evalguard compare --base a --cand b'
    """
    try:
        words = shell_words(command)
    except ValueError:  # nobody typed this
        return command
    kept = without_options(words, with_value=_OF_OUTPUT)
    return command if kept == words else shlex.join(kept)


def as_one_pair(command: str, candidate: str, *, base: str = "") -> str:
    """Return a comparison of several candidates to be typed once more for one pair of models.

    Args:
        base: another base in place of the one that was typed; "": that one.

    >>> as_one_pair("evalguard compare --base a --cand b --cand c --chain", "c", base="b")
    'evalguard compare --base b --cand c'
    """
    try:
        words = shell_words(asked_anew(command))
    except ValueError:  # nobody typed this
        return command
    if words[:2] != ["evalguard", "compare"]:
        return command
    dropped = ("--cand", "--candidate", *(_OF_BASE if base else ()))
    kept = without_options(words[2:], with_value=dropped, flags=("--chain",))
    named = [*(["--base", base] if base else []), "--cand", candidate]
    at = kept.index("--base") + 2 if "--base" in kept else 0
    return shlex.join([*words[:2], *kept[:at], *named, *kept[at:]])


def as_comparison(command: str) -> str:
    """Return a command to be typed once more as a comparison; "" where it was no such question.

    >>> as_comparison("evalguard bisect --base a --budget 9 --cand b")
    'evalguard compare --base a --cand b'
    """
    anew = asked_anew(command)
    try:
        words = shell_words(anew)
    except ValueError:  # nobody typed this
        return ""
    if words[:1] != ["evalguard"] or words[1:2] not in (["compare"], ["demo"], ["bisect"]):
        return ""
    if words[1] != "bisect":
        return anew
    kept = without_options(words[2:], with_value=_OF_SEARCH, flags=_SEARCH_FLAGS)
    return shlex.join(["evalguard", "compare", *kept])


def as_bisection(command: str) -> str:
    """Return a comparison to be typed once more as a bisection; "" where it was no such question.

    >>> as_bisection("evalguard compare --base a --bisect never --bisect-jobs 2 --cand b")
    'evalguard bisect --base a --jobs 2 --cand b'
    """
    try:
        words = shell_words(asked_anew(command))
    except ValueError:  # nobody typed this
        return ""
    if words[:2] != ["evalguard", "compare"]:
        return ""
    kept = without_options(words[2:], with_value=("--bisect",))
    return shlex.join(["evalguard", "bisect", *map(_of_bisect, kept)])


def _of_bisect(word: str) -> str:
    name, equals, value = word.partition("=")
    return f"{_AS_COMPARED.get(name, name)}{equals}{value}"


def without_options(
    words: Sequence[str], *, with_value: Collection[str], flags: Collection[str] = ()
) -> list[str]:
    """Return the words without some options, those ``with_value`` together with it."""
    kept: list[str] = []
    following = iter(words)
    for word in following:
        name, equals, _ = word.partition("=")
        if name in with_value:
            if not equals:
                next(following, None)
        elif name not in flags and word[:2] not in with_value:  # -oFILE
            kept.append(word)
    return kept
