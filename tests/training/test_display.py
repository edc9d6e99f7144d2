import io

import pytest
from rich.console import Console

from unforced.training.progress import Display


@pytest.mark.parametrize(
    ("quiet", "terminal", "bars", "lines"),
    [(False, True, True, {"said"}), (False, False, False, {"said", "logged"}), (True, True, False, set())],
)
def test_bars_on_terminals_lines_elsewhere_silence_when_quiet(quiet, terminal, bars, lines) -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=120, _environ={})
    with Display(quiet, console) as display:
        bar = display.bar("training", total=8)
        bar.move(5, "loss 1.25")
        display.say("said [1]")
        display.log("logged")
    text = file.getvalue()
    assert ("5/8" in text and "loss 1.25" in text) == bars
    assert {word for word in ("said", "logged") if word in text} == lines
    assert "said [1]" in text or quiet
