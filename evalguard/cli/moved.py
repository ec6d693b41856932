"""Options and commands that are gone, and what takes the place of each."""

from __future__ import annotations

from collections.abc import Mapping

from evalguard.errors import UsageError

# Where it is a key of the guard file, how that is written.
_GUARD_KEYS: Mapping[str, str] = {
    "--bisect-budget": "run: {bisect_budget: N}",
    "--bisect-jobs": "run: {bisect_jobs: N}",
    "--bisect-over": "run: {bisect_over: layers}",
    "--bisect-thorough": "run: {bisect_thorough: true}",
    "--no-bisect-thorough": "run: {bisect_thorough: false}",
    "--broken-documents": "gate: {broken_documents: N}",
    "--cache-max-size": "run: {cache_max_size: 20GB}",
    "--fewshot-as-multiturn": "run: {fewshot_as_multiturn: true}",
    "--memory": "run: {memory: sequential}",
    "--no-share-prefixes": "run: {share_prefixes: false}",
    "--reference-top-k": "run: {reference_top_k: N}",
    "--rolling-bos": "run: {rolling_bos: once}",
    "--sequential-alpha": "run: {sequential_alpha: P}",
    "--share-prefixes": "run: {share_prefixes: true}",
    "--system-instruction": "run: {system_instruction: TEXT}",
    "--timeout": "run: {timeout: SECONDS}",
    "--token-budget": "run: {token_budget: N}",
    "--track-documents": "run: {track_documents: true}",
    "--worker": "run: {worker: always}",
}
_ELSEWHERE: Mapping[str, str] = {
    "--aa": "`evalguard floor --base MODEL`",
    "--baseline": "`--base RUN`, or `--base RUN:NAME` for another model in there",
    "--check-batch-size": "`evalguard floor --base MODEL --vary batch-size`",
    "--no-history": "`--history none`",
    "--reference": "`--save-reference FILE` to write it, `--base FILE` to read it",
    "--vary": "`evalguard floor --base MODEL --vary WHAT`",
}
_OF_BISECT: Mapping[str, str] = {
    "--bisect-budget": "--budget N",
    "--bisect-jobs": "--jobs N",
    "--bisect-over": "--over layers",
    "--bisect-thorough": "--thorough",
    "--no-bisect-thorough": "--no-thorough",
}
MOVED = frozenset({*_GUARD_KEYS, *_ELSEWHERE})
_CHECKED_WHEN_READ = (
    "what is kept is checked when it is read, set aside where it is damaged, and made anew",
    "evalguard cache ls counts what was set aside",
)
MOVED_COMMANDS: Mapping[str, tuple[str, str]] = {
    "cache check": _CHECKED_WHEN_READ,
    "cache verify": _CHECKED_WHEN_READ,
    "cache prune": (
        "`evalguard cache clear` removes all that is kept",
        "a size limit removes what was least recently used: `run: {cache_max_size: 20GB}` of the "
        "guard file, or EVALGUARD_CACHE_MAX_SIZE=20GB",
    ),
}
"""Of each command that is gone what takes its place, and a hint."""


def explain_move(option: str) -> UsageError | None:
    """What to type, or to write, in place of an option; None of one that never was."""
    option = option.replace("_", "-")
    if option in _ELSEWHERE:
        return UsageError(f"{option} is now {_ELSEWHERE[option]}")
    if option not in _GUARD_KEYS:
        return None
    command = f", or `evalguard bisect {_OF_BISECT[option]}`" if option in _OF_BISECT else ""
    return UsageError(
        f"{option} is now `{_GUARD_KEYS[option]}` of the guard file{command}",
        hint="a guard file may hold that alone; --config FILE names it",
    )


def explain_moved_command(words: str) -> UsageError | None:
    """What takes the place of a command such as "cache verify"; None of one that never was."""
    if words not in MOVED_COMMANDS:
        return None
    instead, hint = MOVED_COMMANDS[words]
    return UsageError(f"evalguard {words} is gone: {instead}", hint=hint)
