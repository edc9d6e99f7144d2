"""Random numbers per example: functions of a seed, the example and the position only.

`keys` draws one seed from a generator and hashes it with each example's id (``batch.ids``, or the row number without
ids). The numbers drawn from a key do not depend on the batch, its order, its padding, the process or the device.

The streams are splitmix64 generators (Steele, Lea and Flood 2014) that start at the key.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from unforced.types import Batch


def _signed(number: int, bits: int = 64) -> int:
    """Return the signed integer with the same lowest ``bits`` bits."""
    half = 1 << (bits - 1)
    return (number + half) % (2 * half) - half


GAMMA = _signed(0x9E3779B97F4A7C15)
MIX_1 = _signed(0xBF58476D1CE4E5B9)
MIX_2 = _signed(0x94D049BB133111EB)
MIX_3 = _signed(0x7FEB352D, 32)
MIX_4 = _signed(0x846CA68B, 32)
BLOCK = 64  # weights per partial sum in `draw`


def mix64(x: Tensor) -> Tensor:
    """Apply the output function of splitmix64 to int64 tensors; products wrap around."""
    x = (x ^ _shift(x, 30)) * MIX_1
    x = (x ^ _shift(x, 27)) * MIX_2
    return x ^ _shift(x, 31)


def _shift(x: Tensor, bits: int) -> Tensor:
    """Shift right and fill with zeros; ``>>`` alone would repeat the sign bit."""
    size = 64 if x.dtype == torch.int64 else 32
    return (x >> bits) & ((1 << (size - bits)) - 1)


def keys(batch: Batch, rng: torch.Generator) -> Tensor:
    """Return the key of each example [B] (int64): a hash of a seed drawn from ``rng`` and of the example's id."""
    seed = torch.randint(2**62, (1,), generator=rng, device=rng.device).to(batch.gold.device)
    ids = torch.arange(len(batch), device=seed.device) if batch.ids is None else batch.ids
    return mix64(mix64(seed) + ids)


def branch(keys: Tensor, numbers: int | Tensor) -> Tensor:
    """Return keys of independent streams, one for each key and number.

    >>> branch(torch.tensor([5]), 0) == branch(torch.tensor([5]), 1)
    tensor([False])
    """
    return mix64(keys + numbers)


def uniform(keys: Tensor, t: int | Tensor) -> Tensor:
    """Return number t = 0, 1, … of the streams at ``keys`` (int64): float64 in [0, 1).

    >>> uniform(torch.tensor([1, 2]), 0)
    tensor([0.5666, 0.5912], dtype=torch.float64)
    """
    step = (t + 1) * GAMMA if isinstance(t, Tensor) else _signed((t + 1) * GAMMA)
    return _shift(mix64(keys + step), 11).double() * 2.0**-53


def uniform_rows(keys: Tensor, count: int) -> Tensor:
    """Return ``count`` numbers for each key [R] as [R,count] float32 in the open interval (0, 1), for noise on scores.

    Each row is an arithmetic progression with its own step, hashed in 32 bits; this costs a quarter of splitmix64.
    The numbers are odd multiples of 2⁻²⁴, so the logarithms of u and of 1 − u are finite.
    """
    start, step = keys.to(torch.int32), _shift(keys, 32).to(torch.int32) | 1
    x = torch.arange(count, dtype=torch.int32, device=keys.device) * step.unsqueeze(1) + start.unsqueeze(1)
    x = (x ^ _shift(x, 16)) * MIX_3
    x = (x ^ _shift(x, 15)) * MIX_4
    x = x ^ _shift(x, 16)
    return (_shift(x, 9).float() + 0.5) * 2.0**-23


def draw(weights: Tensor, uniforms: Tensor) -> Tensor:
    """Draw one index per row from weights [R,N], which need not sum to one, by the inverse CDF at ``uniforms`` [R].

    The result is the first index whose cumulative weight exceeds u · total. An index of weight zero is never drawn. The
    search goes by block and then within the block, because block sums cost a quarter of a full cumulative sum.

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
    """Return the first index [R,1] whose cumulative weight exceeds the target [R,1].

    The second result is the rest of the target there.
    """
    cumulative = weights.cumsum(dim=1)
    total = cumulative[:, -1:]
    target = torch.minimum(target, torch.nextafter(total, torch.zeros_like(total)))
    index = torch.searchsorted(cumulative, target, right=True).clamp_(max=weights.shape[1] - 1)
    wrong = weights.gather(1, index) <= 0  # a parallel cumulative sum may not be monotone in its last bits
    if wrong.any():
        index = torch.where(wrong, weights.argmax(dim=1, keepdim=True), index)
    before = cumulative.gather(1, index) - weights.gather(1, index)
    return index, (target - before).clamp_(min=0.0)


# Seeds of a run: torch's global generators for dropout, one generator for each update


def derive(*numbers: int) -> int:
    """Hash numbers and their order to a 63-bit seed.

    >>> derive(1, 0) == derive(1, 0), derive(1, 0) == derive(0, 1)
    (True, False)
    """
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> np.uint64(1))


def generator(device: torch.device | str, *numbers: int) -> torch.Generator:
    """Return a new generator on ``device``, seeded by the numbers."""
    return torch.Generator(device=device).manual_seed(derive(*numbers))


def seed_everything(seed: int, rank: int) -> None:
    """Seed torch's global generators in the process ``rank``."""
    torch.manual_seed(derive(seed, rank, 0))


def random_state(device: torch.device) -> dict[str, Tensor]:
    """Return the state of this process's global generators as bytes."""
    state = {"torch": torch.get_rng_state()}
    if device.type != "cpu":
        state["device"] = torch.get_device_module(device).get_rng_state()
    return state


def restore_random_state(device: torch.device, state: Mapping[str, Tensor]) -> None:
    """Restore what `random_state` returned."""
    own = {name: bytes_.clone() for name, bytes_ in state.items()}  # a view of other memory crashes
    torch.set_rng_state(own["torch"])
    if device.type != "cpu":
        torch.get_device_module(device).set_rng_state(own["device"])
