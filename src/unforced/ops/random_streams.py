"""Random numbers that belong to the examples: functions of a seed, the example and the position, and of nothing else.

A call draws one seed from its generator; ``keys`` hashes it with each example's number (``batch.ids``, or the row's number
in the batch if there are none). What is drawn for an example is then the same in any batch, at any place in it, beside any
padding, in any process and on any device, and no generator has to be made for each row.

Streams of single numbers are the splitmix64 generator of Steele, Lea and Flood (2014), started at the key.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from unforced.types import Batch


def _signed(number: int, bits: int = 64) -> int:
    """The signed integer with the same last ``bits`` bits."""
    half = 1 << (bits - 1)
    return (number + half) % (2 * half) - half


GAMMA = _signed(0x9E3779B97F4A7C15)
MIX_1 = _signed(0xBF58476D1CE4E5B9)
MIX_2 = _signed(0x94D049BB133111EB)
MIX_3 = _signed(0x7FEB352D, 32)
MIX_4 = _signed(0x846CA68B, 32)
BLOCK = 64  # weights that are summed before one of them is looked for


def mix64(x: Tensor) -> Tensor:
    """The output function of splitmix64, on int64 tensors (products wrap around)."""
    x = (x ^ _shift(x, 30)) * MIX_1
    x = (x ^ _shift(x, 27)) * MIX_2
    return x ^ _shift(x, 31)


def _shift(x: Tensor, bits: int) -> Tensor:
    """Shift right and fill with zeros: ``>>`` alone would repeat the sign."""
    size = 64 if x.dtype == torch.int64 else 32
    return (x >> bits) & ((1 << (size - bits)) - 1)


def keys(batch: Batch, rng: torch.Generator) -> Tensor:
    """Where each example's random numbers start: [B] int64, a hash of a seed drawn from ``rng`` and of the example."""
    seed = torch.randint(2**62, (1,), generator=rng, device=rng.device).to(batch.gold.device)
    ids = torch.arange(len(batch), device=seed.device) if batch.ids is None else batch.ids
    return mix64(mix64(seed) + ids)


def branch(keys: Tensor, numbers: int | Tensor) -> Tensor:
    """Keys of further streams that have nothing to do with each other: one for each key and number.

    >>> branch(torch.tensor([5]), 0) == branch(torch.tensor([5]), 1)
    tensor([False])
    """
    return mix64(keys + numbers)


def uniform(keys: Tensor, t: int | Tensor) -> Tensor:
    """Number t = 0, 1, … of the streams that start at ``keys`` (int64): float64 in [0, 1).

    >>> uniform(torch.tensor([1, 2]), 0)
    tensor([0.5666, 0.5912], dtype=torch.float64)
    """
    step = (t + 1) * GAMMA if isinstance(t, Tensor) else _signed((t + 1) * GAMMA)
    return _shift(mix64(keys + step), 11).double() * 2.0**-53


def uniform_rows(keys: Tensor, count: int) -> Tensor:
    """The first ``count`` numbers of each key [R] as [R,count] float32, strictly inside (0, 1): for noise on scores.

    Each row is an arithmetic progression with a step of its own, hashed in 32 bits, which costs a quarter of splitmix64.
    The numbers are odd multiples of 2⁻²⁴, so no logarithm of them or of their complement is infinite.
    """
    start, step = keys.to(torch.int32), _shift(keys, 32).to(torch.int32) | 1
    x = torch.arange(count, dtype=torch.int32, device=keys.device) * step.unsqueeze(1) + start.unsqueeze(1)
    x = (x ^ _shift(x, 16)) * MIX_3
    x = (x ^ _shift(x, 15)) * MIX_4
    x = x ^ _shift(x, 16)
    return (_shift(x, 9).float() + 0.5) * 2.0**-23


def draw(weights: Tensor, uniforms: Tensor) -> Tensor:
    """The index that each uniform number [R] falls on in weights [R,N] that need not sum to one: inverse CDF.

    It is the first index whose cumulated weight exceeds u · total, so an index of weight zero is never drawn, whatever
    the rounding. First the block that u falls in is found, then the index in the block: sums of blocks cost a quarter of
    a cumulative sum of everything.

    >>> draw(torch.tensor([[0.0, 2.0, 0.0, 2.0]]).expand(4, 4), torch.tensor([0.0, 0.49, 0.51, 1.0]))
    tensor([1, 1, 3, 3])
    """
    width, whole = weights.shape[1], weights.shape[1] // BLOCK * BLOCK
    sums = weights[:, :whole].unflatten(1, (whole // BLOCK, BLOCK)).sum(dim=2)
    if whole < width:
        sums = torch.cat([sums, weights[:, whole:].sum(dim=1, keepdim=True)], dim=1)
    block, rest = _fall(sums, uniforms.unsqueeze(1).to(sums.dtype) * sums.sum(dim=1, keepdim=True))
    columns = block * BLOCK + torch.arange(BLOCK, device=weights.device)  # [R,BLOCK]
    inside = weights.gather(1, columns.clamp(max=width - 1)).masked_fill_(columns >= width, 0.0)
    within, _ = _fall(inside, rest)
    return (block * BLOCK + within).squeeze(1)


def _fall(weights: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """The first index [R,1] whose cumulated weight exceeds the target [R,1], and what of the target lies behind it."""
    cumulated = weights.cumsum(dim=1)
    total = cumulated[:, -1:]
    target = torch.minimum(target, torch.nextafter(total, torch.zeros_like(total)))
    index = torch.searchsorted(cumulated, target, right=True).clamp_(max=weights.shape[1] - 1)
    wrong = weights.gather(1, index) <= 0  # a parallel cumulative sum need not be monotone in its last bits
    if wrong.any():
        index = torch.where(wrong, weights.argmax(dim=1, keepdim=True), index)
    before = cumulated.gather(1, index) - weights.gather(1, index)
    return index, (target - before).clamp_(min=0.0)


# The random numbers of a run: torch's own generators for dropout, apart in each process, and one for each update.


def derive(*numbers: int) -> int:
    """A 63-bit seed that depends on all the numbers and on their order.

    >>> derive(1, 0) == derive(1, 0), derive(1, 0) == derive(0, 1)
    (True, False)
    """
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> np.uint64(1))


def generator(device: torch.device | str, *numbers: int) -> torch.Generator:
    """A new generator on ``device`` seeded by the numbers."""
    return torch.Generator(device=device).manual_seed(derive(*numbers))


def seed_everything(seed: int, rank: int) -> None:
    """Seed torch's global generators."""
    torch.manual_seed(derive(seed, rank, 0))


def random_state(device: torch.device) -> dict[str, Tensor]:
    """The state of this process's global generators as bytes."""
    state = {"torch": torch.get_rng_state()}
    if device.type != "cpu":
        state["device"] = torch.get_device_module(device).get_rng_state()
    return state


def restore_random_state(device: torch.device, state: Mapping[str, Tensor]) -> None:
    """Undo ``random_state``."""
    own = {name: bytes_.clone() for name, bytes_ in state.items()}  # a view into other memory crashes
    torch.set_rng_state(own["torch"])
    if device.type != "cpu":
        torch.get_device_module(device).set_rng_state(own["device"])
