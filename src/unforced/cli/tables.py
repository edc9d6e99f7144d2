"""What a command prints as a table."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A table for people on a terminal; lines of cells with tabs between them for programs."""
    if not sys.stdout.isatty():
        for row in rows:
            print(*row, sep="\t")
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table(*header, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        grid.add_row(*(Text(str(cell)) for cell in row))
    Console().print(grid)
