"""The five papers whose systems Ropewalk repeats, and the experiments that stand beside them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Paper:
    """One paper. `experiments` are names in `EXPERIMENTS`, the most faithful first."""

    key: str
    title: str
    source: str
    experiments: tuple[str, ...]


PAPERS: tuple[Paper, ...] = (
    Paper(
        "bicasting",
        "Bicasting beneath a VPN over TCP",
        "Takeuchi et al., “A Practical SDN-based Bicasting Method for Mitigating HOL Blocking in "
        "VPN over TCP”",
        ("bicast-ovs", "openvpn", "bicast-native"),
    ),
    Paper(
        "htmt",
        "HTMT: high-throughput multipath tunnelling",
        "Sailer and Hähner, “HTMT: High-Throughput Multipath Tunnelling for Asymmetric Paths”",
        ("htmt",),
    ),
    Paper(
        "zwa",
        "Zero window advertisements for stations that move",
        "Singh et al., “Improving Performance of TCP for Wireless Network using SDN”, ICDCN 2019",
        ("roam-wifi", "roam-ovs"),
    ),
    Paper(
        "flow-balancing",
        "Flow-based load balancing at a multi-homed host",
        "AlNajjar, Portmann, Layeghy and Indulska, “Flow-level Load Balancing of HTTP Traffic "
        "using OpenFlow”, Journal of Telecommunications and the Digital Economy 6(4), 2018",
        ("balance-static", "balance-dynamic", "balance-quic", "balance-video", "balance-ovs"),
    ),
    Paper(
        "tcpnc",
        "Tunnels of TCP with network coding",
        "Nguyen Viet Ha and Tsuru, “On the characteristics of TCP/NC tunneling in heterogeneous "
        "environments”",
        ("tcpnc",),
    ),
)
