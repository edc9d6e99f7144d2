"""Train, decode and sample sequence models beyond teacher forcing.

The public names are imported when they are first used, so that ``import unforced`` is quick and imports no torch.

>>> import unforced
>>> unforced.objective("label_smoothing", smoothing=0.2)
LabelSmoothing(smoothing=0.2)
"""

from importlib import import_module
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
    from unforced.huggingface.sharding import shard
    from unforced.huggingface.trainer import UnforcedSeq2SeqTrainer, UnforcedTrainer
    from unforced.huggingface.wrap import wrap
    from unforced.protocols import Codec, FittedTask, MaskedModel, Metric, ModelSpec, Objective, StepDecoder, Task
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
    "huggingface.sharding": "shard",
    "huggingface.trainer": "UnforcedSeq2SeqTrainer UnforcedTrainer",
    "huggingface.wrap": "wrap",
    "protocols": "Codec FittedTask MaskedModel Metric ModelSpec Objective StepDecoder Task",
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
