"""Tokenizers of a model folder: Hugging Face's, or RWKV's world vocabulary.

lm-eval stays in the parent process; these are the rules of its ``TemplateLM`` (0.4.13), held to it
by a test.
"""

from __future__ import annotations

import ast
import importlib.util
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from evalguard.core.option_words import RollingBos
from evalguard.core.scorer import Request
from evalguard.errors import EvaluationError, UsageError
from evalguard.models.hf.responses import encode_request
from evalguard.models.runtimes.runtime import Runtime
from evalguard.models.scored_tokens import InputTokens, refuse_empty_side


class TextEncoder:
    """A runtime's tokenizer behind the names that ``encode_request`` asks an lm-eval model for."""

    def __init__(
        self, runtime: Runtime | TokenizedTexts, rolling_bos: RollingBos = "lm-eval"
    ) -> None:
        self._runtime = runtime
        self._rolling_bos = rolling_bos
        self.prefix_token_id = runtime.prefix_token_id
        self._prefix = runtime.decode_special(runtime.prefix_token_id)

    def tok_encode(self, text: str, add_special_tokens: bool | None = None) -> list[int]:
        """Encode a text; one that begins with BOS in letters is given no other."""
        if add_special_tokens is None and self._prefix and text.startswith(self._prefix):
            add_special_tokens = False
        return list(self._runtime.encode(text, add_special_tokens))

    def _encode_pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Split the ids of the whole where those of the context end; blanks go to the right."""
        bare = context.rstrip()
        before = self.tok_encode(bare)
        whole = self.tok_encode(bare + context[len(bare) :] + continuation)
        return before, whole[len(before) :]

    def rolling_ids(self, text: str) -> list[int]:
        """Ids of a whole text that are scored; see ``ScoringPolicy.rolling_bos``."""
        ids = self.tok_encode(text)
        once = self._rolling_bos == "once" and ids[:1] == [self.prefix_token_id]
        return ids[1:] if once else ids

    @property
    def rolling_bos(self) -> RollingBos | None:
        """How whole texts are read; None where the tokenizer adds no BOS: both ways are one."""
        return self._rolling_bos if self.tok_encode("a")[:1] == [self.prefix_token_id] else None

    def encode(self, request: Request) -> tuple[int, ...]:
        """Ids of a request before any truncation."""
        return encode_request(self, request)

    def pieces(self, request: Request, position: int) -> list[InputTokens]:
        """What is fed for a likelihood request: one piece, or a whole text's windows.

        Args:
            position: of the request in its block, for errors.

        Raises:
            UnscorablePairError: one side of a pair encodes to nothing.
        """
        longest = self._runtime.max_length
        if request.kind == "loglikelihood_rolling":
            windows = split_into_windows(
                self.rolling_ids(str(request.arguments[0])), self.prefix_token_id, longest
            )
            return [InputTokens.of_pair(before, scored, longest) for before, scored in windows]
        context, continuation = map(str, request.arguments)
        if context:
            before, scored = self._encode_pair(context, continuation)
        else:
            ids = self.tok_encode(continuation, add_special_tokens=False)
            own = ids[:1] == [self.prefix_token_id]
            before, scored = (ids[:1], ids[1:]) if own else ([self.prefix_token_id], ids)
        refuse_empty_side(before, scored, position=position)
        return [InputTokens.of_pair(before, scored, longest)]


def split_into_windows(
    ids: Sequence[int], prefix: int, longest: int
) -> Iterator[tuple[list[int], list[int]]]:
    """Cut a text so that every token is scored once; yield (context, scored) of each window.

    The first window reads the prefix token, later ones as much of the text before them as fits
    beside the tokens that they score.
    """
    if not ids:
        return
    first = min(longest, len(ids))
    yield [prefix], list(ids[:first])
    done = first
    while done < len(ids):
        scored = min(len(ids) - done, longest)
        end = done + scored
        start = end - longest - 1
        yield list(ids[start:done]), list(ids[done:end])
        done = end


class FolderTokenizer:
    """Texts to token ids and back, by transformers or by the package tokenizers alone.

    Attributes:
        bos, eos: ids of special tokens; None where the folder names none.
        files: what it was read from.

    Raises:
        UsageError: there is no tokenizer, or its code is not allowed to run.
        EvaluationError: no package here reads it.
    """

    def __init__(self, folder: Path, *, trust_remote_code: bool = False) -> None:
        if not folder.is_dir():
            raise UsageError(f"no tokenizer folder at {folder}")
        self.files = (folder,)  # libraries choose among its files by rules of their own
        self._own: Any = None
        self._plain: Any = None
        if importlib.util.find_spec("transformers"):
            from transformers import AutoTokenizer

            self._own = AutoTokenizer.from_pretrained(
                str(folder), trust_remote_code=trust_remote_code
            )
            self.bos, self.eos = self._own.bos_token_id, self._own.eos_token_id
        elif importlib.util.find_spec("tokenizers") and (folder / "tokenizer.json").is_file():
            from tokenizers import Tokenizer

            self._plain = Tokenizer.from_file(str(folder / "tokenizer.json"))
            named = _read_json(folder / "tokenizer_config.json")
            self.bos, self.eos = (
                self._id_of(named.get(f"{name}_token")) for name in ("bos", "eos")
            )
        else:
            raise EvaluationError(
                f"nothing here reads the tokenizer in {folder}",
                hint="add transformers, or tokenizers, to the requirements of this model",
            )

    def _id_of(self, token: Any) -> int | None:
        text = token.get("content") if isinstance(token, Mapping) else token
        token_id: int | None = None if text is None else self._plain.token_to_id(text)
        return token_id

    def encode(self, text: str, special: bool | None = None) -> list[int]:
        """Token ids; ``special`` None: as the tokenizer does by itself."""
        added = True if special is None else special
        if self._own is not None:
            return list(self._own.encode(text, add_special_tokens=added))
        return list(self._plain.encode(text, add_special_tokens=added).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, special ones left out."""
        tool = self._own if self._own is not None else self._plain
        return str(tool.decode(list(ids), skip_special_tokens=True))

    def decode_special(self, token: int) -> str:
        """How a special token is written."""
        tool = self._own if self._own is not None else self._plain
        return str(tool.decode([token], skip_special_tokens=False))

    @property
    def vocabulary(self) -> Mapping[str, int]:
        """Texts of all tokens with their ids."""
        vocabulary: dict[str, int] = (self._own or self._plain).get_vocab()
        return vocabulary

    def render_chat(
        self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool
    ) -> str:
        """Apply the folder's chat template.

        Raises:
            EvaluationError: there is none, or nothing that applies it.
        """
        if self._own is None or not getattr(self._own, "chat_template", None):
            raise EvaluationError("this tokenizer has no chat template, or needs transformers")
        return str(
            self._own.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=add_generation_prompt
            )
        )


