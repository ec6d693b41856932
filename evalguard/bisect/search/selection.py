"""Selection: which few components explain the rows best.

A model is a set of components on a ground. Effects have a normal prior, so the likelihood of a
model is that of a normal vector, and one component more is a rank-one update of it (Bayesian
forward selection). A beam keeps the best models of each size, and a second one the best of
single settings: where effects add up, a pair looks best alone and is not a start for what is
true. Components that no row tells apart are one class, told apart later, when rows are asked for
that do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from evalguard.core.question import Floats, Mask

BEAM = 16
_NEGLIGIBLE = 9.0  # in log: models that far below the best end the growth
_HOPELESS = 25.0  # in log: models that far below the best of their size are not grown


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Classes of components that together explain the rows, and its log weight."""

    classes: tuple[int, ...]
    log_weight: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Classes:
    """Components by what they do in the rows.

    Attributes:
        of: (J,) class of each component.
        acting: (m, U) in which rows a class acts.
        log_prior: (U,) of any one of its members.
        plain: classes that hold a single setting.
    """

    of: NDArray[np.intp]
    acting: Mask
    log_prior: Floats
    plain: NDArray[np.intp]

    def members(self, which: int, log_prior: Floats) -> tuple[NDArray[np.intp], Floats]:
        """Components of a class by number, and the chance of each, 1 in all."""
        numbers = np.flatnonzero(self.of == which)
        chances = np.exp(log_prior[numbers] - self.log_prior[which])
        return numbers, chances / chances.sum()


def classes_of(acting: Mask, log_prior: Floats, singles: int) -> Classes:
    """Put components that act in the same rows into one class; ``acting``: (m, J).

    ``singles``: how many components, the first ones, are single settings.
    """
    _, first, of = np.unique(_patterns(acting), return_index=True, return_inverse=True)
    of = of.ravel()
    top = np.full(first.size, -np.inf)
    np.maximum.at(top, of, log_prior)
    mass = np.bincount(of, weights=np.exp(log_prior - top[of]))
    return Classes(
        of=of,
        acting=acting[:, first],
        log_prior=top + np.log(mass),
        plain=np.unique(of[:singles]),
    )


