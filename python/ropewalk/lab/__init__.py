"""The laboratory: experiments on the kernel and in the simulator, their claims and their report.

It needs no native module: programs do the runs, and only the report needs matplotlib.
"""
