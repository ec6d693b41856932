"""A command line as it was typed, to be typed once more for another question."""

from __future__ import annotations

import errno
import html
import math
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence

# They say where a report goes: another one would take its place.
_OF_OUTPUT = ("-o", "--output", "--format")

# They are about a base, and another one has its own.
_OF_BASE = (
    "--base", "--base-model-args", "--base_model_args", "--base-set", "--base_set",
    "--reference",
)  # fmt: skip

# They are about a search, and no comparison has them under these names.
_OF_SEARCH = ("--budget", "--jobs", "--over")
_SEARCH_FLAGS = ("--thorough", "--no-thorough")

# What a trace of the same two models is asked with, too.
_OF_TRACE = frozenset(
    {
        "--base", "--cand", "--candidate", "--config", "--tasks", "--include-path", "--model",
        "--base-model-args", "--cand-model-args", "--set", "--base-set", "--num-fewshot", "--seed",
        "--system-instruction", "--device", "--threads", "--cache-dir", "--output-path",
    }
)  # fmt: skip
# What ``evalguard demo`` compares, wherever there is another guard file.
_SIDES_OF_DEMO = ("--base", "orig", "--cand", "fla-port", "--config", "demo")
_TRACE_FLAGS = frozenset(
    {"--trust-remote-code", "--trust_remote_code", "--allow-code", "--allow_code"}
)

# A search's options under the names that a comparison has for them.
_AS_COMPARED = {
    "--bisect-budget": "--budget",
    "--bisect-jobs": "--jobs",
    "--bisect-over": "--over",
    "--bisect-thorough": "--thorough",
    "--no-bisect-thorough": "--no-thorough",
}


