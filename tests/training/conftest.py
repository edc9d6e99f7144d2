import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A place for run folders: in memory where the system has such a place, since runs wait for the disk a lot."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    path = Path(tempfile.mkdtemp(dir="/dev/shm", prefix="unforced-test-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(autouse=True)
def _same_threads() -> Iterator[None]:
    """Runs are compared bit for bit with those of children, which have one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
