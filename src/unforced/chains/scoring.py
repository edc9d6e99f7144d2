"""Score lines of text with a masked model: what ``unforced score`` does."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from unforced.chains.readers import Reader, Sentence
from unforced.energy import energies
from unforced.energy.energies import Kind
from unforced.energy.pseudo_log_likelihood import token_scores
from unforced.errors import InputError
from unforced.options import Count, check_value
from unforced.tasks.files import decode_line


class Score(NamedTuple):
    """Scores of a sentence under a masked model."""

    text: str
    energy_raw: float
    energy_local: float
    pseudo_log_likelihood: float
    tokens: list[tuple[str, float]]  # each token and its log-probability

    def energy(self, kind: Kind) -> float:
        return self.energy_raw if kind == "raw" else self.energy_local


class Skipped(NamedTuple):
    """A line that cannot be scored."""

    text: str
    error: str


def score_lines(
    reader: Reader, lines: Iterable[bytes], *, whole_words: bool = False, skip: bool = False, size: int = 32
) -> Iterator[Score | Skipped]:
    """Yield the scores of UTF-8 lines in their order, computed ``size`` lines at a time.

    At a line that cannot be scored, raise `InputError` with its number, after the scores of the lines before it. With
    ``skip`` yield `Skipped` instead.
    """
    check_value("batch", Count, size)
    waiting: list[Sentence | Skipped] = []
    for number, line in enumerate(lines, start=1):
        try:
            waiting.append(reader.read(decode_line(line, number)))
        except InputError as error:
            message = f"standard input:{number}: {error}"
            if not skip:
                yield from _scored(reader, waiting, whole_words)
                raise InputError(message) from None
            waiting.append(Skipped(line.decode(errors="replace").strip(), message))
        if len(waiting) == size:
            yield from _scored(reader, waiting, whole_words)
            waiting = []
    yield from _scored(reader, waiting, whole_words)


def _scored(reader: Reader, lines: Sequence[Sentence | Skipped], whole_words: bool) -> Iterator[Score | Skipped]:
    """Yield lines with their sentences replaced by scores."""
    scores = iter(score_sentences(reader, [line for line in lines if isinstance(line, Sentence)], whole_words))
    for line in lines:
        yield next(scores) if isinstance(line, Sentence) else line


def score_sentences(reader: Reader, sentences: Sequence[Sentence], whole_words: bool) -> list[Score]:
    """Score sentences as one batch."""
    if not sentences:
        return []
    batch = reader.collate(sentences)
    words = reader.words(sentences, batch) if whole_words else None
    found = token_scores(reader.model, batch, words, reader.over)
    raw, local, total = found.energy("raw"), found.energy("local"), found.pseudo_log_likelihood
    free, scores = energies.variables(batch), []
    for row, sentence in enumerate(sentences):
        names = reader.token_names(batch.gold[row][free[row]].tolist())
        tokens = list(zip(names, found.log_probs[row][free[row]].tolist()))
        scores.append(Score(sentence.text, float(raw[row]), float(local[row]), float(total[row]), tokens))
    return scores
