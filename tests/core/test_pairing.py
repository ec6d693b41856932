from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from evalguard.core.pairing import pair
from evalguard.core.scores import ScoreTable
from evalguard.errors import EXIT_FAILED, MisalignedRunsError, UsageError

N = 6


def table(source: str = "model orig", n: int = N, **fields: object) -> ScoreTable:
    names = tuple(f"hash-{index}" for index in range(n))
    return ScoreTable(
        **{
            "task": "passages",
            "filter": "none",
            "metric": "perplexity",
            "aggregation": "perplexity",
            "higher_is_better": False,
            "doc_ids": np.arange(n),
            "values": -np.arange(1.0, n + 1.0),
            "doc_hashes": names,
            "prompt_hashes": names,
            "target_hashes": names,
            "token_hashes": names,
            "source": source,
            **fields,
        }
    )


def port(**fields: object) -> ScoreTable:
    return table(source="model port", **fields)


def changed(hashes: tuple[str, ...], *positions: int) -> tuple[str, ...]:
    return tuple(f"x{h}" if i in positions else h for i, h in enumerate(hashes))


def refusal(base: ScoreTable, candidate: ScoreTable, **options: object) -> MisalignedRunsError:
    with pytest.raises(MisalignedRunsError) as caught:
        pair(base, candidate, **options)
    return caught.value


def test_equal_documents_pair_without_a_caveat():
    paired = pair(table(), port())
    assert paired.caveats == ()
    assert paired.base.n == paired.candidate.n == N


@pytest.mark.parametrize(
    ("aggregation", "higher_is_better", "sign"),
    [
        ("mean", True, 1.0),
        ("mean", False, -1.0),
        ("perplexity", False, 1.0),
        ("perplexity", True, -1.0),
        ("weighted_perplexity", False, 1.0),
        ("bits_per_byte", False, 1.0),
    ],
)
def test_d_is_positive_where_the_candidate_is_worse(aggregation, higher_is_better, sign):
    weights = None if aggregation in ("mean", "perplexity") else np.ones(N)
    shared = {
        "aggregation": aggregation,
        "higher_is_better": higher_is_better,
        "weights": weights,
    }
    base = table(**shared)
    candidate = replace(base, values=base.values - 0.5)  # every value falls by a half
    assert pair(base, candidate).d.tolist() == [sign * 0.5] * N


def test_unsorted_tables_are_sorted_with_all_that_belongs_to_a_document():
    rng = np.random.default_rng(3)
    order = rng.permutation(N)
    base = table(aggregation="weighted_perplexity", weights=np.arange(2.0, N + 2.0))
    shuffled = replace(
        base,
        doc_ids=base.doc_ids[order],
        values=base.values[order],
        weights=base.weights[order],
        **{
            field: tuple(getattr(base, field)[i] for i in order)
            for field in ("doc_hashes", "prompt_hashes", "target_hashes", "token_hashes")
        },
    )
    paired = pair(base, shuffled)
    for field in ("doc_ids", "values", "weights"):
        assert np.array_equal(getattr(paired.candidate, field), getattr(base, field))
    assert paired.candidate.token_hashes == base.token_hashes


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("task", "other"),
        ("filter", "strict"),
        ("metric", "acc"),
        ("aggregation", "mean"),
        ("higher_is_better", True),
    ],
)
def test_tables_of_different_metrics_are_refused_naming_both_values(field, value):
    error = refusal(table(), port(**{field: value}))
    assert f"{field} is " in str(error)
    assert repr(value) in str(error)
    assert "model orig" in str(error)
    assert "model port" in str(error)
    assert error.exit_code == EXIT_FAILED


def test_a_repeated_doc_id_is_refused():
    error = refusal(table(), port(doc_ids=np.array([0, 1, 2, 2, 4, 5])))
    assert "model port has 1 repeated doc_ids (first: 2)" in str(error)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"values": np.zeros(N - 1)}, r"values of shape \(5,\)"),
        ({"doc_hashes": ("a",)}, "1 doc_hashes"),
        ({"token_hashes": ("a", "b")}, "2 token_hashes"),
        ({"cut": (True, False)}, "2 cut"),
        ({"weights": np.ones(N)}, "weights, which have no use for perplexity"),
    ],
)
def test_a_malformed_table_is_refused(fields, message):
    with pytest.raises(MisalignedRunsError, match=message):
        pair(table(), port(**fields))


