"""A copying task and a small model that implement the protocols, and runs of them."""

import multiprocessing
import os
import random
import shutil
import signal
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from unforced.decoding.greedy import Greedy
from unforced.decoding.teacher_forcing import gold_scores
from unforced.errors import InputError
from unforced.objectives.cross_entropy import CrossEntropy
from unforced.ops import random_streams
from unforced.recipes.recipe import Recipe, Variant
from unforced.tasks.codecs import BaseCodec
from unforced.training.options import Training
from unforced.training.run_folder import RunFolder, read_json
from unforced.training.trainer import train
from unforced.types import Batch, DecoderState, Encoded, Example, Examples, Loss, Sizes, Symbols

SYMBOLS = Symbols(pad=0, bos=1, eos=2, banned=(0, 1))


class CopyCodec(BaseCodec):
    """Letters are numbers from 3 on; ``letters`` is the vocabulary."""

    def __init__(self, letters: str = "abcdefgh") -> None:
        self.letters = letters
        self.symbols = SYMBOLS
        self.sizes = Sizes(target=len(letters) + 3, source=len(letters) + 3)

    def token_names(self) -> tuple[str, ...]:
        return ()

    def encode(self, example: Example) -> Encoded:
        source = [self.letters.index(letter) + 3 for letter in example.source]
        target = [] if example.target is None else [self.letters.index(x) + 3 for x in example.target] + [2]
        return Encoded(source, target)

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self.letters[i - 3] for i in ids)

    def to_json(self) -> dict[str, Any]:
        return {"letters": self.letters}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "CopyCodec":
        return cls(**data)


@dataclass(frozen=True)
class Exact:
    """Share of outputs that equal an answer (or miss all of them)."""

    name: str = "exact"
    higher_is_better: bool = True

    def statistics(self, outputs: Sequence[Any], answers: Sequence[Sequence[Any]]) -> np.ndarray:
        rows = [[output in answer, 1] for output, answer in zip(outputs, answers, strict=True)]
        return np.array(rows, dtype=np.float64)

    def score(self, sums: np.ndarray) -> np.ndarray:
        share = sums[..., 0] / sums[..., 1]
        return share if self.higher_is_better else 1 - share

    def signature(self) -> str:
        return "share of equal strings"


@dataclass(frozen=True)
class CopyTask:
    letters: str = "abcdefgh"
    examples: int = 60

    def read(self, split: str) -> Examples:
        return copies(self.examples, 7) if split == "train" else copies(20, 8)

    def fit(self, train: Sequence[Example]) -> CopyCodec:
        return CopyCodec(self.letters)

    def codec(self, data: dict[str, Any]) -> CopyCodec:
        return CopyCodec(**data)

    def metrics(self) -> tuple[Exact, ...]:
        return (Exact(), Exact("wrong", higher_is_better=False))


class Copier(nn.Module):
    """Scores of position t from the embeddings of the fed token and of source token t; with dropout and tied ends."""

    def __init__(self, vocabulary: int, width: int = 16, dropout: float = 0.1) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.sources = nn.Embedding(vocabulary, width)
        self.mix = nn.Linear(2 * width, width)
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(width, vocabulary)
        self.out.weight = self.tokens.weight

    def start(self, batch: Batch) -> DecoderState:
        end = torch.full_like(batch.source[:, :1], SYMBOLS.eos)
        memory = self.sources(torch.cat([torch.where(batch.source == 0, end, batch.source), end], dim=1))
        return DecoderState(torch.zeros(len(batch), dtype=torch.long), memory)

    def embed(self, ids: Tensor) -> Tensor:
        return self.tokens(ids)

    def embed_mix(self, weights: Tensor) -> Tensor:
        return weights @ self.tokens.weight

    def advance(self, state: DecoderState, inputs: Tensor) -> tuple[Tensor, DecoderState]:
        steps = state.carry.unsqueeze(1) + torch.arange(inputs.shape[1])
        places = steps.clamp(max=state.shared.shape[1] - 1)
        seen = state.shared.gather(1, places.unsqueeze(-1).expand(-1, -1, state.shared.shape[2]))
        features = torch.tanh(self.mix(torch.cat([inputs, self.dropout(seen)], dim=-1)))
        return features, state._replace(carry=state.carry + inputs.shape[1])

    def score(self, features: Tensor) -> Tensor:
        return self.out(features)


@dataclass(frozen=True)
class Noisy:
    """Cross-entropy with random weights for the examples, so that the objective's generator matters."""

    def __call__(self, model: Any, batch: Batch, *, progress: Any, rng: torch.Generator) -> Loss:
        scores, gold = gold_scores(model, batch)
        nll = nn.functional.cross_entropy(scores, gold, reduction="none")
        drawn = (
            random_streams.uniform(random_streams.keys(batch, rng), 0).unsqueeze(1).expand(batch.mask.shape)[batch.mask]
        )
        weights = 0.5 + drawn.to(nll.dtype)
        count = torch.tensor(float(len(gold)))
        return Loss((weights * nll).sum(), count, {"nll": (nll.detach().sum(), count)})


