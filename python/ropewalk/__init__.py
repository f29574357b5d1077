"""Ropewalk from Python: the laboratory (`ropewalk.lab`) and the simulator (`ropewalk.sim`)."""

__version__ = "0.1.0"