def test_a_weighted_metric_without_weights_is_refused():
    error = refusal(*(side(aggregation="bits_per_byte") for side in (table, port)))
    assert "no weights for bits_per_byte" in str(error)


def test_other_documents_are_refused_with_counts_and_first_of_each_side():
    names = tuple(f"hash-{i}" for i in (0, 1, 2, 3, 9, 10))
    others = port(
        doc_ids=np.array([0, 1, 2, 3, 9, 10]),
        doc_hashes=names,
        prompt_hashes=names,
        target_hashes=names,
        token_hashes=names,
    )
    message = str(refusal(table(), others))
    assert "2 documents only in model orig (first: doc_id 4)" in message
    assert "2 documents only in model port (first: doc_id 9)" in message
    assert "hash" not in message.replace("hash-", "")


def test_a_run_that_stops_early_hints_at_limit():
    error = refusal(table(), port(n=4))
    assert "2 documents only in model orig (first: doc_id 4)" in str(error)
    assert "--limit" in error.hint
    assert "6 and 4 documents" in str(error)


def test_documents_that_share_nothing_are_refused():
    error = refusal(table(), port(doc_ids=np.arange(100, 100 + N)))
    assert "6 documents only in model port (first: doc_id 100)" in str(error)
    assert "--limit" not in error.hint


@pytest.mark.parametrize(
    ("field", "noun"),
    [("doc_hashes", "documents (doc_hash)"), ("target_hashes", "targets (target_hash)")],
)
def test_documents_and_targets_must_agree_whatever_is_allowed(field, noun):
    candidate = port(**{field: changed(table().doc_hashes, 2, 4)})
    error = refusal(table(), candidate, allow=frozenset({"prompt", "tokens"}))
    assert f"{noun} differ in 2 of 6 documents (first: doc_id 2, hash-2 and xhash-2)" in str(error)


def test_prompts_that_differ_are_refused_unless_declared():
    prompts = changed(table().prompt_hashes, 1, 3, 5)
    candidate = port(prompt_hashes=prompts)
    error = refusal(table(), candidate)
    assert "prompts (prompt_hash) differ in 3 of 6 documents (first: doc_id 1" in str(error)
    assert "--allow-differing prompt" in error.hint
    paired = pair(table(), candidate, allow=frozenset({"prompt"}))
    assert paired.caveats == (
        "prompts (prompt_hash) differ in 3 of 6 documents, as declared; "
        "their token ids are not compared",
    )


def test_token_ids_that_differ_are_refused_unless_declared():
    candidate = port(token_hashes=changed(table().token_hashes, *range(N)))
    error = refusal(table(), candidate)
    assert "token ids differ in 6 of 6 documents (first: doc_id 0" in str(error)
    assert "--allow-differing tokens" in error.hint
    paired = pair(table(), candidate, allow=frozenset({"tokens"}))
    assert paired.caveats == ("token ids differ in 6 of 6 documents, as declared",)


def test_declared_prompts_excuse_only_their_own_token_ids():
    names = table().prompt_hashes
    allow = frozenset({"prompt"})
    candidate = port(prompt_hashes=changed(names, 1), token_hashes=changed(names, 1))
    pair(table(), candidate, allow=allow)
    wider = replace(candidate, token_hashes=changed(names, 1, 4))
    error = refusal(table(), wider, allow=allow)
    assert "token ids differ in 1 of 6 documents (first: doc_id 4" in str(error)


@pytest.mark.parametrize(
    ("ours", "theirs", "silent"),
    [
        ((), None, "model orig does"),
        (None, (), "model port does"),
        ((), (), "model orig and model port do"),
    ],
)
def test_unknown_token_ids_are_a_caveat(ours, theirs, silent):
    known = table().token_hashes
    paired = pair(
        table(token_hashes=known if ours is None else ours),
        port(token_hashes=known if theirs is None else theirs),
    )
    assert paired.caveats == (
        f"token ids not compared in 6 of 6 documents: {silent} not show them",
    )


@pytest.mark.parametrize("field", ["doc_hashes", "target_hashes", "prompt_hashes"])
def test_a_document_without_a_hash_cannot_be_known_to_be_the_same(field):
    hashes = ("", *table().doc_hashes[1:])
    error = refusal(table(), port(**{field: hashes}))
    assert "not compared in 1 of 6 documents: model port does not show them" in str(error)
    assert "make that run once more" in error.hint


