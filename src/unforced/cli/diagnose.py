"""The command that measures what each remedy could win on a trained model."""

from typing import Literal

from unforced.reports.diagnosis import diagnosis_table
from unforced.reports.tables import print_table


def diagnose(
    source: str,
    /,
    *overrides: str,
    split: Literal["train", "dev", "test"] = "dev",
    examples: int = 1000,
    checkpoint: str = "best",
    quiet: bool = False,
) -> None:
    """Measure what each remedy could win on a trained model, without training it.

    Parameters
    ----------
    source
        A run folder, or a recipe whose model has trained weights.
    overrides
        Settings of a recipe, such as model=hf:FOLDER.
    split
        Part of the data; use development data, so that test data stay unseen.
    examples
        Number of examples, evenly spread.
    checkpoint
        best, last, or the name of a checkpoint.
    quiet
        Do not show progress.
    """
    from unforced.diagnosis import diagnose as diagnosis

    trained = diagnosis.open_trained(source, overrides, checkpoint)
    found = diagnosis.diagnose(trained, split=split, most=examples, quiet=quiet)
    table = diagnosis_table(found.to_json())
    print(table.title)
    print_table(table.header, table.rows)
    for name, finding in found.findings.items():
        print(f"{name}: {finding.meaning}")
    if found.too_early:
        print(found.too_early)
    if trained.run is None:
        return
    print(
        f"with details in {trained.run.path / 'diagnosis.json'}; unforced plot diagnosis {trained.run.path} draws them"
    )
    promising = [name for name, finding in found.findings.items() if finding.headroom.low > 0]
    for name in promising:
        print(f"try for {name}: {diagnosis.command_to_try(name, trained.run.path)}")
    if not promising:
        print("no remedy promises a gain beyond chance")
