"""What loading a model, or building one, has read, checked before its result is used again.

Verifying traces of a build system: several are kept under what is known beforehand, and the first
one of which every digest holds is the one, so that an edit that is taken back finds what was there.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from evalguard.conversion.digests import KnownDigests, digest_path
from evalguard.conversion.observing import find_modules, list_digest, place_kind, text_digest
from evalguard.core.settings import digest_of

MOST_KEPT = 16
"""Of one model or build; the oldest one goes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchedFolder:
    """Names of modules that were looked for in a folder, and what was there under them."""

    names: tuple[str, ...]
    found: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedReads:
    """What was read, as ``Observer.told`` has it.

    Attributes:
        files: path -> digest; None: it was looked for, and was not there.
        places: path -> what was there: a file, a folder, nothing.
        listings: folder -> digest of the names in it.
        searched: where modules were looked for.
        variables: environment variables -> digest of their values, None where unset.
        packages: installed packages -> their versions or digests.
        reasons: why it does not tell all; then nothing may be kept for it.
    """

    files: Mapping[str, str | None] = field(default_factory=dict)
    places: Mapping[str, str] = field(default_factory=dict)
    listings: Mapping[str, str] = field(default_factory=dict)
    searched: Mapping[str, SearchedFolder] = field(default_factory=dict)
    variables: Mapping[str, str | None] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()

    @classmethod
    def of(cls, told: Mapping[str, Any], packages: DigestPackages) -> ObservedReads:
        """Make one of what an observer told.

        Raises:
            KeyError, TypeError, ValueError, AttributeError: it is not what an observer tells.
        """
        named = told["packages"]
        return cls(
            files=dict(told["files"]),
            places=dict(told["places"]),
            listings=dict(told["listings"]),
            searched={
                folder: SearchedFolder(names=tuple(of["names"]), found=tuple(of["found"]))
                for folder, of in told["searched"].items()
            },
            variables=dict(told["variables"]),
            packages=dict(named) if isinstance(named, Mapping) else dict(packages(named)),
            reasons=tuple(told["reasons"]),
        )

    @property
    def plain(self) -> dict[str, Any]:
        """The trace as plain data, which ``of`` reads."""
        return {
            "files": dict(self.files),
            "places": dict(self.places),
            "listings": dict(self.listings),
            "searched": {
                folder: {"names": list(of.names), "found": list(of.found)}
                for folder, of in self.searched.items()
            },
            "variables": dict(self.variables),
            "packages": dict(self.packages),
            "reasons": list(self.reasons),
        }

    @property
    def digest(self) -> str:
        """Digest of all that was read; where it lies says nothing."""
        told = [
            sorted([os.path.basename(path), str(one)] for path, one in self.files.items()),
            sorted([os.path.basename(path), kind] for path, kind in self.places.items()),
            sorted(self.listings.values()),
            sorted(list(of.found) for of in self.searched.values() if of.found),
            sorted([name, str(one)] for name, one in self.variables.items()),
            sorted([name, one] for name, one in self.packages.items()),
        ]  # fmt: skip
        return digest_of(told)

    def joined(self, later: ObservedReads) -> ObservedReads:
        """This trace with what another one of the same model has besides, or instead."""
        return ObservedReads(
            files={**self.files, **later.files},
            places={**self.places, **later.places},
            listings={**self.listings, **later.listings},
            searched={**self.searched, **later.searched},
            variables={**self.variables, **later.variables},
            packages={**self.packages, **later.packages},
            reasons=later.reasons,
        )

    def holds(
        self,
        environment: Mapping[str, str],
        packages: DigestPackages,
        known: KnownDigests | None = None,
    ) -> bool:
        """Whether all that was read is what it was.

        Args:
            environment: variables, as the process that would read them would find them.
            packages: digests of installed packages.
            known: digests of big files from earlier runs.
        """
        values = {name: environment.get(name) for name in self.variables}
        return (
            not self.reasons
            and self.variables
            == {name: None if v is None else text_digest(v) for name, v in values.items()}
            and all(place_kind(path) == kind for path, kind in self.places.items())
            and all(list_digest(path) == one for path, one in self.listings.items())
            and all(
                find_modules(folder, of.names) == list(of.found)
                for folder, of in self.searched.items()
            )
            and all(_digest(path, known) == one for path, one in self.files.items())
            and self.packages == dict(packages(list(self.packages)))
        )


# Names of installed packages -> a digest or version of each.
DigestPackages = Callable[[Sequence[str]], Mapping[str, str]]


def package_versions(names: Sequence[str]) -> dict[str, str]:
    """Versions of installed packages, by the names of their modules."""
    return {name: _version(name) for name in names}


@functools.cache
def _version(module: str) -> str:
    try:
        return metadata.version(module)
    except metadata.PackageNotFoundError:
        pass
    names = metadata.packages_distributions().get(module) or [""]  # reads every package: slow
    try:
        return metadata.version(names[0])
    except (metadata.PackageNotFoundError, ValueError):
        return ""


def _digest(path: str, known: KnownDigests | None) -> str | None:
    try:
        return digest_path(Path(path), known) if os.path.isfile(path) else None
    except OSError:
        return None
