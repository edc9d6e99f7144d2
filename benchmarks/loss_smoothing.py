"""Compare updates of loss smoothing with maximum likelihood of the same model; measure the size of its tables."""

from types import SimpleNamespace

import numpy as np
import torch

import corpus
from harness import WORK, interleave, row, say
from models import QUICK_UPDATES, UPDATES, batch, trained
from unforced.objectives.cross_entropy import CrossEntropy
from unforced.objectives.sequence_smoothing import SequenceSmoothing
from unforced.objectives.token_sequence_smoothing import TokenSequenceSmoothing
from unforced.objectives.token_smoothing import TokenSmoothing
from unforced.types import Encoded, Sizes, Symbols
from updates import cost, update

LARGE, WIDTH = 32_000, 100
TOKEN, LAZY, SEQUENCE, BOTH, TABLES = 1.05, 1.02, 1.15, 1.25, 200  # the targets; the last one in MiB


def run(*, quick: bool, threads: int) -> dict:
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)
    data = corpus.prepare(WORK)
    updates, rounds = (QUICK_UPDATES, 15) if quick else (UPDATES, 120)
    pairs = [data.ids("grouped")[corpus.BATCH * i : corpus.BATCH * (i + 1)] for i in range(0, 400, 80)]
    batches = [batch(each) for each in pairs]
    rows = []
    for name, title, seen in (("lstm", "LSTM", updates), ("transformer", "Transformer", updates // 3)):
        rows += _updates(trained(name, data, seen), data, batches, rounds, title)
    rows.append(_tables())
    return {
        "rows": rows,
        "settings": {
            "models": f"LSTM 256 with Bahdanau attention and Transformer 3+3, 256 wide, {data.vocabulary} pieces,"
            f" {updates} and {updates // 3} updates of cross-entropy before, float32, dropout on",
            "data": f"{data.name}, {len(batches)} batches of {corpus.BATCH} pairs of similar length, one per turn",
            "token smoothing": f"co-occurrence vectors, the nearest {_token().nearest} words, α 0.5;"
            " the model's own vectors change"
            " with every update, so near words are looked up at each",
            "sequence smoothing": "Hamming, V_sub the batch's tokens, one sample, fed instead of the target (α 1)",
            "rounds": f"{rounds}, after one to warm up",
        },
    }


def _token(vectors: str = "co-occurrence"):
    return TokenSmoothing(vectors=vectors, tau=0.1, mix=0.5)


def _updates(model, data: corpus.Corpus, batches: list, rounds: int, title: str) -> list[dict]:
    """Compare all kinds of smoothing with cross-entropy."""
    say(f"  {title}")
    token, one = _token(), SequenceSmoothing(tau=0.12, vocabulary="batch")
    lazy = SequenceSmoothing(tau=0.12, vocabulary="batch", lazy=True)
    exact = SequenceSmoothing(tau=0.12, vocabulary="batch", lazy=True, samples=None)
    objectives = {
        "token": (token, TOKEN),
        "token, the model's own vectors": (_token("model"), None),
        "sequence, lazy, one sample": (lazy, LAZY),
        "sequence, lazy, exact expectation": (exact, LAZY),
        "sequence, one sample": (one, SEQUENCE),
        "token and sequence": (TokenSequenceSmoothing(token, one), BOTH),
    }
    codec, examples = _codec(data)
    turns = {"maximum likelihood": update(model, CrossEntropy(), batches, single=True)}
    for name, (objective, _) in objectives.items():
        turns[f"{title}, {name}"] = update(model, objective.fitted(codec, examples), batches, single=True)
    times = interleave(turns, rounds, unit="ms/update")
    return [
        cost(f"{title}, {name}", "maximum likelihood", times, "maximum likelihood", target)
        for name, (_, target) in objectives.items()
    ]


def _codec(data: corpus.Corpus):
    """Return the parts of a codec that ``fitted`` uses, and the training targets."""
    names = tuple(data.path("vocabulary.txt").read_text(encoding="utf-8").splitlines())
    codec = SimpleNamespace(
        symbols=batch([([corpus.EOS], [corpus.EOS])]).symbols,
        sizes=Sizes(len(names), len(names)),
        token_names=lambda: names,
    )
    return codec, [Encoded(source, target) for source, target in data.ids("train")]


def _tables() -> dict:
    """Measure the tables of token smoothing for a large vocabulary, from random vectors in a file."""
    say("  tables")
    names = tuple(f"w{i}" for i in range(LARGE))
    path = WORK / f"vectors-{LARGE}.npz"
    vectors = np.random.default_rng(1).standard_normal((LARGE, WIDTH)).astype(np.float32)
    np.savez(path, words=np.array(names), vectors=vectors)
    codec = SimpleNamespace(symbols=Symbols(0, 1, 2, (0, 1)), sizes=Sizes(LARGE, LARGE), token_names=lambda: names)
    table = TokenSmoothing(vectors=str(path)).fitted(codec, ()).table
    kept = [table.covered, table.units, *(table.near or ())]
    mebibytes = sum(part.numel() * part.element_size() for part in kept if part is not None) / 2**20
    return row(
        f"token smoothing, V {LARGE:,}: MiB of tables",
        "—",
        {"median": mebibytes},
        target=f"<= {TABLES}",
        passed=mebibytes <= TABLES,
    )
