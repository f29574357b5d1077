#!/bin/sh
# The namespaces hub and site, and two recorded links between them. Run it as root, beside the recordings.
set -e
ip netns add hub
ip netns add site
ip -n hub link set lo up
ip -n site link set lo up
ip -n hub address add 192.0.2.7/32 dev lo
number=1
: >links.pid
for link in wifi:6ms lte:25ms; do
    name=${link%:*}
    ropewalk-linkem --a "hub:$name" --b "site:$name" --trace "$name.csv" --delay "${link#*:}" --queue 256KiB \
        --address-a "10.1.$number.1/24" --address-b "10.1.$number.2/24" >"$name.log" &
    echo $! >>links.pid
    until grep -q ready "$name.log"; do kill -0 $! || exit 1; sleep 0.1; done
    ip -n site route add default via "10.1.$number.1" dev "$name" metric "10$number"
    number=$((number + 1))
done
