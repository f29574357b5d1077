"""The Ansible role: what can be told without Ansible. `scripts/machines ansible` runs the role."""

from __future__ import annotations

import re
import shlex
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml", reason="PyYAML comes with os-ken")

ROLE = Path(__file__).parents[2] / "packaging/ansible/roles/ropewalk"
PAGE = Path(__file__).parents[2] / "docs/ansible.md"
TASKS = sorted(path.name for path in (ROLE / "tasks").iterdir())
WORDS = {
    "become", "changed_when", "check_mode", "delegate_to", "failed_when", "loop", "name", "no_log",
    "notify", "register", "vars", "when",
}  # fmt: skip
"""Words of a task beside its module."""


def tasks(name: str) -> list[dict[str, Any]]:
    found = yaml.safe_load((ROLE / "tasks" / name).read_text())
    assert isinstance(found, list)
    return found


@pytest.mark.parametrize("name", TASKS)
def test_every_task_has_a_name_and_one_module_of_ansible(name: str) -> None:
    for task in tasks(name):
        modules = set(task) - WORDS
        assert task["name"], task
        assert len(modules) == 1, modules
        assert next(iter(modules)).startswith("ansible.builtin."), modules


def test_what_sees_a_token_is_not_logged_and_no_argument_has_one() -> None:
    secret = [
        task
        for task in tasks("site.yml")
        if "ropewalk_invitation.stdout" in str(task)
        or task.get("register") == "ropewalk_invitation"
    ]
    assert len(secret) == 2
    for task in secret:
        assert task["no_log"] is True
        assert "ropewalk_invitation." not in str(task["ansible.builtin.command"]["argv"])


def test_commands_that_make_something_do_so_once() -> None:
    for name in TASKS:
        for task in tasks(name):
            command = task.get("ansible.builtin.command")
            if command:
                assert "creates" in command or "changed_when" in task, task["name"]


def test_every_file_that_is_included_is_there_and_handlers_are_known() -> None:
    included = {task.get("ansible.builtin.include_tasks") for task in tasks("main.yml")} - {None}
    assert included == set(TASKS) - {"main.yml"}
    handlers = {task["name"] for task in yaml.safe_load((ROLE / "handlers/main.yml").read_text())}
    for name in TASKS:
        assert {task["notify"] for task in tasks(name) if "notify" in task} <= handlers


def kept(text: str) -> str:
    """What the role keeps of a configuration: its expressions, without Ansible."""
    [task] = [task for task in tasks("configure.yml") if "set_fact" in str(list(task))]

    def expression(of: str) -> str:
        found = re.search(r"'(\(\?m\).*?)'", of)
        assert found
        return found[1].replace("\\n", "\n")

    lines = re.sub(expression(task["vars"]["ropewalk_lines"]), "", text)
    pattern = expression(task["ansible.builtin.set_fact"]["ropewalk_kept"])
    return "\n\n".join(found.strip() for found in re.findall(pattern, lines))


HUB = """# of the hub
name = "hub"

[listen]  # ours
udp = [
    "0.0.0.0:4443",

    "[::]:4443",
]

tcp = ["0.0.0.0:443"]

# where sites are
[pool]
ipv4 = "10.104.16.0/20"

[[class]]
name = "live"

[hold]
mib_max = 64
"""


def test_whole_sections_are_kept_however_they_are_written() -> None:
    for text in (HUB, HUB.replace("\n", "\r\n"), HUB.removesuffix("\n")):
        left = tomllib.loads(kept(text))
        whole = tomllib.loads(text)
        assert left == {"listen": whole["listen"], "pool": whole["pool"]}, left
    assert kept('[network]\ndns = []\n\n[hub]\nkey = "k"\n\nendpoints = ["h:1"]') == (
        '[hub]\nkey = "k"\n\nendpoints = ["h:1"]'
    )


def test_a_configuration_is_judged_before_it_takes_its_place_and_without_a_lost_section() -> None:
    names = [task["name"] for task in tasks("configure.yml")]
    [write] = [task for task in tasks("configure.yml") if "ansible.builtin.template" in task]
    [check] = [task for task in tasks("configure.yml") if "ansible.builtin.assert" in task]
    assert names.index(check["name"]) < names.index(write["name"])
    for sections in (["hub"], ["listen", "pool"]):
        assert str(sections) in check["loop"]
    command = write["ansible.builtin.template"]["validate"] % "/tmp/source"
    program, option, script, name, path = shlex.split(command)
    assert (program, option, name, path) == ("sh", "-c", "-", "/tmp/source")
    for said, code in (("ok    configuration: /tmp/source is sound", 0), ("FAIL  x:6: no key", 1)):
        # A stand-in for the doctor, which fails for other reasons, too.
        doctor = f"ropewalk() {{ test $3 = /tmp/source && echo '{said}'; return 1; }}; {script}"
        ran = subprocess.run(
            ["sh", "-c", doctor, "-", path], capture_output=True, text=True, check=False
        )
        assert (ran.returncode, ran.stdout) == (code, f"{said}\n"), said


def test_a_site_that_joined_is_refused_by_a_task_that_may_speak() -> None:
    names = [task["name"] for task in tasks("site.yml")]
    [refuse] = [task for task in tasks("site.yml") if "ansible.builtin.fail" in task]
    assert "no_log" not in refuse
    assert "ropewalk_replace" in refuse["ansible.builtin.fail"]["msg"]
    assert names.index(refuse["name"]) < names.index("Invite the site")


def test_the_page_lists_every_variable() -> None:
    page = PAGE.read_text()
    variables = yaml.safe_load((ROLE / "defaults/main.yml").read_text())
    assert variables
    for variable in variables:
        assert f"`{variable}`" in page, variable
