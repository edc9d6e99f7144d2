"""A picture of the schedules of a recipe's variants."""

from pathlib import Path

from unforced.errors import InputError
from unforced.objectives.schedules import schedules_of
from unforced.protocols import HasUnit, Schedule
from unforced.recipes.recipe import Recipe
from unforced.reports.figures import Line, Panel, draw_panels
from unforced.training.options import Training
from unforced.types import Progress

POINTS = 1000
LONGEST = 10**6  # updates or epochs drawn if the recipe plans none


def plot_schedules(recipe: Recipe, path: Path) -> Path:
    """Write a picture with a panel for each scheduled field and a line for each variant that has it."""
    drawn: dict[tuple[str, str], dict[Line, list[str]]] = {}
    for variant in recipe.variants:
        single = recipe.single(variant.name)
        for field, schedule in schedules_of(single.objective).items():
            axis, times, moments = timeline(single.training, schedule)
            line = Line("", tuple(times), tuple(schedule(moment) for moment in moments))
            drawn.setdefault((field, axis), {}).setdefault(line, []).append(variant.name)
    if not drawn:
        raise InputError(f"no variant of {recipe.name} has a schedule to plot")
    panels = []
    for (field, axis), lines in drawn.items():
        named = [line._replace(label=", ".join(names)) for line, names in lines.items()]
        highest, lowest = max(max(line.y) for line in named), min(min(line.y) for line in named)
        log = highest > 1 and highest > 20 * max(1e-9, lowest)
        panels.append(Panel(named, axis, field, title=recipe.name, log=log))
    return draw_panels(panels, path)


def timeline(training: Training, schedule: Schedule) -> tuple[str, list[float], list[Progress]]:
    """Return the label of the time axis, its points, and the progress of training at each.

    A schedule in updates is drawn over the planned updates, one in epochs over the planned epochs. If the recipe plans
    the other of the two, it is drawn until it is near its last value. Other schedules are drawn over epochs, or over
    fractions of the training if the recipe plans updates.
    """
    unit = schedule.unit if isinstance(schedule, HasUnit) else None
    if unit == "step":
        end = training.steps or settling_time(schedule)
        steps = [i * end / POINTS for i in range(POINTS + 1)]
        return "updates", steps, [Progress(step=int(step), epoch=0.0, total=end) for step in steps]
    if training.epochs is None and unit != "epoch":
        shares = [i / POINTS for i in range(POINTS + 1)]
        return "fraction of the training", shares, [Progress(i, 0.0, POINTS) for i in range(POINTS + 1)]
    last = training.epochs or settling_time(schedule)
    epochs = [i * last / POINTS for i in range(POINTS)]
    return "epochs", epochs, [Progress(i, epoch, POINTS) for i, epoch in enumerate(epochs)]


def settling_time(schedule: Schedule) -> int:
    """Return the time at which a schedule is near its last value, or a thousand times its first; at most a million.

    >>> from unforced.objectives.schedules import Linear
    >>> settling_time(Linear(start=1.0, end=0.0, over=12, unit="step"))
    16
    """

    def value(time: int) -> float:
        return schedule(Progress(time, float(time), LONGEST))

    first, end = value(0), 1
    last = min(value(LONGEST), 1000 * abs(first)) if first else value(LONGEST)
    while end < LONGEST and first != last and (value(end) - first) / (last - first) < 0.99:
        end *= 2
    return end
