"""Secrets are recognised by their names and their shapes; everything else stays as it is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalguard.redaction import is_secret, redacted, redacted_text

TOKEN = "hf_" + "a1B2" * 8


@pytest.mark.parametrize(
    "name",
    ["token", "hf_token", "use_auth_token", "api_key", "apikey", "api-key", "OPENAI_API_KEY",
     "HF_TOKEN", "WANDB_API_KEY", "GITHUB_TOKEN", "AWS_SECRET_ACCESS_KEY", "aws_access_key_id",
     "password", "db.password", "Authorization", "client_secret", "credentials", "SSH_KEY"],
)  # fmt: skip
def test_names_of_secrets_are_known(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize(
    "name",
    ["add_bos_token", "prefix_token_id", "think_end_token", "tokenizer", "use_fast_tokenizer",
     "max_gen_toks", "pad_token", "pad_token_id", "eos_token_id", "num_key_value_heads", "key",
     "dtype", "TOKENIZERS_PARALLELISM", "OMP_NUM_THREADS", "keys", "secretary"],
)  # fmt: skip
def test_names_that_only_look_like_secrets_are_not(name: str) -> None:
    assert not is_secret(name)
    assert redacted({name: "x"}) == {name: "x"}


def test_values_are_looked_through_by_name_and_by_shape() -> None:
    before = {
        "token": "x",
        "use_auth_token": True,
        "api_key": None,
        "header": {"Authorization": "Bearer abc", "X": ["fine", f"see {TOKEN}"]},
        "base_url": "https://me:hunter2@host/v1",
        "add_bos_token": "yes",
        "n": 3,
    }
    assert redacted(before) == {
        "token": "***",
        "use_auth_token": True,
        "api_key": None,
        "header": {"Authorization": "***", "X": ["fine", "see ***"]},
        "base_url": "https://***@host/v1",
        "add_bos_token": "yes",
        "n": 3,
    }
    assert redacted("x", "api_key") == "***"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("--base_model_args token=abc,dtype=auto", "--base_model_args token=***,dtype=auto"),
        ("eg --base_model_args 'api_key=a b'", "eg --base_model_args 'api_key=*** b'"),
        ('{"api_key": "abc", "n": 1}', '{"api_key": ***, "n": 1}'),
        ("--set add_bos_token=false", "--set add_bos_token=false"),
        ("password: 'a, b'", "password: ***"),
        (f"no name: {TOKEN}.", "no name: ***."),
        ("Bearer abcdefgh12345", "Bearer ***"),
        ("evalguard compare --base a --cand b", "evalguard compare --base a --cand b"),
        ("a token is a word: fine", "a token is a word: fine"),
        ("Authorization: Bearer s3cr3t-0123456789", "Authorization: ***"),
        ("authorization=Basic dXNlcjpz, n=1", "authorization=***, n=1"),
        ("a basic assumption", "a basic assumption"),
        ("https://:s3cr3t@host/x", "https://***@host/x"),
        ("https://me:s3@cr3t@host/x", "https://***@host/x"),
        ("http://localhost:8080/x", "http://localhost:8080/x"),
        ("clientSecret=abc passphrase: abc", "clientSecret=*** passphrase: ***"),
        ("https://host/x?v=1&X-Amz-Signature=ab12&n=1", "https://host/x?v=1&***&n=1"),
        ("https://host/x?sig=a%2Fb", "https://host/x?***"),
        ("key AIza" + "a1B2_" * 7, "key ***"),
        ("saw eyJhbGciOiJIUzI1.eyJzdWIiOiIx.dozjgNry-_", "saw ***"),
    ],
)  # fmt: skip
def test_texts_lose_secrets_and_nothing_else(before: str, after: str) -> None:
    assert redacted_text(before) == after


@given(
    st.text(), st.sampled_from(["token", "api_key", "HF_TOKEN", "password"]), st.sampled_from("=:")
)
def test_no_text_around_a_secret_shows_it(around: str, name: str, equals: str) -> None:
    assert "s3cr3t" not in redacted_text(f"{around} {name}{equals}s3cr3t {around}")


@given(st.text())
def test_redacting_twice_changes_nothing_more(text: str) -> None:
    once = redacted_text(text)
    assert redacted_text(once) == once
