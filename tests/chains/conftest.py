"""The folders of masked models that several tests read."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from masked_folders import conditional_run, huggingface_folder, language_run, palindrome_run


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("masked")
    language_run(folder)
    language_run(folder, "bpe")
    palindrome_run(folder)
    conditional_run(folder)
    huggingface_folder(folder / "bert")
    yield folder
    shutil.rmtree(folder)
