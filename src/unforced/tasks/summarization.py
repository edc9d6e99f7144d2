"""Summarisation: the title of a paper from its abstract."""

from __future__ import annotations

from dataclasses import dataclass

from unforced.metrics.protocol import Metric
from unforced.metrics.rouge import Rouge
from unforced.tasks.files import read_jsonl, string
from unforced.tasks.locate import find
from unforced.tasks.protocol import Split
from unforced.tasks.segment import Tokens
from unforced.tasks.text import TextTask
from unforced.types import Examples


@dataclass(frozen=True, kw_only=True)
class Summarization(TextTask):
    """Abstracts of the ACL Anthology -> their titles: 20,000 / 1,000 / 1,000, judged by ROUGE."""

    source_tokens: Tokens = "bpe"  # how abstracts are cut
    target_tokens: Tokens = "bpe"  # how titles are cut
    joint: bool = True  # one vocabulary of target_size for both
    cut_source: int | None = 100  # so many words of an abstract the model sees

    def read(self, split: Split) -> Examples:
        path = find("acl_title_abstract", f"{split}.jsonl.gz")
        dropped: dict[str, int] = {}
        pairs = (
            (string(record, "abstract", path, n), string(record, "title", path, n))
            for n, record in read_jsonl(path, ("abstract", "title"), dropped)
        )
        return self.choose(split, pairs, dropped)

    def output_metrics(self) -> tuple[Metric, ...]:
        return Rouge("L"), Rouge("1"), Rouge("2")
