"""HFLM that encodes every text once, many at a time, and together with others of its tokenizer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from lm_eval.models.huggingface import HFLM
from lm_eval.models.utils import _add_special_kwargs, has_bos_prefix

from evalguard.models.encoded_texts import EncodedTexts

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance

# Texts of every batch that are encoded alone too, before the batch is believed.
_SAMPLE = 2


class EncodedOnce(HFLM):  # type: ignore[misc]
    """HFLM whose ``tok_encode`` remembers; the ids are those of HFLM's own.

    ``texts`` holds what was encoded; None: nothing is remembered. Two models whose tokenizers do
    the same may have one between them.
    """

    texts: EncodedTexts | None = None

    def tok_encode(
        self,
        string: str,
        add_special_tokens: bool | None = None,
        left_truncate_len: int | None = None,
        **kwargs: Any,
    ) -> list[int]:
        """Encode a text as HFLM does, or remember how it was encoded."""
        if self.texts is None or kwargs:
            return list(super().tok_encode(string, add_special_tokens, left_truncate_len, **kwargs))
        ids = self.texts.get(string, add_special_tokens)
        if ids is None:
            ids = list(super().tok_encode(string, add_special_tokens))
            self.texts.put(string, add_special_tokens, ids)
        return ids[-left_truncate_len:] if left_truncate_len else ids

    def loglikelihood(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """Log-likelihoods by lm-eval's own way, whose texts are encoded beforehand."""
        if self.backend == "causal":
            pairs = (request.args for request in requests)
            self.encode_ahead(text for pair in pairs for text in _texts(*pair))
        return super().loglikelihood(  # type: ignore[no-any-return]
            requests, disable_tqdm=disable_tqdm
        )

    def encode_ahead(self, texts: Iterable[str]) -> None:
        """Encode many texts at a time, which is faster, as ``tok_encode`` would one by one."""
        known, tokenizer = self.texts, self.tokenizer
        own = type(tokenizer).__module__.startswith("transformers.")
        if known is None or not getattr(tokenizer, "is_fast", False) or not own:
            return
        missing = [text for text in dict.fromkeys(texts) if not known.knows(text, None)]
        prefix = tokenizer.decode(self.prefix_token_id)
        usual = _add_special_kwargs(None, self.add_bos_token)
        begun = [text for text in missing if has_bos_prefix(text, prefix)]
        others = [text for text in missing if not has_bos_prefix(text, prefix)]
        for group, special in ((begun, {"add_special_tokens": False}), (others, usual)):
            if len(group) > _SAMPLE:
                self._encode_batch(group, special, known)

    def _encode_batch(
        self, texts: Sequence[str], special: dict[str, bool], known: EncodedTexts
    ) -> None:
        encoded = self.tokenizer(
            list(texts), return_attention_mask=False, return_token_type_ids=False, **special
        )["input_ids"]
        alone = [list(super(EncodedOnce, self).tok_encode(text)) for text in texts[:_SAMPLE]]
        if [list(ids) for ids in encoded[:_SAMPLE]] != alone:
            return  # a tokenizer with ways of its own: one by one, then
        for text, ids in zip(texts, encoded, strict=True):
            known.put(text, None, ids)


def _texts(context: str, continuation: str) -> Iterator[str]:
    """What ``TemplateLM._encode_pair`` encodes of a pair; nothing where there is no context."""
    if context:
        yield context + continuation
        yield context.rstrip()