class WorldTokenizer:
    """RWKV's world vocabulary: from each byte on, the longest token that fits.

    Attributes:
        bos, eos: token 0, which no text is written with; it is put first only where asked.
        files: the vocabulary, ``rwkv_vocab_*.txt``; a line is an id, a Python literal and its
            number of bytes.

    Raises:
        EvaluationError: a line is not that.

    Source: BlinkDL/ChatRWKV, tokenizer/rwkv_tokenizer.py, held to the one of package rwkv.
    """

    def __init__(self, file: Path) -> None:
        self.bos = self.eos = 0
        self.files = (file,)
        self._ids: dict[bytes, int] = {}
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
            try:
                token, rest = line.split(" ", 1)
                literal, size = rest.rsplit(" ", 1)
                text = ast.literal_eval(literal)
                raw = text if isinstance(text, bytes) else text.encode("utf-8")
                if len(raw) != int(size):
                    raise ValueError(f"{len(raw)} bytes, not {size}")
                self._ids[raw] = int(token)
            except (ValueError, SyntaxError, AttributeError) as error:
                raise EvaluationError(f"{file}, line {number}: no token: {error}") from error
        self._texts = {token: raw for raw, token in self._ids.items()}
        self._longest = max(map(len, self._ids), default=0)

    def encode(self, text: str, special: bool | None = None) -> list[int]:
        """Token ids; token 0 first where ``special`` is true."""
        raw = text.encode("utf-8")
        ids, at = [0] if special else [], 0
        while at < len(raw):
            for size in range(min(self._longest, len(raw) - at), 0, -1):
                token = self._ids.get(raw[at : at + size])
                if token is not None:
                    break
            else:
                raise EvaluationError(f"the vocabulary has no token for byte {raw[at]}")
            ids.append(token)
            at += size
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids; bytes that are no text become U+FFFD."""
        return b"".join(self._texts.get(token_id, b"") for token_id in ids).decode(
            "utf-8", "replace"
        )

    def decode_special(self, token: int) -> str:  # noqa: ARG002
        """Token 0 is not written."""
        return ""

    @property
    def vocabulary(self) -> Mapping[str, int]:
        """All tokens, their bytes as Latin-1, with their ids."""
        return {raw.decode("latin-1"): token for raw, token in self._ids.items()}

    def render_chat(
        self,
        messages: Sequence[Mapping[str, str]],  # noqa: ARG002
        add_generation_prompt: bool,  # noqa: ARG002
    ) -> str:
        """RWKV's vocabulary comes without a chat template."""
        raise EvaluationError("RWKV's world vocabulary has no chat template")


