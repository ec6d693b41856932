"""What a runtime reads for a request: the token ids that lm-eval would feed, window by window.

lm-eval stays in the parent process; these are the rules of its ``TemplateLM`` (0.4.13), held to it
by a test.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from evalguard.core.scorer import Request, RollingBos
from evalguard.models.hf.request_tokens import encode_request
from evalguard.models.hf.scored_tokens import InputTokens, refuse_empty_side
from evalguard.models.runtimes.runtime import Runtime


class TextEncoder:
    """A runtime's tokenizer behind the names that ``encode_request`` asks an lm-eval model for."""

    def __init__(self, runtime: Runtime, rolling_bos: RollingBos = "lm-eval") -> None:
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
