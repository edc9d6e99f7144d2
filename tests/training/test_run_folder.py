import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from unforced.errors import InputError
from unforced.training import run_folder
from unforced.training.run_folder import FORMAT, RunFolder


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


CODEC = {"letters": "ab"}
INFO = {"seed": 1, "facts": {"vocabulary": f"2 symbols {run_folder.digest(CODEC)}"}}


def created(folder: Path) -> RunFolder:
    run = RunFolder(folder)
    with run.writing():
        run.create(recipe="a = 1\n", info=INFO, codec=CODEC)
    return run


def test_a_folder_is_created_and_read_back(tmp_path: Path) -> None:
    run = created(tmp_path / "deep" / "run")
    assert run.recipe_text() == "a = 1\n"
    assert run.info() == {"format": FORMAT, **INFO}
    assert run.codec() == CODEC
    assert run.events() == []
    assert run.best() is None
    assert run.finished() is None
    assert run.scores() == []
    assert run.checkpoints() == []
    with pytest.raises(InputError, match="has no checkpoint yet"):
        run.best_checkpoint()


def test_a_run_of_another_format_is_named(tmp_path: Path) -> None:
    run = created(tmp_path)
    (tmp_path / "run.json").write_text('{"seed": 1}')
    with pytest.raises(InputError, match=r"has the run folder format 1, but this version of unforced reads format \d"):
        run.facts()


def test_a_codec_that_is_not_the_one_of_the_run_is_refused(tmp_path: Path) -> None:
    run = created(tmp_path)
    (tmp_path / "codec.json").write_text('{"letters": "ba"}')
    with pytest.raises(InputError, match=r"codec\.json: is damaged \(its hash differs from run\.json\)"):
        run.codec()


def test_content_without_resume_is_refused_and_untouched(tmp_path: Path) -> None:
    run = created(tmp_path / "run")
    before = snapshot(run.path)
    with pytest.raises(InputError, match="is not empty"), run.writing():
        pass
    assert snapshot(run.path) == before


def test_other_files_are_no_run_to_resume(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("all of it")
    with pytest.raises(InputError, match="contains other files but no run"), RunFolder(tmp_path).writing(resume=True):
        pass
    assert snapshot(tmp_path) == {"thesis.txt": b"all of it"}
    with pytest.raises(InputError, match="is a file"), RunFolder(tmp_path / "thesis.txt").writing(resume=True):
        pass


def test_a_run_killed_at_its_start_is_resumed(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    (tmp_path / "lock").touch()
    (tmp_path / "recipe.toml").touch()
    (tmp_path / f"{run_folder.PART}12-run.json").write_text("{")
    with run.writing(resume=True):
        assert sorted(p.name for p in tmp_path.iterdir()) == ["lock", "recipe.toml"]
        run.create(recipe="", info={}, codec={})
    (tmp_path / "checkpoints" / f"{run_folder.PART}step-00000001").mkdir(parents=True)
    with run.writing(resume=True):
        assert list((tmp_path / "checkpoints").iterdir()) == []


def test_two_writers(tmp_path: Path) -> None:
    run = created(tmp_path)
    with run.writing(resume=True):
        before = snapshot(tmp_path)
        with pytest.raises(InputError, match="another process is writing"), RunFolder(tmp_path).writing(resume=True):
            pass
        assert snapshot(tmp_path) == before
    with run.writing(resume=True):
        pass


def test_the_lock_of_a_killed_process_does_not_block(tmp_path: Path) -> None:
    run = created(tmp_path)
    hold = (
        "import sys, time; from unforced.training.run_folder import FORMAT, RunFolder\n"
        "with RunFolder(sys.argv[1]).writing(resume=True): print('held', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", hold, str(tmp_path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    with pytest.raises(InputError, match="another process is writing"), run.writing(resume=True):
        pass
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    with run.writing(resume=True):
        assert run.info()["seed"] == 1


def test_broken_files_are_named_with_their_line(tmp_path: Path) -> None:
    run = created(tmp_path)
    rows = [{"kind": kind, "step": 1, "epoch": 0.5} for kind in ("train", "dev")]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"kind": "tra')
    assert [event["kind"] for event in run.events()] == ["train", "dev"]
    assert run.events("dev") == rows[1:]
    (tmp_path / "metrics.jsonl").write_text('{"kind": "train"}\n{"kind\n')
    with pytest.raises(InputError, match=r"metrics\.jsonl:2: is not JSON"):
        run.events()
    (tmp_path / "codec.json").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match=r"codec\.json: is not UTF-8"):
        run.codec()
    with pytest.raises(InputError, match=r"has no predictions/test-beam\.jsonl"):
        run.predictions("test", "beam")
    with pytest.raises(InputError, match="is not a run folder"):
        RunFolder(tmp_path / "nowhere").info()


def test_decoder_names_cannot_leave_the_folder(tmp_path: Path) -> None:
    run = created(tmp_path / "run")
    for name in ("../../x", "a/b", "", ".x"):
        with pytest.raises(InputError, match="can't be the name of a decoder"):
            run.write_evaluation("test", name, [], {})


def test_a_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_folder.replace_json(tmp_path / "a.json", [1])

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match=r"a\.json: can't be written: No space left on device"):
        run_folder.replace_json(tmp_path / "a.json", [2])
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]
    assert run_folder.read_json(tmp_path / "a.json") == [1]


def test_a_log_that_lost_lines_is_not_continued(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("{}\n")
    with pytest.raises(InputError, match="has 3 bytes but had 10 when the checkpoint was saved"):
        run_folder.LineLog(tmp_path / "log", size=10)
    assert (tmp_path / "log").read_text() == "{}\n"
