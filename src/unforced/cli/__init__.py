"""The command line: thin commands over `unforced.api`, which is imported only by the commands that need it.

Invalid input prints a one-line error and exits with code 2.
"""

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from cyclopts import App, CycloptsError, Parameter

from unforced import __version__
from unforced.cli.diagnose import diagnose
from unforced.cli.energy import sample, score
from unforced.cli.inspect import data, list_, plot, show
from unforced.cli.train import compare, decode, evaluate, report, train
from unforced.errors import InputError, plain_warnings, printable, write_error

app = App(
    name="unforced",
    help="Train, decode and compare sequence models beyond teacher forcing.",
    version=__version__,
    help_format="plaintext",
    exit_on_error=False,
    print_error=False,
    verbose=False,
    suppress_keyboard_interrupt=False,
    result_action="return_value",
    default_parameter=Parameter(negative=()),
)
EXAMPLES: dict[Callable[..., Any], tuple[str, ...]] = {  # printed below the help of each command
    train: (
        "unforced train g2p --run runs/first training.epochs=3 model.hidden=128",
        "unforced train pairs task.train=pairs.tsv --run runs/pairs",
    ),
    evaluate: ("unforced evaluate runs/first", "unforced evaluate runs/first --split dev --decoder beam"),
    decode: (
        'echo "unforced" | unforced decode runs/first',
        "unforced decode runs/first beam=10 --nbest 3 < words.txt",
    ),
    diagnose: (
        "unforced diagnose runs/first",
        "unforced diagnose pairs task.train=train.tsv task.dev=dev.tsv model=hf:FOLDER",
    ),
    score: (
        'echo "A dog is sleeping ." | unforced score runs/masked',
        "unforced score path/to/bert --energy raw < sentences.txt",
    ),
    sample: (
        "unforced sample runs/masked -o chains --length 12 --sweeps 100",
        "unforced sample path/to/bert -o chains --input sentences.txt --chains 4",
    ),
    compare: (
        "unforced compare streaming_g2p --jobs 2",
        "unforced compare mine.toml --variants plain,smoothed --seeds 1,2",
    ),
    report: ("unforced report runs/streaming_g2p", "unforced report runs/first runs/second --output both.html"),
    show: ("unforced show g2p training.epochs=3", "unforced show g2p --plot schedules.svg"),
    plot: ("unforced plot changes runs/streaming_g2p", "unforced plot traces chains -o traces.png"),
    list_: ("unforced list objectives", "unforced list training"),
    data: ("unforced data", "UNFORCED_DATA=~/data unforced data"),
}
for command, lines in EXAMPLES.items():
    epilogue = "Examples:\n\n" + "\n".join(f"  {line}" for line in lines)
    app.command(command, name=command.__name__.strip("_"), help_epilogue=epilogue)
app.register_install_completion_command(help="Install completion for the shell in use.")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code."""
    sys.stdin = sys.stdin or open(os.devnull, encoding="utf-8")  # noqa: SIM115 (None: closed by the caller)
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    with plain_warnings():
        try:
            code = app(sys.argv[1:] if argv is None else list(argv))
            sys.stdout.flush()
            return code if isinstance(code, int) else 0
        except (InputError, CycloptsError) as error:
            print_error(error)
            return 2
        except KeyboardInterrupt:
            return 130
        except BrokenPipeError:
            discard_output()
            return 141
        except OSError as error:
            print_error(error)
            discard_output()
            return 1


def discard_output() -> None:
    """Discard what standard output can't take, or Python would try to write it at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_error(error: Exception) -> None:
    write_error(f"unforced: {printable(' '.join(str(error).split()))}\n")
