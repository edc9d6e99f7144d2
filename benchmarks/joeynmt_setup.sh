#!/bin/sh
# Create the virtual environment of JoeyNMT 2.3: benchmarks/.venv-joeynmt (not in git).
# JoeyNMT requires an old protobuf, so it cannot be installed next to the library. torch is pinned to the version that
# the library is tested with, so that both sides run the same kernels and pip chooses a CPU build.
set -eu
cd "$(dirname "$0")"
venv=.venv-joeynmt
ready=$venv/.ready
[ -e "$ready" ] && exit 0
${PYTHON:-python3.11} -m venv "$venv"
# setuptools below 81 still has pkg_resources, which JoeyNMT 2.3 imports; importlib_metadata is missing
# from its list of requirements.
cat > "$venv/constraints.txt" <<END
torch==2.13.0
setuptools<81
END
"$venv/bin/pip" install --quiet --disable-pip-version-check -c "$venv/constraints.txt" \
    joeynmt==2.3.0 torch==2.13.0 importlib_metadata setuptools
if "$venv/bin/pip" list --disable-pip-version-check 2>/dev/null | grep -qi '^nvidia-\|^triton'; then
    echo "pip installed CUDA packages: this benchmark is for CPU builds" >&2
    exit 1
fi
"$venv/bin/python" -c 'import joeynmt.training'
touch "$ready"
