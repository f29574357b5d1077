"""What the page shows, made of a controller's report: pure. The page computes no words."""

from __future__ import annotations

from typing import Any

STATIONS_MAX = 200
"""Rows of the table. More: a slower page."""
NOTHING = "–"

Facts = list[tuple[str, str]]


def of(report: dict[str, Any], version: str, now_s: int, points: dict[str, Any]) -> dict[str, Any]:
    """One message to the page; `points` are the newest points of its charts."""
    roams = report["mode"] == "roam"
    return {
        "role": "sdn",
        "version": version,
        "interface": "",
        "addresses": [f"mode {report['mode']}" if roams else report["bridge"]],
        "uptime_s": report["uptime_s"],
        "now_s": now_s,
        "words": [] if roams else _whole(report),
        "points": points,
        "sdn": _roaming(report) if roams else _bridge(report),
    }


def samples(report: dict[str, Any]) -> dict[str, dict[str, float | None]]:
    """What the charts show of each uplink: of two families the shorter round trip and the larger
    loss; the load in bits a second, where it is measured."""
    found: dict[str, dict[str, float | None]] = {}
    for way in report.get("uplinks", []):
        load = report.get("load_mbit", {}).get(way["name"])
        one = found.setdefault(
            way["name"],
            {"received": None if load is None else load * 1e6, "rtt_ms": None, "loss": None},
        )
        one["rtt_ms"] = _least(one["rtt_ms"], way["rtt_ms"])
        lost = (one["loss"], way["loss"])
        one["loss"] = max((loss for loss in lost if loss is not None), default=None)
    return found


def _least(one: float | None, other: float | None) -> float | None:
    return min((value for value in (one, other) if value is not None), default=None)


def _said(about: str, weight: str, text: str) -> dict[str, str]:
    return {"about": about, "weight": weight, "text": text}


def _whole(report: dict[str, Any]) -> list[dict[str, str]]:
    if report["standing_by"]:
        text = "this controller stands by: another one is the switch's master"
        return [_said("master", "worse", text)]
    if not report["connected"]:
        text = "no switch is connected: uplinks are shown as they were known last"
        return [_said("switch", "bad", text)]
    return []


def _bridge(report: dict[str, Any]) -> dict[str, Any]:
    by_name: dict[str, list[dict[str, Any]]] = {}
    for way in report["uplinks"]:
        by_name.setdefault(way["name"], []).append(way)
    used = sum(any(way["usable"] for way in ways) for ways in by_name.values())
    connected = "The switch is connected" if report["connected"] else "No switch is connected"
    return {
        "state": f"{connected}: {used} of {len(by_name)} uplinks are used. "
        f"The controller wants {report['flows']} flows and {report['groups']} groups in it.",
        "title": "Uplinks",
        "charts": True,
        "load": report["mode"] == "balance",
        "cards": [
            {"name": name, "words": _words(report, ways), "facts": _facts(report, name, ways)}
            for name, ways in by_name.items()
        ],
        "facts": _decisions(report),
        "table": None,
    }


def _words(report: dict[str, Any], ways: list[dict[str, Any]]) -> list[dict[str, str]]:
    return [_way(report, way, f"{way['family']}: " if len(ways) > 1 else "") for way in ways]


def _way(report: dict[str, Any], way: dict[str, Any], before: str) -> dict[str, str]:
    if way["usable"]:
        weight = "worse" if (way["loss"] or 0) >= 0.01 else "good"
        lost = f"; {100 * way['loss']:.1f} % of the probes are lost" if weight == "worse" else ""
        return _said(way["family"], weight, f"{before}works; {_use(report, way)}{lost}")
    if not report["connected"]:
        text = "not known while no switch is connected"
    elif not way["port_live"]:
        text = "its port is down or gone"
    elif way["gateway_mac"] is None:
        text = "its next hop answers neither ARP nor neighbour discovery"
    elif way["probes_alive"] is False:
        text = "no answer to probes"
    else:
        text = "not used yet: the controller looks at it first"
    return _said(way["family"], "bad", before + text)


def _use(report: dict[str, Any], way: dict[str, Any]) -> str:
    usable = [
        one["name"] for one in report["uplinks"] if one["usable"] and one["family"] == way["family"]
    ]
    if report["mode"] == "balance":
        weights = report["weights"]
        share = weights[way["name"]] / (sum(weights[name] for name in usable) or 1)
        return f"its part of new flows is {100 * share:.0f} %"
    place = usable.index(way["name"])
    if place >= report["copies"]:
        return "a spare"
    return "carries every packet" if place == 0 else "carries a copy of each chosen packet"


