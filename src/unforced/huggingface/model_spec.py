"""A folder that ``save_pretrained`` wrote, read without the network and without running code that is in it."""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from safetensors import SafetensorError

from unforced.errors import InputError
from unforced.huggingface.parts import in_short
from unforced.options import AtLeast, NonEmptyStr, Options
from unforced.types import Example, Sizes

if TYPE_CHECKING:
    from torch import nn

    from unforced.huggingface.codec import TokenizerCodec


TRUST = "UNFORCED_TRUST_REMOTE_CODE"  # from the user alone: no file that is passed on can say it


class Described:
    """A model's configurations without the model."""

    def __init__(self, config: Any, generation_config: Any) -> None:
        self.config, self.generation_config = config, generation_config

    @property
    def text_config(self) -> Any:
        """The part that speaks of tokens that are scored."""
        return self.config.get_text_config(decoder=True)


@dataclass(frozen=True)
class Folder:
    """Where a pretrained model is: a local folder, or with ``download`` also a name on the Hugging Face Hub."""

    path: str
    download: bool = False

    def config(self) -> Any:
        return self._read("configuration", lambda auto, path, **how: auto.AutoConfig.from_pretrained(path, **how))

    def tokenizer(self) -> Any:
        names = ("tokenizer*", "vocab*", "merges.txt", "*.model", "*.spm", "*.tiktoken")
        if Path(self.path).is_dir() and not any(file for name in names for file in Path(self.path).glob(name)):
            raise InputError(f"{self.path}: has no tokenizer: save one there, by tokenizer.save_pretrained")
        return self._read("tokenizer", lambda auto, path, **how: auto.AutoTokenizer.from_pretrained(path, **how))

    def described(self) -> Described:
        """The configurations, of which the one for ``generate`` may be absent."""
        config = self.config()
        if (Path(self.path) / "generation_config.json").is_file() or self.download:
            settings = self._read(
                "settings for generate",
                lambda auto, path, local_files_only, **_: auto.GenerationConfig.from_pretrained(
                    path, local_files_only=local_files_only
                ),
            )
        else:
            import transformers

            settings = transformers.GenerationConfig.from_model_config(config)
        return Described(config, settings)

    def model(self, kind: str, random: bool = False) -> Any:
        """The model, in float32; its weights are read from safetensors alone, or drawn at ``random``."""
        import torch

        names = {"encoder_decoder": "Seq2SeqLM", "causal": "CausalLM", "masked": "MaskedLM"}
        cls = f"AutoModelFor{names[kind]}"
        if random:
            config = self.config()
            return self._read("model", lambda auto, *_, **__: getattr(auto, cls).from_config(config))
        files = list(Path(self.path).iterdir()) if Path(self.path).is_dir() else []
        if any(file.suffix == ".bin" for file in files) and not any(f.suffix == ".safetensors" for f in files):
            raise InputError(
                f"{self.path}: has pickled weights (.bin), which are not read: save them as safetensors first"
            )
        with _quietly():
            model, report = self._read(
                "model",
                lambda auto, path, **how: getattr(auto, cls).from_pretrained(
                    path, **how, use_safetensors=True, dtype=torch.float32, output_loading_info=True
                ),
            )
        missing = sorted(report["missing_keys"])
        if missing:
            saved = ", ".join(getattr(model.config, "architectures", None) or ["another model"])
            raise InputError(
                f"{self.path}: holds {saved}; a {type(model).__name__} also needs {missing[0]}"
                + (f" and {len(missing) - 1} more weights" if len(missing) > 1 else "")
            )
        return model

    def _read(self, what: str, read: Callable[..., Any]) -> Any:
        try:
            import transformers
        except ImportError:
            raise InputError("Hugging Face models need transformers: pip install 'unforced[hf]'") from None
        trusted = os.environ.get(TRUST) == "1"
        if not self.download and not Path(self.path).is_dir():
            raise InputError(f"{self.path}: is no folder; models are read from local folders")
        if not trusted:
            self._refuse_code()
        how = {"local_files_only": not self.download, "trust_remote_code": trusted}
        try:
            return read(transformers, self.path, **how)
        except (OSError, ValueError, KeyError, ImportError, RuntimeError, SafetensorError) as error:
            raise InputError(f"{self.path}: its {what} can't be read: {in_short(error)}") from None

    def _refuse_code(self) -> None:
        """Raise ``InputError`` where a configuration names code of its own."""
        for name in ("config.json", "tokenizer_config.json"):
            file = Path(self.path) / name
            try:
                data = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
            except (OSError, ValueError) as error:
                raise InputError(f"{file}: can't be read ({error})") from None
            if isinstance(data, dict) and data.get("auto_map"):
                raise InputError(f"{file}: names code of its own (auto_map), which is not run unless you set {TRUST}=1")


