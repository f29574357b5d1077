"""Networks of namespaces with Open vSwitch on which experiments and tests run the real programs.

A file for each mode holds its network and what is measured on it; `load` and `roam_load` are the
programs that make the traffic. `networks` lists what the laboratory runs, whose experiments are in
`ropewalk.lab.experiments`. This package is used from a checkout; the wheel does not contain it.
"""
