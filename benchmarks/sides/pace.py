"""Train in turns: the part of a measured process that talks to ``harness.Side``.

A measured process trains without end. After each turn it reports what it did and sleeps until the next one, so
several processes can share the cores in turn without starting again. Standard library only: JoeyNMT's environment
imports it too.
"""

import json
import os
import sys
import time


class Pace:
    """Count updates and tokens, and sleep at the end of a turn."""

    def __init__(self) -> None:
        # Reports go to the original standard output; what libraries print goes to the log (standard error).
        self._reports = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)
        self._start_turn(0)

    def ready(self, **facts: object) -> None:
        """Report that the first update can begin, and wait for the first turn."""
        self._send({"ready": facts})
        self._wait()

    def begin_update(self, tokens: int) -> None:
        """Call this before each update, with the number of target tokens of its batch."""
        if self._done == self._updates:
            seconds, busy = time.perf_counter() - self._started, time.process_time() - self._busy
            self._send({"updates": self._done, "tokens": self._tokens, "seconds": seconds, "busy": busy})
            self._wait()
        self._done += 1
        self._tokens += tokens

    def _send(self, message: dict) -> None:
        self._reports.write(json.dumps(message) + "\n")
        self._reports.flush()

    def _wait(self) -> None:
        updates = sys.stdin.readline().strip()
        if not updates:
            os._exit(0)  # the parent has finished or died: save nothing
        self._start_turn(int(updates))

    def _start_turn(self, updates: int) -> None:
        self._updates = updates
        self._done = 0
        self._tokens = 0
        self._busy = time.process_time()
        self._started = time.perf_counter()


def options() -> dict:
    """Return the options from the parent: a JSON object as the only argument."""
    return json.loads(sys.argv[1])