@contextmanager
def _quietly() -> Iterator[None]:
    """Keep ``transformers`` from showing how it reads weights."""
    from transformers.utils import logging

    shown, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if shown:
            logging.enable_progress_bar()


# A pretrained model of the transformers library, with its own tokenizer; ``model = "hf:path"`` for short.

Kinds = Literal["auto", "encoder_decoder", "causal", "masked"]
SOURCE = "{source}"


@dataclass(frozen=True)
class HuggingFace(Options):
    """A folder that ``save_pretrained`` wrote, with configuration, safetensors and tokenizer.

    A task's text goes through the folder's tokenizer, whatever the task says of tokens. ``template`` is what a source
    is put into, where ``{source}`` stands; for an encoder-decoder that is "{source}", for a causal model the source and a line
    break, behind which the target follows.

    Nothing is fetched from the network unless ``download`` allows it, and code that a folder brings is never run unless the
    environment says UNFORCED_TRUST_REMOTE_CODE=1.
    """

    path: NonEmptyStr  # a local folder
    kind: Kinds = "auto"  # what to load it as; "auto" goes by its configuration
    template: str | None = None  # what a source is put into, in place of {source}
    start: tuple[int, ...] = ()  # the decoder's first inputs, if the folder doesn't say
    longest_source: Annotated[int, AtLeast(2)] | None = None  # tokens; longer sources are cut
    longest_target: Annotated[int, AtLeast(2)] | None = None  # the same of targets
    random_weights: bool = False  # whether to begin with random weights instead of the folder's
    download: bool = False  # whether path may be a name on the Hugging Face Hub

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.template is not None and SOURCE not in self.template:
            raise InputError(f'template must contain "{SOURCE}", the place of the source, got "{self.template}"')
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

    def build(self, sizes: Sizes) -> "nn.Module":
        """The model, wrapped; its sizes are its own."""
        from unforced.huggingface.wrap import wrap

        model = self.folder.model(self.loaded_as(), self.random_weights)
        wrapped: nn.Module = wrap(model, tokenizer=self.folder.tokenizer(), start=self.start or None)
        return wrapped

    def reading(self, task: Any) -> "Reading":
        """The task, read through this model's tokenizer."""
        return Reading(task, self)

    def codec(self, cut_source: int | None = None, lowercase: bool = False) -> "TokenizerCodec":
        from unforced.huggingface.codec import TokenizerCodec

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

    def fit(self, train: Sequence[Example]) -> "TokenizerCodec":
        """The tokenizer as a codec: nothing is learnt. Only text can be read by it."""
        for example in train[:1]:
            if not isinstance(example.target, str) or not isinstance(example.source, str | None):
                raise InputError(
                    f"the task {type(self.inner).__name__} is not one of text, which is all that a Hugging Face model reads"
                )
        cut, lowercase = getattr(self.inner, "cut_source", None), getattr(self.inner, "lowercase", False)
        return self.model.codec(cut, lowercase)

    def codec(self, data: dict[str, Any]) -> "TokenizerCodec":
        from unforced.huggingface.codec import TokenizerCodec

        return TokenizerCodec.from_json(data)

    def metrics(self) -> Any:
        return self.inner.metrics()

    @property
    def reads_text(self) -> bool:
        """Whether sources are text, by whose length results may be told apart."""
        return bool(getattr(self.inner, "reads_text", False))
