#!/usr/bin/env bash
# Builds the Python package for this machine's architecture, glibc 2.28 and Python 3.11, or later:
# packaging/wheel.sh OUTPUT-DIRECTORY TARGET-DIRECTORY [RUSTFLAGS [CFLAGS]]
#
# Called by scripts/release, which has maturin and zig in PATH.
set -euo pipefail
cd "$(dirname "$0")/.."

output=$(realpath -m "${1:?usage: packaging/wheel.sh OUTPUT-DIRECTORY TARGET-DIRECTORY [RUSTFLAGS [CFLAGS]]}")
target=$(realpath -m "${2:?usage: packaging/wheel.sh OUTPUT-DIRECTORY TARGET-DIRECTORY [RUSTFLAGS [CFLAGS]]}")
triple=$(rustc --print host-tuple)
env "CFLAGS_${triple//-/_}=${4:-}" RUSTFLAGS="${3:-}" CARGO_INCREMENTAL=0 CARGO_TARGET_DIR="$target" \
	maturin build --locked --profile dist --zig --target "$triple" --compatibility manylinux_2_28 --out "$output" >&2
