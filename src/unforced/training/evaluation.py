"""Evaluate a model on a split: decode, compute likelihoods of the targets, and score by the task's metrics."""

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, is_dataclass
from functools import partial
from numbers import Integral
from typing import Any, NamedTuple, TypeVar

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
    FinalOnly,
    FittedTask,
    LikelihoodMetric,
    LikelihoodOf,
    LikelihoodRow,
    MaskedModel,
    ReadsGold,
    Split,
    StepDecoder,
    SupportsLengths,
)
from unforced.training.batching import check_batch_tokens, source_length, token_lengths
from unforced.training.progress import Display
from unforced.training.run_folder import RunFolder
from unforced.types import Batch, Encoded, Example

T = TypeVar("T")


class Scored(NamedTuple):
    """The score of a split by one metric."""

    name: str
    score: float
    higher_is_better: bool
    signature: str
    statistics: np.ndarray  # [N,D] the metric's row of each example


@dataclass(frozen=True)
class Evaluation:
    """Outputs in the order of the examples, and their scores."""

    outputs: list[Any]  # raw, as the codec decodes them
    log_probs: list[float]
    metrics: list[Scored]
    seconds: float  # of decoding

    @property
    def scores(self) -> dict[str, float]:
        return {metric.name: metric.score for metric in self.metrics}


def read_split(fitted: FittedTask, split: Split, batch_tokens: int) -> Sequence[Example]:
    """Read a split; raise `InputError` if an example has more tokens than a batch of the training may hold."""
    examples = fitted.task.read(split)
    check_batch_tokens(token_lengths([fitted.codec.encode(example) for example in examples]), batch_tokens, split)
    return examples


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
    display: Display | None = None,
) -> Evaluation:
    """Decode the examples and compute every metric of the task.

    Targets are removed before decoding unless ``decoder.reads_gold`` is true. Random numbers depend only on the seed
    and the number of the example, so results do not depend on the batch size or the number of processes.

    Args:
        accelerator: With several processes, each processes a part of the examples and all return the whole.
        predictions: If false, decode only if a metric needs outputs.
        final: If false, skip metrics that are meant for final scores only.
        display: Where progress is shown; by default a new one, unless ``quiet``.
    """
    if not examples:
        raise InputError("there are no examples to evaluate on")
    metrics = [
        metric for metric in fitted.task.metrics() if final or not (isinstance(metric, FinalOnly) and metric.final)
    ]
    if not metrics:
        raise InputError(f"the task {type(fitted.task).__name__} has no metric")
    reads_gold = isinstance(decoder, ReadsGold) and decoder.reads_gold
    inputs = examples if reads_gold else [example._replace(target=None) for example in examples]

    def best(batch: Batch) -> list[tuple[list[int], float]]:
        found = decoder(model, batch, rng=generator(batch.gold.device, seed))
        return list(zip(found.ids(fitted.codec.symbols), found.log_probs[:, 0].tolist()))

    def length(example: Encoded) -> int:
        return source_length(example.source)

    began = time.perf_counter()
    decoded: list[tuple[list[int], float]] = []
    if predictions or not all(isinstance(metric, LikelihoodMetric) for metric in metrics):
        with Display(quiet) if display is None else nullcontext(display) as shown:
            bar = shown.bar("decoding", total=len(examples))

            def report(done: int) -> None:
                bar.move(done)
                if shown.line_due():
                    shown.say(f"decoded {done} of {len(examples)} examples")

            decoded = map_examples(best, model, fitted, inputs, length, batch_rows, accelerator, report)
            bar.close()
    seconds = time.perf_counter() - began
    outputs = [fitted.codec.decode(ids) for ids, _ in decoded]
    answers = [example.answers for example in examples]
    likelihoods: dict[str, list[LikelihoodRow]] = {}
    scored = []
    for metric in metrics:
        if isinstance(metric, LikelihoodMetric):
            of = metric.of if isinstance(metric, LikelihoodOf) else "exact"
            if of not in likelihoods:
                likelihoods[of] = gold_likelihoods(
                    model, fitted, examples, of=of, batch_rows=batch_rows, accelerator=accelerator
                )
            statistics = metric.likelihood_statistics(likelihoods[of])
        else:
            statistics = metric.statistics(outputs, answers)
        score = float(metric.score(statistics.sum(axis=0)))
        scored.append(Scored(metric.name, score, metric.higher_is_better, metric.signature(), statistics))
    return Evaluation(outputs, [log_prob for _, log_prob in decoded], scored, seconds)


