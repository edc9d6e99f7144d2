"""Neural networks: encoder-decoders, decoders and masked models."""

from typing import TYPE_CHECKING

from unforced.lazy import lazy_exports

if TYPE_CHECKING:
    from unforced.huggingface.model_spec import HuggingFace as HuggingFace
    from unforced.models.field import Field as Field
    from unforced.models.lstm import LSTM as LSTM
    from unforced.models.masked import ConditionalMasked as ConditionalMasked
    from unforced.models.masked import Masked as Masked
    from unforced.models.toy import Toy as Toy
    from unforced.models.transformer import Causal as Causal
    from unforced.models.transformer import Transformer as Transformer
else:
    __getattr__, __dir__, __all__ = lazy_exports(__name__)
