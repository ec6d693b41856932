"""Settings, targets, constraints and variants."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalguard.core.settings import Constraint, Setting, Target, Variant, digest_of
from evalguard.errors import UsageError


def setting(name: str, target: str, reference: object = 1, candidate: object = 2) -> Setting:
    return Setting(
        name=name,
        reference=reference,  # type: ignore[arg-type]
        candidate=candidate,  # type: ignore[arg-type]
        target=Target.parse(target),
    )


def variant(**fields: object) -> Variant:
    given_fields: dict[str, object] = {
        "name": "port",
        "model": "hf",
        "model_args": {"pretrained": "p"},
        **fields,
    }
    return Variant(**given_fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "kind", "path", "attribute"),
    [
        ("model_args.add_bos_token", "model_args", "add_bos_token", ""),
        ("config.rope_parameters.rope_theta", "config", "rope_parameters.rope_theta", ""),
        ("env.X", "env", "X", ""),
        ("build.density", "build", "density", ""),
        (
            "attr:model.layers.*.self_attn.scaling",
            "attr",
            "model.layers.*.self_attn",
            "scaling",
        ),
        ("dtype:model.norm", "dtype", "model.norm", ""),
        ("call:hooks.py:round_weights", "call", "hooks.py:round_weights", ""),
    ],
)
def test_a_target_reads_as_kind_and_path_and_writes_back(
    text: str, kind: str, path: str, attribute: str
) -> None:
    target = Target.parse(text)
    assert (target.kind, target.path, target.attribute) == (kind, path, attribute)
    assert str(target) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("atr:model.x", "unknown target 'atr:model.x'; did you mean 'attr'"),
        ("conifg.eps", "did you mean 'config'"),
        ("config.", "ends where a name is needed"),
        ("attr:scaling", "names no attribute"),
        ("call:hooks.py", "names no function"),
        ("call:hooks.py:not a name", "names no function"),
        ("dtype:", "ends where a name is needed"),
        ("", "unknown target ''"),
    ],
)
def test_a_bad_target_says_what_is_wrong_with_it(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        Target.parse(text)
    assert message in str(caught.value)


@given(st.text(max_size=30))
def test_any_text_is_a_target_that_writes_back_or_a_usage_error(text: str) -> None:
    try:
        target = Target.parse(text)
    except UsageError:
        return
    assert str(target) == text


def test_a_setting_on_the_tokenizers_bos_changes_the_encoding_and_one_on_dtype_does_not() -> None:
    assert setting("bos", "model_args.add_bos_token").changes_encoding
    assert not setting("dtype", "model_args.dtype").changes_encoding
    assert not setting("bos", "config.add_bos_token").changes_encoding


def test_an_assignment_replaces_only_what_it_names() -> None:
    port = variant(
        settings=(setting("a", "config.a"), setting("b", "config.b")), assignment={"a": 2, "b": 2}
    )
    assert port.assigned({"a": 1}).assignment == {"a": 1, "b": 2}
    assert port.assignment == {"a": 2, "b": 2}


def test_an_unknown_setting_is_named_with_the_nearest_one() -> None:
    port = variant(settings=(setting("norm_dtype", "config.a"),))
    with pytest.raises(UsageError, match="no setting 'norm_dtyp'; did you mean 'norm_dtype'"):
        port.assigned({"norm_dtyp": 1})


def test_an_assignment_that_a_constraint_excludes_is_refused() -> None:
    rule = Constraint(when={"prefill": "chunk"}, then={"norm": "float32"})
    port = variant(
        settings=(setting("prefill", "config.p"), setting("norm", "config.n")),
        constraints=(rule,),
        assignment={"prefill": "recurrent", "norm": "bfloat16"},
    )
    with pytest.raises(UsageError, match="a constraint excludes this assignment"):
        port.assigned({"prefill": "chunk"})
    assert port.assigned({"prefill": "chunk", "norm": "float32"})


def test_the_digest_covers_the_assignment_and_not_the_name() -> None:
    port = variant(settings=(setting("a", "config.a"),), assignment={"a": 2})
    assert (
        port.digest
        == variant(name="other", settings=(setting("a", "config.a"),), assignment={"a": 2}).digest
    )
    assert port.digest != port.assigned({"a": 1}).digest


def test_a_digest_does_not_depend_on_the_order_of_keys() -> None:
    assert digest_of({"a": 1, "b": [1, 2]}) == digest_of({"b": [1, 2], "a": 1})
    assert digest_of([1, 2]) != digest_of([2, 1])