def command_to_repeat(command: str) -> str:
    """Return a command without the files that its report was written to.

    >>> command_to_repeat("evalguard compare --base a -o page.txt --cand b")
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
        words = shell_words(command_to_repeat(command))
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
    anew = command_to_repeat(command)
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
        words = shell_words(command_to_repeat(command))
    except ValueError:  # nobody typed this
        return ""
    if words[:2] != ["evalguard", "compare"]:
        return ""
    kept = without_options(words[2:], with_value=("--bisect",))
    return shlex.join(["evalguard", "bisect", *map(_of_bisect, kept)])


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
    kept = without_options(words[2:], with_value=("--pilot", "--power"), flags=("-v", "--verbose"))
    return shlex.join(["evalguard", "compare", *kept])


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
    kept: list[str] = []
    following = iter(words[2:])
    for word in following:
        name, equals, _ = word.partition("=")
        if name.replace("_", "-") in _OF_TRACE:
            kept += [word] if equals else [word, *[one for one in [next(following, "")] if one]]
        elif word in _TRACE_FLAGS:
            kept.append(word)
    names = [word.partition("=")[0] for word in kept]
    both = "--base" in names and sum(one in ("--cand", "--candidate") for one in names) == 1
    return shlex.join(["evalguard", job, *kept]) if both else ""


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


# Text of models, files and people inside Markdown and chat: it stays text, whatever it holds.
#
# For GitHub, GitLab, W&B and Slack alike: what one of them reads as markup, none is given.


# What Markdown reads as markup anywhere, and at the beginning of a line; there, GitLab also reads
# /merge or /close as an order.
_MARKUP = re.compile(r"([\\`*_\[\]|~])")
_BEGINNING = re.compile(r"^(#(?=[#\s]|$)|[+-](?=[\s-]|$)|=(?=[=\s]|$)|\d+(?=[.)](?:\s|$))|/(?=\w))")
# What GitHub and GitLab turn into mentions, links and pictures. They look for it in the text that
# is shown, where an escape does not help; a character without width between its parts does.
_BREAK = "\u200b"
_EMOJI = r"(?:[\w+-]*[a-z_][\w+-]*|100|1234|[+-]1):"  # and no time of day: 11:00:00
_REFERENCE = re.compile(
    rf'(?<=[@#!%$~])(?=[\w"{{])|(?<=&)(?=\d)|(?<=\[)(?=\w+:[\w"])|(?<=:)(?=//|{_EMOJI})'
    r"|(?<=www)(?<![^\W_]www)(?=\.)|(?<=\bGH)(?=-\d)|(?<=\bGL)(?=-\d)|(?<=\*)(?=iteration:)"
    # GitLab: {+ added +} and [- removed -] in colours, [TOC] and [[_TOC_]] a table of contents.
    r"|(?<=[{\[])(?=[+-])|(?<=[+-])(?=[}\]])|(?<=\[)(?=_?TOC_?\])",
    re.IGNORECASE,
)
# A commit, where one has this hash. In code it is none, and can still be copied.
_COMMIT = re.compile(
    r"(?<![\w/.-])(?=[0-9a-f]*[0-9])(?=[0-9a-f]*[a-f])([0-9a-f]{7,64})(?![\w-])", re.IGNORECASE
)
# For chat: a bracket that opens nothing, and where what is not an entity would begin one.
_BRACKET = "\u2039"
_ENTITY = re.compile(r"(?<=&)(?=[#\w])")
_MOST = 1500


def inline(text: str, most: int = _MOST, *, dollar: str = "<span>$</span>") -> str:
    """Return printable ``text`` as a part of a line: no markup, link, mention, picture or HTML.

    Args:
        most: characters; a longer one (a name of a megabyte) is cut in its middle.
        dollar: stands for a dollar sign, so that no formula begins.
    """
    parts = _COMMIT.split(_line(text, most))
    shown = "".join(
        f"`{part}`" if index % 2 else _escaped(part, dollar) for index, part in enumerate(parts)
    )
    return _BEGINNING.sub(lambda found: f"&#{ord(found[1][0])};{found[1][1:]}", shown)


def break_links(text: str, most: int = _MOST) -> str:
    """Return printable ``text`` as a line of a message that goes on to Slack and to e-mails.

    No mention, link or emoji; nobody knows which of them reads backslashes, or what it does with
    an entity, so that none is written. Asterisks and underlines are left: names have them, and
    they only make letters bold.

    Args:
        most: as of ``inline``.
    """
    text = _line(text, most)
    # Slack reads <!channel>, <@U1>, <#C1> and <address|other text>: whatever stands in brackets.
    closed = text.rfind(">") + 1
    text = text[:closed].replace("<", _BRACKET) + text[closed:]
    return _REFERENCE.sub(_BREAK, _ENTITY.sub(_BREAK, text))


def _line(text: str, most: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[: most // 2]} … {text[-most // 2 :]}"


def _escaped(text: str, dollar: str) -> str:
    broken = html.escape(_REFERENCE.sub(_BREAK, text), quote=False)
    return _MARKUP.sub(r"\\\1", broken).replace("$", dollar)


# The words of a command line, as a shell reads it: shlex's, in time that grows as the text does.
#
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


# What the Hugging Face libraries could not write, told as no fault of a model.


HF_HINT = "HF_HOME=FOLDER names another place for what the Hugging Face libraries keep"

_REFUSED = {
    errno.EACCES: "no write permission",
    errno.EPERM: "no write permission",
    errno.EROFS: "the file system is read-only",
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk is full",
}
# A home folder that does not exist. Elsewhere these say that a file is missing.
_NO_HOME = (errno.ENOENT, errno.ENOTDIR)


def unwritable(error: BaseException, environment: Mapping[str, str]) -> str | None:
    """Return what could not be written in Hugging Face's folder, and why; None for anything else.

    Args:
        error: its causes are looked at, too.
        environment: variables of the process.
    """
    for cause in _causes(error):
        if not isinstance(cause, OSError) or not isinstance(cause.filename, str):
            continue
        if not any(_lies_in(cause.filename, home) for home in _homes(environment)):
            continue
        if cause.errno in _REFUSED or cause.errno in _NO_HOME:
            why = _REFUSED.get(cause.errno) or cause.strerror or str(cause)
            return f"{cause.filename} cannot be written: {why}"
    return None


def _lies_in(path: str, folder: str) -> bool:
    ending = folder.rstrip("/\\")
    return path == ending or path.startswith((f"{ending}/", f"{ending}\\"))


def _homes(variables: Mapping[str, str]) -> list[str]:
    """Where the libraries keep things, as they look it up."""
    cache = variables.get("XDG_CACHE_HOME") or f"{variables.get('HOME', '')}/.cache"
    named = [variables.get(name) for name in ("HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE")]
    return [f"{cache}/huggingface", *(name for name in named if name)]


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__


# Amounts as people write them: sizes such as 20GB, ages such as 30d.


_WRITTEN = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)")
_PREFIXES = "kMGTP"
_BYTES = {"b": 1}
_BYTES |= {f"{p}b".lower(): 1000 ** (n + 1) for n, p in enumerate(_PREFIXES)}
_BYTES |= {f"{p}ib".lower(): 1024 ** (n + 1) for n, p in enumerate(_PREFIXES)}
_BYTES |= {p.lower(): 1000 ** (n + 1) for n, p in enumerate(_PREFIXES)}
_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def parse_size(text: str) -> int:
    """Return bytes: "20GB" is 20 * 1000**3, "20GiB" 20 * 1024**3, "0" 0.

    Raises:
        ValueError: for anything else, also for another number without a unit: who writes 20 and
            means GB would lose all that is kept.
    """
    if text == "0":
        return 0
    return math.floor(_parsed(text, _BYTES, "a size such as 20GB or 500MB"))


def parse_age(text: str) -> float:
    """Return seconds: of "30d", "12h", "90min", "2w".

    Raises:
        ValueError: for anything else, also for a number without a unit.
    """
    return _parsed(text, _SECONDS, "an age such as 30d, 12h or 2w")


def size_text(size: int) -> str:
    """Return bytes for a person: "1.4 GB"."""
    if size < 1000:
        return f"{size} B"
    for number, prefix in enumerate(_PREFIXES, start=1):
        amount = size / 1000**number
        if amount < 999.5 or prefix == _PREFIXES[-1]:
            return f"{amount:.1f} {prefix}B" if amount < 9.95 else f"{amount:,.0f} {prefix}B"
    raise AssertionError("the last prefix takes every size")


def _parsed(text: str, units: dict[str, int], what: str) -> float:
    found = _WRITTEN.fullmatch(text)
    unit = None if found is None else units.get(found[2].lower())
    if found is None or unit is None:
        raise ValueError(f"'{text}' is not {what}")
    return float(found[1]) * unit
