"""Measure whether log Z distinguishes right histories of a tagger from wrong ones.

    python tools/log_z_histories.py RUN... [--split dev] [--output results/log_z_histories.md]

RUN are run folders of taggers. After every reference history, the reference tag is compared with its rival, the wrong
tag with the highest score. The table says how often the reference tag has the higher score, how log Z of the next
step differs between the two, and how often the reference tag is ahead when this difference is added. Raw scores of
all continuations of a tag sum to exactly this; log-probabilities of them sum to zero.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unforced import api
from unforced.errors import InputError
from unforced.types import Batch

ROOT = Path(__file__).resolve().parent.parent
ROWS = 128


@torch.no_grad()
def rivalry(model: Any, batch: Batch) -> Tensor:
    """Return [N,2] differences of scores and of the next log Z between reference tag and rival, without last tags."""
    state, found, rival, margin = model.start(batch), [], None, None
    for t in range(batch.prefix.shape[1]):
        features, after = model.advance(state, model.embed(batch.prefix[:, t : t + 1]))
        scores = model.score(features[:, -1]).double()
        if rival is not None:
            other = model.score(model.advance(state, model.embed(rival))[0][:, -1]).double()
            ahead = scores.logsumexp(dim=1) - other.logsumexp(dim=1)
            found.append(torch.stack([margin, ahead], dim=1)[batch.mask[:, t]])
        gold = batch.gold[:, t : t + 1]
        wrong = scores.scatter(1, gold, -torch.inf)
        wrong[:, list(batch.symbols.banned)] = -torch.inf
        best, rival = wrong.max(dim=1, keepdim=True)
        margin, state = (scores.gather(1, gold) - best).squeeze(1), after
    return torch.cat(found) if found else torch.zeros(0, 2, dtype=torch.float64)


def row(run: Path, split: Any) -> str:
    """Return the line of a run in the table."""
    model, fitted = api.load(run)
    model.eval()
    encoded = [fitted.codec.encode(example) for example in fitted.task.read(split)]
    encoded.sort(key=lambda example: -len(example.target))
    batches = [encoded[begin : begin + ROWS] for begin in range(0, len(encoded), ROWS)]
    margin, ahead = torch.cat([rivalry(model, fitted.codec.collate(rows, range(len(rows)))) for rows in batches]).T
    shares = [100 * (each > 0).double().mean() for each in (margin, margin + ahead)]
    figures = f"{shares[0]:.1f} | {ahead.mean():+.2f} ± {ahead.std():.2f} | {shares[1]:.1f}".replace("-", "−")
    return f"| {run.parent.name} | {run.name} | {figures} | {len(ahead):,} |"


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare log Z after right and wrong histories.")
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--split", choices=["train", "dev", "test"], default="dev")
    parser.add_argument("--output", type=Path, default=ROOT / "results" / "log_z_histories.md")
    args = parser.parse_args()
    try:
        rows = [row(run, args.split) for run in args.runs]
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    header = [
        "| comparison | run | reference tag ahead, % | its log Z − its rival's, mean ± sd |"
        " ahead with log Z added, % | tags |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    args.output.write_text("\n".join([*header, *rows, "", f"{args.split} data."]) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
