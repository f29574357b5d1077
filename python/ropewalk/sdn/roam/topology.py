"""Shortest ways over the switches (Dijkstra, 1959), and a tree for what goes to everybody.

Invariant: the same links give the same ways; ties go to the switch named first.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping

from ropewalk.sdn.roam.config import Link

Ways = Mapping[str, str]
"""The port of each switch that leads on."""


def ways(links: Iterable[Link], target: str) -> dict[str, str]:
    """For each switch that can reach `target`: the port of its first link there."""
    neighbours = _neighbours(links)
    least = {target: 0.0}
    first: dict[str, str] = {}
    heap = [(0.0, target)]
    while heap:
        cost, name = heapq.heappop(heap)
        if cost > least[name]:
            continue
        for other, port_back, weight in neighbours.get(name, ()):
            if cost + weight < least.get(other, float("inf")):
                least[other] = cost + weight
                first[other] = port_back
                heapq.heappush(heap, (cost + weight, other))
    return first


def tree(links: Iterable[Link]) -> set[tuple[str, str]]:
    """The ports, as (switch, port), of links that join all switches without a circle."""
    links = list(links)
    ports: set[tuple[str, str]] = set()
    reached: set[str] = set()
    for root in sorted({end[0] for link in links for end in (link.a, link.b)}):
        if root in reached:
            continue
        towards = ways(links, root)
        reached |= {root, *towards}
        for link in links:
            for end, other in ((link.a, link.b), (link.b, link.a)):
                if towards.get(end[0]) == end[1]:
                    ports |= {end, other}
    return ports


def _neighbours(links: Iterable[Link]) -> dict[str, list[tuple[str, str, float]]]:
    found: dict[str, list[tuple[str, str, float]]] = {}
    for link in links:
        found.setdefault(link.a[0], []).append((link.b[0], link.b[1], link.cost))
        found.setdefault(link.b[0], []).append((link.a[0], link.a[1], link.cost))
    return {name: sorted(rows) for name, rows in found.items()}
