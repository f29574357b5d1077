"""Copies of packets over several paths at once.

Source: Takeuchi et al., "A Practical SDN-based Bicasting Method for Mitigating HOL Blocking in VPN
over TCP", section III; choice by loss, size and flow, spares and removal of copies go beyond it.
"""
