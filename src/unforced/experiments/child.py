"""The process that makes one run of a comparison for another one: ``unforced.experiments.parallel`` starts it."""

import json
import os
import signal
import sys
import threading
import tomllib
import traceback
from pathlib import Path

from unforced.cli import warnings_as_sentences
from unforced.errors import InputError
from unforced.experiments.plan import Planned
from unforced.experiments.runs import make, reason, score_run
from unforced.recipes.recipe import Recipe
from unforced.training.trainer import train


def heard(line: str) -> tuple[Planned, bool]:
    """The run that ``unforced.experiments.parallel.told`` has written down, and whether to be quiet."""
    words = json.loads(line)
    recipe = Recipe.from_data(tomllib.loads(words["recipe"]))
    folder, needs = Path(words["folder"]), tuple(words["needs"])
    return Planned(words["label"], words["seed"], recipe, folder, needs), words["quiet"]


def end_with_parent() -> None:
    """Stop as by SIGTERM once standard input ends: nobody waits for the answer any more, or listens."""
    while os.read(0, 1):
        pass
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for output in (1, 2):
        os.dup2(nowhere, output)
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> int:
    answers = os.fdopen(os.dup(1), "w")  # for the answer alone ...
    os.dup2(2, 1)  # ... and whatever else is printed is something said on the way
    run, quiet = heard(sys.stdin.readline())
    threading.Thread(target=end_with_parent, daemon=True).start()
    failure = ""
    with warnings_as_sentences():
        try:
            make(run, train, score_run, quiet)
        except Exception as error:
            failure = reason(error)
            if not isinstance(error, InputError):
                traceback.print_exc()
    print(json.dumps({"failure": failure}), file=answers, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
