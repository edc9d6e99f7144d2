"""Copy generated tables into hand-written pages, so that no figure is ever typed.

A page holds `<!-- table: PATH -->` … `<!-- end table -->`; what stands between is replaced by the file at PATH (from the
project's root). `--check` changes nothing and exits 1 where a page is out of date.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = ["README.md", *(str(p.relative_to(ROOT)) for p in sorted((ROOT / "docs").glob("*.md")))]
BLOCK = re.compile(r"(<!-- table: (?P<path>\S+) -->\n)(?P<body>.*?)(<!-- end table -->)", re.DOTALL)


def filled(text: str) -> str:
    def table(match: re.Match[str]) -> str:
        if not (ROOT / match["path"]).is_file():
            sys.exit(f"a page shows {match['path']}, which is not there")
        body = (ROOT / match["path"]).read_text(encoding="utf-8").strip()
        return f"{match[1]}{body}\n{match[4]}"

    return BLOCK.sub(table, text)


def main(arguments: list[str]) -> int:
    stale = []
    for page in PAGES:
        path = ROOT / page
        old = path.read_text(encoding="utf-8")
        new = filled(old)
        if new != old:
            stale.append(page)
            if "--check" not in arguments:
                path.write_text(new, encoding="utf-8")
    if stale:
        print(("out of date: " if "--check" in arguments else "filled: ") + ", ".join(stale))
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
