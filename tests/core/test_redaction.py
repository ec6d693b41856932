"""Secrets are recognised by their names and their shapes; everything else stays as it is."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from evalguard.core.redaction import (
    is_secret,
    redact_value,
    redacted_command,
    redacted_text,
    redacted_traceback,
    shown_value,
)
from evalguard.core.settings import Setting, Target

TOKEN = "hf_" + "a1B2" * 8


@pytest.mark.parametrize(
    "name",
    ["token", "hf_token", "use_auth_token", "api_key", "apikey", "api-key", "OPENAI_API_KEY",
     "HF_TOKEN", "WANDB_API_KEY", "GITHUB_TOKEN", "AWS_SECRET_ACCESS_KEY", "aws_access_key_id",
     "password", "db.password", "Authorization", "client_secret", "credentials", "SSH_KEY",
     "db_pwd", "MYSQL_PWD", "dbpassword", "gitlab_token", "npm_token", "github_pat",
     "secretAccessKey", "AccountKey", "X-Amz-Security-Token", "headers.token", "basic_auth",
     "api_keys", "PRIVATE-TOKEN", "set-cookie"],
)  # fmt: skip
def test_names_of_secrets_are_known(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize(
    "name",
    ["add_bos_token", "prefix_token_id", "think_end_token", "tokenizer", "use_fast_tokenizer",
     "max_gen_toks", "pad_token", "pad_token_id", "eos_token_id", "num_key_value_heads", "key",
     "dtype", "TOKENIZERS_PARALLELISM", "OMP_NUM_THREADS", "keys", "secretary", "tokens", "PWD",
     "OLDPWD", "bos_token", "image_token", "num_tokens", "key_length", "keyboard", "author",
     "authors", "path", "monkey", "user_token"],
)  # fmt: skip
def test_names_that_only_look_like_secrets_are_not(name: str) -> None:
    assert not is_secret(name)
    assert redact_value({name: "x"}) == {name: "x"}


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
    assert redact_value(before) == {
        "token": "***",
        "use_auth_token": True,
        "api_key": None,
        "header": {"Authorization": "***", "X": ["fine", "see ***"]},
        "base_url": "https://***@host/v1",
        "add_bos_token": "yes",
        "n": 3,
    }
    assert redact_value("x", "api_key") == "***"
    assert redact_value({"credentials": {"id": "x"}, "n": [{"api_key": "x"}]}) == {
        "credentials": "***", "n": [{"api_key": "***"}],
    }  # fmt: skip


def test_a_flag_or_a_name_makes_the_next_element_of_a_list_a_secret() -> None:
    assert redact_value(["curl", "--token", "x", "-v"]) == ["curl", "--token", "***", "-v"]
    assert redact_value(["--token", "--limit", "--api-key", 5]) == [
        "--token",
        "--limit",
        "--api-key",
        5,
    ]
    assert redact_value([["Authorization", "x y"], ["name", "x"]]) == [
        ["Authorization", "***"], ["name", "x"],
    ]  # fmt: skip
    assert redact_value({"name": "API_KEY", "value": "x"}) == {"name": "API_KEY", "value": "***"}


def test_words_of_a_command_lose_secrets_before_they_are_quoted() -> None:
    words = ["evalguard", "--token", "it's", "--set", "a.password='x y'", "--base=a b", "--json"]
    shown = "evalguard --token '***' --set 'a.password=***' '--base=a b' --json"
    assert redacted_command(words) == shown
    assert redacted_text(shown) == shown.replace("'***'", "***")


def test_a_traceback_loses_secrets_and_keeps_its_lines() -> None:
    try:
        raise ValueError("no entry for --token x9 and password=x9")
    except ValueError as error:
        told = redacted_traceback(error)
    assert "x9" not in told.splitlines()[-1]
    assert told.startswith("Traceback")
    assert told.endswith("no entry for --token *** and password=***")


def test_a_setting_is_a_secret_by_its_name_or_by_its_target() -> None:
    def shown(name: str, target: str) -> object:
        wanted = Setting(name=name, reference=None, candidate="x", target=Target.parse(target))
        return shown_value("x", wanted)

    assert shown("a", "env.MY_TOKEN") == shown("hf_token", "call:m:f") == "***"
    assert shown("a", "model_args.api_key") == "***"
    assert shown("pad_token", "config.pad_token") == "x"


def test_a_private_key_goes_whole_even_where_its_end_is_cut_off() -> None:
    key = "-----BEGIN RSA PRIVATE KEY-----\nMIIEow+/x\nAAAA=\n-----END RSA PRIVATE KEY-----"
    assert redacted_text(f"a {key} b") == "a *** b"
    assert redacted_text(f"a {key[:50]}") == "a ***"
    assert redacted_text(key.replace("PRIVATE", "PUBLIC")) == key.replace("PRIVATE", "PUBLIC")


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
        ("--token abc --limit 5", "--token *** --limit 5"),
        ("x --hf-token 'a b' -v", "x --hf-token *** -v"),
        ("--token --limit", "--token --limit"),
        ("--token=abc", "--token=***"),
        ("model_args.token=abc", "model_args.token=***"),
        ("db_pwd=abc PWD=/home/me", "db_pwd=*** PWD=/home/me"),
        ('{\\"api_key\\": \\"a b\\", \\"n\\": 1}', '{\\"api_key\\": ***, \\"n\\": 1}'),
        ("password=a]b}c", "password=***"),
        ("f(token=abc), [token=abc]", "f(token=***), [token=***]"),
        ("credentials={'id': 'abc'}, n=1", "credentials=***, n=1"),
        ("['--token', 'abc'], ('Authorization', 'Basic abc')",
         "['--token', ***], ('Authorization', ***)"),
        ("{'name': 'API_KEY', 'value': 'abc'}", "{'name': 'API_KEY', 'value': ***}"),
        ("known: 'tokenizer', 'token', 'dtype'", "known: 'tokenizer', 'token', 'dtype'"),
        ("Cookie: a=1; session=xyz", "Cookie: ***"),
        ('Authorization: Digest username="me", response="ab"', "Authorization: ***"),
        ("Authorization: Basic dXNlcjpz", "Authorization: ***"),
        ("https://me:a/b@host/x", "https://***@host/x"),
        ("https://0123456789abcdef01234@host/x", "https://***@host/x"),
        ("ssh://git@host/x http://host:80/x@y", "ssh://git@host/x http://host:80/x@y"),
        ("https://h/x?X-Amz-Security-Token=a%2F&amp;X-Amz-Signature=ab", "https://h/x?***&amp;***"),
        ("invalid token: ab12cd34ef", "invalid token: ***"),
        ("unexpected token: '}'", "unexpected token: '}'"),
        ("the next token: ' Paris'", "the next token: ' Paris'"),
        ("tokens: 512, max_tokens=128", "tokens: 512, max_tokens=128"),
        ("Bearer authentication is used", "Bearer authentication is used"),
        ("sk-learn-a-long-name-of-a-model", "sk-learn-a-long-name-of-a-model"),
        ("hf_transformersbackend", "hf_transformersbackend"),
        ("npm_" + "aB1" * 12, "***"),
        ("glpat-" + "aB1_" * 5, "***"),
        ("ghp_" + "aB1" * 12, "***"),
        ("github_pat_" + "aB1_" * 12, "***"),
        ("AKIA" + "AB12" * 4, "***"),
        ("xoxb-1234-abcdEFGH", "***"),
        ("sk-ant-api03-" + "aB1_" * 8 + "-xyz", "***"),
        ("sk-proj-" + "aB1" * 12, "***"),
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


@pytest.mark.parametrize("word", ["'abc'd3f", '"abc"d3f', "''d3f", "{abc}d3f", "[abc]d3f"])
def test_what_a_shell_joins_to_one_word_is_one_secret(word: str) -> None:
    for before in ("run --token ", "API_KEY=", "Authorization: Bearer ", "token: "):
        assert "d3f" not in redacted_text(f"{before}{word} more")
        assert redacted_text(f"{before}{word} more").endswith("*** more")


HASH = st.sampled_from([32, 40, 64]).flatmap(
    lambda size: st.text("0123456789abcdef", min_size=size, max_size=size)
)
WORD = st.from_regex(r"[A-Za-z][A-Za-z0-9]{0,11}", fullmatch=True)
NAME = st.lists(WORD, min_size=1, max_size=4).map("-".join)
PATH = st.lists(NAME, min_size=1, max_size=5).map("/".join)
SETTING = st.sampled_from(
    ["rope_theta", "dtype", "pretrained", "num_key_value_heads", "pad_token_id", "eos_token",
     "add_bos_token", "tokenizer", "max_gen_toks", "special_tokens_map", "revision", "batch_size",
     "attn_implementation", "key_proj", "max_tokens"]
)  # fmt: skip
VALUE = st.one_of(
    HASH, PATH, NAME, PATH.map("/".__add__), PATH.map("https://host/".__add__),
    st.integers().map(str), st.floats(allow_nan=False).map(str), HASH.map("sha256:".__add__),
)  # fmt: skip


@given(SETTING, VALUE, st.sampled_from(["=", ": ", " "]))
def test_names_paths_hashes_and_settings_of_models_stay(name: str, value: str, equals: str) -> None:
    for text in (f"{name}{equals}{value}", f"--{name}{equals}{value}", f'{{"{name}": "{value}"}}'):
        assert redacted_text(text) == text
    assert redact_value({name: value, "more": [value, name]}) == {
        name: value,
        "more": [value, name],
    }


SECRET_TEXT = st.lists(
    st.sampled_from(
        ["token", "--token", "api_key", "=", ": ", " ", "'", '"', "\\", "[", "]", "{", "}", "(",
         ")", ",", "abc", "***", "://", ":", "@", "/", "?sig=", "Bearer ", "Cookie: ", "\n", "name",
         "value", "-----BEGIN PRIVATE KEY-----", "eyJabcdefgh.abc.abc", "Authorization: Digest "]
    ),
    max_size=25,
).map("".join)  # fmt: skip


@given(st.one_of(st.text(), SECRET_TEXT))
@example("Authorization:Digest ''t")
@example("token='')abc")
def test_redacting_twice_changes_nothing_more(text: str) -> None:
    once = redacted_text(text)
    assert redacted_text(once) == once
