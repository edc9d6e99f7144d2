"""The process that makes one run of a comparison for another one: ``unforced.compare.jobs`` starts it."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import tomllib
import traceback
from pathlib import Path

from unforced.cli import warnings_as_sentences
from unforced.compare.make import make, reason, score_run, train_run
from unforced.compare.plan import Planned
from unforced.errors import InputError
from unforced.recipe import resolve


def heard(line: str) -> tuple[Planned, bool]:
    """The run that ``unforced.compare.jobs.told`` has written down, and whether to be quiet."""
    words = json.loads(line)
    recipe = resolve(tomllib.loads(words["recipe"]))
    folder, needs = Path(words["folder"]), tuple(words["needs"])
    return Planned(words["label"], words["seed"], recipe, folder, needs), words["quiet"]


def end_with_parent() -> None:
    """Stop as by SIGTERM once standard input ends: nobody waits for the answer any more."""
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> int:
    run, quiet = heard(sys.stdin.readline())
    threading.Thread(target=end_with_parent, daemon=True).start()
    failure = ""
    with warnings_as_sentences():
        try:
            make(run, train_run, score_run, quiet)
        except Exception as error:
            failure = reason(error)
            if not isinstance(error, InputError):
                traceback.print_exc()
    print(json.dumps({"failure": failure}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
