"""A pretrained model of the transformers library, with its own tokenizer; ``model = "hf:path"`` for short."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from unforced.errors import InputError, check_choice
from unforced.models.huggingface.folder import Folder
from unforced.types import Example, Sizes

if TYPE_CHECKING:
    from torch import nn

    from unforced.models.huggingface.codec import TokenizerCodec

Kinds = Literal["auto", "encoder_decoder", "causal", "masked"]
SOURCE = "{source}"


@dataclass(frozen=True)
class HuggingFace:
    """A folder that ``save_pretrained`` wrote, with configuration, safetensors and tokenizer.

    A task's text goes through the folder's tokenizer, whatever the task says of tokens. ``template`` is what a source
    is put into, where ``{source}`` stands; for an encoder-decoder that is "{source}", for a causal model the source and a line
    break, behind which the target follows.

    Nothing is fetched from the network unless ``download`` allows it, and code that a folder brings is never run unless the
    environment says UNFORCED_TRUST_REMOTE_CODE=1.
    """

    path: str  # a local folder
    kind: Kinds = "auto"  # what to load it as; "auto" goes by its configuration
    template: str | None = None  # what a source is put into, in place of {source}
    start: tuple[int, ...] = ()  # the decoder's first inputs, if the folder doesn't say
    longest_source: int | None = None  # tokens; longer sources are cut
    longest_target: int | None = None  # the same of targets
    random_weights: bool = False  # whether to begin with random weights instead of the folder's
    download: bool = False  # whether path may be a name on the Hugging Face Hub

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, Kinds)
        if self.template is not None and SOURCE not in self.template:
            raise InputError(f'template must say where the source goes ("{SOURCE}"), not "{self.template}"')
        for name in ("longest_source", "longest_target"):
            value = getattr(self, name)
            if value is not None and value < 2:
                raise InputError(f"{name} must be at least 2, not {value}")
        if not self.path:
            raise InputError("path must name a folder")
        if not self.download:  # a run must find it again from any other folder
            object.__setattr__(self, "path", str(Path(self.path).expanduser().absolute()))

    @property
    def folder(self) -> Folder:
        return Folder(self.path, self.download)

    def loaded_as(self) -> Literal["encoder_decoder", "causal", "masked"]:
        """What the model is, by its configuration if nothing else is said."""
        if self.kind != "auto":
            return self.kind
        config = self.folder.config()
        if getattr(config, "is_encoder_decoder", False):
            return "encoder_decoder"
        names = getattr(config, "architectures", None) or []
        return "masked" if any("MaskedLM" in name for name in names) else "causal"

    def build(self, sizes: Sizes) -> nn.Module:
        """The model, wrapped; its sizes are its own."""
        from unforced.models.huggingface.wrapping import wrap

        model = self.folder.model(self.loaded_as(), self.random_weights)
        wrapped: nn.Module = wrap(model, tokenizer=self.folder.tokenizer(), start=self.start or None)
        return wrapped

    def reading(self, task: Any) -> Reading:
        """The task, read through this model's tokenizer."""
        return Reading(task, self)

    def codec(self, cut_source: int | None = None, lowercase: bool = False) -> TokenizerCodec:
        from unforced.models.huggingface.codec import TokenizerCodec

        kind = self.loaded_as()
        template = self.template or (f"{SOURCE}\n" if kind == "causal" else SOURCE)
        longest = (self.longest_source, self.longest_target)
        return TokenizerCodec(self.folder, kind, template, self.start, longest, cut_source, lowercase)


@dataclass(frozen=True)
class Reading:
    """A task whose text goes through a model's own tokenizer; all else is the task's."""

    inner: Any
    model: HuggingFace

    def read(self, split: Any) -> Any:
        return self.inner.read(split)

    def fit(self, train: Sequence[Example]) -> TokenizerCodec:
        """The tokenizer as a codec: nothing is learnt. Only text can be read by it."""
        for example in train[:1]:
            if not isinstance(example.target, str) or not isinstance(example.source, str | None):
                raise InputError(
                    f"the task {type(self.inner).__name__} is not one of text, which is all that a Hugging Face model reads"
                )
        cut, lowercase = getattr(self.inner, "cut_source", None), getattr(self.inner, "lowercase", False)
        return self.model.codec(cut, lowercase)

    def codec(self, data: dict[str, Any]) -> TokenizerCodec:
        from unforced.models.huggingface.codec import TokenizerCodec

        return TokenizerCodec.from_json(data)

    def metrics(self) -> Any:
        return self.inner.metrics()

    @property
    def reads_text(self) -> bool:
        """Whether sources are text, by whose length results may be told apart."""
        return bool(getattr(self.inner, "reads_text", False))
