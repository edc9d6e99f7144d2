"""Score text by pseudo-log-likelihood with this library; an update of a turn is one batch."""

import json
from itertools import count
from pathlib import Path

from pace import Pace, options

PACE = Pace()

import torch  # noqa: E402 (what libraries print at import goes to the log)
import transformers  # noqa: E402

from unforced import __version__  # noqa: E402
from unforced.chains.readers import open_model  # noqa: E402
from unforced.energy.pseudo_log_likelihood import pseudo_log_likelihood  # noqa: E402


def main() -> None:
    chosen = options()
    texts = json.loads(Path(chosen["file"]).read_text(encoding="utf-8"))
    torch.set_num_threads(chosen["threads"])
    reader, size, lines = open_model(texts["folder"]), texts["batch"], texts["lines"]

    def score(some: list[str]) -> list[float]:
        sentences = [reader.read(line) for line in some]
        batch = reader.collate(sentences)
        words = None if chosen["masking"] == "single" else reader.words(sentences, batch)
        found = pseudo_log_likelihood(reader.model, batch, words)
        return found.double().sum(dim=1).tolist()

    scores = [value for start in (0, size) for value in score(lines[start : start + size])]
    versions = {"unforced": __version__, "transformers": transformers.__version__}
    PACE.ready(scores=scores, versions=versions)
    for number in count():
        start = number * size % len(lines)
        some = lines[start : start + size]
        PACE.begin_update(len(some))
        score(some)


if __name__ == "__main__":
    main()
