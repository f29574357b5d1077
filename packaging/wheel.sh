#!/usr/bin/env bash
# Builds the Python package for Linux and Python 3.11 and later: packaging/wheel.sh OUTPUT-DIRECTORY TARGET-DIRECTORY [RUSTFLAGS [CFLAGS]]
#
# Called by scripts/release, which has maturin and zig in PATH. One wheel for glibc 2.28 and later, one for musl.
set -euo pipefail
cd "$(dirname "$0")/.."

output=$(realpath -m "${1:?usage: packaging/wheel.sh OUTPUT-DIRECTORY TARGET-DIRECTORY [RUSTFLAGS [CFLAGS]]}")
target=$(realpath -m "$2")
flags=${3:-}
c_flags=${4:-}
machine=$(uname -m)
for kind in gnu:manylinux_2_28 musl:musllinux_1_2; do
	triple=$machine-unknown-linux-${kind%%:*}
	# A library is not static, whatever it is linked to.
	static=
	[ "${kind%%:*}" = gnu ] || static=-Ctarget-feature=-crt-static
	env "CFLAGS_${triple//-/_}=$c_flags" RUSTFLAGS="$static $flags" CARGO_INCREMENTAL=0 CARGO_TARGET_DIR="$target" \
		maturin build --locked --profile dist --zig --target "$triple" --compatibility "${kind##*:}" --out "$output" >&2
done
