"""What runtimes share whose tokenizer is that of a folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from evalguard.errors import EvaluationError
from evalguard.models.runtimes.runtime import Runtime
from evalguard.models.runtimes.tokenizer import TextTokenizer


class TokenizedRuntime(Runtime):
    """A runtime with the tokenizer of a folder.

    Args:
        add_bos: whether BOS is put before a text; None: as the tokenizer does by itself.
        prefix: token before a text without context; None: BOS, else EOS.

    Raises:
        EvaluationError: there is no such token.
    """

    def __init__(
        self, tokenizer: TextTokenizer, *, add_bos: bool | None = None, prefix: int | None = None
    ) -> None:
        self._tokenizer = tokenizer
        self._add_bos = add_bos
        known = [one for one in (prefix, tokenizer.bos, tokenizer.eos) if one is not None]
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
