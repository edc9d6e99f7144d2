"""What a model makes of gold outputs: negative log-likelihoods and normalisers, example by example.

Those of a decoder are teacher-forced. A masked model is an energy, and its exact likelihood is a sum over all sequences of the
same length: for small spaces only.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor, nn

from unforced.energy import energies
from unforced.energy.partition import ROWS, log_partition, true_conditionals
from unforced.errors import InputError
from unforced.models.modes import evaluation_mode
from unforced.ops.masks import widened
from unforced.ops.random_streams import generator
from unforced.protocols import (
    Codec,
    Decoder,
    FittedTask,
    LikelihoodMetric,
    LikelihoodRow,
    MaskedModel,
    StepDecoder,
    SupportsLengths,
)
from unforced.training.batching import source_length
from unforced.training.progress import Display
from unforced.training.run_folder import RunFolder
from unforced.types import Batch, Example


class Likelihood(NamedTuple):
    """−log p(gold | source) of one example, how many tokens it has, Σ log Z and Σ (log Z)².

    The end symbol is a token of a decoder, and none of a masked model, whose log Z is one number for the sequence.
    """

    number: int
    nll: float
    tokens: int
    log_z: float
    log_z_squared: float

    @property
    def row(self) -> LikelihoodRow:
        """What metrics are given."""
        return self.nll, self.tokens, self.log_z, self.log_z_squared


Sums = Callable[[Batch], Tensor]  # [B,4]: −log p, tokens, Σ log Z and Σ (log Z)² of each example


def sums_of(model: Any, of: str = "exact") -> Sums:
    """How the gold is judged: by what ``unforced.protocols.LikelihoodMetric`` calls ``of``."""
    masked = isinstance(model, MaskedModel) and not isinstance(model, StepDecoder)
    if of == "exact":
        return _Exact(model) if masked else _Forced(model)
    if not masked:
        raise InputError(f"the likelihood of hidden tokens is asked of {type(model).__name__}, which hides none")
    return _Conditional(model, of)


@dataclass(frozen=True)
class _Forced:
    """−Σ_t log p(y*_t | y*_<t, x), Σ_t log Z_t and Σ_t (log Z_t)², in double precision.

    log Z_t is the logarithm of the sum over the whole vocabulary of exp(score).
    """

    model: Any

    def __call__(self, batch: Batch) -> Tensor:
        model = self.model
        features, _ = model.advance(model.start(batch), model.embed(batch.prefix))
        scores = model.score(features[batch.mask])  # [N,V] at the positions that count
        gold = batch.gold[batch.mask]
        nll = F.cross_entropy(scores.float(), gold, reduction="none").double()
        log_z = nll + scores.gather(-1, gold.unsqueeze(-1)).squeeze(-1)  # −log p = log Z − score of the gold
        rows = batch.mask.nonzero()[:, 0]
        terms = torch.stack([nll, torch.ones_like(nll), log_z, log_z.square()], dim=1)  # [N,4]
        return nll.new_zeros(len(batch), 4).index_add(0, rows, terms)


class _Exact:
    """E_raw(y*) + log Z, and −log p(T) where the model guesses how many tokens T there are (else T is given)."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.cache: dict[Any, float] = {}  # log Z by length

    def __call__(self, batch: Batch) -> Tensor:
        tokens = energies.variables(batch).sum(dim=1)
        log_z = log_partition(self.model, batch, cache=self.cache)
        nll = energies.energy(self.model, batch, batch.gold, "raw", ROWS).double() + log_z
        scores = self.model.length_scores(batch) if isinstance(self.model, SupportsLengths) else None
        if scores is not None:
            guesses = torch.log_softmax(widened(scores).double(), dim=1)
            unheard = guesses.new_full((len(batch), 1), -torch.inf)  # lengths that it can't guess
            guesses = torch.cat([unheard, guesses, unheard], dim=1)
            nll = nll - guesses.gather(1, tokens.clamp(max=guesses.shape[1] - 1).unsqueeze(1)).squeeze(1)
        return torch.stack([nll, tokens.double(), log_z, log_z.square()], dim=1)


