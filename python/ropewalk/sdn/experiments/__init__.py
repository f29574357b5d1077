"""Experiments of the OpenFlow data plane on real Open vSwitch, in network namespaces."""
