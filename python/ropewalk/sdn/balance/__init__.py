"""Flow balancing at the client alone: each new flow gets an uplink and keeps it.

Source: AlNajjar et al., "Flow-level Load Balancing of HTTP Traffic using OpenFlow" (JTDE 6(4),
2018), section 3 (flow detection, weighted round robin, address rewriting). Connection
tracking, liveness and the mode without the controller go beyond it.
"""