@dataclass(frozen=True)
class _Conditional:
    """−Σ_t log p(y*_t | y*\\t), by the softmax at a hidden token ("masked") or by the raw energy ("pseudo")."""

    model: Any
    of: str

    def __call__(self, batch: Batch) -> Tensor:
        where = energies.variables(batch)
        if self.of == "masked":
            nll = energies.energy(self.model, batch, batch.gold, "local").double()
        else:
            log_probs, ids = true_conditionals(self.model, batch, where)
            gold = torch.searchsorted(ids, batch.gold[where])
            each = -log_probs.gather(1, gold.unsqueeze(1)).squeeze(1).double()
            nll = each.new_zeros(len(batch)).index_add(0, where.nonzero()[:, 0], each)
        nothing = torch.zeros_like(nll)
        return torch.stack([nll, where.sum(dim=1).double(), nothing, nothing], dim=1)


def gold_likelihoods(
    model: nn.Module,
    fitted: FittedTask,
    examples: Sequence[Example],
    *,
    batch_rows: int = 128,
    share: tuple[int, int] = (0, 1),
    of: str = "exact",
) -> Iterator[Likelihood]:
    """The likelihoods of the examples' targets; ``share = (r, n)`` does every n-th batch only. For ``of`` see ``sums_of``."""
    encoded = [fitted.codec.encode(example) for example in examples]
    order = sorted(range(len(encoded)), key=lambda number: -len(encoded[number].target))
    device = next(model.parameters()).device
    sums = sums_of(model, of)
    for first in range(share[0] * batch_rows, len(order), share[1] * batch_rows):
        numbers = order[first : first + batch_rows]
        batch = fitted.codec.collate([encoded[number] for number in numbers], numbers).to(device)
        with evaluation_mode(model):
            rows = sums(batch).tolist()
        for number, (nll, tokens, *log_z) in zip(numbers, rows):
            yield Likelihood(number, nll, int(tokens), *log_z)


# Decode a split and judge the outputs by the task's metrics.


class Evaluation(NamedTuple):
    """Outputs in the order of the examples, and what each metric makes of them."""

    outputs: list[Any]  # raw, as the codec decodes them
    log_probs: list[float]
    statistics: dict[str, np.ndarray]  # metric -> [N,D]
    scores: dict[str, float]
    signatures: dict[str, str]
    higher_is_better: dict[str, bool]
    seconds: float  # of decoding


class Decoded(NamedTuple):
    """The best output of one example."""

    number: int
    ids: list[int]
    log_prob: float


def decode_examples(
    model: nn.Module,
    fitted: FittedTask,
    examples: Sequence[Example],
    decoder: Decoder,
    *,
    seed: int = 0,
    batch_rows: int = 128,
    share: tuple[int, int] = (0, 1),
    after_batch: Callable[[int], None] | None = None,
) -> list[Decoded]:
    """The best output of each example, in their order; ``share = (r, n)`` does every n-th batch only.

    Examples of similar length are decoded together, the longest first. Targets are hidden from the decoder, unless it says
    that it measures with them (``reads_gold``), and each batch begins with the same generator: decoders make of it and of the example's number what they draw for an
    example, so that neither batching nor sharing changes it.
    """
    codec = fitted.codec
    if not getattr(decoder, "reads_gold", False):
        examples = [example._replace(target=None) for example in examples]
    encoded = [codec.encode(example) for example in examples]
    order = sorted(range(len(encoded)), key=lambda number: -source_length(encoded[number].source))
    device = next(model.parameters()).device
    found: list[Decoded] = []
    with evaluation_mode(model):
        for first in range(0, len(order), batch_rows):
            numbers = order[first : first + batch_rows]
            if first // batch_rows % share[1] == share[0]:
                batch = codec.collate([encoded[number] for number in numbers], numbers).to(device)
                best = decoder(model, batch, rng=generator(device, seed))
                found += map(Decoded, numbers, best.ids(codec.symbols), best.log_probs[:, 0].tolist())
            if after_batch is not None:
                after_batch(len(numbers))
    return sorted(found)


