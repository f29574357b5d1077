"""The schemas of configurations and of the API: they take what the program takes and says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dashboard_parts import begin_hub, join, until
from docs_world import Machine, World, must
from jsonschema import Draft202012Validator

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(os.environ.get("ROPEWALK_PROGRAMS", ROOT / "target/release")).resolve()
ROLES = ("hub", "site", "relay", "balance")
UNSAYABLE = (
    "bits beyond its prefix",
    "cannot be given to sites",
    "no log filter",
    "neither a port nor a range",
    # Conditions between keys.
    "without forwarding",
    "a way is chosen once for all packets",
    "none of these protocols has ports",
    "one flow would be allowed more",
    "two addresses of the same family",
    "matches everything",
    "is not reached through the tunnel",
    "towards the sites already",
    "kill switch",
    "no quota that could begin anew",
    "does not count what its uplinks carry",
    "each hub of a fleet is known by its name",
    "another hub of this site has this key",
    "there is no address whose ports sites could share",
    "which holds the sites' own addresses",
    "sites cannot send from",
    "sites without an inner IPv4 address",
    "what it had in custody is lost",
    "some are reached with certificates",
    "there is no `ca` beside",
    "certificates have no effect",
    "there is no certificate_key beside",
    "there is no user beside",
)
"""Messages about what JSON Schema cannot state, or only with much more text than it is worth."""

pytestmark = pytest.mark.skipif(
    not (PROGRAMS / "ropewalk").exists(), reason=f"no ropewalk in {PROGRAMS}: make build"
)


def schema(what: str) -> dict[str, Any]:
    printed = subprocess.run(
        [PROGRAMS / "ropewalk", "schema", what], capture_output=True, check=True, timeout=30
    )
    found: dict[str, Any] = json.loads(printed.stdout)
    return found


def validator(described: dict[str, Any]) -> Draft202012Validator:
    Draft202012Validator.check_schema(described)
    return Draft202012Validator(described)


def refusal(checker: Draft202012Validator, value: object) -> str:
    """Why a value is refused; empty if it is not."""
    return "; ".join(f"{error.json_path}: {error.message}" for error in checker.iter_errors(value))


def cases() -> Iterator[tuple[str, dict[str, Any], str | None]]:
    """Role, file and the reader's problem, of every file that the reader's tests read."""
    for line in (ROOT / "python/tests/configurations.jsonl").read_text().splitlines():
        case = json.loads(line)
        try:
            yield case["role"], tomllib.loads(case["text"]), case["problem"]
        except tomllib.TOMLDecodeError:
            assert case["problem"]


def test_schemas_take_what_the_reader_takes_and_refuse_what_it_refuses() -> None:
    checkers = {role: validator(schema(role)) for role in ROLES}
    counts: Counter[str] = Counter()
    for role, file, problem in cases():
        refused = refusal(checkers[role], file)
        if problem is None:
            assert not refused, f"{role}: {file}: {refused}"
            counts["taken"] += 1
        elif refused:
            counts["refused"] += 1
        else:
            unsayable = re.search("|".join(UNSAYABLE), problem)
            assert unsayable, f"{role}: {file}: the reader says: {problem}"
            counts[unsayable[0]] += 1
    assert counts["taken"] > 20, counts
    assert counts["refused"] > 60, counts
    # A message that is here without need would hide what a schema does not say any more.
    assert all(counts[message] for message in UNSAYABLE), counts


@pytest.mark.parametrize(
    ("role", "wrong"),
    [
        ("hub", {"pool": {}}),
        ("hub", {"pool": {"ipv4": "10.9.0.0/16"}, "tunnel": {"mtu": 500}}),
        ("hub", {"pool": {"ipv4": "10.9.0.0/16"}, "memory_mb": "much"}),
        ("site", {}),
        ("site", {"hub": {"key": "short", "endpoints": ["h:1"]}}),
        ("balance", {}),
        ("balance", {"balance": {}, "rule": [{"name": "a"}]}),
    ],
)
def test_a_wrong_file_is_refused(role: str, wrong: dict[str, Any]) -> None:
    assert refusal(validator(schema(role)), wrong)


def references(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "$ref":
                yield inner
            else:
                yield from references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner)


def test_openapi_names_what_is_there() -> None:
    document = schema("openapi")
    assert document["openapi"].startswith("3.1.")
    for name, described in document["components"]["schemas"].items():
        Draft202012Validator.check_schema(described), name
    found = set(references(document))
    assert len(found) > 20
    for reference in found:
        place: Any = document
        for part in reference.removeprefix("#/").split("/"):
            place = place[part]


class Answers:
    """Checks what a gateway answers by what OpenAPI says."""

    def __init__(self) -> None:
        self.document = schema("openapi")
        self.checked: Counter[str] = Counter()

    def ask(self, machine: Machine, role: str, path: str, method: str, body: str = "") -> Any:  # noqa: ANN401
        """The answer to a request, which is checked by its status."""
        sent = f"-H 'content-type: application/json' -d '{body}'" if body else ""
        status, text = machine.run(
            f"curl -sS -w '\n%{{http_code}}' -X {method.upper()} {sent} "
            f"--unix-socket /run/ropewalk/{role}.sock 'http://localhost{path}'"
        )
        assert status == 0, text
        answer, _, code = text.rpartition("\n")
        operation = self.document["paths"][path.partition("?")[0]][method]
        response = operation["responses"][code]
        if "$ref" in response:
            response = self.document["components"]["responses"][code]
        self.checked[operation["operationId"]] += 1
        [(kind, described)] = response["content"].items()
        if not kind.startswith("application/json"):
            return answer
        value = json.loads(answer)
        refused = refusal(self.validator(described["schema"]), value)
        assert not refused, f"{method} {path}: {code}: {refused}: {answer[:2000]}"
        return value

    def validator(self, described: dict[str, Any]) -> Draft202012Validator:
        return Draft202012Validator({**described, "components": self.document["components"]})


@pytest.mark.real
def test_answers_of_real_gateways_are_what_the_schemas_say(tmp_path: Path) -> None:
    world = World(["hub", "boat", "harbour"], tmp_path / "files", str(PROGRAMS))
    try:
        hub, boat = world.machines["hub"], world.machines["boat"]
        begin_hub(hub)
        join(world, "boat", boat)
        balance = world.machines["harbour"]
        must(balance, "ropewalk balance --init")
        must(balance, "ropewalk balance >balance.log 2>&1 &")
        until(balance, "ropewalk status >/dev/null 2>&1")
        until(boat, "test $(ropewalk status | grep -c ' up ') -ge 2")
        must(boat, "ping -c 3 -i 0.2 192.0.2.9 >/dev/null")
        answers = Answers()
        for machine, role in ((hub, "hub"), (boat, "site"), (balance, "balance")):
            for path in ("/healthz", "/metrics", "/v1/status", "/v1/scheduler", "/v1/paths"):
                answers.ask(machine, role, path, "get")
            brief = answers.ask(machine, role, "/v1/status?brief=true", "get")
            assert bool(brief["tunnels"]) == (role == "site")
            assert [site["name"] for site in brief.get("sites", [])] == ["boat"] * (role == "hub")
            history = answers.ask(machine, role, "/v1/history?range=minutes&last=3", "get")
            assert len(history["offered"]) <= 3
            happened = answers.ask(machine, role, "/v1/happened", "get")
            assert happened or role == "balance"
            answers.ask(machine, role, "/v1/history?range=year", "get")
            answers.ask(machine, role, "/v1/reload", "post")
            answers.ask(machine, role, "/v1/sites/reload", "post")
            answers.ask(machine, role, "/v1/scheduler", "post", '{"kind":"ecf"}')
            answers.ask(machine, role, "/v1/scheduler", "post", '{"kind":"none"}')
            answers.ask(machine, role, "/v1/scheduler", "post", "no JSON")
            answers.ask(machine, role, "/v1/key", "post", '{"switch":true}')
        for machine in (hub, boat, balance):
            status, text = machine.run("ropewalk reload 2>&1")
            assert status == 0 and "read again: " in text, text
        for body in ('{"uplink":"wlan0","metered":true}', '{"uplink":"wlan0","enabled":false}'):
            assert answers.ask(boat, "site", "/v1/paths", "post", body) == {"ok": True}
        assert "error" in answers.ask(boat, "site", "/v1/paths", "post", '{"uplink":"x"}')
        every = {
            operation["operationId"]
            for methods in answers.document["paths"].values()
            for operation in methods.values()
        }
        assert set(answers.checked) == every
        # The state is also what the command prints, by the schema `api`.
        status, text = boat.run("ropewalk status --json")
        assert status == 0
        state = json.loads(text)
        assert state["tunnels"][0]["paths"]
        checker = validator(schema("api"))
        assert not refusal(checker, state)
        state["tunnels"][0]["paths"][0]["tx_bytes"] = "many"
        assert refusal(checker, state)
    finally:
        world.end()
