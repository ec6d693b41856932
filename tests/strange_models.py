"""Causal models whose forward does something else with its output embedding than most."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from opened_models import OpenedScorer, load_hf
from tiny_models import save_llama
from transformers import LlamaForCausalLM
from transformers.modeling_outputs import CausalLMOutput
from transformers.models.llama.modeling_llama import LlamaMLP

from evalguard.core.scorer import ScoringPolicy
from evalguard.models.assigned_model import AssignedModel


class WithoutItsModule(LlamaForCausalLM):  # type: ignore[misc]
    """Multiplies by the weight itself, so that no hook on the module is called."""

    def forward(self, input_ids: torch.Tensor, **_: Any) -> CausalLMOutput:
        hidden = self.model(input_ids).last_hidden_state
        return CausalLMOutput(logits=F.linear(hidden, self.lm_head.weight))


class Twice(LlamaForCausalLM):  # type: ignore[misc]
    """Averages the logits of two layers."""

    def forward(self, input_ids: torch.Tensor, **_: Any) -> CausalLMOutput:
        states = self.model(input_ids, output_hidden_states=True).hidden_states
        logits = (self.lm_head(states[-1]) + self.lm_head(states[-2])) / 2
        return CausalLMOutput(logits=logits)


class ByPosition(LlamaForCausalLM):  # type: ignore[misc]
    """Makes logits smaller from position to position."""

    def forward(self, input_ids: torch.Tensor, **_: Any) -> CausalLMOutput:
        logits = self.lm_head(self.model(input_ids).last_hidden_state)
        places = torch.arange(1, logits.shape[1] + 1)
        return CausalLMOutput(logits=logits / places[None, :, None])


class LastOnly(LlamaForCausalLM):  # type: ignore[misc]
    """Hands its output embedding one sequence at a time."""

    def forward(self, input_ids: torch.Tensor, **_: Any) -> CausalLMOutput:
        hidden = self.model(input_ids).last_hidden_state
        return CausalLMOutput(logits=torch.stack([self.lm_head(one) for one in hidden]))


class RoundedTogether(torch.nn.Linear):
    """Rounds all that it is given by one scale."""

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        scale = given.abs().max() / 7
        return super().forward((given / scale).round() * scale)


class QuantisedTogether(LlamaForCausalLM):  # type: ignore[misc]
    """An output embedding whose activations are quantised together."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.lm_head = RoundedTogether(config.hidden_size, config.vocab_size, bias=False)

    def forward(self, input_ids: torch.Tensor, **_: Any) -> CausalLMOutput:
        return CausalLMOutput(logits=self.lm_head(self.model(input_ids).last_hidden_state))


class Scaled(LlamaForCausalLM):  # type: ignore[misc]
    """Soft caps and a scale behind the output embedding, and a name of its own for its inputs."""

    def forward(self, input_ids: torch.Tensor, **_: Any) -> CausalLMOutput:
        logits = self.lm_head(input=self.model(input_ids).last_hidden_state)
        return CausalLMOutput(logits=torch.tanh(logits / 3) * 3 * 0.5)


class LateByPosition(LlamaForCausalLM):  # type: ignore[misc]
    """Makes logits smaller from a position on that short texts do not reach."""

    def forward(self, input_ids: torch.Tensor, **_: Any) -> CausalLMOutput:
        logits = self.lm_head(self.model(input_ids).last_hidden_state)
        places = torch.arange(logits.shape[1])[None, :, None]
        return CausalLMOutput(logits=torch.where(places < LATE, logits, logits / 2))


class LateTwice(LlamaForCausalLM):  # type: ignore[misc]
    """Goes through its output embedding in two halves where a text is long."""

    def forward(self, input_ids: torch.Tensor, **_: Any) -> CausalLMOutput:
        hidden = self.model(input_ids).last_hidden_state
        parts = [hidden] if hidden.shape[1] <= LATE else hidden.chunk(2, dim=1)
        return CausalLMOutput(logits=torch.cat([self.lm_head(part) for part in parts], dim=1))


class TwiceForMany(LlamaForCausalLM):  # type: ignore[misc]
    """Goes through its output embedding twice where a batch has many rows."""

    def forward(self, input_ids: torch.Tensor, **_: Any) -> CausalLMOutput:
        hidden = self.model(input_ids).last_hidden_state
        parts = [hidden] if len(hidden) <= 2 else hidden.chunk(2)
        return CausalLMOutput(logits=torch.cat([self.lm_head(part) for part in parts]))


class NeverEmpty(LlamaForCausalLM):  # type: ignore[misc]
    """Needs a row for its output embedding, as a kernel of its own may."""

    def forward(self, input_ids: torch.Tensor, **_: Any) -> CausalLMOutput:
        hidden = self.model(input_ids).last_hidden_state
        logits = self.lm_head(hidden)
        return CausalLMOutput(logits=logits - logits.amax().clamp(max=0.0))


class AddsTheMean(LlamaMLP):  # type: ignore[misc]
    """Looks at what is before a position, too."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        count = torch.arange(1, hidden.shape[1] + 1)[:, None]
        return super().forward(hidden) + hidden.cumsum(dim=1) / count


class LessWhereLate(LlamaMLP):  # type: ignore[misc]
    """Makes less of positions that short texts do not reach."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        made = super().forward(hidden)
        return torch.where(torch.arange(hidden.shape[1])[:, None] < LATE, made, made / 2)


class MixingLast(LlamaForCausalLM):  # type: ignore[misc]
    """The feed-forward part of its last layer looks at other positions."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model.layers[-1].mlp = AddsTheMean(config)


class LateInLast(LlamaForCausalLM):  # type: ignore[misc]
    """The feed-forward part of its last layer makes less of late positions."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model.layers[-1].mlp = LessWhereLate(config)


LATE = 20  # positions

STRANGE = {
    WithoutItsModule: "called 0 times",
    Twice: "called 2 times",
    ByPosition: "its logits differ by",
    LastOnly: "is given",
    QuantisedTogether: "its logits differ by",
}


def open_strange(kind: type[LlamaForCausalLM], folder: Path, policy: ScoringPolicy) -> OpenedScorer:
    """Load a tiny Llama, and let it compute as ``kind`` does."""
    lm = load_hf(save_llama(folder), policy)
    lm._model = kind.from_pretrained(folder, dtype=torch.float32).eval()
    return OpenedScorer(lm, policy, model_type="hf", assigned=AssignedModel(provenance={}))
