"""Copy generated tables and tested code into the pages of the documentation.

    python tools/fill_tables.py [--check]

The text between `<!-- table: PATH -->` and `<!-- end table -->` is replaced by the file at PATH, relative to the root
of the project. `<!-- table: PATH METRIC -->` copies the table of one metric, `<!-- table: PATH METRIC DECODER,… -->`
its rows of some decoders. `<!-- code: PATH -->` … `<!-- end code -->` shows a source file. `--check` changes nothing
and exits with code 1 if a page is out of date.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(
    r"(<!-- (?P<kind>table|code): (?P<path>\S+)(?: (?P<metric>\w+))?(?: (?P<decoders>[\w,]+))? -->\n)"
    r".*?(?P<end><!-- end (?P=kind) -->)",
    re.DOTALL,
)


def filled(text: str) -> str:
    """Return a page with its tables and code filled in."""

    def block(match: re.Match[str]) -> str:
        path = ROOT / match["path"]
        if not path.is_file():
            sys.exit(f"{match['path']} does not exist, but a page shows it")
        body = path.read_text(encoding="utf-8").strip()
        if match["metric"]:
            blocks = body.split("\n\n")  # a line that names the metric, its table, and so on
            first = next(i for i, block in enumerate(blocks) if block.startswith(match["metric"] + " ("))
            body = "\n\n".join(blocks[first : first + 2])
        if match["decoders"]:
            title, _, head, rule, *rows = body.splitlines()
            rows = [row for row in rows if row.split(" | ")[1] in match["decoders"].split(",")]
            if not rows:
                sys.exit(f"{match['path']} has no row of {match['decoders']}")
            body = "\n".join([title, "", head, rule, *rows])
        if match["kind"] == "code":
            body = f"```{'toml' if path.suffix == '.toml' else 'python'}\n{body}\n```"
        return f"{match[1]}{body}\n{match['end']}"

    return BLOCK.sub(block, text)


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
