"""What `ropewalk-sdn status` prints of stations."""

from __future__ import annotations

from typing import Any


def lines(report: dict[str, Any]) -> list[str]:
    """The report of a controller, for people."""
    switches = report["switches"]
    connected = sum(switch["connected"] for switch in switches)
    waiting = report.get("standing_by")
    others = f", {waiting} with another controller for their master" if waiting else ""
    text = [f"{report['scheme']}: {connected} of {len(switches)} switches connected{others}"]
    for station in report["stations"]:
        state = "here" if station["here"] else "away"
        place = f"{station['switch']}:{station['port']}"
        text.append(
            f"  {station['mac']}  {station['address'] or '-':<15} {place:<20} {state:<5}"
            f"{station['kept_packets']:>6} packets kept"
        )
    return text
