#!/usr/bin/env bash
# Lays out what packages install below a directory: packaging/tree.sh DIRECTORY PROGRAMS [RUNNABLE]
#
# PROGRAMS has the built programs. RUNNABLE has the same programs for this machine, where PROGRAMS are for another
# one: they print their own manual pages, schemas and completions. Debian, rpm and archives take the same tree.
set -euo pipefail
cd "$(dirname "$0")/.."
umask 022

root=$(realpath -m "${1:?usage: packaging/tree.sh DIRECTORY PROGRAMS [RUNNABLE]}")
built=$(realpath -e "${2:?usage: packaging/tree.sh DIRECTORY PROGRAMS [RUNNABLE]}")
runnable=$(realpath -e "${3:-$built}")

for program in ropewalk ropewalk-linkem ropewalk-sim; do
	install -Dm755 "$built/$program" "$root/usr/bin/$program"
done
units=${UNITS:-lib/systemd/system}
install -Dm644 -t "$root/$units" packaging/ropewalk-hub.service packaging/ropewalk-site.service \
	packaging/ropewalk-site@.service packaging/ropewalk-kill-switch.service \
	packaging/ropewalk-relay.service packaging/ropewalk-balance.service
install -Dm644 packaging/ropewalk.sysusers "$root/usr/lib/sysusers.d/ropewalk.conf"
install -Dm644 packaging/polkit/ropewalk.rules "$root/usr/share/polkit-1/rules.d/ropewalk.rules"
install -Dm755 -t "$root/usr/lib/NetworkManager/dispatcher.d/pre-down.d" packaging/networkmanager/50-ropewalk
install -d "$root/etc/ropewalk"

ropewalk=$runnable/ropewalk
install -d "$root/usr/share/bash-completion/completions" \
	"$root/usr/share/zsh/vendor-completions" "$root/usr/share/fish/vendor_completions.d"
"$ropewalk" completions man --directory "$root/usr/share/man"
for program in ropewalk-linkem ropewalk-sim; do
	"$runnable/$program" --manual "$root/usr/share/man/man1"
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
for file in README.md CHANGELOG.md LICENSE-APACHE LICENSE-MIT docs/configuration.md docs/dashboard.md docs/modems.md docs/replay.md docs/schema.md docs/top.md docs/operations.md docs/monitoring.md docs/kill-switch.md docs/relays.md docs/balance.md docs/via.md docs/hold.md docs/packages.md; do
	install -m644 -t "$doc" "$file"
done
install -Dm644 -t "$doc/monitoring" packaging/monitoring/*
cat >"$doc/copyright" <<-TEXT
	Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
	Upstream-Name: ropewalk

	Files: *
	Copyright: the Ropewalk authors
	License: Apache-2.0 or MIT
TEXT
