"""What `ropewalk-sdn status` prints of a bridge's uplinks."""

from __future__ import annotations

from typing import Any


def lines(report: dict[str, Any]) -> list[str]:
    """The report of a controller, for people."""
    state = "connected" if report["connected"] else "no switch"
    if report.get("standing_by"):
        state = "stands by: another controller is the switch's master"
    text = [
        f"{report['bridge']}: {report['mode']}, {state}, "
        f"{report['flows']} flows, {report['groups']} groups"
    ]
    if "copies" in report:
        text.append(f"copies of each chosen packet: {report['copies']}")
    if not report["connected"]:
        text.append("uplinks as they were known last:")
    new_flows = dict(report.get("new_flows", {}))
    capacities = dict(report.get("capacity_mbit", {}))
    for uplink in report["uplinks"]:
        rtt = "-" if uplink["rtt_ms"] is None else f"{uplink['rtt_ms']:.1f} ms"
        loss = "-" if uplink["loss"] is None else f"{100 * uplink['loss']:.1f} %"
        # Counted over both families: said once.
        new = new_flows.pop(uplink["name"], None)
        flows = "" if new is None else f"  new flows {new}"
        mbit = capacities.pop(uplink["name"], None)
        source = report.get("capacity_source", {}).get(uplink["name"])
        # What is only assumed is news to nobody.
        if mbit is not None and source != "assumed":
            flows += f"  {mbit:g} Mbit/s ({source})"
        text.append(
            f"  {uplink['name']:<15} {uplink['family']} {'up' if uplink['usable'] else 'down':<5}"
            f" rtt {rtt:>10}  loss {loss:>7}{flows}"
        )
    return text
