"""Train, decode and sample sequence models beyond teacher forcing.

The public names are imported when they are first used, so that ``import unforced`` is quick and imports no torch.

>>> import unforced
>>> unforced.objective("label_smoothing", smoothing=0.2)
LabelSmoothing(smoothing=0.2)
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unforced.api import (
        Loaded,
        batch,
        compare,
        decode,
        evaluate,
        fit,
        fitted,
        load,
        model,
        objective,
        report,
        sample,
        score,
        task,
        train,
    )
    from unforced.errors import InputError
    from unforced.integrations.forward import shard
    from unforced.integrations.trainer import UnforcedSeq2SeqTrainer, UnforcedTrainer
    from unforced.metrics.protocol import Metric
    from unforced.models.huggingface import wrap
    from unforced.models.protocol import MaskedModel, ModelSpec, StepDecoder
    from unforced.objectives.protocol import Objective
    from unforced.tasks.protocol import Codec, FittedTask, Task
    from unforced.types import (
        Batch,
        DecoderState,
        Encoded,
        Example,
        Examples,
        Hypotheses,
        Loss,
        Progress,
        Sizes,
        Symbols,
    )

__version__ = "0.1.0"

_HOMES = {
    "api": "Loaded batch compare decode evaluate fit fitted load model objective report sample score task train",
    "errors": "InputError",
    "integrations.forward": "shard",
    "integrations.trainer": "UnforcedSeq2SeqTrainer UnforcedTrainer",
    "metrics.protocol": "Metric",
    "models.huggingface": "wrap",
    "models.protocol": "MaskedModel ModelSpec StepDecoder",
    "objectives.protocol": "Objective",
    "tasks.protocol": "Codec FittedTask Task",
    "types": "Batch DecoderState Encoded Example Examples Hypotheses Loss Progress Sizes Symbols",
}
_HOME = {name: f"unforced.{home}" for home, names in _HOMES.items() for name in names.split()}

__all__ = [
    "Batch", "Codec", "DecoderState", "Encoded", "Example", "Examples", "FittedTask", "Hypotheses", "InputError",
    "Loaded", "Loss", "MaskedModel", "Metric", "ModelSpec", "Objective", "Progress", "Sizes", "StepDecoder",
    "Symbols", "Task", "UnforcedSeq2SeqTrainer", "UnforcedTrainer", "batch", "compare", "decode", "evaluate", "fit",
    "fitted", "load", "model", "objective", "report", "sample", "score", "shard", "task", "train", "wrap",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'unforced' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    """Importing the module ``unforced.report`` must not hide the function of that name, nor ``compare`` its own."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _HOME or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
