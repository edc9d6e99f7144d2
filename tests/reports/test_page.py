"""The report page: complete, offline, escaped and deterministic."""

import base64
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import unforced
from unforced.errors import InputError
from unforced.experiments.comparison import RunState
from unforced.experiments.runs import Run, read_comparison_folder, read_runs
from unforced.experiments.statistics import summarize
from unforced.reports.examples import read_image
from unforced.reports.page import objective_metrics, write_comparison_page, write_report
from unforced.training.run_folder import RunFolder

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

    @property
    def ids(self) -> list[str]:
        return [str(attributes["id"]) for _, attributes in self.tags if "id" in attributes]


@pytest.fixture
def runs(make_run: Make) -> list[Path]:
    return [
        make_run(variant, seed, error=error, objective=variant)
        for variant, error in [("cross_entropy", 0.4), ("label_smoothing", 0.1)]
        for seed in (1, 2)
    ]


def test_the_page_is_complete_offline_and_deterministic(runs: list[Path], tmp_path: Path) -> None:
    text = write_report(runs, tmp_path / "report.html").read_text()
    page = Page(text)
    values = [json.loads((run / "scores/test-beam.json").read_text())["metrics"]["error"]["score"] for run in runs]
    scores = [f"{np.mean(each):.2f} ± {np.std(each, ddof=1):.2f}" for each in (values[:2], values[2:])]
    for words in (
        "A toy comparison", "cross_entropy (baseline)", "error (lower is better)", "Settings that differ",
        "objective.name", "Learning curves", "Example outputs", "too long 2", "2.13.0", "unforced report",
        "wrong / all × 100", "training NLL per token", "development error", "2 variants, 4 runs", *scores,
    ):  # fmt: skip
        assert words in page.text, words
    assert page.count("svg") == 2
    assert page.count("mark") > 2
    # nothing is loaded
    for words in ("http://", "https://", "@import"):
        assert words not in text
    assert "url(" not in text.replace("url(#", "")
    assert page.count("script") == page.count("link") == page.count("iframe") == 0
    assert all(str(attributes["src"]).startswith("data:") for _, attributes in page.tags if "src" in attributes)
    # ids are unique, and references exist
    assert len(page.ids) == len(set(page.ids))
    references = {str(a["xlink:href"]).removeprefix("#") for _, a in page.tags if a.get("xlink:href")}
    assert references
    assert references <= set(page.ids)
    # a folder stands for the runs in it, another process writes the same bytes, and none needs torch
    code = (
        "import sys; from pathlib import Path; from unforced.reports.page import write_report; "
        "write_report([Path(p) for p in sys.argv[2:]], Path(sys.argv[1])); assert 'torch' not in sys.modules"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "b.html"), *map(str, runs)]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONHASHSEED": "7"})
    assert (tmp_path / "b.html").read_text() == text
    assert Page(write_report([runs[0].parent], tmp_path / "c.html").read_text()).text.count("2 variants, 4 runs") == 1


