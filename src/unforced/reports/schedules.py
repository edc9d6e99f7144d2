"""The schedules of a recipe's variants, drawn over the course of training."""

from pathlib import Path

from unforced.errors import InputError
from unforced.objectives.schedules import of
from unforced.protocols import Schedule
from unforced.recipes.recipe import Recipe
from unforced.reports.figures import Line, Panel, check, draw
from unforced.training.options import Training
from unforced.types import Progress

POINTS = 1000
MOST = 10**6  # updates or epochs that are drawn where nobody says how many


def plot_schedules(recipe: Recipe, path: Path) -> Path:
    """Write a picture with a panel for each scheduled field, and in it a line for each variant that has it."""
    check(path)
    drawn: dict[tuple[str, str], dict[Line, list[str]]] = {}
    for variant in recipe.variants:
        single = recipe.single(variant.name)
        for field, schedule in of(single.objective).items():
            axis, times, moments = course(single.training, schedule)
            line = Line("", tuple(times), tuple(schedule(moment) for moment in moments))
            drawn.setdefault((field, axis), {}).setdefault(line, []).append(variant.name)
    if not drawn:
        raise InputError(f"no variant of {recipe.name} has a schedule to plot")
    panels = []
    for (field, axis), lines in drawn.items():
        named = [line._replace(label=", ".join(names)) for line, names in lines.items()]
        wide = max(max(line.y) for line in named) > 20 * max(1e-9, min(min(line.y) for line in named))
        above_one = max(max(line.y) for line in named) > 1
        panels.append(Panel(named, axis, field, title=recipe.name, log=wide and above_one))
    return draw(panels, path)


def course(training: Training, schedule: Schedule) -> tuple[str, list[float], list[Progress]]:
    """What the horizontal axis counts, its points, and the progress at each of them.

    Schedules in updates are drawn over the planned updates and those in epochs over the planned epochs; where the other is
    planned, and how many there will be depends on the data, until they have nearly settled. All others are drawn over epochs, or over fractions
    of the training where updates are planned.
    """
    unit = getattr(schedule, "unit", None)
    if unit == "step":
        end = training.steps or settled(schedule)
        steps = [i * end / POINTS for i in range(POINTS + 1)]
        return "updates", steps, [Progress(step=int(step), epoch=0.0, total=end) for step in steps]
    if training.epochs is None and unit != "epoch":
        shares = [i / POINTS for i in range(POINTS + 1)]
        return "share of the training", shares, [Progress(i, 0.0, POINTS) for i in range(POINTS + 1)]
    whole = training.epochs or settled(schedule)
    epochs = [i * whole / POINTS for i in range(POINTS)]
    return "epochs", epochs, [Progress(i, epoch, POINTS) for i, epoch in enumerate(epochs)]


def settled(schedule: Schedule) -> int:
    """After how many epochs or updates a schedule is near its last value, or a thousand times its first; at most a million.

    >>> from unforced.objectives.schedules import Linear
    >>> settled(Linear(start=1.0, end=0.0, over=12, unit="step"))
    16
    """

    def value(time: int) -> float:
        return schedule(Progress(time, float(time), MOST))

    first, end = value(0), 1
    last = min(value(MOST), 1000 * abs(first)) if first else value(MOST)
    while end < MOST and first != last and (value(end) - first) / (last - first) < 0.99:
        end *= 2
    return end
