"""Our models after some updates of cross-entropy: what a benchmark of searching or of sampling has to be run on."""

from collections.abc import Callable
from typing import Any

import corpus
from harness import WORK, say
from shapes import SHAPES, unforced_model

WARM_UP = 50  # updates in which the learning rate grows


UPDATES, QUICK = 1200, 100  # what a model is trained for, as a rule: nearly three epochs of Multi30k
MORE = 8  # one in so many updates is made again for a larger vocabulary


def trained(name: str, data: corpus.Corpus, updates: int, vocabulary: int | None = None):
    """A model of ``shapes`` after so many updates of ``corpus.BATCH`` pairs; kept below ``WORK`` for the next run.

    ``vocabulary`` is a larger number of target tokens than the data has: the same model with more of them, which is
    trained on until it knows that they never come.
    """
    import torch
    from safetensors.torch import load_file, save_file

    from unforced.objectives.cross_entropy import CrossEntropy
    from unforced.types import Sizes

    torch.manual_seed(1)
    size = data.vocabulary if vocabulary is None else vocabulary
    model = unforced_model(name, SHAPES[name]).build(Sizes(size, data.vocabulary))
    label = name if vocabulary is None else f"{name}-{vocabulary}"
    kept = WORK / f"trained-{label}-{data.name}-{updates}.safetensors"
    if kept.is_file():
        found = load_file(kept)
        if {k: v.shape for k, v in found.items()} == {k: v.shape for k, v in model.state_dict().items()}:
            model.load_state_dict(found)
            return model
    if vocabulary is not None:
        _copy(trained(name, data, updates), model)
        updates = updates // MORE
    say(f"  training the {label}, {updates} updates (kept for the next time)")
    pairs = data.ids("train")
    learn(model, CrossEntropy(), updates, data.train, lambda rows: batch([pairs[i] for i in rows]))
    save_file(model.state_dict(), kept)
    return model


def learn(model, objective, updates: int, examples: int, make: Callable[[list[int]], Any]) -> None:
    """Train on ``corpus.BATCH`` examples at an update, in another order every epoch; ``make`` collates those of some numbers."""
    import torch

    from unforced.types import Progress

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.98), fused=True)
    shuffle, rng = torch.Generator().manual_seed(1), torch.Generator().manual_seed(1)
    epochs = -(-updates * corpus.BATCH // examples)
    order = [row for _ in range(epochs) for row in torch.randperm(examples, generator=shuffle).tolist()]
    model.train()
    for step in range(updates):
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * min(1.0, (step + 1) / WARM_UP)
        rows = order[corpus.BATCH * step : corpus.BATCH * (step + 1)]
        loss = objective(model, make(rows), progress=Progress(step), rng=rng)
        loss.mean.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % 50 == 0:
            say(f"    {step + 1} updates, loss {float(loss.mean.detach()):.2f}")


def _copy(small, large) -> None:
    """Give a model the weights of one with fewer target tokens, the first ones."""
    import torch

    with torch.no_grad():
        for mine, given in zip(large.parameters(), small.parameters(), strict=True):
            mine[tuple(slice(size) for size in given.shape)] = given


def batch(pairs: list[tuple[list[int], list[int]]]):
    """A padded batch of pairs of ids."""
    from unforced.tasks.codecs import collate
    from unforced.types import Encoded, Symbols

    symbols = Symbols(corpus.PAD, corpus.BOS, corpus.EOS, banned=(corpus.PAD, corpus.BOS))
    encoded = [Encoded(source, target) for source, target in pairs]
    return collate(encoded, list(range(len(pairs))), symbols, source_pad=corpus.PAD)
