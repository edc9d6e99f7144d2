"""Data sets are found under UNFORCED_DATA; a missing one says where it comes from and how to place it."""

import pytest

from unforced.errors import InputError
from unforced.tasks import datasets


@pytest.mark.parametrize("value", [None, "", "elsewhere"])
def test_missing_data_sets_name_the_remedy(monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    if value is None:
        monkeypatch.delenv("UNFORCED_DATA", raising=False)
    else:
        monkeypatch.setenv("UNFORCED_DATA", value)
    for entry in datasets.DATASETS.values():
        with pytest.raises(InputError) as caught:
            datasets.find(entry.folder, entry.files[0])
        message = str(caught.value)
        for part in (entry.title, entry.origin, entry.licence, entry.files[0], entry.folder, "UNFORCED_DATA"):
            assert part in message
    assert all(a.missing == a.dataset.files for a in datasets.available())
