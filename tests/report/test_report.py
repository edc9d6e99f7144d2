"""The page: whole, offline, escaped, deterministic, and clear about broken folders."""

import base64
import json
import os
import shutil
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

import unforced
from unforced.errors import InputError
from unforced.experiments.summary import summarize
from unforced.reports.examples import png, read_picture
from unforced.reports.page import measured, write_report, write_tables
from unforced.reports.runs import read_run, read_runs

Make = Callable[..., Path]

VOID = {"meta", "img", "br", "hr", "link", "input"}


class Page(HTMLParser):
    """Collects tags and text, and checks that tags nest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


@pytest.fixture
def runs(make_run: Make) -> list[Path]:
    return [
        make_run(variant, seed, error=error, objective=variant)
        for variant, error in [("cross_entropy", 0.4), ("label_smoothing", 0.1)]
        for seed in (1, 2)
    ]


def test_the_page_has_every_part(runs: list[Path], tmp_path: Path) -> None:
    page = Page(write_report(runs, tmp_path / "report.html").read_text())
    for words in (
        "A toy comparison", "cross_entropy (baseline)", "error (lower is better)", "What differs", "objective.name",
        "Learning curves", "Example outputs", "too long 2", "2.13.0", "unforced report", "wrong / all × 100",
    ):  # fmt: skip
        assert words in page.text, words
    assert page.count("svg") == 2
    assert page.count("mark") > 2
    assert "training NLL per token" in page.text
    assert "development error" in page.text


def test_the_page_loads_nothing(runs: list[Path], tmp_path: Path) -> None:
    text = write_report(runs, tmp_path / "report.html").read_text()
    page = Page(text)
    assert "http://" not in text
    assert "https://" not in text
    assert "url(" not in text.replace("url(#", "")
    assert "@import" not in text
    assert page.count("script") == page.count("link") == page.count("iframe") == 0
    sources = [attributes.get("src") for _, attributes in page.tags if "src" in attributes]
    assert all(source is not None and source.startswith("data:") for source in sources)


def test_ids_are_unique_and_references_meet_them(runs: list[Path], tmp_path: Path) -> None:
    page = Page(write_report(runs, tmp_path / "report.html").read_text())
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    hrefs = {a["xlink:href"] for _, a in page.tags if a.get("xlink:href")}
    assert hrefs
    assert {str(href).removeprefix("#") for href in hrefs} <= set(ids)


def test_the_same_runs_give_the_same_bytes(runs: list[Path], tmp_path: Path) -> None:
    first = write_report(runs, tmp_path / "a.html").read_bytes()
    code = "import sys; from pathlib import Path; from unforced.reports.page import write_report; write_report([Path(p) for p in sys.argv[2:]], Path(sys.argv[1])); assert 'torch' not in sys.modules"
    command = [sys.executable, "-c", code, str(tmp_path / "b.html"), *map(str, runs)]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONHASHSEED": "7"})
    assert (tmp_path / "b.html").read_bytes() == first


def test_nothing_of_the_runs_becomes_markup(make_run: Make, tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>"
    runs = [
        make_run(
            f"v{i}<b>$x$",
            1,
            outputs=lambda _, wrong: f"{evil} {wrong}",
            answers=lambda _: [f"{evil} gold"],
            source=lambda _: "<img src=x onerror=alert(1)>",
            info={"versions": {"<i>": "<u>"}, "name": "toy"},
        )
        for i in range(2)
    ]
    text = write_report(runs, tmp_path / "report.html").read_text()
    page = Page(text)
    assert page.count("script") == page.count("u") == page.count("b") == 0
    assert "<script>alert(1)</script>" in page.text
    assert "<img src=x onerror=alert(1)>" in page.text
    assert "v0<b>$x$" in page.text


def test_scores_are_means_over_seeds(runs: list[Path], tmp_path: Path) -> None:
    values = [json.loads((run / "scores/test-beam.json").read_text())["metrics"]["error"]["score"] for run in runs]
    page = Page(write_report(runs, tmp_path / "report.html").read_text())
    for first in (0, 2):
        mean, sd = np.mean(values[first : first + 2]), np.std(values[first : first + 2], ddof=1)
        assert f"{mean:.2f} ± {sd:.2f}" in page.text


def test_losses_of_different_methods_are_not_called_comparable(make_run: Make, tmp_path: Path) -> None:
    runs = [make_run("a", 1), make_run("b", 1, nll=False)]
    page = Page(write_report(runs, tmp_path / "report.html").read_text())
    assert "training loss (of each method)" in page.text


def test_what_objectives_measured_is_told(make_run: Make, tmp_path: Path) -> None:
    """At the end of training, the mean over seeds, for those variants that measure it."""
    runs = [make_run("plain", 1), make_run("near", 1), make_run("near", 2)]
    for run, moved in zip(runs[1:], (0.25, 0.5)):
        lines = (run / "metrics.jsonl").read_text().splitlines()
        events = [json.loads(line) for line in lines]
        for event in events:
            if event["kind"] == "train":
                event |= {"moved": moved if event["step"] == 100 else 9.0, "seconds": 3.0}
        (run / "metrics.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    read = [read_run(run) for run in runs]
    assert measured(read, ["plain", "near"]) == (["moved"], [["plain", "–"], ["near", "0.375"]])
    assert measured(read[:1], ["plain"]) is None
    page = write_report(runs, tmp_path / "page.html").read_text()
    assert "What the objectives measured" in page
    assert ">0.375<" in page


def test_a_run_without_scores_still_has_curves(make_run: Make, tmp_path: Path) -> None:
    page = Page(write_report([make_run("a", 1, finished=False)], tmp_path / "report.html").read_text())
    assert "No run has been evaluated yet." in page.text
    assert page.count("svg") == 2
    assert any(attributes.get("http-equiv") == "refresh" for _, attributes in page.tags)


def test_a_folder_stands_for_the_runs_in_it(runs: list[Path], tmp_path: Path) -> None:
    page = Page(write_report([runs[0].parent], tmp_path / "report.html").read_text())
    assert "2 variants, 4 runs" in page.text


def test_runs_of_one_name_are_told_apart_by_their_folders(make_run: Make, tmp_path: Path) -> None:
    first = make_run("a", 1)
    second = first.rename(first.with_name("kept"))
    page = Page(write_report([make_run("a", 1), second], tmp_path / "report.html").read_text())
    assert "a-1 (baseline), kept" in page.text.replace(" ,", ",")


@pytest.mark.parametrize("shape", [(4, 4), (4, 4, 3), (3, 4, 4)])
def test_pictures_are_drawn(make_run: Make, tmp_path: Path, shape: tuple[int, ...]) -> None:
    def picture(i: int, wrong: bool) -> str:
        return json.dumps(np.random.default_rng(i + wrong).integers(0, 16, size=shape).tolist())

    runs = [make_run(variant, 1, outputs=picture, answers=lambda i: [picture(i, False)]) for variant in ("a", "b")]
    page = Page(write_report(runs, tmp_path / "report.html").read_text())
    images = [attributes for tag, attributes in page.tags if tag == "img"]
    assert [image["alt"] for image in images] == ["outputs of reference", "outputs of a", "outputs of b"] * 2
    data = base64.b64decode(str(images[0]["src"]).partition(",")[2])
    width, height, depth, kind = struct.unpack(">IIBB", data[16:26])
    assert (width, height, depth, kind) == (8 * 5 - 1, 5 * 5 - 1, 8, 2 if len(shape) == 3 else 0)


def test_png_holds_the_pixels() -> None:
    pixels = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    data = png(pixels)
    (length,) = struct.unpack(">I", data[33:37])
    rows = np.frombuffer(zlib.decompress(data[41 : 41 + length]), dtype=np.uint8).reshape(2, 13)
    assert (rows[:, 0] == 0).all()
    assert (rows[:, 1:] == pixels.reshape(2, 12)).all()
    (crc,) = struct.unpack(">I", data[41 + length : 45 + length])
    assert crc == zlib.crc32(data[37 : 41 + length])


@pytest.mark.parametrize("text", ["[[1, 2], [3]]", "[[", '[["a"]]', "[[[1, 2], [3, 4]]]x", "[[NaN]]", "[[]]"])
def test_other_arrays_are_no_pictures(text: str) -> None:
    assert read_picture(text) is None


def test_no_runs_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no run"):
        write_report([], tmp_path / "report.html")


def test_other_files_are_not_written_over(make_run: Make, tmp_path: Path) -> None:
    """A report may take the place of a report, and of nothing else."""
    run = make_run("a", 1)
    for name in ("page.html", "tables.md"):
        path = tmp_path / name
        for _ in range(2):
            unforced.report(run, output=path)
        assert path.stat().st_size > 100
        path.write_text("mine")
        with pytest.raises(InputError, match=f"{name}: is there already and is no report"):
            unforced.report(run, output=path)
        assert path.read_text() == "mine"


def test_there_are_no_tables_without_scores(make_run: Make, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a-1: has no scores yet, so there are no tables"):
        unforced.report(make_run("a", 1, decoders=()), output=tmp_path / "tables.md")
    assert not (tmp_path / "tables.md").exists()


def spoil(run: Path, name: str, text: str | None) -> None:
    if text is None:
        (run / name).unlink()
    else:
        (run / name).write_text(text)


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("run.json", None, "not a run folder"),
        ("run.json", "{", "run.json:1: is not JSON"),
        ("run.json", "[]", "run.json: is not a table"),
        ("run.json", '{"name": "toy", "variant": "a"}', 'run.json: has no "seed"'),
        ("run.json", '{"name": "toy", "variant": "a", "seed": "1"}', "seed.*wrong type"),
        ("recipe.toml", None, "has no recipe.toml"),
        ("recipe.toml", "a = ", "recipe.toml: is not TOML"),
        ("metrics.jsonl", '{"kind": "train", "step": 1}\n{"kind": \n', "metrics.jsonl:2: is not JSON"),
        ("metrics.jsonl", '{"kind": "train", "step": 1}\n{"kind": "train"}\n', 'metrics.jsonl:2: has no "step"'),
        ("metrics.jsonl", "7\n", "metrics.jsonl:1: is not a table"),
        ("best.json", "{}", 'best.json: has no "metric"'),
        ("finished.json", "{}", 'finished.json: has no "steps"'),
        ("scores/test-beam.json", "{}", 'test-beam.json: has no "split"'),
        ("scores/test-beam.json", '{"split": "test", "decoder": "beam", "metrics": {"e": 3}}', "e: is not a table"),
        ("predictions/test-beam.jsonl", None, "has no predictions/test-beam.jsonl"),
        ("predictions/test-beam.jsonl", "{}\n", 'test-beam.jsonl:1: has no "id"'),
    ],
)  # fmt: skip
def test_broken_folders_are_refused_by_file_and_line(
    make_run: Make, tmp_path: Path, name: str, text: str | None, says: str
) -> None:
    run = make_run("a", 1)
    spoil(run, name, text)
    output = tmp_path / "report.html"
    with pytest.raises(InputError, match=says):
        write_report([run], output)
    assert not output.exists()


def test_several_comparisons_have_a_section_each(runs: list[Path], tmp_path: Path) -> None:
    """Two comparisons on one page: two headings, two tables, and no id twice."""
    folders = []
    for name, mine in (("first", runs[:2]), ("second", runs[2:])):
        folder = tmp_path / name
        folder.mkdir()
        for run in mine:
            shutil.copytree(run, folder / run.name)
        found, _ = read_runs([folder / run.name for run in mine])
        comparison = summarize(found, name=name, description="", command=f"unforced compare {name}")
        (folder / "comparison.json").write_text(comparison.to_json())
        folders.append(folder)
    page = write_report(folders, tmp_path / "page.html").read_text()
    assert [page.count(f"<h1>{name}</h1>") for name in ("first", "second")] == [1, 1]
    assert Page(page).text.count("How to reproduce") == 2
    ids = [attributes["id"] for _, attributes in Page(page).tags if "id" in attributes]
    assert len(ids) == len(set(ids)) > 0
    both, one = (write_tables(folders[:n], tmp_path / "tables.md").read_text() for n in (2, 1))
    assert both.count("| variant |") == 2 * one.count("| variant |") > 0
