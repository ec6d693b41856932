"""lm-eval's own aggregations, for the items of a stored run whose metric is not a mean."""

from __future__ import annotations

from collections.abc import Sequence

from evalguard.core.documents.rescoring import Rescoring, rescoring
from evalguard.core.reports.findings import quote_message
from evalguard.core.score_items import (
    NotComparableError,
)
from evalguard.errors import EvaluationError

# lm-eval's placeholder of runs without metrics.
_NO_METRIC = "bypass"


def read_rescoring(items: Sequence[object], name: str) -> Rescoring:
    """Rescore stored items by the aggregation that lm-eval registers under a name.

    A task's own function is recorded as its source text only: it cannot be run here.

    Raises:
        NotComparableError: for a name that lm-eval does not register, or items that its function
            fails on.
    """
    import lm_eval.api.metrics  # noqa: F401  registers the aggregations
    from lm_eval.api.registry import AGGREGATION_REGISTRY

    function = None if name == _NO_METRIC else AGGREGATION_REGISTRY.get(name, None)
    if function is None:
        raise NotComparableError(
            f"its aggregation '{name}' is a function of the task, which a stored run does not hold"
        )

    def aggregate(chosen: list[object]) -> float:
        try:
            return float(function(chosen))
        except (ArithmeticError, AssertionError, AttributeError, LookupError) as error:
            raise _failed(name, error) from error
        except (TypeError, ValueError) as error:
            raise _failed(name, error) from error

    try:
        return rescoring(items, name, aggregate)
    except EvaluationError as error:
        raise NotComparableError(str(error), quotes=error.quotes) from error


def _failed(name: str, error: Exception) -> EvaluationError:
    return EvaluationError(
        f"lm-eval's aggregation '{name}' fails on the stored items: {type(error).__name__}",
        quotes=quote_message(error),
    )
