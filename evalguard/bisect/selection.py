"""Selection: which few components explain the rows best.

A model is a set of components on a ground. Effects have a normal prior, so the likelihood of a
model is that of a normal vector, and one component more is a rank-one update of it (Bayesian
forward selection). A beam keeps the best models of each size, and a second one the best of single
settings: where effects add up, a pair looks best alone and is no start for what is true.
Components that no row tells apart are one class, told apart later, when rows are asked for that do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from evalguard.bisect.oracle import Floats, Mask

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
    packed = np.ascontiguousarray(np.packbits(acting, axis=0).T)
    keys = packed.view([("", packed.dtype, packed.shape[1])]).ravel()
    _, first, of = np.unique(keys, return_index=True, return_inverse=True)
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


def best_models(
    classes: Classes, sigma: Floats, covariance: Floats, scale: float, most: int
) -> list[Model]:
    """Models worth their weight, of up to ``most`` components.

    ``sigma``: (m,); ``covariance``: (m, m) of what is no component: jitter and ground; ``scale``:
    standard deviation of an effect before anything is measured.
    """
    root = np.linalg.cholesky(covariance)
    left = solve_triangular(root, sigma, lower=True)
    columns = solve_triangular(root, classes.acting.astype(np.float64), lower=True)
    log_weight = -0.5 * float(left @ left) - float(np.sum(np.log(np.diag(root))))
    forward = _Forward(columns, classes.log_prior, scale**-2)
    plain = growing = forward.start(left, log_weight)
    models = [Model(classes=(), log_weight=log_weight)]
    best = log_weight
    for _ in range(most):
        plain = forward.grown(plain, classes.plain)
        growing = _either(forward.grown(growing, None), plain)
        weights = growing.log_weights
        models += [
            Model(classes=found, log_weight=float(weight))
            for found, weight in zip(growing.classes, weights, strict=True)
        ]
        best = max(best, float(weights.max()))
        if weights.max() < best - _NEGLIGIBLE:
            break
    return models


@dataclass(frozen=True, slots=True, kw_only=True)
class _Beam:
    """Models of one size, b of them, and what the next component sees of each.

    Attributes:
        classes: of each.
        log_weights: (b,).
        used: (b, size, m): directions that their components take from the rows.
        overlap: (b, U): of every class with what of the rows they leave unexplained.
        room: (b, U): of every class, what its square length is beside theirs.
    """

    classes: list[tuple[int, ...]]
    log_weights: Floats
    used: Floats
    overlap: Floats
    room: Floats


def _either(one: _Beam, other: _Beam) -> _Beam:
    """Both beams as one, each model once."""
    known = set(one.classes)
    new = [at for at, found in enumerate(other.classes) if found not in known]
    return _Beam(
        classes=one.classes + [other.classes[at] for at in new],
        log_weights=np.concatenate([one.log_weights, other.log_weights[new]]),
        used=np.concatenate([one.used, other.used[new]]),
        overlap=np.concatenate([one.overlap, other.overlap[new]]),
        room=np.concatenate([one.room, other.room[new]]),
    )


class _Forward:
    """Forward selection among ``columns`` (m, U), all models of a beam at once."""

    def __init__(self, columns: Floats, log_prior: Floats, precision: float) -> None:
        self._columns, self._log_prior, self._precision = columns, log_prior, precision

    def start(self, left: Floats, log_weight: float) -> _Beam:
        """The model without components."""
        return _Beam(
            classes=[()],
            log_weights=np.array([log_weight]),
            used=np.empty((1, 0, left.size)),
            overlap=(left @ self._columns)[None],
            room=np.einsum("mu,mu->u", self._columns, self._columns)[None],
        )

    def grown(self, beam: _Beam, within: NDArray[np.intp] | None) -> _Beam:
        """The best models with one component more, one of ``within``; None: any."""
        parents, new, scores = self._chosen(beam, within)
        size = self._precision + np.maximum(beam.room[parents, new], 0.0)
        column = self._columns.T[new]
        inside = (beam.used[parents] @ column[:, :, None])[:, :, 0]
        own = column - (inside[:, None, :] @ beam.used[parents])[:, 0]
        direction = own / np.sqrt(size)[:, None]
        seen = direction @ self._columns
        taken = beam.overlap[parents, new] / np.sqrt(size)
        return _Beam(
            classes=[
                tuple(sorted((*beam.classes[parent], one)))
                for parent, one in zip(parents.tolist(), new.tolist(), strict=True)
            ],
            log_weights=scores,
            used=np.concatenate([beam.used[parents], direction[:, None, :]], axis=1),
            overlap=beam.overlap[parents] - taken[:, None] * seen,
            room=beam.room[parents] - seen**2,
        )

    def _chosen(
        self, beam: _Beam, within: NDArray[np.intp] | None
    ) -> tuple[NDArray[np.intp], NDArray[np.intp], Floats]:
        """Parents, their new classes and the log weights of the best, the best first."""
        scores = self._scores(beam, within)
        flat = scores.ravel()
        hopeful = np.flatnonzero(flat > flat.max() - _HOPELESS)
        if hopeful.size > 3 * BEAM:
            hopeful = hopeful[np.argpartition(-flat[hopeful], 3 * BEAM)[: 3 * BEAM]]
        hopeful = hopeful[np.argsort(-flat[hopeful], kind="stable")]
        parents, places = np.divmod(hopeful, scores.shape[1])
        new = places if within is None else within[places]
        seen: set[frozenset[int]] = set()
        kept = []
        for at, (parent, one) in enumerate(zip(parents.tolist(), new.tolist(), strict=True)):
            key = frozenset((*beam.classes[parent], one))
            if key not in seen:
                seen.add(key)
                kept.append(at)
            if len(kept) == BEAM:
                break
        return parents[kept], new[kept], flat[hopeful[kept]]

    def _scores(self, beam: _Beam, within: NDArray[np.intp] | None) -> Floats:
        """(b, U): log weight of each model with each class added."""
        overlap, room, log_prior = beam.overlap, beam.room, self._log_prior
        if within is not None:
            overlap, room, log_prior = overlap[:, within], room[:, within], log_prior[within]
        size = self._precision + np.maximum(room, 0.0)
        gain = 0.5 * (overlap**2 / size - np.log(size / self._precision))
        scores: Floats = beam.log_weights[:, None] + gain + log_prior
        return scores
