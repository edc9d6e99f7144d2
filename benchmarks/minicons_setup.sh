#!/bin/sh
# Create the virtual environment of minicons: benchmarks/.venv-minicons (not in git).
# minicons depends on packages that the library does not use. torch and transformers are pinned to the versions that the
# library is tested with, so that both sides run the same networks and kernels, and pip chooses a CPU build.
set -eu
cd "$(dirname "$0")"
venv=.venv-minicons
ready=$venv/.ready
[ -e "$ready" ] && exit 0
${PYTHON:-python3.11} -m venv "$venv"
"$venv/bin/pip" install --quiet --disable-pip-version-check -c ../constraints.txt minicons==0.3.39
if "$venv/bin/pip" list --disable-pip-version-check 2>/dev/null | grep -qi '^nvidia-\|^triton'; then
    echo "pip installed CUDA packages: this benchmark is for CPU builds" >&2
    exit 1
fi
"$venv/bin/python" -c 'from minicons import scorer'
touch "$ready"
