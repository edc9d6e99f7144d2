"""Translation of picture descriptions: Multi30k, German and English."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from unforced.metrics.bleu import ORDER, Bleu, LengthRatio, NgramPrecision
from unforced.metrics.protocol import Metric
from unforced.tasks.files import read_tsv
from unforced.tasks.locate import find
from unforced.tasks.protocol import Split
from unforced.tasks.segment import Tokens
from unforced.tasks.text import TextTask
from unforced.types import Examples


@dataclass(frozen=True, kw_only=True)
class Translation(TextTask):
    """Multi30k task 1 (Elliott et al. 2016): 29,000 / 1,014 / 1,000 pairs, judged by sacreBLEU.

    ``raw`` is the text as written, ``tok`` the set's own lower-cased and tokenised form. BLEU of ``tok`` compares the
    tokens as they are (signature ``tok:none``), so it isn't comparable with that of ``raw``.
    """

    direction: Literal["de-en", "en-de"] = "de-en"  # from which language to which
    variant: Literal["raw", "tok"] = "raw"  # as written, or lower-cased and tokenised
    test_set: Literal["2016", "2017"] = "2016"  # the year of the test set
    source_tokens: Tokens = "bpe"  # how sources are cut
    target_tokens: Tokens = "bpe"  # how targets are cut
    joint: bool = True  # one vocabulary of target_size for both languages
    parts: bool = False  # also report the n-gram precisions and the length ratio

    def read(self, split: Split) -> Examples:
        part = {"train": "train", "dev": "val", "test": f"test_{self.test_set}_flickr"}[split]
        dropped: dict[str, int] = {}
        rows = read_tsv(find("multi30k_deen", f"{part}.{self.variant}.tsv.gz"), 2, dropped)
        if self.direction == "de-en":
            return self.choose(split, ((german, english) for _, (german, english) in rows), dropped)
        return self.choose(split, ((english, german) for _, (german, english) in rows), dropped)

    def output_metrics(self) -> tuple[Metric, ...]:
        tokens: Literal["13a", "none"] = "13a" if self.variant == "raw" else "none"
        parts = [
            *(NgramPrecision(tokenize=tokens, order=n + 1) for n in range(ORDER)),
            LengthRatio(tokenize=tokens),
        ]
        return (Bleu(tokenize=tokens), *(parts if self.parts else []))
