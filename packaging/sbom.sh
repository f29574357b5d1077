#!/usr/bin/env bash
# Writes which libraries, of which version and licence, are in the program `ropewalk`, as CycloneDX:
# packaging/sbom.sh OUTPUT-FILE [TOOLS-DIRECTORY]
set -euo pipefail
cd "$(dirname "$0")/.."

output=$(realpath -m "${1:?usage: packaging/sbom.sh OUTPUT-FILE [TOOLS-DIRECTORY]}")
tools=$(realpath -m "${2:-target/tools}")
version=0.5.9
case "$("$tools/bin/cargo-cyclonedx" cyclonedx --version 2>/dev/null)" in
*"$version") ;;
*)
	CARGO_PROFILE_RELEASE_OPT_LEVEL=0 CARGO_PROFILE_RELEASE_LTO=off CARGO_TARGET_DIR=$tools/build \
		cargo install --quiet --locked --root "$tools" --version "$version" cargo-cyclonedx
	rm -rf "$tools/build"
	;;
esac
# The tool writes a file beside the manifest of every crate: into a copy of the manifests.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
git ls-files -z 'Cargo.toml' 'Cargo.lock' 'crates/*' 'third-party/*' | tar --null -T - -c | tar -C "$work" -x
here=$(cd "$work" && pwd -P)
(cd "$work" && PATH=$tools/bin:$PATH cargo cyclonedx --quiet --manifest-path crates/gateway/Cargo.toml \
	--format json --spec-version 1.5 --target all --override-filename ropewalk)
# Names of parts have the directory in them.
sed "s|$here|/ropewalk|g" "$work/crates/gateway/ropewalk.json" >"$output"
