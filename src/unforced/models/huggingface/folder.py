"""A folder that ``save_pretrained`` wrote, read without the network and without running code that is in it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from unforced.errors import InputError
from unforced.models.huggingface.parts import in_short

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
        return self._read(
            "configuration", lambda auto, path, **how: auto.AutoConfig.from_pretrained(path, **how)
        )

    def tokenizer(self) -> Any:
        names = ("tokenizer*", "vocab*", "merges.txt", "*.model", "*.spm", "*.tiktoken")
        if Path(self.path).is_dir() and not any(
            file for name in names for file in Path(self.path).glob(name)
        ):
            raise InputError(f"{self.path}: has no tokenizer: save one there, by tokenizer.save_pretrained")
        return self._read(
            "tokenizer", lambda auto, path, **how: auto.AutoTokenizer.from_pretrained(path, **how)
        )

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
        if any(file.suffix == ".bin" for file in files) and not any(
            f.suffix == ".safetensors" for f in files
        ):
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
                raise InputError(
                    f"{file}: names code of its own (auto_map), which is not run unless you set {TRUST}=1"
                )


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
