"""A runner for tests: as `ropewalk-testbed run` and `ropewalk-sim run`, from arithmetic.

It gives each plan 95 % of its ceiling. In the environment, FAKE_FAIL is a regular expression on
plan names that fail always, FAKE_FAIL_ONCE one on those that fail the first time, FAKE_CANNOT one
on those this machine cannot run, and FAKE_LOG is a file that gets a line for each call.
"""

import argparse
import json
import os
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

EFFICIENCY = 0.95


def main() -> int:
    if sys.argv[1:] == ["--version"]:
        print("fake 1.0")
        return 0
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=["run"])
    parser.add_argument("plan", type=Path)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--json", action="store_true", required=True)
    options = parser.parse_args()
    plan = tomllib.loads(options.plan.read_text())
    seed = options.seed or plan["seed"]
    if (log := os.environ.get("FAKE_LOG")) is not None:
        again = Path(log).exists() and f"{plan['name']} {seed}\n" in Path(log).read_text()
        with Path(log).open("a") as file:
            file.write(f"{plan['name']} {seed}\n")
    else:
        again = False
    if matches("FAKE_CANNOT", plan["name"]):
        print("not root", file=sys.stderr)
        return 3
    once = matches("FAKE_FAIL_ONCE", plan["name"]) and not again
    if once or matches("FAKE_FAIL", plan["name"]):
        print("the link fell over", file=sys.stderr)
        return 1
    if options.seeds is None:
        print(json.dumps(report(plan, seed, "kernel")))
    else:
        first = plan["seed"]
        for number_of_run in range(first, first + options.seeds):
            print(json.dumps(report(plan, number_of_run, "sim")))
    return 0


def matches(variable: str, name: str) -> bool:
    pattern = os.environ.get(variable)
    return pattern is not None and re.search(pattern, name) is not None


def report(plan: dict[str, Any], seed: int, runner: str) -> dict[str, Any]:
    seconds = number(plan["duration"]) - number(plan["warmup"])
    ceiling = capacity(plan)
    goodput = EFFICIENCY * ceiling
    series = [goodput] * round(number(plan["duration"]))
    delay = {"count": 9, "mean": 41, "min": 40, "p50": 41, "p95": 45, "p99": 46, "max": 50}
    traffic: list[dict[str, Any]] = []
    for item in plan["traffic"]:
        if item["kind"] == "ping":
            traffic.append({"kind": "ping", "delay_ms": delay, "sent": 9, "lost": 0})
        else:
            flows = [{"goodput_mbit": goodput / item["flows"], "retransmits": 0, "broken": False}]
            traffic.append(
                {
                    "kind": item["kind"],
                    "goodput_mbit": goodput,
                    "series_mbit": series,
                    "longest_stall_seconds": 0.1,
                    "flows": flows * item["flows"],
                }
            )
    return {
        "plan": plan["name"],
        "runner": runner,
        "seed": seed,
        "seconds": seconds,
        "ceiling_mbit": ceiling,
        "traffic": traffic,
        "paths": [],
        "wall_seconds": 0.01,
        "notes": [],
    }


def capacity(plan: dict[str, Any]) -> float:
    carrier = plan["carrier"]
    names = [path["name"] for path in plan["path"]]
    match carrier["kind"]:
        case "direct":
            used, share = names[:1], 1448 / 1500
        case "path":
            used, share = [carrier["path"]], 1448 / 1500
        case "mptcp":
            used, share = names, 1448 / 1500
        case "chain":
            used, share = carrier["hops"][:1], 1448 / 1500
        case "relay":
            used, share = carrier["hops"][0], 1425 / 1500
        case _:
            used, share = carrier.get("paths", names), 1425 / 1500
    rates = {path["name"]: number(path["both"].get("rate", "10Mbit")) for path in plan["path"]}
    return share * sum(rates[name] for name in used)


def number(text: str) -> float:
    """Seconds or Mbit/s."""
    value = float(re.sub(r"[A-Za-z]+$", "", text))
    return value * {"us": 1e-6, "ms": 1e-3}.get(text.lstrip("0123456789."), 1.0)


if __name__ == "__main__":
    sys.exit(main())
