#!/usr/bin/env bash
# Runs static programs of one architecture under emulation: packaging/run-static.sh NAME PROGRAMS RUNNABLE
#
# Sites of NAME join a hub of this machine, with a configuration and a key that the gateway of NAME made: a real
# handshake and a transfer in a network namespace. For this machine's own NAME the hub runs as well. Under emulation no
# gateway runs: it makes its helper while it has one thread, and QEMU has a thread of its own in each process.
# RUNNABLE has the programs for this machine. Needs root and qemu-user-static.
set -euo pipefail

name=${1:?usage: packaging/run-static.sh NAME PROGRAMS RUNNABLE}
programs=$(realpath -e "$2")
runnable=$(realpath -e "$3")
if [ "$(id -u)" != 0 ]; then
	echo "run-static.sh: network namespaces need root" >&2
	exit 1
fi
case $name in
"$(uname -m)") emulator=() ;;
armv7) emulator=(qemu-arm-static) ;;
*) emulator=("qemu-$name-static") ;;
esac
if [ ${#emulator[@]} = 1 ] && ! command -v "${emulator[0]}" >/dev/null; then
	echo "run-static.sh: ${emulator[0]} is missing; install qemu-user-static" >&2
	exit 1
fi

work=$(mktemp -d)
space=rw-static-$$
hub=
finish() {
	[ -z "$hub" ] || kill "$hub" 2>/dev/null || true
	wait
	ip netns delete "$space" 2>/dev/null || true
	rm -rf "$work"
}
trap finish EXIT
ip netns add "$space"
ip -n "$space" link set lo up

# Runs sites with the words $3 ahead against a hub with the words $2 ahead; $1 says which is which. $4 is ahead of what
# makes the configuration and the key.
both() {
	local what=$1 hub_words=$2 site_words=$3 init_words=$4 key
	local here=$work/$what
	mkdir -p "$here/state"
	# shellcheck disable=SC2086 # lists of words
	{
		$init_words hub --init --config "$here/hub.toml" --public 127.0.0.1:4443 >"$here/init" 2>&1
		sed -i -e 's|^ipv4 = .*|ipv4 = "10.104.0.0/16"|' -e "s|^# state_dir = .*|state_dir = \"$here/state\"|" \
			-e "s|^# socket = .*|socket = \"$here/hub.sock\"|" -e 's|^forward = .*|forward = false|' "$here/hub.toml"
		(cd "$here" && $site_words sites --count 2 >"$here/state/sites.toml" 2>"$here/sites.log")
		key=$($init_words key show --config "$here/hub.toml")
		ip netns exec "$space" $hub_words hub --config "$here/hub.toml" >"$here/hub.log" 2>&1 &
		hub=$!
		for _ in $(seq 100); do
			[ ! -S "$here/hub.sock" ] || break
			sleep 0.1
		done
		if ! (cd "$here" && ip netns exec "$space" $site_words run --count 2 --join-over 1 --seconds 4 --traffic bulk --rate 2 \
			--quiet --json --hub 127.0.0.1:4443 --hub-key "$key" >"$here/report.json" 2>"$here/run.log"); then
			echo "run-static.sh: $name: $what failed:" >&2
			cat "$here/init" "$here/sites.log" "$here/hub.log" "$here/run.log" "$here/report.json" >&2
			exit 1
		fi
		kill "$hub"
		wait "$hub" || true
		hub=
	}
	python3 - "$here/report.json" "$name" "$what" <<-'END'
		import json, sys
		report = json.load(open(sys.argv[1]))
		goodput = report["goodput"]
		print(f"{sys.argv[2]}, {sys.argv[3]}: {report['joined']} of {report['sites']} sites joined within "
		      f"{report['whole_ms']['most']:.0f} ms, {report['paths_up']} paths, "
		      f"{goodput['answered']} of {goodput['sent']} packets answered, {goodput['mbit']:.2f} Mbit/s each way")
		if report["joined"] != 2 or report["paths_up"] != 4 or goodput["answered"] < 200:
		    sys.exit("run-static.sh: too little")
	END
}

gateway="${emulator[*]} $programs/ropewalk"
both sites "$runnable/ropewalk" "${emulator[*]} $programs/ropewalk-swarm" "$gateway"
[ ${#emulator[@]} = 1 ] || both hub "$gateway" "$runnable/ropewalk-swarm" "$gateway"
