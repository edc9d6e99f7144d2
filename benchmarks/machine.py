"""What the figures were taken on."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("unforced", "torch", "accelerate", "transformers", "tokenizers", "numpy")


def cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor() -> str:
    """The processor's name, as the system gives it."""
    names = Path("/proc/cpuinfo")
    if names.is_file():
        for line in names.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def load() -> float | None:
    """The average number of running processes during the last minute: well above zero means a busy machine."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def describe(threads: int) -> dict[str, Any]:
    """The machine, its versions and the number of threads each side gets."""
    return {
        "processor": processor(),
        "cores": cores(),
        "threads": threads,
        "load_at_start": load(),
        "system": platform.platform(terse=True),
        "versions": versions(),
    }