def test_texts_of_runs_are_escaped(make_run: Make, tmp_path: Path) -> None:
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
    page = Page(write_report(runs, tmp_path / "report.html").read_text())
    assert page.count("script") == page.count("u") == page.count("b") == 0
    for words in ("<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "v0<b>$x$"):
        assert words in page.text


def test_metrics_of_objectives_are_means_over_seeds(make_run: Make, tmp_path: Path) -> None:
    runs = [make_run("plain", 1, nll=False), make_run("near", 1), make_run("near", 2)]
    for run, moved in zip(runs[1:], (0.25, 0.5)):
        lines = (run / "metrics.jsonl").read_text().splitlines()
        events = [json.loads(line) for line in lines]
        for event in events:
            if event["kind"] == "train":
                event |= {"moved": moved if event["step"] == 100 else 9.0, "seconds": 3.0}
        (run / "metrics.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    read = [Run(run) for run in runs]
    table = objective_metrics(read, ["plain", "near"])
    assert (table.header, table.rows) == (("variant", "moved"), (("plain", "–"), ("near", "0.375")))
    assert objective_metrics(read[:1], ["plain"]).rows == ()
    page = write_report(runs, tmp_path / "page.html").read_text()
    assert "Metrics of the objectives" in page
    assert ">0.375<" in page
    assert "training loss (of each method)" in page  # not every objective logs its NLL


def test_a_run_without_scores_has_curves_and_no_tables(make_run: Make, tmp_path: Path) -> None:
    """A lock that a process holds marks a run as running. Only `compare` writes pages that reload."""
    run = make_run("a", 1, finished=False)
    page = Page(write_report([run], tmp_path / "report.html").read_text())
    assert "No run has been evaluated yet." in page.text
    assert "Unfinished runs: 1 interrupted." in page.text
    assert page.count("svg") == 2
    with RunFolder(run).writing(resume=True):
        page = Page(write_report([run], tmp_path / "report.html").read_text())
    assert "Unfinished runs: 1 running." in page.text
    assert not any(attributes.get("http-equiv") == "refresh" for _, attributes in page.tags)
    comparison = summarize([Run(run)], name="toy")
    assert 'http-equiv="refresh"' in write_comparison_page(tmp_path, comparison, [Run(run)], running=True).read_text()
    with pytest.raises(InputError, match="toy has no scores to tabulate"):
        unforced.report(run, output=tmp_path / "tables.md")
    assert not (tmp_path / "tables.md").exists()


def test_an_old_comparison_file_does_not_say_that_runs_are_running(make_run: Make) -> None:
    runs = [make_run("a", 1), make_run("b", 1, finished=False)]
    folder = runs[0].parent
    states = [
        RunState(name, 1, f"{name}-1", state) for name, state in (("a", "finished"), ("b", "waiting"), ("c", "waiting"))
    ]
    (folder / "comparison.json").write_text(summarize([Run(runs[0])], name="toy", states=states).to_json())
    comparison, found = read_comparison_folder(folder)
    assert [run.state for run in comparison.runs] == ["finished", "interrupted", "waiting"]
    assert [run.label for run in found] == ["a", "b"]
    page = Page(write_report([folder], folder / "report.html").read_text())
    assert "Unfinished runs: 1 interrupted, 1 waiting." in page.text


def test_labels_are_unique(make_run: Make, tmp_path: Path) -> None:
    first = make_run("a", 1)
    second = first.rename(first.with_name("kept"))
    (runs,) = read_runs([make_run("a", 1), second])
    assert [run.label for run in runs] == [str(first), str(second)]
    (runs,) = read_runs([first, make_run("b", 1, info={"name": "other"})])
    assert [run.label for run in runs] == ["toy/a", "other/b"]


def test_each_task_has_its_own_comparison(make_run: Make, tmp_path: Path) -> None:
    """Runs are compared if they have one task, or were scored on the same references."""
    first = make_run("a", 1)
    same = [make_run("b", 1, task="subwords"), make_run("c", 1, finished=False)]
    other = make_run("d", 1, task="other", answers=lambda i: [f"X{i}"])
    groups = read_runs([first, other, *same])
    assert [[run.label for run in runs] for runs in groups] == [["a", "b", "c"], ["d"]]
    text = write_report([first, other, *same], tmp_path / "report.html").read_text()
    assert f"<h1>toy ({other})</h1>" in text
    assert "d (baseline)" not in Page(text).text
    tables = write_report([first, other], tmp_path / "tables.md").read_text()
    assert tables.startswith(f"## toy ({first})\n\nerror (lower is better)\n\n| variant |")
    assert f"\n## toy ({other})\n" in tables
    assert write_report([first, other], tmp_path / "tables.md").read_text() == tables


def test_variants_keep_their_colour_in_a_part_of_the_comparison(make_run: Make, tmp_path: Path) -> None:
    runs = [make_run(f"v{i}", 1, finished=False) for i in range(11)]
    text = write_report(runs, tmp_path / "report.html").read_text()
    assert text.count("--line-7: #") == 2  # light and dark
    assert "--line-8" not in text
    assert ".swatch-10 { background: repeating-linear-gradient(90deg, var(--line-2) 0em" in text
    assert 'swatch-10"></span>v10' in text
    states = [RunState(f"v{i}", 1, f"v{i}-1", "waiting") for i in range(11)]
    page = write_comparison_page(
        tmp_path, summarize([Run(runs[3])], name="toy", states=states), [Run(runs[3])]
    ).read_text()
    assert 'swatch-3"></span>v3' in page
    assert "var(--line-3)" in page[page.index("<svg") :]
    assert "var(--line-0)" not in page[page.index("<svg") :]


@pytest.mark.parametrize("shape", [(4, 4), (3, 4, 4)])
def test_image_outputs_are_shown_as_sheets(make_run: Make, tmp_path: Path, shape: tuple[int, ...]) -> None:
    def image(i: int, wrong: bool) -> str:
        return json.dumps(np.random.default_rng(i + wrong).integers(0, 16, size=shape).tolist())

    runs = [make_run(variant, 1, outputs=image, answers=lambda i: [image(i, False)]) for variant in ("a", "b")]
    page = Page(write_report(runs, tmp_path / "report.html").read_text())
    found = [attributes for tag, attributes in page.tags if tag == "img"]
    assert [each["alt"] for each in found] == ["outputs of reference", "outputs of a", "outputs of b"] * 2
    for text in ("[[1, 2], [3]]", "[[", '[["a"]]', "[[[1, 2], [3, 4]]]x", "[[]]"):
        assert read_image(text) is None
    sheet = Image.open(io.BytesIO(base64.b64decode(str(found[0]["src"]).partition(",")[2])))
    assert (sheet.size, sheet.mode) == ((8 * 5 - 1, 5 * 5 - 1), "RGB" if len(shape) == 3 else "L")
    shown = make_run("c", 1, source=lambda i: image(i, False))
    assert 'class="source-picture" src="data:image/png' in write_report([shown], tmp_path / "source.html").read_text()


def test_other_files_are_not_overwritten(make_run: Make, tmp_path: Path) -> None:
    run = make_run("a", 1)
    for name, decoders in (("page.html", 2), ("tables.md", 2), ("equal.md", 1)):
        if decoders == 1:  # scores are equal for all decoders: the table has no column for them
            shutil.copy(run / "scores/test-beam.json", run / "scores/test-greedy.json")
            greedy = (run / "scores/test-greedy.json").read_text().replace('"beam"', '"greedy"')
            (run / "scores/test-greedy.json").write_text(greedy)
        path = tmp_path / name
        for _ in range(2):
            unforced.report(run, output=path)
        assert path.stat().st_size > 100
        assert ("| variant | score |" in path.read_text()) == (decoders == 1)
        path.write_text("mine\n\n| variant | score |\n")
        with pytest.raises(InputError, match=f"{name} exists and is not a report"):
            unforced.report(run, output=path)
        assert path.read_text().startswith("mine")
    with pytest.raises(InputError, match=r"must end in \.html"):
        unforced.report(run, output=tmp_path / "page.pdf")
    with pytest.raises(InputError, match="no run to report on"):
        write_report([], tmp_path / "none.html")


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("run.json", "{", "run.json:1: is not JSON"),
        ("metrics.jsonl", '{"kind": "train", "step": 1}\n{"kind": \n', "metrics.jsonl:2: is not JSON"),
        ("predictions/test-beam.jsonl", None, "has no predictions/test-beam.jsonl"),
    ],
)
def test_broken_folders_raise(make_run: Make, tmp_path: Path, name: str, text: str | None, says: str) -> None:
    run = make_run("a", 1)
    if text is None:
        (run / name).unlink()
    else:
        (run / name).write_text(text)
    with pytest.raises(InputError, match=says):
        write_report([run], tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_several_comparisons_have_a_section_each(runs: list[Path], tmp_path: Path) -> None:
    folders = []
    for name, mine in (("first", runs[:2]), ("second", runs[2:])):
        folder = tmp_path / name
        folder.mkdir()
        for run in mine:
            shutil.copytree(run, folder / run.name)
        comparison = summarize([Run(folder / run.name) for run in mine], name=name, command=f"unforced compare {name}")
        (folder / "comparison.json").write_text(comparison.to_json())
        folders.append(folder)
    page = write_report([*folders, runs[0]], tmp_path / "page.html").read_text()
    assert [page.count(f"<h1>{name}</h1>") for name in ("first", "second", "toy")] == [1, 1, 1]
    assert Page(page).text.count("How to reproduce") == 3
    ids = Page(page).ids
    assert len(ids) == len(set(ids)) > 0
    both, one = (write_report(folders[:n], tmp_path / "tables.md").read_text() for n in (2, 1))
    assert both.count("| variant |") == 2 * one.count("| variant |") > 0
