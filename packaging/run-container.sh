#!/usr/bin/env bash
# Builds the image of a hub and lets two sites join it: packaging/run-container.sh DIST SWARM [BASE]
#
# DIST has the Debian package of this machine, SWARM is a `ropewalk-swarm` for this machine, BASE another image to begin
# with than that of the Dockerfile. Needs root, podman, buildah and runc. Images are kept in a directory of their own.
set -euo pipefail
cd "$(dirname "$0")/.."

dist=$(realpath -e "${1:?usage: packaging/run-container.sh DIST SWARM [BASE]}")
swarm=$(realpath -e "${2:?usage: packaging/run-container.sh DIST SWARM [BASE]}")
base=${3:-docker.io/library/debian:bookworm-slim}
store=${STORE:-$(mktemp -d)}
places=(--root "$store/root" --runroot "$store/run" --storage-driver vfs)
engine=(podman "${places[@]}" --cgroup-manager cgroupfs --runtime runc)
space=rw-container-$$
work=$(mktemp -d)
finish() {
	"${engine[@]}" rm -f -t 2 ropewalk-hub >/dev/null 2>&1 || true
	ip netns delete "$space" 2>/dev/null || true
	rm -rf "$work"
	[ -n "${STORE:-}" ] || rm -rf "$store"
}
trap finish EXIT

buildah "${places[@]}" bud -q --format docker --isolation chroot --build-arg "BASE=$base" \
	--build-arg "TARGETARCH=$(dpkg --print-architecture)" -t ropewalk -f packaging/container/Dockerfile "$dist"
# The network of the container, as the compose file sets it up.
ip netns add "$space"
ip -n "$space" link set lo up
ip netns exec "$space" sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
"${engine[@]}" run -d --name ropewalk-hub --network "ns:/run/netns/$space" --env ROPEWALK_PUBLIC=127.0.0.1:4443 \
	--cap-drop all --cap-add NET_ADMIN,NET_BIND_SERVICE,NET_RAW,CHOWN,DAC_OVERRIDE,FOWNER,SETGID,SETUID \
	--security-opt no-new-privileges --device /dev/net/tun --ulimit nofile=1024:4096 --ulimit nproc=1000:1000 \
	localhost/ropewalk >/dev/null
inside=("${engine[@]}" exec ropewalk-hub)
for _ in $(seq 50); do
	! "${inside[@]}" ropewalk status >/dev/null 2>&1 || break
	sleep 0.2
done
"${inside[@]}" ropewalk status
"${inside[@]}" ropewalk invite boat --output /tmp/boat.token
"${inside[@]}" nft list tables | grep ropewalk

pool=$("${inside[@]}" sed -n 's/^ipv4 = "\(.*\)"/\1/p' /etc/ropewalk/hub.toml)
cd "$work"
"$swarm" sites --count 2 --pool "$pool" >sites.toml
"${engine[@]}" cp sites.toml ropewalk-hub:/var/lib/ropewalk/sites.toml
"${engine[@]}" kill -s HUP ropewalk-hub >/dev/null
sleep 1
ip netns exec "$space" "$swarm" run --count 2 --join-over 1 --seconds 3 --traffic bulk --rate 2 --quiet \
	--hub 127.0.0.1:4443 --hub-key "$("${inside[@]}" ropewalk key show)"
"${engine[@]}" stop -t 5 ropewalk-hub >/dev/null
test "$("${engine[@]}" inspect --format '{{.State.ExitCode}}' ropewalk-hub)" = 0
