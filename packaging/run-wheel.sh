#!/usr/bin/env bash
# Installs a wheel of Ropewalk into a fresh environment of Python and simulates with it:
# packaging/run-wheel.sh WHEEL
set -euo pipefail
cd "$(dirname "$0")/.."

wheel=$(realpath -e "${1:?usage: packaging/run-wheel.sh WHEEL}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check "$wheel"
# Elsewhere, so that nothing of the sources is found.
cp plans/experiments/two-lossy-hops.toml "$work/"
cd "$work"
venv/bin/python - "$(basename "$wheel")" <<'END'
import json
import pathlib
import sys

import ropewalk
from ropewalk import _native

assert pathlib.Path(ropewalk.__file__).is_relative_to(sys.prefix), ropewalk.__file__
report = json.loads(_native.run_json(pathlib.Path("two-lossy-hops.toml").read_text(), [1], 1, None, False))
print(f"{sys.argv[1]}: version {_native.version()}, trace {report[0]['trace_hash']}")
END
