"""The command line: thin commands over `unforced.api`, which is imported only by the commands that need it.

Invalid input prints a one-line error and exits with code 2.
"""

import os
import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError, Parameter

from unforced import __version__
from unforced.cli.energy import sample, score
from unforced.cli.inspect import data, list_, plot, show
from unforced.cli.train import compare, decode, evaluate, report, train
from unforced.errors import InputError, plain_warnings

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
for command in (train, evaluate, decode, score, sample, compare, report, show, plot, data):
    app.command(command)
app.command(list_, name="list")
app.register_install_completion_command(help="Install completion for the shell in use.")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code."""
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
        except BrokenPipeError:  # nothing more can be written, not even at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 141
        except OSError as error:
            print_error(error)
            return 1


def print_error(error: Exception) -> None:
    print(f"unforced: {' '.join(str(error).split())}", file=sys.stderr)
