#!/usr/bin/env bash
# Shows the compiler which code is busy: packaging/train.sh OUTPUT-FILE
#
# Builds a `ropewalk` that counts what it does, lets the program carry traffic in network namespaces for about a
# minute, and writes the counts to OUTPUT-FILE, for `-Cprofile-use`. Needs root, rustup's component llvm-tools, and
# what `scripts/packages test` installs. docs/decisions/throughput.md has what the counts gain.
set -euo pipefail
cd "$(dirname "$0")/.."

output=$(realpath -m "${1:?usage: packaging/train.sh OUTPUT-FILE}")
host=$(rustc -vV | sed -n 's/^host: //p')
merge=$(rustc --print sysroot)/lib/rustlib/$host/bin/llvm-profdata
if ! [ -x "$merge" ]; then
	echo "train.sh: llvm-profdata is missing; install it with: rustup component add llvm-tools" >&2
	exit 1
fi
if [ "$(id -u)" != 0 ]; then
	echo "train.sh: network namespaces need root" >&2
	exit 1
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cargo build --locked --release -p ropewalk-e2e --bin bench-throughput
target=$(realpath "${CARGO_TARGET_DIR:-target}")
# `--target` keeps the flags away from build scripts, which run meanwhile.
RUSTFLAGS="-Cprofile-generate=$work/counts" CARGO_TARGET_DIR=$target/train \
	cargo build --locked --profile dist --target "$host" -p ropewalk-gateway --bin ropewalk
# The benchmark takes the gateway that lies beside it.
mkdir "$work/bin"
cp "$target/release/bench-throughput" "$target/train/$host/dist/ropewalk" "$work/bin"
"$work/bin/bench-throughput" --rounds 1 --seconds 5 --only ropewalk >&2

mkdir -p "$(dirname "$output")"
"$merge" merge --sparse --output="$output" "$work/counts"
