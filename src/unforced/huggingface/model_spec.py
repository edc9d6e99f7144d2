"""A model of transformers: a folder that ``save_pretrained`` wrote, in recipes ``model = "hf:path"``."""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from safetensors import SafetensorError

from unforced.errors import InputError
from unforced.huggingface.parts import one_line
from unforced.huggingface.vocabulary import ModelKind
from unforced.options import AtLeast, NonEmptyStr, Options
from unforced.protocols import ReadsText
from unforced.tasks.files import from_home
from unforced.tasks.language import Language
from unforced.tasks.text import TextTask
from unforced.types import Example, Sizes

if TYPE_CHECKING:
    from torch import nn

    from unforced.huggingface.codec import TokenizerCodec

TRUST = "UNFORCED_TRUST_REMOTE_CODE"  # an environment variable, so that no file can set it
SOURCE = "{source}"
TOKENIZER_FILES = ("tokenizer*", "vocab*", "merges.txt", "*.model", "*.spm", "*.tiktoken")


@dataclass(frozen=True)
class HuggingFace(Options):
    """A pretrained model of transformers: a folder with configuration, safetensors and tokenizer.

    Text goes through the folder's tokenizer, whatever the task says about tokens. Nothing is downloaded unless
    ``download`` is true. Code in the folder never runs unless the environment variable UNFORCED_TRUST_REMOTE_CODE is
    1.
    """

    path: NonEmptyStr  # a local folder
    kind: Literal["auto", "encoder_decoder", "causal", "masked"] = "auto"  # "auto" follows the folder's configuration
    # text around {source}; default: "{source}", for causal models "{source}" and a line break
    template: str | None = None
    start: tuple[int, ...] = ()  # first inputs of the decoder; default: as the folder says
    longest_source: Annotated[int, AtLeast(2)] | None = None  # in tokens; longer sources are cut
    longest_target: Annotated[int, AtLeast(2)] | None = None  # in tokens; longer targets are cut
    random_weights: bool = False  # start with random weights instead of the folder's
    download: bool = False  # path may be a name on the Hugging Face Hub

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.template is not None and SOURCE not in self.template:
            raise InputError(f'template must contain "{SOURCE}", the place of the source, got "{self.template}"')
        if not self.download:  # so that a run finds it from any working directory
            object.__setattr__(self, "path", str(from_home(self.path).absolute()))

    @property
    def folder(self) -> "PretrainedFolder":
        return PretrainedFolder(self.path, self.download)

    def loaded_kind(self) -> ModelKind:
        """Return the kind of the model; "auto" is resolved by the folder's configuration."""
        if self.kind != "auto":
            return self.kind
        config = self.folder.config()
        if getattr(config, "is_encoder_decoder", False):
            return "encoder_decoder"
        names = getattr(config, "architectures", None) or []
        return "masked" if any("MaskedLM" in name for name in names) else "causal"

    def build(self, sizes: Sizes) -> "nn.Module":
        """Return the wrapped model, whose sizes are its own."""
        from unforced.huggingface.wrap import wrap

        model = self.folder.model(self.loaded_kind(), self.random_weights)
        wrapped: nn.Module = wrap(model, tokenizer=self.folder.tokenizer(), start=self.start or None)
        return wrapped

    def reading(self, task: Any) -> "TokenizedTask":
        """Return the task with its text read by this model's tokenizer."""
        return TokenizedTask(task, self)

    def codec(self, cut_source: int | None = None, lowercase: bool = False) -> "TokenizerCodec":
        from unforced.huggingface.codec import TokenizerCodec

        kind = self.loaded_kind()
        template = self.template or (f"{SOURCE}\n" if kind == "causal" else SOURCE)
        longest = (self.longest_source, self.longest_target)
        return TokenizerCodec(self.folder, kind, template, self.start, longest, cut_source, lowercase)


@dataclass(frozen=True)
class TokenizedTask:
    """A task whose text goes through a model's own tokenizer."""

    inner: Any
    model: HuggingFace

    def read(self, split: Any) -> Any:
        return self.inner.read(split)

    def fit(self, train: Sequence[Example]) -> "TokenizerCodec":
        """Return the tokenizer as a codec; nothing is learned from the examples."""
        task = self.inner
        for example in train[:1]:
            if not isinstance(example.target, str) or not isinstance(example.source, str | None):
                raise InputError(
                    f"Hugging Face models read only text, but the task {type(task).__name__} has other data"
                )
        cut_source = task.cut_source if isinstance(task, TextTask) else None
        return self.model.codec(cut_source, isinstance(task, TextTask | Language) and task.lowercase)

    def codec(self, data: dict[str, Any]) -> "TokenizerCodec":
        from unforced.huggingface.codec import TokenizerCodec

        return TokenizerCodec.from_json(data)

    def metrics(self) -> Any:
        return self.inner.metrics()

    @property
    def reads_text(self) -> bool:
        return isinstance(self.inner, ReadsText) and self.inner.reads_text


