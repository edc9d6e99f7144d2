"""Record hashes of numeric behaviour, and check that a refactoring changes none of them.

    python tools/fingerprint.py record [SECTION ...]    write the hashes into tools/fingerprint.json
    python tools/fingerprint.py check [SECTION ...]     compare with them; exit code 1 if anything differs
    python tools/fingerprint.py --list                  list the sections

The hashes cover raw bytes computed on one thread, so they hold for the processor and the library versions that
recorded them. The file is not in the repository: record it before a refactoring, and check after each step. Cases are
in tools/fingerprint.toml. They use public names only: files, modules, parameters and metrics may be moved or renamed,
the numbers may not change. What raises an ``InputError`` is recorded as "refused".
"""

import argparse
import hashlib
import json
import shutil
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fingerprint_sections import SECTIONS, folder
from torch import Tensor

import unforced

FILE = Path(__file__).with_suffix(".json")

# ---- hashes ----


def digest(value: Any) -> str:
    """Hash tensors by type, shape and bytes, lists by element, sets in any order, everything else as JSON."""
    if isinstance(value, list | tuple | set):
        elements = map(digest, value)
        content = " ".join(sorted(elements) if isinstance(value, set) else elements).encode()
    elif isinstance(value, Tensor | np.ndarray):
        tensor = torch.as_tensor(value).detach().cpu().contiguous()
        content = f"{tensor.dtype}{tuple(tensor.shape)}".encode() + tensor.flatten().view(torch.uint8).numpy().tobytes()
    else:
        content = json.dumps(value, sort_keys=True, default=str).encode()
    return hashlib.sha256(content).hexdigest()[:16]


def hashes(section: str, show: bool = False) -> dict[str, str]:
    """All entries of a section; one that fails has the error in place of a hash."""
    found: dict[str, str] = {}
    for name, compute in SECTIONS[section]():
        try:
            parts = {f"{name}, {part}": digest(value) for part, value in compute().items()}
        except unforced.InputError as error:
            parts = {name: "refused"}
            if show:
                print(f"{section}: {name} is refused: {error}")
        except Exception as error:
            parts = {name: f"failed: {type(error).__name__}: {error}"}
        for key, value in parts.items():
            same = found.setdefault(f"{section}: {key}", value) == value
            found[f"{section}: {key}"] = value if same else "failed: resumed, it differs from one piece"
    return found


def of_section(known: dict[str, str], section: str) -> dict[str, str]:
    return {name: value for name, value in known.items() if name.startswith(f"{section}: ")}


def record(sections: list[str]) -> int:
    for section in sections:
        known = json.loads(FILE.read_text()) if FILE.exists() else {}
        new = hashes(section, show=True)
        if failed := [f"  {name}: {value}" for name, value in new.items() if value.startswith("failed")]:
            print(f"{section}: not recorded", *failed, sep="\n")
            return 1
        kept = {name: value for name, value in known.items() if name not in of_section(known, section)}
        FILE.write_text(json.dumps(kept | new, indent=0, sort_keys=True) + "\n")
        print(f"{section}: {len(new)} hashes recorded")
    return 0


def check(sections: list[str]) -> int:
    known, wrong = json.loads(FILE.read_text()), 0
    for section in sections:
        began, new, old = time.perf_counter(), hashes(section), of_section(known, section)
        changed = [name for name in sorted(old | new) if old.get(name) != new.get(name)]
        verdict = f"{len(changed)} of {len(old | new)} differ" if changed else "same"
        print(f"{section}: {verdict} ({len(new)} hashes, {time.perf_counter() - began:.0f} s)")
        for name in changed:
            print(f"  {name}: {old.get(name, 'not recorded')} -> {new.get(name, 'missing')}")
        wrong += len(changed)
    return 1 if wrong else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", nargs="?", choices=["record", "check"], help="what to do")
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"any of: {', '.join(SECTIONS)}; default: all")
    parser.add_argument("--list", action="store_true", help="list the sections")
    options = parser.parse_args()
    if options.list or options.command is None:
        print("\n".join(f"{name:15} {section.__doc__}" for name, section in SECTIONS.items()))
        return 0
    if unknown := set(options.sections) - set(SECTIONS):
        parser.error(f"no section {', '.join(sorted(unknown))}; the sections are {', '.join(SECTIONS)}")
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    warnings.simplefilter("ignore")
    try:
        return (record if options.command == "record" else check)(options.sections or list(SECTIONS))
    finally:
        shutil.rmtree(folder())


if __name__ == "__main__":
    sys.exit(main())
