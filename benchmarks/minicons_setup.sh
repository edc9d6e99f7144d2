#!/bin/sh
# Make the virtual environment in which minicons runs: benchmarks/.venv-minicons (not in git).
# It brings packages that the library has no use for; torch and transformers are those that the library is tested with,
# so that both sides run the same networks and kernels, and pip takes a CPU build.
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