class Nothing:
    """An objective that never scores a token."""

    def __call__(self, model: Any, batch: Batch, *, progress: Any, rng: torch.Generator) -> Loss:
        scores, _ = gold_scores(model, batch)
        return Loss(scores.sum() * 0, torch.tensor(0.0), {})


@dataclass(frozen=True)
class Poisoned:
    """Cross-entropy that is NaN (or has an infinite gradient) from an update on."""

    at: int
    gradient: bool = False

    def __call__(self, model: Any, batch: Batch, *, progress: Any, rng: torch.Generator) -> Loss:
        loss = CrossEntropy()(model, batch, progress=progress, rng=rng)
        if progress.step + 1 != self.at:
            return loss
        if self.gradient:
            zero = model.mix.weight.sum() * 0
            return loss._replace(total=loss.total + zero.sqrt())
        return loss._replace(total=loss.total * float("nan"))


def copies(number: int, seed: int, letters: str = "abcdefgh") -> Examples:
    draw = random.Random(seed)
    words = ["".join(draw.choices(letters, k=draw.randint(1, 9))) for _ in range(number)]
    return Examples(Example(word, word) for word in words)


def recipe(
    *,
    options: Training,
    objective: Any = None,
    seed: int = 1,
    dropout: float = 0.1,
    width: int = 16,
    letters: str = "abcdefgh",
    examples: int = 60,
    double: bool = False,
    decoder: Any = None,
) -> Recipe:
    torch.manual_seed(seed)
    model = Copier(len(letters) + 3, width, dropout)
    return Recipe(
        name="copy",
        description="",
        seeds=(seed,),
        baseline="toy",
        task=CopyTask(letters, examples),
        model=model.double() if double else model,
        objective=objective or CrossEntropy(),
        training=options,
        decoding={"greedy": decoder or Greedy(max_length=12)},
        variants=(Variant("toy"),),
    )


# ---- runs in processes of their own ----

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["unforced.training.trainer", "unforced.objectives.cross_entropy", "torch._dynamo"])


@dataclass
class Run:
    """What a child process trains; plain data, because it is sent there. ``world`` children make one run."""

    folder: Path
    options: dict[str, Any]
    settings: dict[str, Any] = field(default_factory=dict)
    world: int = 1
    dies_at: int | None = None  # which operation on the disk the child does not live to see

    def start(self) -> list[Any]:
        port = free_port() if self.world > 1 else 0
        children = [FORKS.Process(target=self.child, args=(rank, port)) for rank in range(self.world)]
        for child in children:
            child.start()
        return children

    def child(self, rank: int, port: int) -> None:
        torch.set_num_threads(1)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in the background inherit that it is ignored
        if self.dies_at is not None:
            die_at(self.dies_at)
        if self.world > 1:  # what torchrun would say
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(self.world)}
            os.environ |= {"LOCAL_WORLD_SIZE": str(self.world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        made = recipe(options=Training(**self.options), **self.settings)
        resume = self.folder.is_dir() and any(self.folder.iterdir())
        try:
            train(made, self.folder, resume=resume, quiet=True)
        except InputError as error:
            (self.folder.parent / f"error-{rank}").write_text(str(error))
            raise SystemExit(2) from None

    def finish(self) -> list[int]:
        """Train to the end; returns the children's exit codes."""
        return join(self.start())


def die_at(count: int) -> None:
    """Let this process kill itself just before the ``count``-th time it syncs, renames or removes something."""
    left = iter(range(count - 1, -1, -1))

    def deadly(real: Any) -> Any:
        def operate(*arguments: Any, **options: Any) -> Any:
            if next(left) == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **options)

        return operate

    for module, name in [(os, "fsync"), (os, "rename"), (os, "replace"), (shutil, "rmtree")]:
        setattr(module, name, deadly(getattr(module, name)))


def join(children: list[Any]) -> list[int]:
    for child in children:
        child.join(60)
        assert child.exitcode is not None, "a child did not end"
    return [child.exitcode for child in children]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def content(folder: Path) -> dict[str, Any]:
    """All that two runs of the same job must share: bytes of the newest checkpoint and logs, wall-clock times apart."""
    run = RunFolder(folder)
    newest = run.checkpoints()[-1]
    state = read_json(newest / "state.json")
    return {
        "checkpoints": [path.name for path in run.checkpoints()],
        **{file.name: file.read_bytes() for file in newest.glob("*.safetensors")},
        "state": {key: value for key, value in state.items() if key not in ("seconds", "logs")},
        "samples.jsonl": (folder / "samples.jsonl").read_bytes(),
        "events": [{k: v for k, v in event.items() if k != "seconds"} for event in run.events()],
        "best": run.best(),
        "finished": {k: v for k, v in (run.finished() or {}).items() if k != "seconds"},
    }
