"""Flow balancing at the client alone: each new flow gets an uplink and keeps it.

Source: Al-Najjar et al., "Flow-based load balancing of web and video traffic on multi-homed hosts
with OpenFlow", section 3 (flow detection, weighted round robin, address rewriting). Connection
tracking, liveness and the mode without the controller go beyond it.
"""
