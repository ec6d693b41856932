"""One model after another in worker processes, with as little starting and loading as is safe."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from evalguard.config.options import CompareOptions
from evalguard.conversion.planning import plan_conversion
from evalguard.core.question import Loads
from evalguard.core.scorer import Scorer, ScoringPolicy
from evalguard.core.settings import Variant, digest_of
from evalguard.engine.loading.foreign_code import brings_code
from evalguard.engine.loading.known_models import PLACEMENT_ARGUMENTS, same_loading
from evalguard.engine.loading.load_scorer import load_scorer
from evalguard.engine.loading.own_environment import asks_server, prepare_worker, shares_prefixes
from evalguard.engine.loading.scorer_opening import worker_starter
from evalguard.engine.loading.serving import with_lease, with_server
from evalguard.engine.servers import ServerLease
from evalguard.engine.sources import ModelSource
from evalguard.errors import BuildError, EvalguardError, EvaluationError, SettingError, WorkerError
from evalguard.store.fact_cache import FileDigests, open_facts
from evalguard.worker.client import WorkerConnection, WorkerScorer
from evalguard.worker.messages import VARIANT
from evalguard.worker.process import register_worker

# What is wrong with an assignment itself, in whatever process.
_OWN_FAULT = (SettingError, BuildError, WorkerError)
_Loaded = tuple[Variant, ScoringPolicy]
_numbers = itertools.count(1)


class ReusedModel:
    """A model that becomes another one, in a worker process that stays where that is safe.

    A client of a server is one of this process: there is nothing that it could leave behind.

    Whatever way a model came about, it is bit for bit what a fresh process would have loaded:
    values are assigned anew to settings of the loaded model that can be taken back exactly; another
    model is loaded in the same process where nothing of the one before can have changed how it is
    loaded or computes (another environment, hooks, the hub's code, other libraries' loaders); and
    what fails in a used process without being at fault itself is tried in a new one.

    Args:
        policy: how models are scored, unless a source has a policy of its own.
        options: of the comparison; ``timeout`` holds for every call, loading included.
        cache_dir: of builds, digests and logs.

    Attributes:
        loads: how often a model came about in which way.
    """

    def __init__(self, policy: ScoringPolicy, options: CompareOptions, cache_dir: Path) -> None:
        self._policy = policy
        self._options = options
        self._cache_dir = cache_dir
        self._number, self._processes = next(_numbers), 0
        self._scorer: WorkerScorer | None = None
        self._client: _ServerClient | None = None
        self._env: Mapping[str, str | None] = {}
        self._used_by: Variant | None = None  # the last one that this process was to load
        self._loaded: _Loaded | None = None
        self._lease: ServerLease | None = None  # of the server that it asks
        self.loads = Loads()

    def at(self, source: ModelSource) -> Scorer:
        """Be this model; the scorer is good until the next call.

        A worker that has died is replaced.

        Raises:
            EvalguardError: as loading does. The next call is not affected by that.
        """
        wanted = source.variant, source.policy or self._policy
        if asks_server(source.variant):
            return self._asking(*wanted)
        worker = self._worker_for(*wanted)
        if worker is None:
            return with_lease(self._started(*wanted), self._lease)
        loaded, self._loaded = self._loaded, None
        if _declared_alike(loaded, wanted) or self._reassigned(worker, loaded, *wanted):
            self._loaded = wanted
            return with_lease(worker, self._lease)
        try:
            self._load(worker, *wanted)
        except _OWN_FAULT:
            raise
        except EvaluationError:
            return with_lease(self._started(*wanted), self._lease)
        self._used_by, self._loaded = source.variant, wanted
        self.loads += Loads(loaded=1)
        return worker

    def close(self) -> None:
        """End the worker. May be called twice.

        Raises:
            EvalguardError: what releasing the model raised; the worker has ended all the same.
        """
        self._release()

    def _asking(self, variant: Variant, policy: ScoringPolicy) -> Scorer:
        """A client of this process, and the server that it asks where that is to be started."""
        running = self._lease is None or self._lease.server.is_running
        if (
            self._client is None
            or not running
            or not _declared_alike(self._loaded, (variant, policy))
        ):
            with contextlib.suppress(EvalguardError):
                self._release()
            asking, self._lease = with_server(variant, self._cache_dir)
            known = FileDigests(open_facts(self._cache_dir)) if self._options.use_cache else None
            scorer = load_scorer(asking, policy, cache_dir=self._cache_dir, known=known)
            self._client, self._loaded = _ServerClient(scorer), (variant, policy)
            self.loads += Loads(loaded=1)
        return with_lease(self._client.scorer, self._lease)

    def _release(self) -> None:
        scorer = self._scorer if self._client is None else self._client.scorer
        self._scorer = self._client = self._loaded = None
        lease, self._lease = self._lease, None
        try:
            if scorer is not None:
                scorer.close()
        finally:
            if lease is not None:
                lease.release()

    def __enter__(self) -> ReusedModel:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _worker_for(self, variant: Variant, policy: ScoringPolicy) -> WorkerScorer | None:
        """The worker that runs, if it can take this variant."""
        worker, before = self._scorer, self._used_by
        if worker is None or before is None or not worker.is_running:
            return None
        if self._lease is not None and not self._lease.server.is_running:
            return None
        if _declared_alike(self._loaded, (variant, policy)):
            return worker
        free = _is_traceless(before) and _is_traceless(variant)
        return worker if free and dict(plan_conversion(variant).env) == dict(self._env) else None

    def _reassigned(
        self,
        worker: WorkerScorer,
        loaded: _Loaded | None,
        variant: Variant,
        policy: ScoringPolicy,
    ) -> bool:
        if loaded is None or loaded[1] != policy or not same_loading(loaded[0], variant):
            return False
        if not worker.reassign(variant):
            return False
        self.loads += Loads(reassigned=1)
        return True

    def _started(self, variant: Variant, policy: ScoringPolicy) -> WorkerScorer:
        with contextlib.suppress(EvalguardError):  # it has ended all the same
            self._release()
        asking, self._lease = with_server(variant, self._cache_dir)
        worker_place = prepare_worker(asking, self._cache_dir)
        self._used_by, self._env = variant, worker_place.env
        line = self._start_process(variant.name, worker_place.env, worker_place.python)
        worker = WorkerScorer.over(line)
        try:
            self._load(worker, worker_place.variant, policy)
        except BaseException:
            line.hang_up()
            raise
        self._scorer, self._loaded = worker, (variant, policy)
        self.loads += Loads(started=1)
        return worker

    def _start_process(
        self, name: str, env: Mapping[str, str | None], python: str
    ) -> WorkerConnection:
        # Two logs in turn: the last words of the worker before must not get lost.
        self._processes += 1
        log = f"worker-{os.getpid()}-probe{self._number}{'ab'[self._processes % 2]}.log"
        return WorkerConnection(
            name,
            python=python,
            env=env,
            log=self._cache_dir / "logs" / log,
            timeout=self._options.timeout,
            start=worker_starter(self._options),
        )

    def _load(self, worker: WorkerScorer, variant: Variant, policy: ScoringPolicy) -> None:
        worker.load(
            variant,
            policy,
            cache_dir=self._cache_dir,
            reusable=True,
            remember=self._options.use_cache,
        )


class _ServerClient:
    """A scorer that asks a server; see ``InterruptibleWorker``."""

    def __init__(self, scorer: Scorer) -> None:
        self.scorer = scorer
        self.thread = threading.current_thread()
        self.is_open = True
        register_worker(self)

    def interrupt(self) -> None:
        """Give up what the server was asked."""
        self.is_open = False
        getattr(self.scorer, "interrupt", self.scorer.close)()

    def stuck_in(self) -> str:
        """Waiting for a server is no function to name."""
        return ""


def _declared_alike(one: _Loaded | None, other: _Loaded) -> bool:
    """Whether two models are declared alike; 1, 1.0 and true are three values."""
    if one is None or one[1] != other[1]:
        return False
    return digest_of(VARIANT.encode(one[0])) == digest_of(VARIANT.encode(other[0]))


def _is_traceless(variant: Variant) -> bool:
    """Whether loading a variant changes nothing in its process that a later one could meet.

    A hook may patch a library, as may code from the hub; other loaders bring libraries that do.
    """
    wanted = plan_conversion(variant)
    foreign = variant.trust_remote_code or brings_code(variant, wanted)
    elsewhere = any(wanted.model_args.get(name) for name in PLACEMENT_ARGUMENTS)
    return shares_prefixes(variant) and not foreign and not elsewhere