class Configurations(NamedTuple):
    """The configurations of a model that is not loaded."""

    config: Any
    generation_config: Any


@dataclass(frozen=True)
class PretrainedFolder:
    """A local folder with a pretrained model, or with ``download`` also a name on the Hugging Face Hub."""

    path: str
    download: bool = False

    def config(self) -> Any:
        with self._reading("configuration") as options:
            from transformers import AutoConfig

            return AutoConfig.from_pretrained(self.path, **options)

    def configurations(self) -> Configurations:
        """Return the configuration and the settings for ``generate``, which are derived from it if they are absent."""
        config = self.config()
        with self._reading("generation settings") as options:
            from transformers import GenerationConfig

            if not self.download and not (Path(self.path) / "generation_config.json").is_file():
                return Configurations(config, GenerationConfig.from_model_config(config))
            local = options["local_files_only"]
            return Configurations(config, GenerationConfig.from_pretrained(self.path, local_files_only=local))

    def tokenizer(self) -> Any:
        folder = Path(self.path)
        if folder.is_dir() and not any(file for name in TOKENIZER_FILES for file in folder.glob(name)):
            raise InputError(f"{self.path}: has no tokenizer: save one there with tokenizer.save_pretrained")
        with self._reading("tokenizer") as options:
            from transformers import AutoTokenizer

            return AutoTokenizer.from_pretrained(self.path, **options)

    def model(self, kind: ModelKind, random: bool = False) -> Any:
        """Return the model in float32, with weights from safetensors or ``random`` ones."""
        import torch

        names = {"encoder_decoder": "Seq2SeqLM", "causal": "CausalLM", "masked": "MaskedLM"}
        with self._reading("model") as options, _quiet():
            import transformers

            auto = getattr(transformers, f"AutoModelFor{names[kind]}")
            if random:
                return auto.from_config(self.config())
            files = list(Path(self.path).iterdir()) if Path(self.path).is_dir() else []
            if {file.suffix for file in files} & {".bin", ".safetensors"} == {".bin"}:
                raise InputError(f"{self.path}: has only pickled weights (.bin): save them as safetensors")
            options |= {"use_safetensors": True, "dtype": torch.float32, "output_loading_info": True}
            model, report = auto.from_pretrained(self.path, **options)
        missing = sorted(report["missing_keys"])
        if missing:
            saved = ", ".join(getattr(model.config, "architectures", None) or ["another model"])
            more = f" and {len(missing) - 1} more weights" if len(missing) > 1 else ""
            raise InputError(f"{self.path}: holds {saved}, but a {type(model).__name__} also needs {missing[0]}{more}")
        return model

    @contextmanager
    def _reading(self, what: str) -> Iterator[dict[str, Any]]:
        """Yield the options of ``from_pretrained``; turn its errors into an `InputError`."""
        try:
            import transformers  # noqa: F401
        except ImportError:
            raise InputError("Hugging Face models need transformers: pip install 'unforced[hf]'") from None
        if not self.download and not Path(self.path).is_dir():
            raise InputError(f"{self.path}: is not a folder; models are read from local folders")
        trusted = os.environ.get(TRUST) == "1"
        if not trusted:
            self._refuse_code()
        try:
            yield {"local_files_only": not self.download, "trust_remote_code": trusted}
        except (OSError, ValueError, KeyError, ImportError, RuntimeError, SafetensorError) as error:
            raise InputError(f"{self.path}: cannot read its {what}: {one_line(error)}") from None

    def _refuse_code(self) -> None:
        """Raise `InputError` if a configuration names code of its own."""
        for name in ("config.json", "tokenizer_config.json"):
            file = Path(self.path) / name
            try:
                data = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
            except (OSError, ValueError) as error:
                raise InputError(f"{file}: cannot be read ({error})") from None
            if isinstance(data, dict) and data.get("auto_map"):
                raise InputError(f"{file}: names code of its own (auto_map), which runs only if you set {TRUST}=1")


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the progress bar and the warnings of transformers."""
    from transformers import utils

    logging: Any = utils.logging

    bar, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bar:
            logging.enable_progress_bar()
