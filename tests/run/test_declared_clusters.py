from __future__ import annotations

import numpy as np
import pytest

from evalguard.core.document_columns import read_fields
from evalguard.core.scores import ScoreTable
from evalguard.engine.cluster_fields import ClusterChoice, cluster_documents, note_uncompared
from evalguard.errors import UsageError

N = 12
FIELDS = {
    "reading": read_fields({i: {"passage": i // 3, "question": f"q{i}"} for i in range(N)}),
    "sums": read_fields({i: {"sum": f"{i} + 1"} for i in range(N)}),
}


def table(task: str) -> ScoreTable:
    hashes = tuple(str(i) for i in range(N))
    return ScoreTable(
        task=task, filter="none", metric="acc", aggregation="mean", higher_is_better=True,
        doc_ids=np.arange(N), values=np.zeros(N), doc_hashes=hashes, prompt_hashes=hashes,
        target_hashes=hashes,
    )  # fmt: skip


def both(**choice):
    return cluster_documents([table("reading"), table("sums")], FIELDS, ClusterChoice(**choice))


def test_nothing_is_clustered_unasked_and_what_looks_shared_is_said():
    reading, sums = both()
    assert (reading.clusters, sums.clusters) == ((), ())
    (caveat,) = reading.caveats
    assert "documents share passage: 4 distinct values in 12" in caveat
    assert "--cluster passage" in caveat
    assert sums.caveats == ()


def test_a_declared_field_labels_the_documents_of_its_task():
    reading, sums = both(by_task={"reading": "passage"})
    assert reading.clusters == tuple(str(i // 3) for i in range(N))
    assert reading.cluster_field == "passage"
    assert reading.caveats == sums.caveats == ()
    assert sums.clusters == ()


def test_a_field_for_all_tasks_counts_where_it_is_and_is_missed_aloud_where_it_is_not():
    reading, sums = both(of_all="passage")
    assert reading.clusters
    assert sums.caveats == ("no field 'passage' in its documents: they count as independent",)


def test_the_command_line_wins_over_the_guard_file():
    reading, _ = both(of_all="question", by_task={"reading": "passage"})
    assert reading.cluster_field == "question"


@pytest.mark.parametrize(
    "choice", [{"of_all": "pasage"}, {"by_task": {"reading": "pasage"}}], ids=["option", "file"]
)
def test_a_field_that_no_document_has_is_refused_with_the_nearest_one(choice):
    with pytest.raises(UsageError, match=r"cannot cluster by 'pasage'.*passage"):
        both(**choice)


def test_a_field_that_some_documents_lack_is_refused():
    fields = {"reading": read_fields({i: {"passage": i} if i else {} for i in range(N)})}
    with pytest.raises(UsageError, match=r"1 of 12 documents have no text.*document 0"):
        cluster_documents([table("reading")], fields, ClusterChoice(of_all="passage"))


def test_a_task_that_is_clustered_and_not_compared_is_noted():
    choice = ClusterChoice(by_task={"readin": "passage"})
    (note,) = note_uncompared(choice, ["reading"])
    assert "'readin' is not among those compared" in note
    assert "reading" in note