def evaluate(
    model: nn.Module,
    fitted: FittedTask,
    examples: Sequence[Example],
    decoder: Decoder,
    *,
    seed: int = 0,
    batch_rows: int = 128,
    quiet: bool = False,
    accelerator: Accelerator | None = None,
    predictions: bool = True,
    final: bool = True,
    after_batch: Callable[[int], None] | None = None,
) -> Evaluation:
    """Decode the examples and compute every metric of the task.

    With an ``accelerator`` of several processes each decodes its share, and all return the whole. Where no metric
    looks at outputs, ``predictions=False`` saves the decoding; ``final=False`` leaves out metrics that are only for the end.
    """
    if not examples:
        raise InputError("there are no examples to evaluate on")
    metrics = [metric for metric in fitted.task.metrics() if final or not getattr(metric, "final", False)]
    if not metrics:
        raise InputError(f"the task {type(fitted.task).__name__} names no metric to judge by")
    share = (0, 1) if accelerator is None else (accelerator.process_index, accelerator.num_processes)
    began = time.perf_counter()
    with Display(quiet or after_batch is not None) as display:
        bar, done = display.bar("decoding", total=len(examples)), 0

        def tick(rows: int) -> None:
            nonlocal done
            done += rows
            bar.move(done)

        wanted = predictions or not all(isinstance(metric, LikelihoodMetric) for metric in metrics)
        found = decode_examples(
            model,
            fitted,
            examples if wanted else [],
            decoder,
            seed=seed,
            batch_rows=batch_rows,
            share=share,
            after_batch=after_batch or tick,
        )
    if share[1] > 1:
        found = sorted(gather_object(found))
    seconds = time.perf_counter() - began
    outputs = [fitted.codec.decode(each.ids) for each in found]
    answers = [example.answers for example in examples]
    gold: dict[str, list[Likelihood]] = {}
    for of in dict.fromkeys(map(judged, metrics)):
        if of is not None:
            some = gold_likelihoods(model, fitted, examples, batch_rows=batch_rows, share=share, of=of)
            gold[of] = sorted(gather_object(list(some)) if share[1] > 1 else some)
    statistics = {}
    for metric in metrics:
        if isinstance(metric, LikelihoodMetric):
            rows = metric.likelihood_statistics([each.row for each in gold[judged(metric) or ""]])
        else:
            rows = metric.statistics(outputs, answers)
        statistics[metric.name] = rows
    return Evaluation(
        outputs=outputs,
        log_probs=[each.log_prob for each in found],
        statistics=statistics,
        scores={metric.name: float(metric.score(statistics[metric.name].sum(axis=0))) for metric in metrics},
        signatures={metric.name: metric.signature() for metric in metrics},
        higher_is_better={metric.name: metric.higher_is_better for metric in metrics},
        seconds=seconds,
    )


def judged(metric: Any) -> str | None:
    """By what a metric judges the gold, or None for one of outputs."""
    return getattr(metric, "of", "exact") if isinstance(metric, LikelihoodMetric) else None


def write_evaluation(
    run: RunFolder,
    split: str,
    decoder_name: str,
    decoder: Decoder,
    evaluation: Evaluation,
    examples: Sequence[Example],
    codec: Codec,
) -> None:
    """Put predictions and scores into a run folder, as docs/design.md lays down."""
    predictions = [
        {
            "id": number,
            "source": source_text(example.source),
            "answers": [codec.show(answer) for answer in example.answers],
            "output": codec.show(output),
            "log_prob": log_prob,
        }
        for number, (example, output, log_prob) in enumerate(
            zip(examples, evaluation.outputs, evaluation.log_probs, strict=True)
        )
    ]
    scores = {
        "split": split,
        "decoder": decoder_name,
        "options": {"name": type(decoder).__name__, **asdict(decoder)} if is_dataclass(decoder) else {},
        "seconds": evaluation.seconds,
        "examples": len(examples),
        "metrics": {
            name: {
                "score": evaluation.scores[name],
                "higher_is_better": evaluation.higher_is_better[name],
                "signature": evaluation.signatures[name],
                "statistics": evaluation.statistics[name].tolist(),
            }
            for name in evaluation.scores
        },
    }
    run.write_evaluation(split, decoder_name, predictions, scores)


def source_text(source: Any) -> str | int | None:
    """A raw source for people to read: text as it is, tokens with spaces between, classes; images have none.

    >>> source_text(("a", "b")), source_text("ab"), source_text(3)
    ('a b', 'ab', 3)
    """
    if source is None or isinstance(source, str):
        return source
    if isinstance(source, Integral):
        return int(source)
    if np.ndim(source) == 1:
        return " ".join(map(str, source))
    return None


def spread(examples: Sequence[Example], number: int | None) -> Sequence[Example]:
    """``number`` examples at even distances, or all.

    >>> spread("abcdefgh", 4)
    ['a', 'c', 'e', 'g']
    """
    if number is None or number >= len(examples):
        return examples
    return [examples[i * len(examples) // number] for i in range(number)]
