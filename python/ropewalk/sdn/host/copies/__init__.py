"""Removal of copies at the far end, by a small program in the kernel's traffic control.

Open vSwitch cannot do it: it has no match on what tells copies from retransmissions.
"""