def test_prompts_that_are_not_shown_pair_only_if_other_prompts_are_declared():
    silent = port(prompt_hashes=("",) * N)
    paired = pair(table(), silent, allow=frozenset({"prompt"}))
    assert paired.caveats == (
        "prompts (prompt_hash) not compared in 6 of 6 documents: model port does not show them",
    )


def test_a_context_length_under_test_excuses_only_the_documents_that_it_cuts():
    names, length = table().token_hashes, frozenset({"length"})
    cut = tuple(i in (2, 5) for i in range(N))
    candidate = port(token_hashes=changed(names, 2, 5), cut=cut)
    paired = pair(table(), candidate, allow=length)
    assert paired.caveats == (
        "token ids differ in 2 of 6 documents that do not fit a context length under test",
    )
    # a BOS that was lost beside it shows in the documents that fit
    lost = replace(candidate, token_hashes=changed(names, *range(N)))
    error = refusal(table(), lost, allow=length)
    assert "token ids differ in 4 of 6 documents (first: doc_id 0" in str(error)
    # which side cuts does not matter, and without the setting nothing is excused
    pair(table(cut=cut), replace(candidate, cut=()), allow=length)
    assert "2 of 6 documents" in str(refusal(table(), candidate))


def test_continuations_that_differ_behind_equal_prompts_are_refused():
    # doc_to_choice or target_delimiter was changed: none of lm-eval's own hashes sees it
    asked = table().doc_hashes
    base, candidate = table(asked_hashes=asked), port(asked_hashes=changed(asked, 1, 4))
    error = refusal(base, candidate)
    assert "requests (prompts with what is scored after them) differ in 2 of 6" in str(error)
    assert "--allow-differing prompt" in error.hint
    paired = pair(base, candidate, allow=frozenset({"prompt"}))
    assert "requests" in paired.caveats[0]
    assert "2 of 6 documents, as declared" in paired.caveats[0]
    # a run that does not show them is held to lm-eval's own hashes
    assert pair(base, port()).caveats == ()


def test_a_request_that_differs_by_its_prompt_is_told_once():
    names = table().doc_hashes
    prompts = {"prompt_hashes": changed(names, 2), "asked_hashes": changed(names, 2)}
    error = refusal(table(asked_hashes=names), port(**prompts))
    assert "prompts (prompt_hash) differ in 1 of 6" in str(error)
    assert "requests" not in str(error)


def test_a_permission_that_is_not_used_leaves_no_trace():
    everything = frozenset({"prompt", "tokens", "length"})
    candidate = port(cut=(True,) * N)
    assert pair(table(), candidate, allow=everything).caveats == ()


def test_run_conditions_known_to_both_must_agree():
    base = table(run={"num_fewshot": 0, "limit": 100, "version": 1.0})
    candidate = port(run={"num_fewshot": 5, "limit": None, "fewshot_seed": 7})
    error = refusal(base, candidate)
    assert "num_fewshot is 0 in model orig and 5 in model port" in str(error)
    assert "limit is 100 in model orig and None in model port" in str(error)
    assert "version" not in str(error)
    assert "fewshot_seed" not in str(error)
    assert "run both with the same num_fewshot" in error.hint


def test_one_refusal_names_every_kind_of_mismatch():
    names = table().doc_hashes
    candidate = port(
        n=5,
        doc_hashes=changed(names[:5], 1),
        target_hashes=changed(names[:5], 2),
        prompt_hashes=changed(names[:5], 3),
        token_hashes=changed(names[:5], 0, 4),
        run={"num_fewshot": 5},
    )
    message = str(refusal(table(run={"num_fewshot": 0}), candidate))
    for part in (
        "num_fewshot is 0",
        "1 documents only in model orig (first: doc_id 5)",
        "documents (doc_hash) differ in 1 of 5 documents (first: doc_id 1",
        "targets (target_hash) differ in 1 of 5 documents (first: doc_id 2",
        "prompts (prompt_hash) differ in 1 of 5 documents (first: doc_id 3",
        "token ids differ in 2 of 5 documents (first: doc_id 0",
    ):
        assert part in message


