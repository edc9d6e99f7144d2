"""``unforced sample``: chains in a folder, a report, a picture."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from masked_folders import PAIRS, VOCABULARY, all_folders, feed, huggingface_folder, palindrome_run
from safetensors.torch import load_file

from unforced import api
from unforced.chains.readers import open_model
from unforced.chains.results import ChainFolder
from unforced.cli import main
from unforced.energy import samplers
from unforced.energy.diagnostics import diagnose_chains
from unforced.energy.energies import allowed
from unforced.energy.metropolis_hastings import MetropolisHastings
from unforced.errors import InputError


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return all_folders(tmp_path_factory.getbasetemp())


@pytest.fixture(autouse=True)
def no_plots(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip plots, which take a second each, except in tests of pictures."""
    if not {"picture", "scored", "drawn"} & set(request.node.name.split("_")):
        monkeypatch.setattr("unforced.reports.traces.plot_folder", lambda folder, path=None: folder)


def samples(folder: Path) -> list[dict[str, Any]]:
    return ChainFolder(folder).samples()


def test_report_and_picture(root: Path, tmp_path: Path, capsys) -> None:
    words = ["sample", str(root / "field-0.4"), "--output", str(tmp_path / "out"), "--sweeps", "25", "--quiet"]
    assert main([*words, "--chains", "3", "--start", "random", "--energy", "raw"]) == 0
    out, err = capsys.readouterr()
    said = dict(line.split("\t") for line in out.splitlines())
    assert list(said) == [
        "acceptance", "novel transitions", "energy, mean", "energy, last", "R-hat", "effective sample size",
        "stuck chains", "chains", "picture",
    ]  # fmt: skip
    traces = ChainFolder(tmp_path / "out").traces()
    assert traces.energy.shape == (25, 3)
    found = diagnose_chains(traces, chains=3, burn_in=5)
    assert said["acceptance"] == f"{found.acceptance:.3f}"
    assert said["novel transitions"] == f"{found.novel:.3f}"
    assert said["energy, mean"] == f"{found.energy:.3f}"
    assert said["R-hat"] == f"{found.worst_rhat:.3f}"
    assert said["effective sample size"] == f"{found.least_ess:.0f}"
    assert "1 of 1 examples have R-hat above 1.01 or an effective sample size below 400" in err
    picture = (tmp_path / "out" / "traces.svg").read_text()
    for word in ("chain 3", "acceptance", "novel transitions", "energy", "sweeps"):
        assert f"<!-- {word} -->" in picture, word
    outputs = {row["output"] for row in samples(tmp_path / "out")}
    assert all(len(output) == 4 and set(output) <= set("abc") for output in outputs)
    assert len(outputs) > 3
    # energies of the samples
    last = [row for row in samples(tmp_path / "out") if row["sweep"] == 25]
    scores = api.score(root / "field-0.4", [row["output"] for row in last])
    assert [row["energy"] for row in last] == pytest.approx([score.energy_raw for score in scores], abs=1e-4)


def test_json_report_and_picture_drawn_again(root: Path, tmp_path: Path, capsys) -> None:
    words = ["sample", str(root / "field-0.4"), "-o", str(tmp_path / "out"), "--sweeps", "8", "--quiet", "--json"]
    assert main(words) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["examples"] == 1
    assert report["chains"] == 4
    assert report["folder"] == str(tmp_path / "out")
    assert 0 <= report["novel_transitions"] <= report["acceptance"] <= 1
    picture = tmp_path / "again.svg"
    assert main(["plot", "traces", str(tmp_path / "out"), "-o", str(picture)]) == 0
    assert "<!-- acceptance -->" in picture.read_text()
    drawn = tmp_path / "out" / "traces.svg"
    before = drawn.read_bytes()
    drawn.unlink()
    assert main(["plot", "traces", str(tmp_path / "out")]) == 0
    assert drawn.read_bytes() == before  # with its burn-in


