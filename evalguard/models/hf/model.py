"""lm-eval's Hugging Face model, made fair for comparisons and with per-token answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from lm_eval import utils

from evalguard.errors import EvaluationError, SettingError
from evalguard.models.config_overrides import apply_overrides, override_config
from evalguard.models.failures import RecordingLoader, refuse_random_weights
from evalguard.models.hf.batch_scoring import DEFAULT_TOKEN_BUDGET, PieceScoring
from evalguard.models.language_classes import refuse_other_class
from evalguard.models.runtimes.hf import read_quantisation
from evalguard.models.scored_tokens import ScoredTokens, pair_answer, text_answer

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance

    from evalguard.core.option_words import RollingBos
    from evalguard.core.scorer import ScoringPath
    from evalguard.core.settings import Value

EncodedRequest = tuple[tuple[str, str] | None, list[int], list[int]]


class GuardedHFLM(PieceScoring):
    """HFLM as evalguard loads it.

    Log-softmax is float32, unless the policy asks for the model's own dtype, and lm-eval's logits
    cache, which mixes up two splits of one sequence, is never used. Log-probabilities are kept per
    token in ``scored``: one list of pieces (rolling windows) per request of the last call; empty
    where lm-eval's own path scores: encoder-decoder models, and where the user asked for it.

    ``loading`` holds what transformers reported while loading: missing, unexpected and mismatched
    keys of the checkpoint.
    """

    def __init__(
        self,
        pretrained: str,
        *,
        config_overrides: Mapping[str, Value] | None = None,
        allow_pickle: bool = False,
        rolling_bos: RollingBos = "lm-eval",
        softmax_dtype: Literal["float32", "model"] = "float32",
        sequences: int | None = None,
        token_budget: int = 0,
        scorer: ScoringPath = "fast",
        quantization_config: Mapping[str, Value] | None = None,
        **model_args: Any,
    ) -> None:
        """Load a model; ``model_args`` are HFLM's own.

        Args:
            pretrained: local folder or hub id.
            config_overrides: dotted config path -> value, set before the model is built.
            allow_pickle: whether pickled weights may be loaded.
            rolling_bos: whether a text whose ids begin with the prefix token scores that token
                ("lm-eval", as lm-eval 0.4.13 does) or not ("once").
            softmax_dtype: of log-softmax; "model": that of the logits.
            sequences: of a batch; None: as many as ``token_budget`` has room for.
            token_budget: padded tokens of a batch; 0: a default.
            scorer: "harness" leaves likelihoods to lm-eval's own methods; "full logits" computes
                logits at all positions.
            quantization_config: as in a checkpoint's config.json; the weights are quantised while
                they are loaded.

        Raises:
            UsageError: a quantisation that transformers does not know.
            SettingError: an override names nothing in the config.
            EvaluationError: the checkpoint lacks weights of the model; the tokenizer has no token
                to put before a text.
        """
        self.AUTO_MODEL_CLASS: Any = None
        self._whole_texts = False
        self._config_overrides = dict(config_overrides or {})
        self._quantisation = quantization_config
        self._allow_pickle = allow_pickle
        self._rolling_bos = rolling_bos
        self.loading: list[dict[str, Any]] = []
        self.scored: list[list[ScoredTokens]] = []
        self.sequences = sequences
        self.token_budget = token_budget or DEFAULT_TOKEN_BUDGET
        self.scorer = scorer
        model_args["softmax_dtype"] = None if softmax_dtype == "model" else softmax_dtype
        super().__init__(pretrained, logits_cache=False, **model_args)
        if self.prefix_token_id is None:
            raise EvaluationError(
                f"the tokenizer of {pretrained} has neither a BOS nor an EOS token, and lm-eval "
                "puts one before a text",
                hint="give it one, or name a token id: model_args.prefix_token_id",
            )

    def _get_config(self, pretrained: str, **where: Any) -> None:
        super()._get_config(pretrained, **where)
        refuse_other_class(pretrained, self._config)
        apply_overrides(self._config, self._config_overrides, pretrained, **where)

    def _create_model(self, pretrained: str, **arguments: Any) -> None:
        other_loader = arguments.get("autogptq") or arguments.get("gptqmodel")
        if other_loader:
            if self._config_overrides:
                raise SettingError(
                    f"config.{next(iter(self._config_overrides))} cannot be set: autogptq and "
                    "gptqmodel build the model from its own config",
                    hint="load the model without autogptq and gptqmodel",
                    target=f"config.{next(iter(self._config_overrides))}",
                )
            super()._create_model(pretrained, **arguments)
            return
        # transformers lays unknown arguments over a config only if it reads that config itself
        fields = [n for n in arguments if n not in LOADER_ARGUMENTS and hasattr(self.config, n)]
        override_config(self._config, {name: arguments.pop(name) for name in fields})
        arguments["config"] = self._config
        # lm-eval's own is the checkpoint's, which transformers has and warns of when told again.
        quantisation = self._quantisation
        arguments["quantization_config"] = (
            None if quantisation is None else read_quantisation(quantisation)
        )
        if not self._allow_pickle:
            arguments["use_safetensors"] = True
        loader = self.AUTO_MODEL_CLASS
        self.AUTO_MODEL_CLASS = RecordingLoader(loader, self.loading)
        try:
            super()._create_model(pretrained, **arguments)
        finally:
            self.AUTO_MODEL_CLASS = loader
        for report in self.loading:
            refuse_random_weights(pretrained, report)

    @property
    def own_path(self) -> bool:
        """Whether likelihoods are evalguard's work, not that of lm-eval's own methods."""
        return self.scorer != "harness" and self.backend == "causal"

    def tok_encode(self, string: str, *given: Any, **options: Any) -> list[int]:
        """Encode a text; whole ones, while lm-eval cuts them into windows, as ``rolling_ids``."""
        if self._whole_texts:
            return self.rolling_ids(string)
        return list(super().tok_encode(string, *given, **options))

    def rolling_ids(self, text: str) -> list[int]:
        """Return the ids of a text that are scored; lm-eval puts the prefix token before them.

        Where the tokenizer has added that token by itself, lm-eval scores it given itself, which
        says nothing about the text: "once" leaves it out.
        """
        ids = list(super().tok_encode(text))
        if self._rolling_bos == "once" and ids[:1] == [self.prefix_token_id]:
            return ids[1:]
        return ids

    @property
    def rolling_bos(self) -> RollingBos | None:
        """How whole texts are read; None where the tokenizer adds no BOS: both ways are one."""
        adds = list(super().tok_encode("a"))[:1] == [self.prefix_token_id]
        return self._rolling_bos if adds else None

    def _rolling_pairs(self, text: str) -> list[tuple[list[int], list[int]]]:
        windows = utils.get_rolling_token_windows(
            token_list=self.rolling_ids(text),
            prefix_token=self.prefix_token_id,
            max_seq_len=self.max_length,
            context_len=1,
        )
        return [utils.make_disjoint_window(window) for window in windows]

    def loglikelihood_rolling(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[float]:
        """Log-likelihood of whole texts; the windows of all texts share the batches."""
        if not self.own_path:
            return self._rolling_by_harness(requests, disable_tqdm)
        self.encode_ahead(request.args[0] for request in requests)
        windows = [self._rolling_pairs(request.args[0]) for request in requests]
        answers = iter(self.score_pairs([pair for text in windows for pair in text]))
        self.scored = [[next(answers) for _ in text] for text in windows]
        return [text_answer(text) for text in self.scored]

    def _rolling_by_harness(self, requests: list[Instance], disable_tqdm: bool) -> list[float]:
        self.scored = []
        self._whole_texts = True
        try:
            return super().loglikelihood_rolling(  # type: ignore[no-any-return]
                requests, disable_tqdm=disable_tqdm
            )
        finally:
            self._whole_texts = False

    def _loglikelihood_tokens(
        self,
        requests: list[EncodedRequest],
        disable_tqdm: bool = False,  # noqa: ARG002 - lm-eval's signature
        override_bs: int | None = None,
    ) -> list[tuple[float, bool]]:
        if not self.own_path:
            self.scored = []
            # always without a bar: rolling texts ask for it at every batch of windows
            return super()._loglikelihood_tokens(  # type: ignore[no-any-return]
                requests, disable_tqdm=True, override_bs=override_bs
            )
        answers = self.score_pairs([(context, cont) for _, context, cont in requests])
        self.scored = [[answer] for answer in answers]
        return [pair_answer(answer) for answer in answers]


# of lm-eval and transformers, never attributes of a config
LOADER_ARGUMENTS = frozenset(
    {
        "revision", "dtype", "trust_remote_code", "parallelize", "gpus", "max_memory_per_gpu",
        "max_cpu_memory", "offload_folder", "tp_plan", "peft", "delta", "autogptq", "gptqmodel",
        "gguf_file", "quantization_config", "subfolder",
    }
)  # fmt: skip