def _patterns(acting: Mask) -> NDArray[np.uint64]:
    """A number for each column of ``acting``, (m, J): the same for columns that are equal."""
    packed = np.packbits(acting, axis=0)
    words = np.zeros((acting.shape[1], -(-len(packed) // 8) * 8), dtype=np.uint8)
    words[:, : len(packed)] = packed.T
    first, *following = words.view(">u8").astype(np.uint64).T
    for word in following:  # of more than 64 rows
        _, before = np.unique(first, return_inverse=True)
        _, after = np.unique(word, return_inverse=True)
        first = (before * word.size + after).ravel().astype(np.uint64)
    return first


def best_models(
    classes: Classes, sigma: Floats, covariance: Floats, scale: float, most: int
) -> list[Model]:
    """Models worth their weight, of up to ``most`` components.

    ``sigma``: (m,); ``covariance``: (m, m) of what is no component: jitter and ground; ``scale``:
    standard deviation of an effect before anything is measured.
    """
    root = np.linalg.cholesky(covariance)
    whitened = solve_triangular(root, sigma, lower=True, check_finite=False)
    columns = solve_triangular(
        root, classes.acting.astype(np.float64), lower=True, check_finite=False
    )
    log_weight = -0.5 * float(whitened @ whitened) - float(np.sum(np.log(np.diag(root))))
    forward = _Forward(columns, classes.log_prior, scale**-2)
    beam = forward.start(whitened, log_weight)
    models = [Model(classes=(), log_weight=log_weight)]
    best = log_weight
    for size in range(1, most + 1):
        picks = forward.picks(beam, classes.plain)
        models += [
            Model(classes=picked, log_weight=weight)
            for picked, weight in zip(picks.classes, picks.log_weights.tolist(), strict=True)
        ]
        top = float(picks.log_weights.max())
        best = max(best, top)
        if size == most or top < best - _NEGLIGIBLE:
            break
        beam = forward.grown(beam, picks)
    return models


@dataclass(frozen=True, slots=True, kw_only=True)
class _Beam:
    """Models of one size, b of them, and what the next component sees of each.

    Attributes:
        classes: of each, in order.
        plain: (p,): which of them hold single settings only and are grown as such.
        log_weights: (b,).
        used: (b, size, m): directions that their components take from the rows.
        overlap: (b, U): of every class with what of the rows they leave unexplained.
        room: (b, U): of every class, what its square length is beside theirs.
    """

    classes: list[tuple[int, ...]]
    plain: NDArray[np.intp]
    log_weights: Floats
    used: Floats
    overlap: Floats
    room: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class _Picks:
    """What a beam is grown to: of which parent, with which class more; as in ``_Beam``."""

    classes: list[tuple[int, ...]]
    plain: NDArray[np.intp]
    log_weights: Floats
    parents: NDArray[np.intp]
    new: NDArray[np.intp]


class _Forward:
    """Forward selection among ``columns`` (m, U), all models of a beam at once."""

    def __init__(self, columns: Floats, log_prior: Floats, precision: float) -> None:
        self._columns, self._log_prior, self._precision = columns, log_prior, precision
        self._rows = np.ascontiguousarray(columns.T)

    def start(self, left: Floats, log_weight: float) -> _Beam:
        """The model without components."""
        return _Beam(
            classes=[()],
            plain=np.zeros(1, dtype=np.intp),
            log_weights=np.array([log_weight]),
            used=np.empty((1, 0, left.size)),
            overlap=(left @ self._columns)[None],
            room=np.einsum("mu,mu->u", self._columns, self._columns)[None],
        )

    def picks(self, beam: _Beam, plain: NDArray[np.intp]) -> _Picks:
        """The best models with one class more, and the best with one of ``plain`` more."""
        scores = self._scores(beam)
        every = np.arange(len(beam.classes))
        picks: dict[tuple[int, ...], tuple[int, int, float]] = {}
        _pick(picks, beam, every, scores, None)
        single: dict[tuple[int, ...], tuple[int, int, float]] = {}
        _pick(single, beam, beam.plain, scores[np.ix_(beam.plain, plain)], plain)
        for key, pick in single.items():
            picks.setdefault(key, pick)
        number = {key: at for at, key in enumerate(picks)}
        parents, new, weights = zip(*picks.values(), strict=True)
        return _Picks(
            classes=list(picks),
            plain=np.array([number[key] for key in single]),
            log_weights=np.array(weights),
            parents=np.array(parents),
            new=np.array(new),
        )

    def grown(self, beam: _Beam, picks: _Picks) -> _Beam:
        """The models picked."""
        parents, new = picks.parents, picks.new
        size = self._precision + np.maximum(beam.room[parents, new], 0.0)
        column, used = self._rows[new], beam.used[parents]
        inside = used @ column[:, :, None]
        own = column - (inside.swapaxes(1, 2) @ used)[:, 0]
        direction = own / np.sqrt(size)[:, None]
        seen = direction @ self._columns
        taken = beam.overlap[parents, new] / np.sqrt(size)
        overlap = beam.overlap[parents]
        overlap -= taken[:, None] * seen
        room = beam.room[parents]
        room -= np.square(seen, out=seen)
        return _Beam(
            classes=picks.classes,
            plain=picks.plain,
            log_weights=picks.log_weights,
            used=np.concatenate([used, direction[:, None, :]], axis=1),
            overlap=overlap,
            room=room,
        )

    def _scores(self, beam: _Beam) -> Floats:
        """(b, U): log weight of each model with each class added."""
        size = np.maximum(beam.room, 0.0)
        size += self._precision
        gain = beam.overlap**2
        gain /= size
        size /= self._precision
        gain -= np.log(size, out=size)
        gain *= 0.5
        gain += self._log_prior
        gain += beam.log_weights[:, None]
        return gain


def _pick(
    found: dict[tuple[int, ...], tuple[int, int, float]],
    beam: _Beam,
    rows: NDArray[np.intp],
    scores: Floats,
    within: NDArray[np.intp] | None,
) -> None:
    """Put the best into ``found``: parent, new class and log weight by the classes of the model."""
    flat = scores.ravel()
    hopeful = np.flatnonzero(flat > flat.max() - _HOPELESS)
    if hopeful.size > 3 * BEAM:
        hopeful = hopeful[np.argpartition(-flat[hopeful], 3 * BEAM)[: 3 * BEAM]]
    hopeful = hopeful[np.argsort(-flat[hopeful], kind="stable")]
    places, new = np.divmod(hopeful, scores.shape[1])
    parents = rows[places]
    new = new if within is None else within[new]
    weights = flat[hopeful].tolist()
    seen: set[frozenset[int]] = set()
    for parent, added, weight in zip(parents.tolist(), new.tolist(), weights, strict=True):
        classes = (*beam.classes[parent], added)
        if (key := frozenset(classes)) not in seen:
            seen.add(key)
            found[tuple(sorted(classes))] = (parent, added, weight)
        if len(found) == BEAM:
            break
