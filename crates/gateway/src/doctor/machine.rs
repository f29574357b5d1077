//! Checks of the machine that hold for every role.

use std::path::Path;
use std::time::SystemTime;

use ropewalk_io::nft::{self, NftError};
use ropewalk_io::sysctl;
use ropewalk_io::tun::{Tun, TunConfig, TunError};
use ropewalk_io::udp::{UdpConfig, UdpSocket};

use super::Check;
use crate::service;
use ropewalk_host::settings;

/// Oldest kernel that has what the data path (UDP GRO, 5.0) and the rules of a hub (options of IPv4, 5.3) use, and the one with which TUN
/// takes UDP super packets too (6.2).
const KERNEL_MIN: (u32, u32) = (5, 3);
const KERNEL_USO: (u32, u32) = (6, 2);
/// A clock before this, 2026-01-01, in seconds since 1970, was never set.
const CLOCK_MIN: u64 = 1_767_225_600;
/// Buffer of probe sockets, bytes.
const PROBE_BUFFER: usize = 1 << 16;

/// All of them.
pub fn checks() -> Vec<Check> {
    let mut checks = vec![kernel(), privileges(), tun()];
    checks.extend(udp_offload());
    checks.extend([ipv6(), clock()]);
    checks
}

fn kernel() -> Check {
    let name = "kernel";
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy().into_owned();
    match version(&release) {
        None => Check::warn(
            name,
            release,
            "this version is not understood; 5.3 or newer is needed",
        ),
        Some(found) if found < KERNEL_MIN => Check::fail(
            name,
            format!("Linux {release}"),
            "update to Linux 5.3 or newer",
        ),
        Some(found) if found < KERNEL_USO => Check::warn(
            name,
            format!("Linux {release}: no UDP offload on TUN"),
            "update to Linux 6.2 or newer for faster UDP",
        ),
        Some(_) => Check::ok(name, format!("Linux {release}")),
    }
}

fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn privileges() -> Check {
    if service::has_net_admin() {
        Check::ok("privileges", "may configure the network")
    } else {
        let remedy = "run as root (sudo), or use the systemd units";
        Check::fail("privileges", "may not configure the network", remedy)
    }
}

fn tun() -> Check {
    let name = "TUN";
    let config = TunConfig {
        name: "rwcheck%d".to_owned(),
        mtu: 1_280,
        offload: true,
    };
    match Tun::open(&config) {
        Ok(tun) => {
            let offloads = tun.offloads();
            if offloads.given_up.is_empty() {
                return Check::ok(name, "interfaces can be made, with TCP and UDP offloads");
            }
            let found = format!("interfaces can be made; {}", offloads.given_up.join("; "));
            Check::warn(
                name,
                found,
                "update the kernel for more speed; everything works without",
            )
        }
        Err(error) => {
            let remedy = match error {
                TunError::NoDevice if Path::new("/.dockerenv").exists() => {
                    "start the container with --device /dev/net/tun --cap-add NET_ADMIN"
                }
                TunError::NoDevice => {
                    "run `modprobe tun`; a virtual server may need it from its provider"
                }
                TunError::NotPermitted(_) => "run as root (sudo)",
                TunError::NameTaken(_) | TunError::BadName(_) | TunError::Io { .. } => {
                    "look at `dmesg`"
                }
            };
            Check::fail(name, error.to_string(), remedy)
        }
    }
}

fn ipv6() -> Check {
    let name = "IPv6";
    if sysctl::has_ipv6() {
        return Check::ok(name, "interfaces can have IPv6 addresses");
    }
    if settings::kernel_has_ipv6() {
        return Check::warn(
            name,
            "switched off (net.ipv6.conf.default.disable_ipv6 = 1): tunnels carry IPv4 only",
            "nothing, if IPv4 is enough; else `sysctl net.ipv6.conf.all.disable_ipv6=0` and restart",
        );
    }
    Check::warn(
        name,
        "this kernel has no IPv6: tunnels carry IPv4 only",
        "nothing, if IPv4 is enough; else load the module, or boot without ipv6.disable=1",
    )
}

fn udp_offload() -> Vec<Check> {
    let name = "UDP offload";
    let config = UdpConfig {
        bind: ([127, 0, 0, 1], 0).into(),
        device: None,
        mark: None,
        recv_buffer: PROBE_BUFFER,
        send_buffer: PROBE_BUFFER,
        group: None,
    };
    vec![match UdpSocket::bind(&config) {
        Ok(socket) if socket.max_segments() > 1 => Check::ok(
            name,
            format!("up to {} segments a call", socket.max_segments()),
        ),
        Ok(_) => Check::warn(name, "not available", "update the kernel for more speed"),
        Err(error) => Check::fail(name, format!("no UDP socket: {error}"), "look at `dmesg`"),
    }]
}

/// Check of the program nft: without it a site `kills` its traffic in vain, and does not start.
pub fn nft(kills: bool) -> Check {
    nft_found(kills, nft::version())
}

fn nft_found(kills: bool, found: Result<String, NftError>) -> Check {
    let name = "nftables";
    match found {
        Ok(version) => Check::ok(name, version),
        Err(error) if kills => Check::fail(
            name,
            format!("{error}; the kill switch cannot be set, so the site does not start"),
            "install nftables, or set kill_switch = false in [network]",
        ),
        Err(error) => Check::warn(
            name,
            error.to_string(),
            "install nftables: a hub needs it for address translation, a site for the kill switch and \
             for classes beside the tunnel",
        ),
    }
}

fn clock() -> Check {
    let name = "clock";
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    if now.as_secs() < CLOCK_MIN {
        // Keys are pinned, certificates play no part: the tunnel works all the same.
        let remedy = "set the clock (systemd-timesyncd, chrony): the tunnel works without, but \
                      logs have wrong times";
        return Check::warn(name, "the clock was never set", remedy);
    }
    Check::ok(name, "set")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::State;

    #[test]
    fn a_missing_nft_fails_a_site_with_a_kill_switch_and_warns_others() {
        let of = |kills| nft_found(kills, Err(NftError::Missing));
        assert_eq!(of(true).state, State::Fail);
        assert!(of(true).found.contains("kill switch"), "{:?}", of(true));
        assert_eq!(of(false).state, State::Warn);
        let there = nft_found(true, Ok("nftables v1".to_owned()));
        assert_eq!(there.state, State::Ok);
    }

    #[test]
    fn kernel_versions_are_understood() {
        assert_eq!(version("6.18.0-rc3+"), Some((6, 18)));
        assert_eq!(version("5.10-generic"), Some((5, 10)));
        assert_eq!(version("next"), None);
    }
}