def _facts(report: dict[str, Any], name: str, ways: list[dict[str, Any]]) -> Facts:
    values = [way["rtt_ms"] for way in ways if way["rtt_ms"] is not None]
    losses = [way["loss"] for way in ways if way["loss"] is not None]
    found = [
        ("Round trip", ", ".join(f"{value:.1f} ms" for value in values) or NOTHING),
        ("Loss", ", ".join(f"{100 * value:.1f} %" for value in losses) or NOTHING),
        ("Address", ", ".join(way["address"] for way in ways)),
        ("Next hop", ", ".join(way["gateway_mac"] or NOTHING for way in ways)),
    ]
    if report["mode"] == "balance":
        mbit = report["capacity_mbit"].get(name)
        source = _SOURCES.get(report["capacity_source"].get(name, ""), "not known")
        load = report["load_mbit"].get(name)
        found += [
            ("New flows", f"{report['new_flows'].get(name, 0)} given to it by the controller"),
            ("Load", NOTHING if load is None else f"{load:.1f} Mbit/s"),
            ("Capacity", source if mbit is None else f"{mbit:.1f} Mbit/s: {source}"),
        ]
    return found


_SOURCES = {
    "given": "given in the configuration",
    "full": "measured while it was full",
    "carried": "the most that it carried",
    "train": "found by trains of probes",
    "vps": "found by probes of several sizes",
    "assumed": "assumed, as nothing better is known",
}


def _decisions(report: dict[str, Any]) -> Facts:
    counters = report["counters"]
    found: Facts = []
    if report["mode"] == "balance":
        parts = ", ".join(f"{name} {weight:g}" for name, weight in report["weights"].items())
        found += [
            ("Weights", f"{parts}: new flows follow them among the uplinks that work"),
            ("Connections reset", f"{report['resets']}, as their uplink died"),
        ]
    else:
        why = "" if report["copying"] else ", as the first path loses too little or copies are off"
        found.append(("Copies", f"each chosen packet goes over {report['copies']} paths{why}"))
    if not report["settled"]:
        found.append(("Begin", "the controller still looks at the uplinks, and removes no flows"))
    else:
        found.append(("Begin", "done: the switch has the flows that the controller wants"))
    return [*found, *_counted(counters)]


def _counted(counters: dict[str, int]) -> Facts:
    return [
        ("Packets seen", f"{counters['packets_in']}, of which {counters['packets_dropped']} "
         "found no room"),
        ("Sent to switches", f"{counters['flow_mods']} changes of flows, "
         f"{counters['packets_out']} packets"),
        ("Refused", f"{counters['refused_connections']} connections, "
         f"{counters['refused_messages']} messages (by a switch)"),
    ]  # fmt: skip


def _roaming(report: dict[str, Any]) -> dict[str, Any]:
    switches, stations = report["switches"], report["stations"]
    connected = sum(switch["connected"] for switch in switches)
    here = sum(station["here"] for station in stations)
    newest = sorted(stations, key=lambda station: station["since_s"])[:STATIONS_MAX]
    rows = [
        [
            station["mac"],
            station["address"] or NOTHING,
            f"{station['switch']}:{station['port']}",
            f"{'here' if station['here'] else 'away'} for {station['since_s']:.0f} s",
            str(station["kept_packets"]),
        ]
        for station in newest
    ]
    shown = f", the {len(rows)} that changed last" if len(rows) < len(stations) else ""
    return {
        "state": f"{connected} of {len(switches)} switches are connected; "
        f"{here} of {len(stations)} stations are here.",
        "title": "Switches",
        "charts": False,
        "cards": [
            {
                "name": switch["name"],
                "words": [
                    _said("switch", "good", "connected")
                    if switch["connected"]
                    else _said("switch", "bad", "not connected")
                ],
                "facts": [("Stations", str(sum(s["switch"] == switch["name"] for s in stations)))],
            }
            for switch in switches
        ],
        "facts": [
            ("Scheme", report["scheme"]),
            ("Kept", f"{report['kept_bytes']} bytes for stations that are away"),
            *_counted(report["counters"]),
        ],
        "table": {
            "title": f"Stations{shown}",
            "columns": ["Station", "Address", "Place", "State", "Packets kept"],
            "rows": rows,
        },
    }
