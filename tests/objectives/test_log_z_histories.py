"""tools/log_z_histories.py against one pass for each history."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import unforced
from unforced import api

WORDS = ["the", "dog", "sees", "a", "cat"]


def trained(folder: Path) -> Path:
    sentences = ["".join(f"{WORDS[(i + j) % 5]} {'NVD'[(i * j) % 3]}\n" for j in range(3 + i % 3)) for i in range(40)]
    (folder / "tags.conll").write_text("\n".join(sentences))
    task = unforced.task("tagging", train=str(folder / "tags.conll"), hold_out=0.25)
    model = unforced.model("lstm", attention="fixed", hidden=8, embedding=8)
    objective = unforced.objective("cross_entropy")
    return Path(unforced.fit(model, task, objective, folder / "run", epochs=2, quiet=True))


def test_rivalry_equals_one_pass_per_history(tmp_path: Path, tool: Callable[..., Any]) -> None:
    run = trained(tmp_path)
    module = tool("log_z_histories", run)
    model, fitted = api.load(run)
    model.double().eval()
    encoded = [fitted.codec.encode(example) for example in fitted.task.read("dev")]
    batch = fitted.codec.collate(encoded, range(len(encoded)))
    found = module.rivalry(model, batch)

    def scores(row: Any, history: list[int]) -> torch.Tensor:
        alone = fitted.codec.collate([row], [0])
        prefix = torch.tensor([[int(alone.prefix[0, 0]), *history]])
        features, _ = model.advance(model.start(alone), model.embed(prefix))
        return model.score(features[:, -1])[0]

    wanted = []  # step by step, and the examples of a step in their order
    for t in range(1, max(len(row.target) for row in encoded)):
        for row in encoded:
            if t >= len(row.target):
                continue
            gold = [int(tag) for tag in row.target[:t]]
            before = scores(row, gold[:-1])
            own = before[gold[-1]].clone()
            before[[gold[-1], *batch.symbols.banned]] = -torch.inf
            right, wrong = (scores(row, [*gold[:-1], last]) for last in (gold[-1], int(before.argmax())))
            wanted.append(torch.stack([own - before.max(), right.logsumexp(0) - wrong.logsumexp(0)]))
    torch.testing.assert_close(found, torch.stack(wanted).detach())


def test_the_table_has_one_row_per_run(tmp_path: Path, tool: Callable[..., Any]) -> None:
    run = trained(tmp_path)
    out = tmp_path / "table.md"
    assert tool("log_z_histories", run, run, "--output", out).main() == 0
    assert out.read_text().count("| run |") == 3  # the header's, and the name of the folder twice
    assert tool("log_z_histories", tmp_path / "nowhere", "--output", tmp_path / "none.md").main() == 2
    assert not (tmp_path / "none.md").exists()
