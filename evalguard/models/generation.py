"""Generation by a Hugging Face model, made independent of what shares a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from lm_eval.models.utils import has_bos_prefix

from evalguard.errors import EvaluationError
from evalguard.models.dependence import noticeable, on_padding
from evalguard.models.encoded_once import EncodedOnce
from evalguard.models.generated_length import generated_length
from evalguard.models.rope import switch_length
from evalguard.models.stop_strings import ended_alone

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance


class GuardedGeneration(EncodedOnce):
    """HFLM that generates one text at a time where a batch would change the answers.

    lm-eval pads the contexts of a batch on the left. A model that does not mask the padding (most
    recurrent ones), that has no embedding for it, or whose rotary frequencies follow the longest
    sequence, would answer otherwise than alone. Encoder-decoder models generate as in lm-eval.
    """

    batch_size_per_gpu: Any
    _padding_matters: bool | None = None

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Generate a text for every request, in the order asked.

        Raises:
            EvaluationError: the tokenizer has no EOS token, or no room is left for a context.
        """
        if self.eot_token_id is None:
            raise EvaluationError(
                "the tokenizer has no EOS token, so that no generation could end with one",
                hint="give it an eos_token (tokenizer_config.json)",
            )
        self._check_room([request.args[1] for request in requests])
        together = self.batch_size_per_gpu
        if together != 1 and self._share_no_batch(requests):
            self.batch_size_per_gpu = 1
        try:
            return super().generate_until(requests, disable_tqdm)  # type: ignore[no-any-return]
        finally:
            self.batch_size_per_gpu = together

    def tok_batch_encode(self, strings: list[str], **options: Any) -> Any:
        """Encode contexts for generation, refusing ids that the model does not know.

        HFLM asks the first context of a batch whether it begins with BOS, and gives all of them
        another one or none: here each gets what it would get alone.
        """
        begun = [has_bos_prefix(text, self.tokenizer.bos_token) for text in strings]
        parts = [[i for i, own in enumerate(begun) if own is kind] for kind in (False, True)]
        encode = super().tok_batch_encode
        encoded = [(own, *encode([strings[i] for i in own], **options)) for own in parts if own]
        ids, mask = _one_batch(encoded, self.tokenizer.pad_token_id)
        self.check_known(int(ids.max()))
        return ids, mask

    def _model_generate(
        self, context: torch.Tensor, max_length: int, stop: list[str], **options: Any
    ) -> torch.Tensor:
        """Generate for a batch; every text ends where it would alone."""
        ids: torch.Tensor = super()._model_generate(context, max_length, stop, **options)
        if self.backend != "causal" or len(context) == 1:
            return ids
        return ended_alone(self.tokenizer, ids, context.shape[1], stop)

    def check_known(self, largest: int) -> None:
        """Refuse a token id beyond the embedding, before a GPU does so without words.

        Raises:
            EvaluationError: naming the token.
        """
        if not self._knows(largest):
            raise EvaluationError(
                f"token id {largest} ({self.tokenizer.convert_ids_to_tokens(largest)!r}) is beyond "
                f"the {self.model.get_input_embeddings().num_embeddings} tokens that the model "
                "embeds",
                hint="this tokenizer does not fit the model; model_args.tokenizer names another",
            )

    @property
    def embedded(self) -> int | None:
        """Number of token ids that the model has an embedding for; None where it does not say."""
        rows = getattr(self.model.get_input_embeddings(), "num_embeddings", None)
        return rows if isinstance(rows, int) else None

    def _knows(self, token_id: int) -> bool:
        rows = self.embedded
        return rows is None or token_id < rows

    def _check_room(self, options: Sequence[Mapping[str, Any]]) -> None:
        longest = max((generated_length(o, self.max_gen_toks) for o in options), default=0)
        if self.backend == "causal" and longest >= self.max_length:
            raise EvaluationError(
                f"{longest} tokens are to be generated, which leaves no room for a context in the "
                f"model's {self.max_length}",
                hint="fewer: --gen_kwargs max_gen_toks=N; or raise model_args.max_length if the "
                "model allows it",
            )

    def _share_no_batch(self, requests: Sequence[Instance]) -> bool:
        if self.backend != "causal":
            return False
        if self._padding_matters is None:
            can_pad = self._knows(self.tokenizer.pad_token_id)
            self._padding_matters = not can_pad or noticeable(self, on_padding(self))
        switch = switch_length(self.config)
        return self._padding_matters or (
            switch is not None
            and any(
                len(self.tok_encode(context)) + generated_length(options, self.max_gen_toks)
                > switch
                for context, options in (request.args for request in requests)
            )
        )


def _one_batch(
    parts: Sequence[tuple[list[int], torch.Tensor, torch.Tensor]], padding: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Put parts of a batch (its rows, their ids and mask) together, padded on the left."""
    if len(parts) == 1:
        return parts[0][1:]
    rows, width = sum(len(own) for own, _, _ in parts), max(ids.shape[1] for _, ids, _ in parts)
    whole = torch.full((rows, width), padding)
    mask = torch.zeros_like(whole)
    for own, ids, seen in parts:
        whole[own, width - ids.shape[1] :] = ids
        mask[own, width - ids.shape[1] :] = seen
    return whole, mask
