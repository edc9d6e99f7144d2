"""The command that measures what each remedy could win on a trained model."""

from typing import Annotated, Literal

from cyclopts import Parameter

from unforced.errors import InputError
from unforced.reports.tables import print_table


def diagnose(
    source: str,
    /,
    *overrides: str,
    split: Literal["train", "dev", "test"] = "dev",
    examples: int = 1000,
    checkpoint: str = "best",
    try_: Annotated[bool, Parameter(name="--try")] = False,
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
    try_
        Also train the two remedies with the largest headroom, and more of the same training, for a quarter of the
        run's updates each, and print what they won.
    quiet
        Do not show progress.
    """
    from unforced.diagnosis import diagnose as diagnosis
    from unforced.diagnosis.remedies import command_to_try, promising, try_remedies
    from unforced.reports.diagnosis import diagnosis_table, trial_rows

    trained = diagnosis.open_trained(source, overrides, checkpoint)
    if try_ and trained.run is None:
        raise InputError("--try continues a training, so it needs a run folder")
    found = diagnosis.diagnose(trained, split=split, most=examples, quiet=quiet)
    data = found.to_json()
    table = diagnosis_table(data)
    print(table.title)
    print_table(table.header, table.rows)
    for name, finding in found.findings.items():
        print(f"{name}: {finding.meaning}")
    if found.too_early:
        print(found.too_early)
    if trained.run is None:
        return
    run = trained.run.path
    print(f"with details in {run / 'diagnosis.json'}; unforced plot diagnosis {run} draws them")
    for name in promising(data):
        print(f"try for {name}: {command_to_try(name, run)}")
    if not promising(data):
        print("no remedy promises a gain beyond chance")
    elif try_:
        header = ("remedy for", "headroom", "gain over more training", "95 % interval", "run")
        print_table(header, trial_rows(data, try_remedies(run, data, quiet=quiet)))
