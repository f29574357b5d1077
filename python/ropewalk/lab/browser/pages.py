"""What pages consist of: drawn from a distribution with published bounds, equal for equal seeds.

Connections per page, from section 4 of the paper on flow-based load balancing of web traffic with
OpenFlow on multi-homed hosts (the 100 most visited sites, HTTP/1.1): 42 on average, with a long
tail to 281; transfers of some hundred kilobytes at most, with few up to 5 MB. The distribution
between is not in the text: lognormal here. How all this makes a page is a model of ours, too.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import exp
from statistics import NormalDist
from typing import Literal, TypeAlias

FLOWS_MEAN = 42
FLOWS_MAX = 281
_FLOWS_SIGMA = 0.95
"""Sigma of the lognormal distribution: the largest of a hundred is then near the published one."""
_FLOWS_MU = 3.305
"""Chosen for the published mean, the bounds included."""

CONNECTIONS = 6
"""Connections of HTTP/1.1 browsers to one origin."""
_FULL_ORIGINS = 0.3
"""Share of the other origins that have enough objects for all six connections."""
_OBJECTS_PER_FLOW = 2.0

_SIZE_MEDIAN = 9_000
_SIZE_SIGMA = 1.6
SIZE_MIN, SIZE_MAX = 200, 5_000_000
"""Bytes: lognormal, 32 kB on average, as `crates/plan/src/page.rs` has them."""
_DOCUMENT_BYTES = 30_000
_SCRIPT_MAX = 200_000
_SCRIPTS = 0.15
"""Share of scripts among the objects."""
_STYLES = 3
_LATE = 0.3
"""Share of the other origins that only a script names, as advertisements are."""

PAGES_MAX = 100
"""As many as were measured; there are addresses for so many."""
SITES = 400
"""Other origins that pages share, such as those of fonts, counters and advertisements."""
_POPULARITY = 0.9
"""Exponent of Zipf's law for how often each is used."""

LOOK_S = 1.5
"""How long people look at a page before they open the next: new connections pause meanwhile, by
which `ropewalk balance` tells a site that is opened. Browsing is seldom faster."""
KEPT = "opened sites that saw one address"
"""A value of reports: the part of them."""

Kind: TypeAlias = Literal["style", "script", "image"]


@dataclass(frozen=True)
class Object:
    """One transfer besides the document. `late` ones are named by a script, not by the document."""

    origin: int
    kind: Kind
    size: int
    late: bool = False


@dataclass(frozen=True)
class Page:
    """A document and its objects. Origins from `SITES` on belong to one page each."""

    number: int
    flows: int
    document: int
    objects: tuple[Object, ...]

    @property
    def origin(self) -> int:
        """That of the document."""
        return SITES + self.number

    @property
    def bytes(self) -> int:
        """Bytes of everything, without headers."""
        return self.document + sum(thing.size for thing in self.objects)

    @property
    def origins(self) -> frozenset[int]:
        """All that the page has something from."""
        return frozenset((self.origin, *(thing.origin for thing in self.objects)))


def draw(count: int, seed: int, scale: float = 1.0) -> list[Page]:
    """`count` pages in the order in which they are visited.

    The numbers of connections are evenly spaced quantiles, so that few pages have the distribution
    of many; sizes, origins and order are random. All sizes are `scale` times those drawn.
    """
    rng = random.Random(seed)
    normal = NormalDist()
    flows = [_flows(normal.inv_cdf((index + 0.5) / count)) for index in range(count)]
    rng.shuffle(flows)
    pages = [_page(number, wanted, rng) for number, wanted in enumerate(flows)]
    return [_scaled(page, scale) for page in pages]


def _scaled(page: Page, scale: float) -> Page:
    if scale == 1:
        return page
    objects = tuple(
        replace(thing, size=max(SIZE_MIN, round(scale * thing.size))) for thing in page.objects
    )
    return replace(page, document=round(scale * page.document), objects=objects)


def _flows(deviate: float) -> int:
    return min(FLOWS_MAX, max(1, round(exp(_FLOWS_MU + _FLOWS_SIGMA * deviate))))


def _page(number: int, flows: int, rng: random.Random) -> Page:
    own = SITES + number
    shares = {own: min(flows, CONNECTIONS)}
    left = flows - shares[own]
    free = list(range(SITES))
    weights = [(rank + 1) ** -_POPULARITY for rank in range(SITES)]
    while left:
        place = _pick(weights, rng)
        origin = free.pop(place)
        weights.pop(place)
        wanted = CONNECTIONS if rng.random() < _FULL_ORIGINS else rng.randint(1, CONNECTIONS - 1)
        shares[origin] = min(left, wanted)
        left -= shares[origin]
    late = {origin for origin in shares if origin != own and rng.random() < _LATE}
    places = [origin for origin, share in shares.items() for _ in range(share)]
    # Objects without a connection of their own share those of origins with all six, or the page's.
    full = [origin for origin, share in shares.items() if share == CONNECTIONS] or [own]
    places += [rng.choice(full) for _ in range(round((_OBJECTS_PER_FLOW - 1) * flows))]
    objects = [_object(index, origin, own, late, rng) for index, origin in enumerate(places)]
    rng.shuffle(objects)
    if late and not any(thing.kind == "script" and not thing.late for thing in objects):
        objects.append(Object(own, "script", SIZE_MIN))
    return Page(number, flows, round(_DOCUMENT_BYTES * rng.uniform(0.5, 2)), tuple(objects))


def _object(index: int, origin: int, own: int, late: set[int], rng: random.Random) -> Object:
    size = round(min(SIZE_MAX, max(SIZE_MIN, _SIZE_MEDIAN * rng.lognormvariate(0, _SIZE_SIGMA))))
    kind: Kind = "image"
    if origin == own and index < _STYLES:
        kind = "style"
    elif origin not in late and rng.random() < _SCRIPTS:
        kind = "script"
    return Object(origin, kind, size if kind == "image" else min(size, _SCRIPT_MAX), origin in late)


def _pick(weights: Sequence[float], rng: random.Random) -> int:
    bounds = list(accumulate(weights))
    return rng.choices(range(len(weights)), cum_weights=bounds)[0]
