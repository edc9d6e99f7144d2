"""Train, decode and sample sequence models beyond teacher forcing.

>>> import unforced
>>> unforced.objectives.LabelSmoothing(smoothing=0.2)
LabelSmoothing(smoothing=0.2)
"""

from typing import TYPE_CHECKING

from unforced.lazy import lazy_exports

if TYPE_CHECKING:
    from unforced import decoding as decoding
    from unforced import energy as energy
    from unforced import metrics as metrics
    from unforced import models as models
    from unforced import objectives as objectives
    from unforced import tasks as tasks
    from unforced.api import batch as batch
    from unforced.api import compare as compare
    from unforced.api import decode as decode
    from unforced.api import diagnose as diagnose
    from unforced.api import evaluate as evaluate
    from unforced.api import fit as fit
    from unforced.api import fitted as fitted
    from unforced.api import model as model
    from unforced.api import objective as objective
    from unforced.api import report as report
    from unforced.api import sample as sample
    from unforced.api import score as score
    from unforced.api import task as task
    from unforced.api import train as train
    from unforced.errors import InputError as InputError
    from unforced.huggingface.sharding import shard as shard
    from unforced.huggingface.trainer import UnforcedSeq2SeqTrainer as UnforcedSeq2SeqTrainer
    from unforced.huggingface.trainer import UnforcedTrainer as UnforcedTrainer
    from unforced.huggingface.wrap import wrap as wrap
    from unforced.protocols import Codec as Codec
    from unforced.protocols import Decoder as Decoder
    from unforced.protocols import FittedTask as FittedTask
    from unforced.protocols import MaskedModel as MaskedModel
    from unforced.protocols import Metric as Metric
    from unforced.protocols import ModelSpec as ModelSpec
    from unforced.protocols import Objective as Objective
    from unforced.protocols import StepDecoder as StepDecoder
    from unforced.protocols import Task as Task
    from unforced.training.loading import Loaded as Loaded
    from unforced.training.loading import load as load
    from unforced.types import Batch as Batch
    from unforced.types import DecoderState as DecoderState
    from unforced.types import Encoded as Encoded
    from unforced.types import Example as Example
    from unforced.types import Examples as Examples
    from unforced.types import Hypotheses as Hypotheses
    from unforced.types import Loss as Loss
    from unforced.types import Progress as Progress
    from unforced.types import Sizes as Sizes
    from unforced.types import Symbols as Symbols
else:
    __getattr__, __dir__, __all__ = lazy_exports(__name__)

__version__ = "0.1.0"
