"""Where a stored base was scored otherwise than a model would be here and now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from evalguard.settings import Value

# Pairing compares what follows from these.
_OF_THE_MODEL = ("rolling_bos", "add_bos_token", "prefix_token_id")


def baseline_differences(then: Mapping[str, Value], now: Mapping[str, Value]) -> tuple[str, ...]:
    """Say what differs, in one note; () where nothing does.

    Args:
        then: of the stored base: python, platform, device, threads, packages ...
        now: the same of the candidate.
    """
    found = list(_differing(then, now))
    if not found:
        return ()
    return (
        "the stored base was scored elsewhere or with other versions: "
        f"{'; '.join(found)}. Scores may differ by that alone",
    )


def _differing(then: Mapping[str, Value], now: Mapping[str, Value]) -> Iterator[str]:
    for name in dict.fromkeys((*then, *now)):
        if name in _OF_THE_MODEL:
            continue
        ours, theirs = then.get(name), now.get(name)
        if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
            yield from _differing(ours, theirs)
        elif ours != theirs:
            yield f"{name} {_text(ours)} then, {_text(theirs)} now"


def _text(value: Value) -> str:
    return "unknown" if value is None else str(value)
