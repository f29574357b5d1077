#!/usr/bin/env bash
# Builds a Debian package of `ropewalk`, `ropewalk-linkem` and `ropewalk-sim` with systemd units, manual pages,
# schemas and completions: packaging/deb.sh [OUTPUT-DIRECTORY]. The default directory is target/debian.
#
# PROFILE chooses another cargo profile than `dist`, PREBUILT=DIRECTORY takes programs that are
# built already. TRAINED=FILE gives the compiler what packaging/train.sh has counted: the tunnel then costs
# an eighth less processor time.
set -euo pipefail
cd "$(dirname "$0")/.."

profile=${PROFILE:-dist}
output=$(realpath -m "${1:-target/debian}")
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
architecture=$(dpkg --print-architecture)
programs=(ropewalk ropewalk-linkem ropewalk-sim)

for tool in dpkg-deb dpkg-shlibdeps gzip; do
	if ! command -v "$tool" >/dev/null; then
		echo "deb.sh: $tool is missing; install dpkg-dev" >&2
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
		export RUSTFLAGS="${RUSTFLAGS:-} -Cprofile-use=$(realpath -e "$TRAINED")"
	fi
	cargo build --locked --profile "$profile" "${flags[@]}" --bin ropewalk --bin ropewalk-linkem --bin ropewalk-sim
	built=$(realpath "${CARGO_TARGET_DIR:-target}/$directory")
fi

stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
root=$stage/root
chmod 755 "$stage"
umask 022

for program in "${programs[@]}"; do
	install -Dm755 "$built/$program" "$root/usr/bin/$program"
done
install -Dm644 -t "$root/lib/systemd/system" packaging/ropewalk-hub.service packaging/ropewalk-site.service \
	packaging/ropewalk-site@.service packaging/ropewalk-kill-switch.service \
	packaging/ropewalk-relay.service packaging/ropewalk-balance.service
install -Dm644 packaging/ropewalk.sysusers "$root/usr/lib/sysusers.d/ropewalk.conf"
install -Dm644 packaging/polkit/ropewalk.rules "$root/usr/share/polkit-1/rules.d/ropewalk.rules"
install -d "$root/etc/ropewalk"

ropewalk=$built/ropewalk
install -d "$root/usr/share/bash-completion/completions" \
	"$root/usr/share/zsh/vendor-completions" "$root/usr/share/fish/vendor_completions.d"
"$ropewalk" completions man --directory "$root/usr/share/man"
for program in ropewalk-linkem ropewalk-sim; do
	"$built/$program" --manual "$root/usr/share/man/man1"
done
find "$root/usr/share/man" -type f -exec gzip -9n {} +
install -d "$root/usr/share/ropewalk/schema"
for role in hub site relay balance; do
	"$ropewalk" schema "$role" >"$root/usr/share/ropewalk/schema/$role.schema.json"
done
"$ropewalk" completions bash >"$root/usr/share/bash-completion/completions/ropewalk"
"$ropewalk" completions zsh >"$root/usr/share/zsh/vendor-completions/_ropewalk"
"$ropewalk" completions fish >"$root/usr/share/fish/vendor_completions.d/ropewalk.fish"

doc=$root/usr/share/doc/ropewalk
install -d "$doc"
for file in README.md CHANGELOG.md docs/configuration.md docs/dashboard.md docs/replay.md docs/schema.md docs/top.md docs/operations.md docs/monitoring.md docs/kill-switch.md docs/relays.md docs/balance.md docs/via.md docs/hold.md; do
	if [ -f "$file" ]; then
		install -m644 -t "$doc" "$file"
	fi
done
install -Dm644 -t "$doc/monitoring" packaging/monitoring/*
cat >"$doc/copyright" <<-TEXT
	Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
	Upstream-Name: ropewalk

	Files: *
	Copyright: the Ropewalk authors
	License: Apache-2.0 or MIT
TEXT
for licence in LICENSE-APACHE LICENSE-MIT; do
	if [ -f "$licence" ]; then
		install -m644 "$licence" "$doc/"
	fi
done

# dpkg-shlibdeps insists on a source control file.
mkdir "$stage/debian"
printf 'Source: ropewalk\n\nPackage: ropewalk\nArchitecture: %s\n' "$architecture" >"$stage/debian/control"
depends=$(cd "$stage" && dpkg-shlibdeps -O "${programs[@]/#/root/usr/bin/}" 2>/dev/null |
	sed -n 's/^shlibs:Depends=//p')
if [ -z "$depends" ]; then
	echo "deb.sh: the needed libraries could not be determined" >&2
	exit 1
fi

install -d "$root/DEBIAN"
size=$(du -sk --exclude=DEBIAN "$root" | cut -f1)
cat >"$root/DEBIAN/control" <<-TEXT
	Package: ropewalk
	Version: $version
	Architecture: $architecture
	Maintainer: The Ropewalk authors <ropewalk@localhost>
	Installed-Size: $size
	Depends: $depends
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
(cd "$root" && find usr lib -type f -print0 | sort -z | xargs -0 md5sum) >"$root/DEBIAN/md5sums"

mkdir -p "$output"
package=$output/ropewalk_${version}_${architecture}.deb
dpkg-deb --root-owner-group --build "$root" "$package" >/dev/null
echo "$package"