def gold_likelihoods(
    model: nn.Module,
    fitted: FittedTask,
    examples: Sequence[Example],
    *,
    of: str = "exact",
    batch_rows: int = 128,
    accelerator: Accelerator | None = None,
) -> list[LikelihoodRow]:
    """Return −log p(target | source), the number of tokens, Σ log Z and Σ (log Z)² of each example.

    A decoder is teacher-forced, and its end symbol counts as a token. A masked model is an energy: its exact
    likelihood is a sum over all sequences of the same length, for small spaces only, its end symbol does not count,
    and log Z is one number for the sequence. ``of`` selects other likelihoods of masked models (see `LikelihoodOf`).
    """
    compute = likelihood_of(model, of)

    def rows(batch: Batch) -> list[LikelihoodRow]:
        return [
            LikelihoodRow(nll, int(tokens), log_z, square) for nll, tokens, log_z, square in compute(batch).tolist()
        ]

    def length(example: Encoded) -> int:
        return len(example.target)

    found = map_examples(rows, model, fitted, examples, length, batch_rows, accelerator)
    if not any(row.tokens for row in found):
        raise InputError("no token of the targets can be scored: all are special tokens, or the targets are empty")
    return found


def map_examples(
    compute: Callable[[Batch], Sequence[T]],
    model: nn.Module,
    fitted: FittedTask,
    examples: Sequence[Example],
    length: Callable[[Encoded], int],
    batch_rows: int,
    accelerator: Accelerator | None = None,
    after_batch: Callable[[int], None] | None = None,
) -> list[T]:
    """Compute a result for each example, in their order; batches hold similar lengths, the longest first."""
    rank, world = (0, 1) if accelerator is None else (accelerator.process_index, accelerator.num_processes)
    encoded = [fitted.codec.encode(example) for example in examples]
    order = sorted(range(len(encoded)), key=lambda number: -length(encoded[number]))
    device = next(model.parameters()).device
    found: list[tuple[int, T]] = []
    with evaluation_mode(model):
        for first in range(0, len(order), batch_rows):
            numbers = order[first : first + batch_rows]
            if first // batch_rows % world == rank:
                batch = fitted.codec.collate([encoded[number] for number in numbers], numbers).to(device)
                found += zip(numbers, compute(batch), strict=True)
            if after_batch is not None:
                after_batch(first + len(numbers))
    if world > 1:
        found = gather_object(found)
    return [result for _, result in sorted(found, key=lambda pair: pair[0])]


# Likelihoods of a batch: functions to [B,4], −log p, tokens, Σ log Z and Σ (log Z)² of each example


def likelihood_of(model: Any, of: str) -> Callable[[Batch], Tensor]:
    """Return the function that computes the likelihood ``of`` a kind (see `LikelihoodOf`) for this model."""
    masked = isinstance(model, MaskedModel) and not isinstance(model, StepDecoder)
    if of == "exact":
        return partial(_exact, model, {}) if masked else partial(_teacher_forced, model)
    if not masked:
        raise InputError(f"the {of} likelihood needs a masked model, which {type(model).__name__} is not")
    return partial(_conditional, model, of)


def _teacher_forced(model: StepDecoder, batch: Batch) -> Tensor:
    """−Σ_t log p(y*_t | y*_<t, x), in double precision; log Z_t is the log of the sum of exp(score)."""
    features, _ = model.advance(model.start(batch), model.embed(batch.prefix))
    scores = model.score(features[batch.mask])  # [N,V] at the positions that count
    gold = batch.gold[batch.mask]
    nll = F.cross_entropy(scores.float(), gold, reduction="none").double()
    log_z = nll + scores.gather(-1, gold.unsqueeze(-1)).squeeze(-1)  # −log p = log Z − score of the target
    terms = torch.stack([nll, torch.ones_like(nll), log_z, log_z.square()], dim=1)  # [N,4]
    return nll.new_zeros(len(batch), 4).index_add(0, batch.mask.nonzero()[:, 0], terms)


