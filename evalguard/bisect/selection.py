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

BEAM = 32
_NEGLIGIBLE = 9.0  # in log: models that far below the best end the growth


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
    models = [Model(classes=(), log_weight=log_weight)]
    start = _Growing(classes=(), log_weight=log_weight, left=left, used=np.empty((0, left.size)))
    everything = np.arange(columns.shape[1])
    plain, growing = [start], [start]
    for _ in range(most):
        plain = _grown(plain, columns, classes.plain, classes.log_prior, scale**-2)
        grown = _grown(growing, columns, everything, classes.log_prior, scale**-2)
        growing = list({g.classes: g for g in (*grown, *plain)}.values())
        models += [Model(classes=g.classes, log_weight=g.log_weight) for g in growing]
        best = max(model.log_weight for model in models)
        if max(g.log_weight for g in growing) < best - _NEGLIGIBLE:
            break
    return models


@dataclass(frozen=True, slots=True, kw_only=True)
class _Growing:
    """A model with what the next component sees of it: the rows' remainder, used directions."""

    classes: tuple[int, ...]
    log_weight: float
    left: Floats
    used: Floats


def _grown(
    parents: list[_Growing],
    columns: Floats,
    within: NDArray[np.intp],
    log_prior: Floats,
    precision: float,
) -> list[_Growing]:
    """The best models with one component more than their parents, one of ``within``."""
    offered = columns[:, within]
    squares = np.einsum("mu,mu->u", offered, offered)
    scores = np.empty((len(parents), within.size))
    for number, parent in enumerate(parents):
        rest = squares - np.sum((parent.used @ offered) ** 2, axis=0)
        size = precision + np.maximum(rest, 0.0)
        gain = 0.5 * (parent.left @ offered) ** 2 / size - 0.5 * np.log(size / precision)
        scores[number] = parent.log_weight + gain + log_prior[within]
    flat = scores.ravel()
    count = min(flat.size, 3 * BEAM)
    chosen = np.argpartition(-flat, count - 1)[:count]
    grown: dict[tuple[int, ...], _Growing] = {}
    for at in chosen[np.argsort(-flat[chosen], kind="stable")]:
        number, place = divmod(int(at), within.size)
        new = int(within[place])
        parent = parents[number]
        key = tuple(sorted((*parent.classes, new)))
        if key in grown:
            continue
        column = columns[:, new] - parent.used.T @ (parent.used @ columns[:, new])
        rest = max(float(columns[:, new] @ column), 0.0)
        direction = column / np.sqrt(precision + rest)
        grown[key] = _Growing(
            classes=key,
            log_weight=float(flat[at]),
            left=parent.left - direction * float(direction @ parent.left),
            used=np.vstack([parent.used, direction]),
        )
        if len(grown) == BEAM:
            break
    return list(grown.values())
