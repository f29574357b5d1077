"""Stations that move between access points: routes, and what their senders sent meanwhile.

`stations` knows who is where, `topology` the shortest ways, `program` the flows of one switch,
`buffers` the segments a station has not acknowledged, `policy` decides. `fabric`, `notices`,
`agent` and `controller` are the edge: switches, access points, clocks. Source of the published
modes: Singh et al., "Improving Performance of TCP for Wireless Network using SDN", ICDCN 2019.
"""
