"""Copy generated tables into the pages of the documentation.

A page holds `<!-- table: PATH -->` … `<!-- end table -->`; the text between is replaced by the file at PATH, relative to
the root of the project. `<!-- table: PATH METRIC -->` takes the table of one metric. `--check` changes nothing and exits with code 1 if a page is out of date.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"(<!-- table: (?P<path>\S+)(?P<metric> \w+)? -->\n).*?(?P<end><!-- end table -->)", re.DOTALL)


def filled(text: str) -> str:
    """Return a page with its tables filled in."""

    def table(match: re.Match[str]) -> str:
        path = ROOT / match["path"]
        if not path.is_file():
            sys.exit(f"a page shows {match['path']}, which does not exist")
        body = path.read_text(encoding="utf-8").strip()
        if match["metric"]:
            blocks = body.split("\n\n")  # a line that names the metric, its table, and so on
            first = next(i for i, block in enumerate(blocks) if block.startswith(match["metric"].strip() + " ("))
            body = "\n\n".join(blocks[first : first + 2])
        return f"{match[1]}{body}\n{match['end']}"

    return BLOCK.sub(table, text)


def main(arguments: list[str]) -> int:
    check = "--check" in arguments
    stale = []
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        old = page.read_text(encoding="utf-8")
        new = filled(old)
        if new != old:
            stale.append(str(page.relative_to(ROOT)))
            if not check:
                page.write_text(new, encoding="utf-8")
    if stale:
        print("out of date:" if check else "filled:", ", ".join(stale))
    return 1 if stale and check else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
