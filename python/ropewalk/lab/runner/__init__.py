"""What does the runs: the kernel in network namespaces, and the simulator."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Protocol

from ropewalk.lab.cell import Cell
from ropewalk.report import Report

STOPPED = threading.Event()
"""The user has given up: networks that are being made, and runs on them, wait for nothing more."""
EXIT_PLAN_UNUSABLE = 2
"""What a program ends with when it cannot do this plan."""
EXIT_CANNOT_RUN = 3
"""What a program ends with when the machine lacks something."""


class UnavailableError(Exception):
    """It cannot be done here: trying again is of no use."""


class RunError(Exception):
    """It went wrong; the message is the reason."""


class CellRunner(Protocol):
    """Runs cells that differ in nothing but their seed."""

    def run(self, cells: Sequence[Cell]) -> list[Report]:
        """One report for each cell, in order.

        Raises:
            UnavailableError: when this machine lacks something.
            RunError: when anything else went wrong.
        """
