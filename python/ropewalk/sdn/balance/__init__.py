"""Flow balancing at the client alone: each new flow gets an uplink and keeps it.

Source: Al-Najjar et al., "Flow-level load balancing of HTTP traffic using OpenFlow" (flow
detection, weighted round robin, address rewriting); connection tracking, liveness and the mode
without the controller go beyond it.
"""