def _exact(model: MaskedModel, cache: dict[Any, float], batch: Batch) -> Tensor:
    """E_raw(y*) + log Z, and −log p(T) if the model predicts the number of tokens T (else T is given).

    ``cache`` keeps log Z of each length from batch to batch.
    """
    tokens = energies.variables(batch).sum(dim=1)
    log_z = log_partition(model, batch, cache=cache)
    nll = energies.energy(model, batch, batch.gold, "raw", ROWS).double() + log_z
    scores = model.length_scores(batch) if isinstance(model, SupportsLengths) else None
    if scores is not None:
        lengths = torch.log_softmax(widened(scores).double(), dim=1)
        impossible = lengths.new_full((len(batch), 1), -torch.inf)
        lengths = torch.cat([impossible, lengths, impossible], dim=1)
        nll = nll - lengths.gather(1, tokens.clamp(max=lengths.shape[1] - 1).unsqueeze(1)).squeeze(1)
    return torch.stack([nll, tokens.double(), log_z, log_z.square()], dim=1)


def _conditional(model: MaskedModel, of: str, batch: Batch) -> Tensor:
    """−Σ_t log p(y*_t | y*\\t), by the softmax at a hidden token ("masked") or by the raw energy ("pseudo")."""
    where = energies.variables(batch)
    if of == "masked":
        nll = energies.energy(model, batch, batch.gold, "local").double()
    else:
        log_probs, ids = true_conditionals(model, batch, where)
        gold = torch.searchsorted(ids, batch.gold[where])
        each = -log_probs.gather(1, gold.unsqueeze(1)).squeeze(1).double()
        nll = each.new_zeros(len(batch)).index_add(0, where.nonzero()[:, 0], each)
    zeros = torch.zeros_like(nll)
    return torch.stack([nll, where.sum(dim=1).double(), zeros, zeros], dim=1)


# Files


def write_evaluation(
    run: RunFolder,
    split: str,
    decoder_name: str,
    decoder: Any,
    found: Evaluation,
    examples: Sequence[Example],
    codec: Codec,
) -> None:
    """Write predictions and scores into a run folder (the files are described in docs/design.md)."""
    predictions = [
        {
            "id": number,
            "source": source_text(example.source),
            "answers": [codec.show(answer) for answer in example.answers],
            "output": codec.show(output),
            "log_prob": log_prob,
        }
        for number, (example, output, log_prob) in enumerate(zip(examples, found.outputs, found.log_probs, strict=True))
    ]
    is_options = is_dataclass(decoder) and not isinstance(decoder, type)
    scores = {
        "split": split,
        "decoder": decoder_name,
        "options": {"name": type(decoder).__name__, **asdict(decoder)} if is_options else {},
        "seconds": found.seconds,
        "examples": len(examples),
        "metrics": {
            metric.name: {
                "score": metric.score,
                "higher_is_better": metric.higher_is_better,
                "signature": metric.signature,
                "statistics": metric.statistics.tolist(),
            }
            for metric in found.metrics
        },
    }
    run.write_evaluation(split, decoder_name, predictions, scores)


def source_text(source: Any) -> str | int | None:
    """Write a raw source for a reader: text unchanged, tokens joined by spaces, classes as numbers, images as None.

    >>> source_text(("a", "b")), source_text(np.int64(3)), source_text(np.zeros((1, 2, 2)))
    ('a b', 3, None)
    """
    if source is None or isinstance(source, str):
        return source
    if isinstance(source, Integral):
        return int(source)
    if np.ndim(source) == 1:
        return " ".join(map(str, source))
    return None


def spread(examples: Sequence[Example], number: int | None) -> Sequence[Example]:
    """Return ``number`` examples at even distances, or all.

    >>> spread("abcdefgh", 4)
    ['a', 'c', 'e', 'g']
    """
    if number is None or number >= len(examples):
        return examples
    return [examples[i * len(examples) // number] for i in range(number)]
