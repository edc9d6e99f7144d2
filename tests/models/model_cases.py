"""The table of networks that every contract test runs over, and small batches for them."""

from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unforced.models.layers import Convolution
from unforced.models.lstm import LSTM
from unforced.models.toy import Toy
from unforced.models.transformer import Causal, Transformer
from unforced.ops.masks import length_mask
from unforced.types import Batch, Sizes, Symbols

SYMBOLS = Symbols(pad=0, bos=1, eos=2, banned=(0, 1))
TOKENS = Sizes(target=9, source=7)
SAME = Sizes(target=9, source=9)
IMAGE = Sizes(target=9, image=(2, 6, 5))
CLASSES = Sizes(target=9, classes=4)
NOTHING = Sizes(target=9)

SMALL_LSTM: dict[str, Any] = {"hidden": 8, "embedding": 6, "convolution": Convolution((4, 6))}
SMALL_TRANSFORMER: dict[str, Any] = {
    "width": 8,
    "heads": 2,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "feedforward": 12,
    "convolution": Convolution((4, 6)),
}
SMALL_CAUSAL: dict[str, Any] = {"width": 8, "heads": 2, "layers": 2, "feedforward": 12}


class Case(NamedTuple):
    spec: Any
    sizes: Sizes

    def model(self, seed: int = 0) -> Any:
        """The network in float64 and evaluation mode."""
        torch.manual_seed(seed)
        return self.spec.build(self.sizes).double().eval()


CASES = {
    "lstm": Case(LSTM(**SMALL_LSTM), TOKENS),
    "lstm-uni": Case(LSTM(**SMALL_LSTM, bidirectional=False), TOKENS),
    "lstm-deep": Case(LSTM(**SMALL_LSTM, layers=2), TOKENS),
    "lstm-tied": Case(LSTM(**SMALL_LSTM, tie=True), TOKENS),
    "lstm-fed": Case(LSTM(**SMALL_LSTM, layers=2, input_feeding=True), TOKENS),
    "lstm-fixed": Case(LSTM(**SMALL_LSTM, attention="fixed"), TOKENS),
    "lstm-fixed-uni": Case(LSTM(**SMALL_LSTM, attention="fixed", bidirectional=False), TOKENS),
    "lstm-image": Case(LSTM(**SMALL_LSTM), IMAGE),
    "lstm-class": Case(LSTM(**SMALL_LSTM), CLASSES),
    "lstm-language": Case(LSTM(**SMALL_LSTM), NOTHING),
    "transformer": Case(Transformer(**SMALL_TRANSFORMER), TOKENS),
    "transformer-untied": Case(Transformer(**SMALL_TRANSFORMER, tie=False), TOKENS),
    "transformer-shared": Case(Transformer(**SMALL_TRANSFORMER, share_source=True), SAME),
    "transformer-image": Case(Transformer(**SMALL_TRANSFORMER), IMAGE),
    "causal": Case(Causal(**SMALL_CAUSAL), NOTHING),
    "causal-untied": Case(Causal(**SMALL_CAUSAL, tie=False), NOTHING),
    "causal-class": Case(Causal(**SMALL_CAUSAL), CLASSES),
    "toy": Case(Toy(), NOTHING),
    "toy-second": Case(Toy(order=2), NOTHING),
    "toy-source": Case(Toy(order=2), TOKENS),
    "toy-class": Case(Toy(), CLASSES),
}


def sources(sizes: Sizes, examples: int, rng: torch.Generator) -> dict[str, Tensor]:
    """Ragged token sources (of length 5, 1, 3, 4, …), images, classes or none, in float64 where they are floats."""
    if sizes.source is not None:
        lengths = torch.tensor([5, 1, 3, 4, 2])[torch.arange(examples) % 5]
        ids = torch.randint(0, sizes.source, (examples, 5), generator=rng)
        return {"source": ids, "source_mask": length_mask(lengths, 5)}
    if sizes.image is not None:
        return {"source": torch.randn(examples, *sizes.image, generator=rng, dtype=torch.float64)}
    if sizes.classes is not None:
        return {"source": torch.randint(0, sizes.classes, (examples,), generator=rng)}
    return {}


def batch_for(sizes: Sizes, examples: int = 4, seed: int = 0) -> Batch:
    """A batch whose targets have up to six tokens."""
    rng = torch.Generator().manual_seed(seed)
    lengths = torch.tensor([6, 2, 1, 4, 3])[torch.arange(examples) % 5]
    mask = length_mask(lengths, 6)
    gold = torch.randint(2, sizes.target, (examples, 6), generator=rng).masked_fill(~mask, SYMBOLS.pad)
    return Batch.of_gold(gold, mask, SYMBOLS, **sources(sizes, examples, rng))


def padded(batch: Batch) -> Batch:
    """The batch with three more positions and two more source positions, filled with other tokens."""
    wider = replace(
        batch,
        prefix=F.pad(batch.prefix, (0, 3), value=5),
        gold=F.pad(batch.gold, (0, 3), value=5),
        mask=F.pad(batch.mask, (0, 3)),
    )
    if batch.source is None or batch.source_mask is None:
        return wider
    source = F.pad(batch.source.masked_fill(~batch.source_mask, 3), (0, 2), value=6)
    return replace(wider, source=source, source_mask=F.pad(batch.source_mask, (0, 2)))


def features(model: Any, batch: Batch) -> Tensor:
    """Teacher-forced features [B,T,H]."""
    return model.advance(model.start(batch), model.embed(batch.prefix))[0]


def leaves(tree: Any) -> list[Tensor]:
    """All tensors of a state, in order."""
    if isinstance(tree, Tensor):
        return [tree]
    if isinstance(tree, dict):
        return [leaf for part in tree.values() for leaf in leaves(part)]
    if isinstance(tree, tuple | list):
        return [leaf for part in tree for leaf in leaves(part)]
    return []


def untouched(model: nn.Module) -> list[str]:
    """Names of the parameters that no gradient reached."""
    return [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
