#!/usr/bin/env bash
# Builds a Debian package of `ropewalk`, `ropewalk-linkem` and `ropewalk-sim` with systemd units, manual pages,
# schemas and completions: packaging/deb.sh [OUTPUT-DIRECTORY]. The default directory is target/debian.
#
# PROFILE chooses another cargo profile than `dist`, PREBUILT=DIRECTORY takes programs that are
# built already. ARCHITECTURE is theirs if it is not that of this machine, which then needs RUNNABLE=DIRECTORY with
# the same programs for itself. TRAINED=FILE gives the compiler what packaging/train.sh has counted: the tunnel then
# costs an eighth less processor time. Equal programs and an equal SOURCE_DATE_EPOCH give an equal package.
set -euo pipefail
cd "$(dirname "$0")/.."

profile=${PROFILE:-dist}
output=$(realpath -m "${1:-target/debian}")
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
architecture=${ARCHITECTURE:-$(dpkg --print-architecture)}
programs=(ropewalk ropewalk-linkem ropewalk-sim)

for tool in dpkg-deb dpkg-shlibdeps gzip readelf; do
	if ! command -v "$tool" >/dev/null; then
		echo "deb.sh: $tool is missing; install dpkg-dev and binutils" >&2
		exit 1
	fi
done

if [ -n "${PREBUILT:-}" ]; then
	built=$(realpath "$PREBUILT")
else
	flags=()
	directory=$profile
	if [ -n "${TRAINED:-}" ]; then
		host=$(rustc -vV | sed -n 's/^host: //p')
		flags=(--target "$host")
		directory=$host/$profile
		trained=$(realpath -e "$TRAINED")
		export RUSTFLAGS="${RUSTFLAGS:-} -Cprofile-use=$trained"
	fi
	cargo build --locked --profile "$profile" "${flags[@]}" --bin ropewalk --bin ropewalk-linkem --bin ropewalk-sim
	built=$(realpath "${CARGO_TARGET_DIR:-target}/$directory")
fi

stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
root=$stage/root
chmod 755 "$stage"
umask 022

packaging/tree.sh "$root" "$built" "${RUNNABLE:-$built}"
install -Dm644 packaging/dhcp/ropewalk "$root/etc/dhcp/dhclient-enter-hooks.d/ropewalk"

# A static program needs no library.
depends=
if LC_ALL=C readelf --program-headers "$built/ropewalk" | grep INTERP >/dev/null; then
	# dpkg-shlibdeps insists on a source control file.
	mkdir "$stage/debian"
	printf 'Source: ropewalk\n\nPackage: ropewalk\nArchitecture: %s\n' "$architecture" >"$stage/debian/control"
	depends=$(cd "$stage" && dpkg-shlibdeps -O "${programs[@]/#/root/usr/bin/}" 2>/dev/null |
		sed -n 's/^shlibs:Depends=/Depends: /p')
	if [ -z "$depends" ]; then
		echo "deb.sh: the needed libraries could not be determined" >&2
		exit 1
	fi
fi

install -d "$root/DEBIAN"
echo /etc/dhcp/dhclient-enter-hooks.d/ropewalk >"$root/DEBIAN/conffiles"
# The bytes of the files: what a file system takes for them differs.
size=$(find "$root" -type f -not -path "$root/DEBIAN/*" -printf '%s\n' | awk '{ sum += int(($1 + 1023) / 1024) } END { print sum }')
# An empty line would end the paragraph.
sed '/^$/d' >"$root/DEBIAN/control" <<-TEXT
	Package: ropewalk
	Version: $version
	Architecture: $architecture
	Maintainer: The Ropewalk authors <ropewalk@localhost>
	Installed-Size: $size
	$depends
	Recommends: nftables
	Section: net
	Priority: optional
	Description: several unreliable uplinks as one connection
	 Ropewalk joins Wi-Fi, LTE, DSL and satellite uplinks into one tunnel to a hub
	 that aims never to be worse than the best of them and survives any one failing.
	 .
	 After installing, a machine is neither hub nor site nor relay: run "ropewalk hub
	 --init", "ropewalk join" or "ropewalk relay --join", then enable
	 ropewalk-hub, ropewalk-site or ropewalk-relay.
TEXT
install -m755 -t "$root/DEBIAN" packaging/debian/postinst packaging/debian/prerm packaging/debian/postrm
(cd "$root" && find usr lib -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum) >"$root/DEBIAN/md5sums"

mkdir -p "$output"
package=$output/ropewalk_${version}_${architecture}.deb
dpkg-deb --root-owner-group --build "$root" "$package" >/dev/null
echo "$package"
