"""The text that all sides train on: German-English pairs, in the same subword pieces.

Multi30k is read from the folder in ``UNFORCED_DATA``. Without it, synthetic pairs with its distribution of lengths are
used, and the results say so. Pieces are separated by spaces in the files written here, so no side has to segment text
during training.
"""

import gzip
import json
import os
import random
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

MERGED = 8251  # vocabulary size of the byte-pair training; pieces that only occur inside longer ones are dropped
BATCH = 64  # pairs
RESERVED = ("<unk>", "<pad>", "<s>", "</s>")  # in JoeyNMT's order; ids 0 to 3 on the Hugging Face side as well
UNK, PAD, BOS, EOS = range(4)

# Lengths of Multi30k sentences in pieces: quantiles in steps of 5 %, for sources and targets. The last one is below the
# true maximum, so that interpolation between quantiles gives the right mean.
SOURCE_QUANTILES = (2, 8, 9, 9, 10, 11, 11, 12, 12, 13, 13, 14, 15, 15, 16, 17, 18, 19, 21, 24, 36)
TARGET_QUANTILES = (4, 8, 9, 10, 10, 11, 11, 12, 12, 13, 13, 14, 14, 15, 16, 16, 17, 18, 20, 22, 32)


@dataclass(frozen=True)
class Corpus:
    """The folder of the segmented files, and their sizes."""

    folder: str
    name: str  # "multi30k" or "synthetic"
    vocabulary: int
    train: int
    source_tokens: int
    target_tokens: int

    def path(self, file: str) -> Path:
        """Return the path of vocabulary.txt, or of train, dev or grouped with the suffix .de, .en or .tsv."""
        return Path(self.folder) / file

    def pairs(self, split: str) -> list[tuple[list[str], list[str]]]:
        lines = self.path(f"{split}.tsv").read_text(encoding="utf-8").splitlines()
        return [(source.split(), target.split()) for source, target in (line.split("\t") for line in lines)]

    def ids(self, split: str) -> list[tuple[list[int], list[int]]]:
        """Return the pairs of a split as ids, each side with the end symbol."""
        names = self.path("vocabulary.txt").read_text(encoding="utf-8").splitlines()
        index = {name: number for number, name in enumerate(names)}
        return [
            ([index.get(piece, UNK) for piece in source] + [EOS], [index.get(piece, UNK) for piece in target] + [EOS])
            for source, target in self.pairs(split)
        ]


def prepare(work: Path) -> Corpus:
    """Write the segmented corpus into a folder in ``work``, once, and return its description."""
    raw = _multi30k()
    name = "synthetic" if raw is None else "multi30k"
    folder = work / f"corpus-{name}-{MERGED}"
    facts = folder / "corpus.json"
    if facts.is_file():
        return Corpus(folder=str(folder), **json.loads(facts.read_text(encoding="utf-8")))
    folder.mkdir(parents=True, exist_ok=True)
    splits, vocabulary = _synthetic() if raw is None else _segment(raw)
    splits["grouped"] = _grouped(splits["train"])
    for split, pairs in splits.items():
        _write(folder / f"{split}.de", (source for source, _ in pairs))
        _write(folder / f"{split}.en", (target for _, target in pairs))
        _write(folder / f"{split}.tsv", (f"{source}\t{target}" for source, target in pairs))
    _write(folder / "vocabulary.txt", vocabulary)
    train = splits["train"]
    corpus = Corpus(
        folder=str(folder),
        name=name,
        vocabulary=len(vocabulary),
        train=len(train),
        source_tokens=sum(len(source.split()) + 1 for source, _ in train),
        target_tokens=sum(len(target.split()) + 1 for _, target in train),
    )
    kept = {key: value for key, value in asdict(corpus).items() if key != "folder"}
    facts.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")
    return corpus


Pairs = list[tuple[str, str]]


def _multi30k() -> dict[str, Pairs] | None:
    root = os.environ.get("UNFORCED_DATA", "").strip()
    files = {
        split: Path(root).expanduser() / "multi30k_deen" / f"{part}.tok.tsv.gz"
        for split, part in (("train", "train"), ("dev", "val"))
    }
    if not root or not all(path.is_file() for path in files.values()):
        return None
    return {split: list(_read(path)) for split, path in files.items()}


def _read(path: Path) -> Iterator[tuple[str, str]]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            source, target = line.rstrip("\n").split("\t")
            yield source, target


def _segment(raw: dict[str, Pairs]) -> tuple[dict[str, Pairs], list[str]]:
    """Learn joint byte-pair pieces on both languages of the training part, and segment all splits."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE(unk_token=RESERVED[UNK], end_of_word_suffix="</w>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.BpeTrainer(
        vocab_size=MERGED, special_tokens=list(RESERVED), end_of_word_suffix="</w>", show_progress=False
    )
    tokenizer.train_from_iterator((text for pair in raw["train"] for text in pair), trainer)
    cut = {
        split: [(_cut(tokenizer, source), _cut(tokenizer, target)) for source, target in pairs]
        for split, pairs in raw.items()
    }
    seen = {piece for pair in cut["train"] for text in pair for piece in text.split()}
    return cut, [*RESERVED, *sorted(seen - set(RESERVED))]


def _cut(tokenizer, text: str) -> str:
    return " ".join(tokenizer.encode(text).tokens)


def _synthetic() -> tuple[dict[str, Pairs], list[str]]:
    """Return pairs of Zipf-distributed names whose lengths follow the quantiles above."""
    rng = random.Random(7)
    names = [f"w{i}" for i in range(8000 - len(RESERVED))]
    weights = [1 / (rank + 1) for rank in range(len(names))]

    def length(quantiles: tuple[int, ...], u: float) -> int:
        place = u * (len(quantiles) - 1)
        low = quantiles[int(place)]
        high = quantiles[min(int(place) + 1, len(quantiles) - 1)]
        return round(low + (place - int(place)) * (high - low))

    def pairs(count: int) -> Pairs:
        found = []
        for _ in range(count):
            u = rng.random()
            v = min(max(u + rng.gauss(0, 0.12), 0.0), 0.999)  # the two lengths of a pair are correlated
            sides = (length(SOURCE_QUANTILES, u), length(TARGET_QUANTILES, v))
            source, target = (" ".join(rng.choices(names, weights, k=n)) for n in sides)
            found.append((source, target))
        return found

    return {"train": pairs(29000), "dev": pairs(1000)}, [*RESERVED, *names]


def _grouped(pairs: Pairs) -> Pairs:
    """Return the pairs in an order in which the pairs of each batch have similar lengths."""
    rng = random.Random(7)
    shuffled = rng.sample(pairs, len(pairs))
    batches = []
    for start in range(0, len(shuffled), 50 * BATCH):
        pool = sorted(
            shuffled[start : start + 50 * BATCH], key=lambda pair: (len(pair[1].split()), len(pair[0].split()))
        )
        batches += [pool[i : i + BATCH] for i in range(0, len(pool), BATCH)]
    last = batches.pop()  # the only one that may be short
    rng.shuffle(batches)
    return [pair for batch in [*batches, last] for pair in batch]


def _write(path: Path, lines: Iterable[str]) -> None:
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
