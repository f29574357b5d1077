"""The OpenFlow data plane: copies (`bicast`) and flow balancing (`balance`) on Open vSwitch.

Decisions are pure: a policy takes its state, one event and the time, and returns its next state and
the messages to send (`policy.py`). Sockets, commands and clocks are at the edge: `openflow` speaks
with the switch, `host` changes the machine, `service` runs a policy, `cli` is the command.
"""
