"""The part of a measured process that talks to ``harness``: a training that runs in windows, paused in between.

Each side of a comparison is a process of its own that trains without end. After every so many updates it reports what
it did, falls asleep, and goes on when it is told to; so the sides can take turns on the same cores without paying for
their start-up again. This file needs nothing but the standard library: it also runs inside JoeyNMT's environment.
"""

import json
import os
import sys
import time


class Pace:
    """Counts updates and tokens; sleeps after as many updates as the parent asked for."""

    def __init__(self) -> None:
        # Reports go to the original standard output; what libraries print goes to the log (standard error).
        self._reports = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)
        self._reset(0)

    def ready(self, **facts: object) -> None:
        """Say that the side stands at its first update, and wait."""
        self._send({"ready": facts})
        self._wait()

    def begin_update(self, tokens: int) -> None:
        """Call with a batch's target tokens before its update: the time between two calls is one update's."""
        if self._done == self._wanted:
            seconds, busy = time.perf_counter() - self._started, time.process_time() - self._busy
            self._send({"updates": self._done, "tokens": self._tokens, "seconds": seconds, "busy": busy})
            self._wait()
        self._done += 1
        self._tokens += tokens

    def _send(self, message: dict) -> None:
        self._reports.write(json.dumps(message) + "\n")
        self._reports.flush()

    def _wait(self) -> None:
        wanted = sys.stdin.readline().strip()
        if not wanted:
            os._exit(0)  # the parent has seen enough, or is gone: no final checkpoint, no farewell
        self._reset(int(wanted))

    def _reset(self, wanted: int) -> None:
        self._wanted = wanted
        self._done = 0
        self._tokens = 0
        self._busy = time.process_time()
        self._started = time.perf_counter()


def settings() -> dict:
    """What the parent asks for: a JSON object as the only argument."""
    return json.loads(sys.argv[1])
