"""The controller of mode `roam`: its policy, run by `service`, and the notices of access points."""

from __future__ import annotations

import logging
from typing import Any

from ropewalk.sdn.roam.config import Config
from ropewalk.sdn.roam.events import Notice, Own
from ropewalk.sdn.roam.notices import Notices
from ropewalk.sdn.roam.policy import Roam
from ropewalk.sdn.roam.state import State
from ropewalk.sdn.service import Service, context

_SPARE = 16
"""Connections beyond one for each switch: those about to be replaced or refused."""

_log = logging.getLogger(__name__)


class Controller:
    """The controller of all switches."""

    def __init__(self, config: Config) -> None:
        """Raises OSError when an address cannot be listened on, ConfigError when TLS's files do
        not fit."""
        self._config = config
        names = {switch.datapath: switch.name for switch in config.switches}
        self.service: Service[State, Own] = Service(
            Roam(config), config.controller, names.get, len(names) + _SPARE
        )
        self.notices: Notices | None = None
        try:
            if config.notices:
                tls = context(config.controller.tls) if config.controller.tls else None
                self.notices = Notices(config.notices, self._noticed, tls)
        except BaseException:
            self.service.switches.close()
            raise

    def run(self) -> None:
        """Works until `stop`."""
        try:
            self.service.run()
        finally:
            if self.notices:
                self.notices.close()

    def stop(self) -> None:
        """Ends `run`; the switches keep their flows."""
        self.service.stop()

    def report(self) -> dict[str, Any]:
        """State and counters, ready for JSON."""
        report = self.service.report()
        if self.notices:
            report["counters"]["malformed_notices"] = self.notices.malformed
            report["counters"]["refused_notices"] = self.notices.refused
            report["counters"]["refused_agents"] = self.notices.refused_agents
        return report

    def _noticed(self, notice: Notice) -> str:
        """Passes it on, also to be counted; why it is not taken, if so."""
        _log.info("%s", notice)
        self.service.put(notice)
        if self._config.has_access(notice.switch, notice.port):
            return ""
        return f"{notice.switch} {notice.port}: no access port of the controller's configuration"
