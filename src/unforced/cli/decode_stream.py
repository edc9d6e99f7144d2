"""Decode lines of text in batches: one source per line, one output per line."""

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from unforced.errors import InputError, nearest
from unforced.options import Count, Natural, check_value
from unforced.recipes.fields import fields_of, pick, to_mapping
from unforced.recipes.recipe import Recipe, merge, parse_overrides
from unforced.registry import REGISTRY, name_of, resolve
from unforced.tasks.files import decode_line
from unforced.training.loading import fastest_device, load, read_recipe
from unforced.types import Example

COPIES = ("nbest", "samples")  # fields with a decoder's number of outputs per source


def decode_lines(
    run: str | Path,
    lines: Iterable[bytes],
    method: str = "beam",
    options: Sequence[str] = (),
    *,
    nbest: int = 1,
    checkpoint: str = "best",
    size: int = 32,
    seed: int = 1,
) -> Iterator[str]:
    """Yield the output of a run's model for each UTF-8 line of text.

    With ``nbest`` above one, yield that many lines per source: its number, the score and the output, separated by tabs.
    A line that can't be read raises `InputError` with its number, after the outputs of the lines before it.
    """
    for name, hint, value in (("nbest", Count, nbest), ("batch", Count, size), ("seed", Natural, seed)):
        check_value(name, hint, value)
    device, recipe = fastest_device(), read_recipe(run)
    model, fitted = load(run, checkpoint, device=device, recipe=recipe)
    decoder, codec = choose_decoder(recipe, method, options, nbest), fitted.codec

    def outputs(waiting: list[tuple[int, Any]]) -> Iterator[str]:
        numbers = [number for number, _ in waiting]
        rng = torch.Generator().manual_seed(seed)  # what is drawn for a line depends on (seed, line) only
        batch = fitted.batch([Example(source, None) for _, source in waiting], numbers, device=device)
        found = decoder(model, batch, rng=rng)
        texts = [[codec.show(codec.decode(ids)) for ids in found.ids(codec.symbols, n)] for n in range(nbest)]
        for i, number in enumerate(numbers):
            for n in range(nbest):
                score = float(found.scores[i, n])
                if nbest == 1:
                    yield texts[n][i]
                elif score > -math.inf:  # −inf: the decoder found fewer outputs
                    yield f"{number}\t{score:.4f}\t{texts[n][i]}"

    waiting: list[tuple[int, Any]] = []
    for number, line in enumerate(lines, start=1):
        try:
            waiting.append((number, codec.parse(decode_line(line, number))))
        except InputError as error:
            yield from outputs(waiting) if waiting else ()
            raise InputError(f"standard input:{number}: {error}") from None
        if len(waiting) == size:
            yield from outputs(waiting)
            waiting = []
    yield from outputs(waiting) if waiting else ()


def choose_decoder(recipe: Recipe, method: str, options: Sequence[str], nbest: int) -> Any:
    """Return the decoder of this name from the recipe, else the registered one, with ``key=value`` options."""
    own = recipe.decoding.get(method)
    name = method if own is None else name_of("decoders", own)
    if name is None or name not in REGISTRY["decoders"]:
        known = {**recipe.decoding, **REGISTRY["decoders"]}
        raise InputError(f'there is no decoder "{method}"; {nearest(method, known)}')
    fields = {} if own is None else to_mapping(own)
    changes = parse_overrides(options)
    if nbest > 1:
        copies = [field.name for field in fields_of(resolve("decoders", name)) if field.name in COPIES]
        if not copies:
            raise InputError(f"{name} returns one output per source, not {nbest}")
        changes[copies[0]] = nbest
    return pick("decoders", merge(fields, changes) | {"method": name}, method, "method")
