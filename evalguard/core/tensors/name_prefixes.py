"""What the names of one side have in front or near it: "_orig_mod." of torch.compile, "module." of
DistributedDataParallel, "model." where a head was added, "model.language_model." for "model."."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from evalguard.core.tensors.name_map import NameMap, NameRule

_MOST = 4  # modules in front
# What more names end with, as "w1.weight" of all experts, says nothing of what stands in front; all
# of them beside one another would take the square of their number.
_MOST_ALIKE = 16
_LEAST_SHARE = 0.5  # of the names of the side that has fewer


@dataclass(frozen=True, slots=True, kw_only=True)
class NamePrefixes:
    """What names begin with on each side, of which one has modules that the other leaves out."""

    base: str
    candidate: str

    @property
    def name_map(self) -> NameMap:
        """The rule that puts the one for the other; all other names are equal."""
        rule = NameRule(base=f"{self.base}**", cand=f"{self.candidate}**")
        return NameMap(rules=(rule,))

    @property
    def note(self) -> str:
        """It in a sentence without a full stop."""
        if not self.base or not self.candidate:
            side, other = ("base", "candidate") if self.base else ("candidate", "base")
            text = self.base or self.candidate
            return f"names of the {side} begin with '{text}', which the {other}'s do not"
        return f"names begin with '{self.base}' in the base, with '{self.candidate}' there"


def find_name_prefixes(
    base: Collection[str], candidate: Collection[str], common: int
) -> NamePrefixes | None:
    """Return the beginnings by which most names agree; None where as many agree already.

    Args:
        common: how many names are equal on both sides.
    """
    fewer = min(len(base), len(candidate))
    if common >= _LEAST_SHARE * fewer:
        return None
    by_rest: dict[str, list[str]] = defaultdict(list)
    for name in base:
        for front, rest in _split(name):
            by_rest[rest].append(front)
    found: Counter[tuple[str, str]] = Counter()
    for name in candidate:
        for front, rest in _split(name):
            fronts = by_rest.get(rest, ())
            if len(fronts) <= _MOST_ALIKE:
                found.update((other, front) for other in fronts if _fit(other, front))
    if not found:
        return None
    # of those by which as many agree the shortest: longer ones hold modules of the names themselves
    ours, theirs = max(found, key=lambda pair: (found[pair], -len(pair[0]) - len(pair[1])))
    count = found[ours, theirs]
    enough = count >= _LEAST_SHARE * fewer and count > common
    return NamePrefixes(base=ours, candidate=theirs) if enough else None


def _split(name: str) -> Iterator[tuple[str, str]]:
    """Yield what may stand in front of a name, as "model.", and the rest of it."""
    parts = name.split(".")
    for at in range(min(_MOST + 1, len(parts))):
        yield "".join(f"{one}." for one in parts[:at]), ".".join(parts[at:])


def _fit(one: str, other: str) -> bool:
    """Whether one prefix is the other with modules left out, and neither has a wildcard."""
    shorter, longer = sorted((one.split("."), other.split(".")), key=len)
    rest = iter(longer)
    return one != other and not set(one + other) & {"*", "?"} and all(p in rest for p in shorter)