TextTokenizer = FolderTokenizer | WorldTokenizer


def open_tokenizer(folder: Path, *, trust_remote_code: bool = False) -> TextTokenizer:
    """Open the tokenizer of a folder.

    Raises:
        UsageError, EvaluationError: as of the two classes.
    """
    world = sorted(folder.glob("rwkv_vocab_*.txt")) if folder.is_dir() else []
    if world and not (folder / "tokenizer.json").is_file():
        return WorldTokenizer(world[0])
    return FolderTokenizer(folder, trust_remote_code=trust_remote_code)


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    parsed: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return parsed


class TokenizedTexts:
    """Texts and token ids of a model that has the tokenizer of a folder; no weights.

    Args:
        add_bos: whether BOS is put before a text; None: as the tokenizer does by itself.
        prefix: token before a text without context; None: BOS, else EOS.

    Raises:
        EvaluationError: there is no such token.
    """

    max_length: int  # of the model that reads them

    def __init__(
        self, tokenizer: TextTokenizer, *, add_bos: bool | None = None, prefix: int | None = None
    ) -> None:
        self._tokenizer = tokenizer
        self._add_bos = add_bos
        known = [
            token_id for token_id in (prefix, tokenizer.bos, tokenizer.eos) if token_id is not None
        ]
        if not known:
            raise EvaluationError(
                "the tokenizer has neither BOS nor EOS, so a text without context has no first "
                "token",
                hint="set model_args.prefix_token_id",
            )
        self.prefix_token_id = int(known[0])
        self.eot_token_id = int(tokenizer.eos) if tokenizer.eos is not None else -1

    def encode(self, text: str, special: bool | None = None) -> list[int]:
        """Token ids of a text."""
        return self._tokenizer.encode(text, self._add_bos if special is None else special)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids."""
        return self._tokenizer.decode(ids)

    def decode_special(self, token: int) -> str:
        """How a special token is written."""
        return self._tokenizer.decode_special(token)

    @property
    def vocabulary(self) -> Mapping[str, int]:
        """Texts of all tokens with their ids."""
        return self._tokenizer.vocabulary

    def render_chat(
        self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool
    ) -> str:
        """Apply the folder's chat template."""
        return self._tokenizer.render_chat(messages, add_generation_prompt)


class TokenizedRuntime(TokenizedTexts, Runtime):
    """A runtime with the tokenizer of a folder."""
