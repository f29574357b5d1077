"""A film in a window of the browser: an adaptive player that asks for segments as DASH players do.

The next segment has the highest rate below `SAFETY` of what the last ones came at, while the
buffer is not full (ISO/IEC 23009-1 leaves the rule to players). The figure is the rate of what was
received. Where a switch carries the film, the rate is that of its flow statistics, as in the paper.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from ropewalk.lab.browser import site
from ropewalk.lab.browser.chromium import Chromium
from ropewalk.lab.browser.switched import Switch
from ropewalk.lab.runner import RunError

BUFFER_S = 20.0
SAFETY = 0.8
_KEPT = 3

_PLAYER = """
(async (rates, segment, most, safety, kept) => {
  const film = globalThis.film = {bytes: 0, segments: 0, stalled: 0, failed: 0, error: ""};
  let buffer = 0, at = performance.now(), speeds = [];
  const pass = () => {
    const now = performance.now(), gone = (now - at) / 1e3;
    if (film.segments) film.stalled += Math.max(0, gone - buffer);
    buffer = Math.max(0, buffer - gone);
    at = now;
  };
  for (;;) {
    const mean = speeds.length / speeds.reduce((sum, speed) => sum + 1 / speed, 0);
    const rate = rates.filter(one => one <= safety * mean).pop() || rates[0];
    const begun = performance.now();
    let size = 0;
    try {
      const answer = await fetch(`/film/${rate}`, {cache: "no-store"});
      if (!answer.ok) throw new Error(answer.status);
      size = (await answer.arrayBuffer()).byteLength;
    } catch (error) {
      film.failed += 1; film.error = String(error); pass();
      await new Promise(done => setTimeout(done, 200));
      continue;
    }
    speeds = [...speeds, size * 8e-3 / (performance.now() - begun)].slice(-kept);
    pass();
    buffer += segment; film.bytes += size; film.segments += 1;
    const wait = buffer - most;
    if (wait > 0) { await new Promise(done => setTimeout(done, wait * 1e3)); pass(); }
  }
})
"""


@dataclass(frozen=True)
class Watched:
    """What the player has had by now."""

    bytes: int
    segments: int
    stalled_s: float
    failed: int
    counted: int | None
    """Bytes of frames by the switch's flow statistics, where a switch carries the film."""


class Film:
    """A film that plays until the browser ends."""

    def __init__(self, browser: Chromium, switch: Switch | None) -> None:
        """Begins to play."""
        self._browser, self._switch = browser, switch
        self._address = site.address(site.VIDEO)
        if switch is not None:
            switch.count(self._address)
        _, self._session = browser.open()
        browser.visit(self._session, f"https://{site.host(site.VIDEO)}/")
        arguments = json.dumps([site.FILM_RATES_MBIT, site.FILM_SEGMENT_S, BUFFER_S, SAFETY, _KEPT])
        browser.evaluate(self._session, f"{_PLAYER}(...{arguments}); 0")

    def watched(self) -> Watched:
        """What there was until now."""
        found = self._browser.evaluate(self._session, "globalThis.film")
        if not isinstance(found, dict) or not found["segments"]:
            raise RunError(f"the film did not play: {found}")
        counted = None if self._switch is None else self._switch.counted(self._address)
        return Watched(
            found["bytes"], found["segments"], found["stalled"], found["failed"], counted
        )