def test_weights_that_differ_are_refused():
    weighted = {"aggregation": "weighted_perplexity"}
    base = table(weights=np.array([4.0, 5.0, 6.0, 7.0, 8.0, 9.0]), **weighted)
    candidate = port(weights=np.array([4.0, 5.0, 6.5, 7.0, 8.0, 9.0]), **weighted)
    assert (
        "weights (words or bytes) differ in 1 of 6 documents (first: doc_id 2, 6 and 6.5)"
        in str(refusal(base, candidate))
    )


def test_an_unknown_permission_is_a_usage_error_with_the_nearest_name():
    with pytest.raises(UsageError, match=r"'token'.*did you mean 'tokens'"):
        pair(table(), port(), allow=frozenset({"token"}))


def test_runs_without_a_name_are_called_base_and_candidate():
    error = refusal(table(source=""), table(source="", n=4))
    assert "the base run and the candidate run cannot be paired" in str(error)


FINISHED = {"lm_eval": "0.4.13", "finished": True}
LIKELIHOOD = {"output_type": "loglikelihood"}
ROLLING = {"output_type": "loglikelihood_rolling"}


def unshown(source, reading, run=LIKELIHOOD):
    return table(source=source, token_hashes=(), reading=reading, run=run)


@pytest.mark.parametrize(
    ("ours", "theirs", "found"),
    [
        ({"finished": True}, FINISHED, "lm-eval is not recorded in a and 0.4.13 in b"),
        (FINISHED, None, "lm-eval is 0.4.13 in a and not recorded in b"),
        ({"finished": True}, {"finished": True}, "lm-eval is not recorded in a and b"),
        ({**FINISHED, "lm_eval": "0.4.9"}, FINISHED, "lm-eval is 0.4.9 in a and 0.4.13 in b"),
        (FINISHED, {"lm_eval": "0.4.12"}, "lm-eval is 0.4.13 in a and 0.4.12 in b"),
        (
            FINISHED,
            {**FINISHED, "add_bos_token": "True"},
            "add_bos_token is not given in a and true in b",
        ),
        (
            {**FINISHED, "prefix_token_id": "5"},
            FINISHED,
            "prefix_token_id is 5 in a and not given in b",
        ),
        (
            {**FINISHED, "prefix_token": "<s> (1)"},
            {**FINISHED, "prefix_token": "</s> (2)"},
            "prefix_token is <s> (1) in a and </s> (2) in b",
        ),
    ],
)
def test_tokens_that_are_not_shown_and_may_differ_are_refused_unless_declared(ours, theirs, found):
    base, candidate = unshown("a", ours), unshown("b", theirs)
    error = refusal(base, candidate)
    assert found in str(error)
    assert "--allow-differing tokens" in error.hint
    caveats = pair(base, candidate, allow=frozenset({"reading"})).caveats
    assert any(found in caveat and caveat.endswith("as declared") for caveat in caveats)
    generation = {"output_type": "generate_until"}
    texts = unshown("a", ours, generation), unshown("b", theirs, generation)
    if found.startswith("prefix_token"):  # stands before log-likelihoods only
        assert pair(*texts).base.n == N
        return
    error = refusal(*texts)
    assert found in str(error)
    assert "prompts may have been built or cut otherwise" in str(error)
    assert pair(*texts, allow=frozenset({"reading"})).base.n == N


@pytest.mark.parametrize(("key", "one", "other"), [
    ("max_length", 512, 1024), ("rolling_bos", "lm-eval", "once"),
])  # fmt: skip
def test_what_only_whole_texts_depend_on_is_refused_for_whole_texts_only(key, one, other):
    sides = [{**FINISHED, key: one}, {**FINISHED, key: other}]
    error = refusal(unshown("a", sides[0], ROLLING), unshown("b", sides[1], ROLLING))
    assert f"{key} is {one} in a and {other} in b" in str(error)
    assert pair(unshown("a", sides[0]), unshown("b", sides[1])).base.n == N


def test_a_setting_under_test_excuses_its_own_argument_and_no_other_lm_eval():
    bos = unshown("a", FINISHED), unshown("b", {**FINISHED, "add_bos_token": False})
    assert pair(*bos, allow=frozenset({"tokens"})).base.n == N
    older = unshown("a", {"finished": True}), unshown("b", FINISHED)
    assert "not recorded" in str(refusal(*older, allow=frozenset({"tokens"})))


def test_token_ids_that_are_shown_say_enough():
    ours, theirs = table(reading={}, run=LIKELIHOOD), port(reading=FINISHED, run=LIKELIHOOD)
    assert pair(ours, theirs).caveats == ()
