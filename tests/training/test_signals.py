"""What is remembered of signals, and which act at once."""

import os
import signal

import pytest

from unforced.training.distributed import catch_signals


def test_a_second_sigterm_says_nothing_new() -> None:
    """A run that is told by everybody, as when a machine shuts down, still saves."""
    with catch_signals() as signals:
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGTERM)
        assert signals.received == signal.SIGTERM
        assert signals.exit_code == 143


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_acts_at_once_behind_any_signal(first: int) -> None:
    with catch_signals() as signals:
        os.kill(os.getpid(), first)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        assert signals.received == first


def test_handlers_are_put_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with catch_signals():
        os.kill(os.getpid(), signal.SIGTERM)
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
