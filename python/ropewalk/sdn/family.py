"""What differs between IPv4 and IPv6 in flows: the names and numbers, nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_interface

from ropewalk.sdn.openflow.program import Value


@dataclass(frozen=True)
class Family:
    """One address family in OpenFlow's terms."""

    version: int
    """4 or 6."""
    ethernet: int
    """Type in the Ethernet header."""
    source: str
    """Field of the source address."""
    target: str
    """Field of the target address."""
    icmp: int
    """IP protocol of its ICMP."""
    echo_reply: tuple[str, int]
    """Field and value of the type of an answer to a ping."""
    not_routed: tuple[Value, ...]
    """Target addresses that no router forwards: multicast, broadcast, link-local."""

    @property
    def name(self) -> str:
        """For people: "ipv4" or "ipv6"."""
        return f"ipv{self.version}"


IPV4 = Family(
    version=4,
    ethernet=0x0800,
    source="ipv4_src",
    target="ipv4_dst",
    icmp=1,
    echo_reply=("icmpv4_type", 0),
    not_routed=(
        ("224.0.0.0", "240.0.0.0"),
        ("169.254.0.0", "255.255.0.0"),
        "255.255.255.255",
    ),
)
IPV6 = Family(
    version=6,
    ethernet=0x86DD,
    source="ipv6_src",
    target="ipv6_dst",
    icmp=58,
    echo_reply=("icmpv6_type", 129),
    not_routed=(("ff00::", "ff00::"), ("fe80::", "ffc0::")),
)


def of(address: str) -> Family:
    """The family of an address, with or without the length of its prefix."""
    return IPV6 if ip_interface(address).version == 6 else IPV4
