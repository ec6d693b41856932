"""TaskOptions: how tasks are loaded and their prompts built, the same for base and candidate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from evalguard.core.settings import Value
from evalguard.errors import UsageError
from evalguard.harness.chat_file import ChatFile


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """Options of lm-eval's tasks; the names are lm-eval's own.

    Attributes:
        include_paths: folders with further task files; they win over lm-eval's own tasks.
        num_fewshot: examples in the prompt; None leaves each task's own number.
        seed: of the few-shot sampler, set anew before every build of requests.
        limit: the first N documents of a task (1 or more), or a share of them (below 1).
        sample: so many of these documents, drawn at random by ``seed``; None for all.
        apply_chat_template: build prompts through the model's chat template.
        system_instruction: put before every prompt; "" for none.
        fewshot_as_multiturn: examples as turns of a conversation; None: if a chat template is
            applied.
        gen_kwargs: generation arguments that override those of generate_until tasks.
        average_repeats: score every answer of tasks that ask repeatedly, and average them per
            document; False: the first one only, as lm-eval does.
        confirm_unsafe: run tasks that lm-eval marks as unsafe (they execute generated code).
        chats: tasks that are none of lm-eval's: chat requests of a file, by the task's name.

    Raises:
        UsageError: for a limit or a number of examples that lm-eval would silently misread.
    """

    include_paths: tuple[Path, ...] = ()
    num_fewshot: int | None = None
    seed: int = 1234
    limit: int | float | None = None
    sample: int | None = None
    apply_chat_template: bool | str = False
    system_instruction: str = ""
    fewshot_as_multiturn: bool | None = None
    gen_kwargs: Mapping[str, Value] = field(default_factory=dict)
    average_repeats: bool = True
    confirm_unsafe: bool = False
    chats: Mapping[str, ChatFile] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        # lm-eval takes a limit of 0 for "no limit" and counts backwards below it.
        if self.limit is not None and not self.limit > 0:
            raise UsageError(
                f"limit {self.limit} selects no document",
                hint="give a number of documents (1 or more) or a share of them (below 1)",
            )
        if self.limit is not None and self.limit > 1 and self.limit != int(self.limit):
            raise UsageError(f"limit {self.limit} is neither a whole number nor a share below 1")
        if self.sample is not None and self.sample < 1:
            raise UsageError(f"a sample of {self.sample} documents is empty")
        if self.num_fewshot is not None and self.num_fewshot < 0:
            raise UsageError(f"num_fewshot {self.num_fewshot} is negative")
        if isinstance(self.apply_chat_template, str):
            name = self.apply_chat_template
            raise UsageError(
                f"chat template '{name}': templates are not chosen by name here; lm-eval records "
                "the name and builds the prompts with the tokenizer's default template",
                hint="give apply_chat_template without a name, and choose the template by "
                f'model_args.chat_template_args: {{"chat_template": "{name}"}}',
            )
        if self.fewshot_as_multiturn and not self.apply_chat_template:
            raise UsageError(
                "fewshot_as_multiturn has no effect without a chat template",
                hint="add --apply_chat_template",
            )

    @property
    def multiturn(self) -> bool:
        """Whether few-shot examples become turns of a conversation."""
        if self.fewshot_as_multiturn is None:
            return bool(self.apply_chat_template)
        return self.fewshot_as_multiturn
