"""Train with this library on the shared corpus: ``unforced.training.trainer.train``, with log lines.

With the option ``bare``, train the same model on the same batches in a bare PyTorch loop.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from pace import Pace, options
from torch import nn

import corpus
from models import unforced_model
from unforced import __version__
from unforced.decoding.greedy import Greedy
from unforced.objectives.cross_entropy import CrossEntropy
from unforced.recipes.recipe import Recipe, Variant
from unforced.tasks.codecs import PairCodec
from unforced.tasks.pairs import Pairs
from unforced.training.batching import epoch_batches, token_lengths
from unforced.training.options import Training
from unforced.training.trainer import train
from unforced.types import Examples, Progress

NEVER = 10**9


@dataclass(frozen=True)
class Paced(CrossEntropy):
    """Cross-entropy, which counts each update."""

    def __call__(self, model, batch, *, progress, rng):
        PACE.begin_update(batch.tokens)
        return super().__call__(model, batch, progress=progress, rng=rng)


def prepare(chosen: dict) -> tuple[Pairs, Examples, PairCodec, nn.Module]:
    """Return the task, its training examples, its codec, and the model."""
    data = corpus.Corpus(**chosen["corpus"])
    files = {
        split: str(data.path(f"{file}.tsv")) for split, file in (("train", "train"), ("dev", "dev"), ("test", "dev"))
    }
    task = Pairs(**files, source_tokens="words", target_tokens="words", joint=True)
    examples = task.read("train")
    codec = task.fit(examples)
    torch.manual_seed(1)
    return task, examples, codec, unforced_model(chosen["model"], chosen["shape"]).build(codec.sizes)


def run_loop(chosen: dict) -> None:
    """Train with the library's loop, as a user would call it."""
    task, _, _, model = prepare(chosen)
    training = Training(
        epochs=None,
        steps=5000,
        batch_tokens=NEVER,
        max_rows=chosen["batch"],
        learning_rate=chosen["learning_rate"],
        schedule="inverse_sqrt",
        warmup=400,
        validate_every=NEVER,
    )
    ready(model)
    recipe = Recipe(
        "speed", "", (1,), "plain", task, model, Paced(), training, {"greedy": Greedy()}, (Variant("plain"),)
    )
    train(recipe, chosen["folder"], quiet=True)


def run_bare(chosen: dict) -> None:
    """Train on the same batches, collated beforehand, in a loop of the five lines that training requires."""
    _, examples, codec, model = prepare(chosen)
    encoded = [codec.encode(example) for example in examples]
    order = epoch_batches(
        token_lengths(encoded), Training(batch_tokens=NEVER, max_rows=chosen["batch"]), seed=1, epoch=0
    )
    batches = [codec.collate([encoded[row] for row in rows], rows) for rows in order]
    optimizer = torch.optim.AdamW(model.parameters(), lr=chosen["learning_rate"], betas=(0.9, 0.98), fused=True)
    objective, rng, step = Paced(), torch.Generator().manual_seed(1), 0
    torch.set_flush_denormal(True)
    model.train()
    ready(model)
    while True:
        loss = objective(model, batches[step % len(batches)], progress=Progress(step), rng=rng)
        loss.mean.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        step += 1


def ready(model: nn.Module) -> None:
    PACE.ready(
        versions={"unforced": __version__, "torch": torch.__version__},
        parameters=sum(p.numel() for p in model.parameters() if p.requires_grad),
        threads=torch.get_num_threads(),
    )


PACE = Pace()
OPTIONS = options()
torch.set_num_threads(OPTIONS["threads"])
(run_bare if OPTIONS.get("bare") else run_loop)(OPTIONS)
