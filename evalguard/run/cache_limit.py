"""A limit to the size of the cache, kept to after a run."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from evalguard.core.amounts import parse_size, size_text
from evalguard.errors import UsageError
from evalguard.store.pruning import PruneRules, prune

CACHE_SIZE_VARIABLE = "EVALGUARD_CACHE_MAX_SIZE"
# When a block was used is known to the hour.
_JUST_USED = 3600.0
_GONE_ON_WITHIN = 3 * 86400.0
_RECENTLY_USED = "what was used in the last hour, or by this run, stays"


def cache_size_limit(
    *chosen: int | str | None, environ: Mapping[str, str] | None = None
) -> int | None:
    """Return the first limit that was given, in bytes: of these, else the environment's.

    Raises:
        UsageError: for what is not a size.
    """
    of_environment = (os.environ if environ is None else environ).get(CACHE_SIZE_VARIABLE) or None
    limit = next((given for given in (*chosen, of_environment) if given is not None), None)
    try:
        return parse_size(limit) if isinstance(limit, str) else limit
    except ValueError as error:
        where = CACHE_SIZE_VARIABLE if limit is of_environment else "the cache's size limit"
        raise UsageError(f"{where}: {error}", hint="e.g. 20GB") from error


def forget_old_runs(cache_dir: Path) -> None:
    """Remove blocks that runs kept for themselves and that nobody has gone on with for days."""
    rules = PruneRules(older_than=_GONE_ON_WITHIN, of_runs=True)
    prune(cache_dir, rules, now=time.time())


def limit_cache(
    limit: int | None, cache_dir: Path, say: Callable[[str], None], *, since: float
) -> None:
    """Remove the least recently used until the cache is as large as it may be, and say so.

    What was used in the last hour stays, and all that this run used, however long it took: that is
    called for again soonest.

    Args:
        since: when the run began, in seconds since 1970, by a clock that was set since or not.
    """
    if limit is None:
        return
    now = time.time()
    rules = PruneRules(max_size=limit, used_before=since - _JUST_USED)
    pruned = prune(cache_dir, rules, now=now)
    if pruned.removed or pruned.left > limit:
        why = pruned.failed[0] if pruned.failed else _RECENTLY_USED
        say(
            f"cache: {size_text(pruned.freed)} of what was not used lately removed, "
            f"{size_text(pruned.left)} of {size_text(limit)} left"
            + (f"; {why}" if pruned.left > limit else "")
        )
