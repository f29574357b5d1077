"""`scripts/machines ansible`: the Ansible role sets up a hub and a site."""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path

from machinery import EXIT_UNAVAILABLE, HUB, NET, ROOT, claim, machines, output, wait, who

PLAY = """\
- hosts: hubs
  gather_facts: false
  roles: [ropewalk]
- hosts: sites
  gather_facts: false
  roles: [ropewalk]
"""
INVENTORY = """\
all:
  vars:
    ansible_user: root
    ansible_ssh_private_key_file: {directory}/key
    ansible_ssh_common_args: -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null
    ansible_python_interpreter: /usr/bin/python3
    ropewalk_package: {package}
  children:
    hubs:
      hosts:
        hub:
          ansible_host: 203.0.113.2
          ropewalk_role: hub
          ropewalk_public: ["203.0.113.2:4443"]
    sites:
      hosts:
        site:
          ansible_host: 192.168.1.2
          ropewalk_hub: hub
          ropewalk_settings:
            network: {{ kill_switch: true, local: ["192.168.1.0/24"] }}
            uplink:
              - {{ match: "eth1", metered: true, quota_gb: 20 }}
"""


def ansible(options: argparse.Namespace) -> None:
    """The Ansible role, twice, and once more with another setting."""
    if not shutil.which("ansible-playbook"):
        print("machines: needs ansible-playbook (Debian: ansible-core)", file=sys.stderr)
        sys.exit(EXIT_UNAVAILABLE)
    package = options.new.resolve()
    with (
        tempfile.TemporaryDirectory() as directory,
        machines(["hub", "site"], package.parent, "ansible") as made,
    ):
        key = Path(directory, "key")
        output("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key))
        for machine in made.values():
            text = Path(f"{key}.pub").read_text()
            machine.run("umask 77; mkdir -p /root/.ssh; cat >/root/.ssh/authorized_keys", text=text)
        Path(directory, "play.yml").write_text(PLAY)
        inventory = Path(directory, "inventory.yml")
        inventory.write_text(INVENTORY.format(directory=directory, package=package))

        def play(*arguments: str) -> str:
            command = ("ansible-playbook", "-vvv", "--diff", "-i", str(inventory), *arguments)
            roles = f"ANSIBLE_ROLES_PATH={ROOT / 'packaging/ansible/roles'}"
            inside = ("ip", "netns", "exec", NET, "env", roles, "ANSIBLE_NOCOLOR=1")
            begin = time.monotonic()
            said = output(*inside, *command, f"{directory}/play.yml", check=False)
            print(f"      {' '.join(arguments)} {time.monotonic() - begin:.0f} s", flush=True)
            return said

        def changed(said: str) -> dict[str, tuple[int, int]]:
            found = re.findall(r"^(\w+) +: ok=\d+ +changed=(\d+) .*failed=(\d+)", said, re.M)
            return {name: (int(changes), int(failed)) for name, changes, failed in found}

        first = play()
        done = changed(first)
        right = len(done) == 2 and all(not failed for _, failed in done.values())
        claim(f"the role sets up a hub and a site: {done}", right, first[-4000:])
        if not right:
            return
        claim("no log has a token", "ropewalk2." not in first)
        site = made["site"]
        wait("the tunnel is up", lambda: "hub up" in site.run("ropewalk status", check=False))
        claim("the site reaches the server through the hub", who(site.netns) == HUB)
        claim("the kill switch is on", "switch on" in site.run("ropewalk kill-switch"))
        files = site.run("cat /etc/ropewalk/site.toml; stat -c '%U %G %a' /etc/ropewalk/site.toml")
        claim("the settings are in the file", "quota_gb = 20" in files, files)
        claim("the file is root's and the gateway reads it", "root ropewalk 640" in files, files)
        doctor = site.run("ropewalk doctor 2>&1", check=False)
        claim("the doctor takes the configuration", "site.toml is sound" in doctor, doctor)
        pids = [m.run(f"systemctl show -p MainPID ropewalk-{n}") for n, m in made.items()]
        again = play()
        claim(f"a second run changes nothing: {changed(again)}",
              changed(again) == {"hub": (0, 0), "site": (0, 0)}, again[-4000:])  # fmt: skip
        same = [m.run(f"systemctl show -p MainPID ropewalk-{n}") for n, m in made.items()]
        claim("and restarts nothing", pids == same)
        check = play("--check")
        claim("--check changes nothing", changed(check) == {"hub": (0, 0), "site": (0, 0)}, check)
        inventory.write_text(inventory.read_text().replace("quota_gb: 20", "quota_gb: 30"))
        other = play("--limit", "site")
        claim(f"another setting is written: {changed(other)}", changed(other) == {"site": (2, 0)},
              other[-4000:])  # fmt: skip
        site.run("cp /etc/ropewalk/site.toml /root/")
        inventory.write_text(inventory.read_text().replace("quota_gb: 30", "quota: 30"))
        for time_of in ("first", "second"):
            bad = play("--limit", "site")
            refused = changed(bad) == {"site": (0, 1)} and "unknown key" in bad
            claim(f"a wrong setting is refused, the {time_of} time", refused, bad[-4000:])
        site.run("cmp /etc/ropewalk/site.toml /root/site.toml")
        wait(
            "the site is up again", lambda: "of 30.0 GB" in site.run("ropewalk status", check=False)
        )
