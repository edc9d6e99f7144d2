"""All tests of this folder run in one worker of pytest-xdist (``--dist loadgroup``): importing transformers is slow."""

from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("huggingface"))
