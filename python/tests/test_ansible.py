"""The Ansible role: what can be told without Ansible. `scripts/machines ansible` runs the role."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml", reason="PyYAML comes with os-ken")

ROLE = Path(__file__).parents[2] / "packaging/ansible/roles/ropewalk"
PAGE = Path(__file__).parents[2] / "docs/ansible.md"
TASKS = sorted(path.name for path in (ROLE / "tasks").iterdir())
WORDS = {
    "become", "changed_when", "check_mode", "delegate_to", "failed_when", "name", "no_log",
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


def test_the_page_lists_every_variable() -> None:
    page = PAGE.read_text()
    variables = yaml.safe_load((ROLE / "defaults/main.yml").read_text())
    assert variables
    for variable in variables:
        assert f"`{variable}`" in page, variable
