"""Loads on two uplinks, and the names of the values that runs of them report."""

WEIGHTS = (3.0, 1.0)
"""The weights of the uplinks, where a case gives them weights."""
CONNECTIONS = 200
"""TCP connections, one after the other, of the case `set-up`."""
NEW_FLOWS, NEW_FLOWS_PER_S = 5000, 500
"""UDP flows of one datagram each, of the case `new-flows`."""

FAILED = "connections that failed"
ADDED = "added by the decision, median, ms"
ADDED_99 = "added by the decision, 99 %, ms"
SHARE = "share of the first uplink"
LOST = "flows without an answer"
RATE = "new flows per s"
BROKEN = "connections that broke"
AFTERWARDS = "new connections afterwards, of 20"
CHANGES = "flow changes of the new controller"
NOTICED = "noticed after, s"
ENDED = "TCP connections that ended as they should, of 4"
WENT_ON = "UDP flows that went on, of 4"
DEAD = "new connections over the dead uplink, of 20"
CAPACITY = "capacity found by rate"

STEP = 4.0
"""By which the capacity of the first uplink falls and rises again, of the case `capacity-steps`."""
FALL = "estimate right again after a fall, s"
RISE = "estimate right again after a rise, s"
KEPT = "lowest estimate by rate after traffic has ended"
