"""A port that lost its BOS: the same texts, other token ids."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from evalguard.errors import MisalignedRunsError

if TYPE_CHECKING:
    from evalguard import CompareResult

pytestmark = pytest.mark.data
LIMIT = 128


def test_a_lost_bos_that_nobody_declared_is_refused(
    compare: Callable[..., CompareResult],
) -> None:
    with pytest.raises(MisalignedRunsError, match="only the base reads token 1 before") as refused:
        compare("orig", "lost-bos", limit=LIMIT)
    assert [quote.text[:9] for quote in refused.value.quotes] == ["1 368 323", "368 323 2"]
    assert refused.value.exit_code == 3
    assert "--allow-differing tokens" in refused.value.hint


@pytest.mark.parametrize(
    ("candidate", "options"), [("no-bos", {}), ("lost-bos", {"allow_differing": "tokens"})]
)
def test_a_lost_bos_that_was_declared_is_measured_with_a_caveat(
    candidate: str, options: dict[str, str], compare: Callable[..., CompareResult]
) -> None:
    result = compare("orig", candidate, limit=LIMIT, **options)
    assert result.exit_code == 0
    for comparison in result.comparisons:
        assert comparison.outcome != "failed"
        assert not comparison.bit_identical
        assert (
            f"token ids differ in {LIMIT} of {LIMIT} documents, as declared" in comparison.caveats
        )
    found = result.comparisons[0]
    assert found.sigma is not None
    assert 0 < abs(found.sigma) < 0.3  # data/README.md of the shared data: -0.10


def test_declared_as_setting_or_by_option_a_lost_bos_measures_the_same(
    compare: Callable[..., CompareResult],
) -> None:
    setting = compare("orig", "no-bos", limit=LIMIT)
    option = compare("orig", "lost-bos", limit=LIMIT, allow_differing="tokens")
    assert [c.sigma for c in setting.comparisons] == [c.sigma for c in option.comparisons]
    assert [c.candidate for c in setting.comparisons] == [c.candidate for c in option.comparisons]
