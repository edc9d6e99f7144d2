"""Compute log Z of a random field over all strings of one length; print seconds, value and peak memory as JSON."""

import json
import resource
import sys
import time

import torch

from unforced.energy.energies import canvas
from unforced.energy.partition import log_partition
from unforced.models.field import Field
from unforced.types import Batch, Sizes, Symbols


def main() -> None:
    options = json.loads(sys.argv[1])
    torch.set_num_threads(options["threads"])
    torch.set_flush_denormal(True)
    torch.manual_seed(1)
    size = options["alphabet"]
    model = Field(hidden=options["hidden"]).build(Sizes(target=size + 2)).eval()
    symbols = Symbols(pad=size + 1, bos=size, eos=None, banned=(size, size + 1))
    empty = torch.full((1, 1), symbols.pad)
    batch = canvas(Batch.of_gold(empty, empty < 0, symbols), torch.tensor([options["length"]]))
    begin = time.perf_counter()
    found = float(log_partition(model, batch))
    seconds = time.perf_counter() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"seconds": seconds, "log_z": found, "peak": peak}))


if __name__ == "__main__":
    main()