def test_forced_and_annealed_chains(root: Path, tmp_path: Path, capsys) -> None:
    words = ["sample", str(root / "field-0.4"), "--sweeps", "12", "--quiet", "--forced", "6", "--energy", "raw"]
    assert main([*words, "-o", str(tmp_path / "forced"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    traces = ChainFolder(tmp_path / "forced").traces()
    assert (traces.accepted == traces.proposed)[:6].all()
    share = traces.accepted[6:].sum() / traces.proposed[6:].sum()
    assert report["acceptance"] == pytest.approx(float(share))
    assert report["rhat"] > 0
    assert main([*words, "-o", str(tmp_path / "forced"), "--resume", "--burn-in", "2"]) == 0
    assert "4 of the 6 forced sweeps are not left out" in capsys.readouterr().err
    assert main([*words, "-o", str(tmp_path / "annealed"), "--anneal", "0.1"]) == 0
    out, err = capsys.readouterr()
    assert "R-hat, effective sample size\tnot defined for an annealed target" in out
    assert "run more sweeps" not in err


def test_a_failed_start_leaves_no_folder(root: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    words = ["sample", str(root / "field-0.4"), "--sweeps", "3", "--quiet", "-o", str(tmp_path / "out")]
    with monkeypatch.context() as patch:
        patch.setattr(samplers.Walk, "propose", refuse)
        assert main(words) == 2
    assert "scores are odd" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert main(words) == 0


def refuse(*_: Any) -> None:
    raise InputError("scores are odd")


@pytest.mark.parametrize(
    "options",
    [
        ["--kernel", "gibbs", "--energy", "raw", "--temperature", "0.8", "--nucleus", "0.9", "--block", "2"],
        ["--shrink", "4", "--order", "left_to_right", "--anneal", "0.1", "--lowest", "0.5", "--forced", "2"],
        ["--target-temperature", "0.9", "--start", "data", "--examples", "3", "--split", "dev"],
    ],
)  # fmt: skip
def test_options_reach_the_kernel(options: list[str], root: Path, tmp_path: Path, capsys) -> None:
    words = ["sample", str(root / "masked-words"), "-o", str(tmp_path / "out"), "--sweeps", "6", "--quiet"]
    length = [] if "--split" in options else ["--length", "3"]
    assert main([*words, *length, *options]) == 0
    facts = ChainFolder(tmp_path / "out").info()["facts"]
    assert facts["kernel"] == ("Gibbs" if "gibbs" in options else "MetropolisHastings")
    named = {"--target-temperature": "target"}
    for option, value in zip(options[::2], options[1::2]):
        if option not in ("--kernel", "--split", "--examples"):
            assert str(facts[named.get(option, option.removeprefix("--"))]) == value, option


def test_stuck_chains(tmp_path: Path, capsys) -> None:
    """With huge weights, chains rarely move."""
    model = palindrome_run(tmp_path, scale=30.0)
    words = ["sample", str(model), "-o", str(tmp_path / "out"), "--sweeps", "30", "--quiet"]
    assert main([*words, "--target-temperature", "0.06", "--lowest", "0.05"]) == 0
    out, err = capsys.readouterr()
    assert "stuck chains\t4 of 4" in out
    assert "stuck chains (example.chain): 1.1, 1.2, 1.3, 1.4" in err
    assert main([*words, "--target-temperature", "0.06", "--lowest", "0.05", "--json", "--resume"]) == 0
    report = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)  # no NaN: all chains are at one place
    assert report["rhat"] is None
    assert report["stuck"] == [[0, 0], [0, 1], [0, 2], [0, 3]]


def test_sources_from_lines(root: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    folder, model = tmp_path / "out", str(root / "conditional")
    words = ["sample", model, "--sweeps", "3", "--chains", "2", "--quiet", "--input", "-"]
    feed(monkeypatch, "ab\nbbb\n")
    assert main([*words, "-o", str(folder)]) == 0
    rows = samples(folder)
    assert {(row["example"], row["chain"]) for row in rows} == {(0, 0), (0, 1), (1, 0), (1, 1)}
    reader = open_model(model)
    guessed = (reader.model.length_scores(reader.sources(["ab", "bbb"])).argmax(dim=1) + 1).tolist()
    assert {(row["example"], len(row["output"].split())) for row in rows} == set(enumerate(guessed))
    feed(monkeypatch, "ab\nbbb\n")
    assert main([*words, "-o", str(tmp_path / "two"), "--length", "2", "--examples", "1"]) == 0
    assert {len(row["output"].split()) for row in samples(tmp_path / "two")} == {2}
    assert {row["example"] for row in samples(tmp_path / "two")} == {0}
    pairs = tmp_path / "pairs.txt"
    pairs.write_text("".join(f"{source}\t{target}\n" for source, target in PAIRS[:3]))
    given = [*words[:-1], str(pairs), "--start", "data"]
    assert main([*given, "-o", str(tmp_path / "data")]) == 0
    lengths = {(row["example"], len(row["output"].split())) for row in samples(tmp_path / "data")}
    assert lengths == {(0, 2), (1, 2), (2, 3)}
    capsys.readouterr()


def test_outputs_with_references_are_scored(root: Path, tmp_path: Path, capsys) -> None:
    folder, run = tmp_path / "out", ["sample", str(root / "conditional"), "-o", str(tmp_path / "out")]
    assert main([*run, "--split", "train", "--examples", "6", "--sweeps", "6", "--chains", "2", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)["scores"]
    metrics = [metric.name for metric in open_model(root / "conditional").metrics()]
    assert list(said) == metrics
    scores = json.loads((folder / "scores.json").read_text())
    name = metrics[0]
    assert [sweep for sweep, _ in scores[name]] == [1, 2, 3, 4, 5, 6]
    assert said[name]["last"] == scores[name][-1][1]
    assert said[name]["mean"] == pytest.approx(sum(score for _, score in scores[name][1:]) / 5)
    lines = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    metric = open_model(root / "conditional").metrics()[0]
    by_chain = []
    for chain in range(2):
        outputs = [line["output"] for line in lines if line["sweep"] == 6 and line["chain"] == chain]
        answers = [(target,) for _, target in PAIRS]
        by_chain.append(float(metric.score(metric.statistics(outputs, answers).sum(axis=0))))
    assert scores[name][-1][1] == pytest.approx(sum(by_chain) / 2)
    assert main(["plot", "traces", str(folder), "--output", str(tmp_path / "again.svg")]) == 0
    assert name in (tmp_path / "again.svg").read_text()
    assert main([*run, "--sweeps", "2"]) == 2  # the folder has chains


def test_hugging_face_folder(root: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    words = ["sample", str(root / "bert"), "--sweeps", "4", "--chains", "2", "--quiet"]
    assert main([*words, "-o", str(tmp_path / "length"), "--length", "3", "--start", "random"]) == 0
    feed(monkeypatch, "the cat sleeps\ndogs\n")
    assert main([*words, "-o", str(tmp_path / "data"), "--input", "-", "--start", "data"]) == 0
    reader = open_model(root / "bert")
    for name in ("length", "data"):
        state = sorted((tmp_path / name / "checkpoints").iterdir())[-1]
        tokens = load_file(state / "model.safetensors")["tokens"]
        assert int(tokens[0, 0]) == 2  # [CLS] stays where it is
        inner = tokens[0, 1 : 4 if name == "length" else 5]
        assert bool((inner > 4).all())  # and no special token is ever proposed
        last = [row for row in samples(tmp_path / name) if row["sweep"] == 4]
        assert last[0]["output"] == reader.show(inner.tolist())
    capsys.readouterr()


@pytest.mark.parametrize(
    ("name", "options", "complaint"),
    [
        ("bert", [], "has no data: pass sentences (--input) or a length (--length)"),
        ("bert", ["--length", "50"], "accepts at most 32 tokens"),
        ("bert", ["--length", "3", "--examples", "2"], "have no separate examples"),
        ("bert", ["--length", "3", "--input", "blank.txt"], "the sentences set the lengths"),
        ("bert", ["--length", "3", "--start", "data"], "start=data uses the lengths of the data"),
        ("bert", ["--input", "absent.txt"], "absent.txt: cannot be read: No such file or directory"),
        ("bert", ["--input", "blank.txt"], "line 2: the line is blank"),
        ("field-0.4", ["--length", "7"], "its outputs have 4 tokens, not 7"),
        ("masked-words", ["--kernel", "gibbs", "--anneal", "0.1"], "gibbs.anneal: no such key"),
        ("masked-words", ["--length", "0"], "length must be at least 1"),
        ("masked-words", ["--burn-in", "3"], "burn_in must be below sweeps, 3, got 3"),
        ("masked-words", ["--checkpoint", "lsat"], 'has no checkpoint "lsat"'),
        ("masked-words", ["--input", "empty.txt"], "the input has no lines"),
    ],
)
def test_invalid_input(
    name: str, options: list[str], complaint: str, root: Path, tmp_path: Path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "blank.txt").write_text("the cat\n\n")
    sweeps = [] if "--sweeps" in options else ["--sweeps", "3"]
    assert main(["sample", str(root / name), "-o", "out", "--quiet", *sweeps, *options]) == 2
    out, err = capsys.readouterr()
    assert complaint in err
    assert err.count("\n") == 1
    assert out == ""
    assert sorted(os.listdir(tmp_path)) == ["blank.txt", "empty.txt"]


def test_banned_tokens_are_never_sampled(root: Path, tmp_path: Path, capsys) -> None:
    words = ["sample", str(root / "bert"), "--length", "4", "--sweeps", "6", "--quiet"]
    assert main([*words, "-o", str(tmp_path / "free"), "--kernel", "gibbs"]) == 0
    free = {word for row in samples(tmp_path / "free") for word in row["output"].split()}
    assert {"the", "##s"} & free
    banned = ["--banned", "the", "--banned", "##.*"]
    assert main([*words, "-o", str(tmp_path / "banned"), "--kernel", "gibbs", *banned]) == 0
    outputs = [row["output"] for row in samples(tmp_path / "banned")]
    assert set(" ".join(outputs).split()) == {"cat", "dog", "sleep", "un", "."}
    assert main([*words, "-o", str(tmp_path / "banned"), "--kernel", "gibbs", "--resume"]) == 2
    assert "banned is ['the', '##.*'] in the run and absent now" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--banned", "teh"], "'teh' is not in the vocabulary, nor does a token match it"),
        (["--banned", "("], "'(' is neither a token nor a regular expression"),
        (["--banned", ".*"], "all tokens are banned"),
        (["--banned", "cat", "--start", "data"], "the data, which has a banned token"),
    ],
)
def test_invalid_bans(options: list[str], message: str, root: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    feed(monkeypatch, "the cat\n")
    words = ["sample", str(root / "bert"), "-o", str(tmp_path / "out"), "--input", "-", "--sweeps", "1", "--quiet"]
    assert main([*words, *options]) == 2
    assert message in capsys.readouterr().err


def test_sentences_with_banned_tokens_set_the_length(root: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    feed(monkeypatch, "the cat sleeps\n")
    words = ["sample", str(root / "bert"), "-o", str(tmp_path / "out"), "--input", "-", "--sweeps", "3"]
    assert main([*words, "--banned", "cat"]) == 0
    tokens = load_file(tmp_path / "out/checkpoints/step-00000003/model.safetensors")["tokens"]
    assert tokens.shape[1] == 6  # [CLS], four tokens and [SEP]
    assert not bool((tokens == 6).any())
    err = capsys.readouterr().err
    assert "sampling with MetropolisHastings: 3 sweeps, examples: 1, chains of each: 4, tokens: 16, device: " in err
    assert "sweep 3 of 3" in err
    assert "--resume --sweeps 6" in err


def test_unused_ids_are_banned(tmp_path: Path) -> None:
    """BERT's vocabularies have ids that stand for nothing, such as [unused7]."""
    folder = huggingface_folder(tmp_path / "bert", words=[*VOCABULARY, "[unused0]", "[unused17]", "unused"])
    reader = open_model(folder)
    batch = reader.collate([reader.read("the cat")])
    assert allowed(batch.symbols, reader.size).nonzero().flatten().tolist() == [*range(5, 15), 17]
    assert reader.placeholder(2).gold.tolist() == [[2, 5, 5, 3]]


def test_samplers_as_objects(root: Path, tmp_path: Path) -> None:
    run, sampler = root / "field-0.4", MetropolisHastings(block=2)
    by_object = api.sample(run, tmp_path / "object", sampler, sweeps=3, quiet=True)
    by_name = api.sample(run, tmp_path / "name", block=2, sweeps=3, quiet=True)
    assert all(torch.equal(a, b) for a, b in zip(by_object.traces, by_name.traces))
    with pytest.raises(InputError, match="block: pass the options of a sampler to the sampler itself"):
        api.sample(run, tmp_path / "both", sampler, block=3)
