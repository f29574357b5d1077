//! A named network namespace that goes away with its handle.
//!
//! Threads enter it with setns(2), which moves only the calling thread; sockets made there belong
//! to the namespace for their whole life. Programs enter it through `ip netns exec`.

use std::fmt::Write as _;
use std::fs::File;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::cleanup::{self, NAMESPACE_DIR, Resource, Ticket};
use crate::process::Program;

/// A network namespace; clones share it, the last one removes it.
#[derive(Clone, Debug)]
pub struct Namespace(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    name: String,
    file: File,
    ticket: Ticket,
}

impl Namespace {
    /// Creates `rw-PURPOSE-PID-ROLE` (a number is added to the purpose if this process has
    /// already used the name) with loopback up and duplicate address detection off. TCP uses
    /// CUBIC, as most machines do, or NewReno where the kernel lacks CUBIC, unless programs choose.
    ///
    /// # Errors
    /// Without the privilege (root) or the `ip` program.
    pub fn create(purpose: &str, role: &str) -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("rw-{purpose}{number}-{}-{role}", std::process::id());
        let ticket = cleanup::register(Resource::Namespace(name.clone()));
        let made = Program::new("ip")
            .args(["netns", "add", &name])
            .success(LIMIT);
        if let Err(error) = made {
            ticket.release();
            return Err(error.context("cannot make a network namespace (root is needed)"));
        }
        let path = PathBuf::from(NAMESPACE_DIR).join(&name);
        let file = File::open(&path).with_context(|| format!("cannot open {}", path.display()))?;
        let namespace = Self(Arc::new(Inner { name, file, ticket }));
        namespace.ip("link set lo up")?;
        // Programs choose a control after they have connected. A connection that began with BBR, the
        // default of some machines, would stay paced with every control that follows.
        let control = |name| namespace.sysctl("net/ipv4/tcp_congestion_control", name);
        control("cubic").or_else(|_| control("reno"))?;
        if namespace.has_ipv6()? {
            for which in ["default", "all"] {
                namespace.sysctl(&format!("net/ipv6/conf/{which}/accept_dad"), "0")?;
            }
        }
        Ok(namespace)
    }

    /// Name as `ip netns` knows it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Runs `work` on a thread inside the namespace and waits for it.
    ///
    /// # Errors
    /// If the namespace cannot be entered.
    ///
    /// # Panics
    /// If `work` does.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                self.move_here()?;
                Ok(work())
            });
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Starts a thread inside the namespace.
    ///
    /// # Errors
    /// If the thread cannot be started; failure to enter is the thread's result.
    pub fn spawn<T: Send + 'static>(
        &self,
        name: &str,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<JoinHandle<Result<T>>> {
        let namespace = self.clone();
        let builder = std::thread::Builder::new().name(name.to_owned());
        Ok(builder.spawn(move || {
            namespace.move_here()?;
            work()
        })?)
    }

    /// Moves the calling thread into the namespace for good.
    fn move_here(&self) -> Result<()> {
        move_into_link_name_space(self.0.file.as_fd(), Some(LinkNameSpaceType::Network))
            .with_context(|| format!("cannot enter namespace {}", self.name()))
    }

    /// A program that will run inside.
    #[must_use]
    pub fn program(&self, program: impl Into<std::ffi::OsString>) -> Program {
        Program::new(program).inside(self)
    }

    /// Carries out `ip` commands, one a line, without the leading `ip`.
    ///
    /// # Errors
    /// At the first command that fails; the message holds it and what `ip` said.
    pub fn ip(&self, commands: &str) -> Result<()> {
        let batch = Program::new("ip")
            .args(["-n", self.name(), "-batch", "-"])
            .input(commands);
        batch.success(LIMIT).map(drop)
    }

    /// What an `ip -json` command prints, parsed.
    ///
    /// # Errors
    /// If the command fails or its answer is no JSON.
    pub fn ip_json(&self, arguments: &[&str]) -> Result<serde_json::Value> {
        let program = Program::new("ip")
            .args(["-n", self.name(), "-json"])
            .args(arguments);
        let text = program.success(LIMIT)?;
        Ok(serde_json::from_str(if text.trim().is_empty() {
            "[]"
        } else {
            &text
        })?)
    }

    /// Loads an nftables script.
    ///
    /// # Errors
    /// If `nft` refuses it.
    pub fn nft(&self, script: &str) -> Result<()> {
        self.program("nft")
            .args(["-f", "-"])
            .input(script)
            .success(LIMIT)
            .map(drop)
    }

    /// Lets neighbours on an interface stay known once they have answered. Links that swallow
    /// everything swallow ARP too. On a real path that link is seldom the hop to the next router.
    /// Without this, a test would measure how the kernel looks for the router once a second.
    ///
    /// # Errors
    /// If there is no such interface.
    pub fn remember_neighbours(&self, interface: &str) -> Result<()> {
        let families: &[&str] = if self.has_ipv6()? {
            &["ipv4", "ipv6"]
        } else {
            &["ipv4"]
        };
        for family in families {
            let key = |name| format!("net/{family}/neigh/{interface}/{name}");
            self.sysctl(&key("base_reachable_time_ms"), NEIGHBOUR_KNOWN_MS)?;
            // One that was only heard of is used for so long before it is asked.
            self.sysctl(&key("delay_first_probe_time"), NEIGHBOUR_USED_S)?;
        }
        Ok(())
    }

    /// Whether interfaces in here can have IPv6 addresses.
    ///
    /// # Errors
    /// If the namespace cannot be entered.
    pub fn has_ipv6(&self) -> Result<bool> {
        let key = "/proc/sys/net/ipv6/conf/default/disable_ipv6";
        self.enter(|| std::fs::read_to_string(key).is_ok_and(|value| value.trim() == "0"))
    }

    /// Sets a kernel parameter, named by its path under `/proc/sys`.
    ///
    /// # Errors
    /// If there is no such parameter or it refuses the value.
    pub fn sysctl(&self, key: &str, value: &str) -> Result<()> {
        self.enter(|| std::fs::write(format!("/proc/sys/{key}"), value))?
            .with_context(|| format!("cannot set {key} to {value}"))
    }

    /// Reads a kernel parameter, named by its path under `/proc/sys`.
    ///
    /// # Errors
    /// If there is no such parameter.
    pub fn sysctl_value(&self, key: &str) -> Result<String> {
        let text = self.enter(|| std::fs::read_to_string(format!("/proc/sys/{key}")))?;
        Ok(text
            .with_context(|| format!("cannot read {key}"))?
            .trim()
            .to_owned())
    }

    /// Brings an interface up or down.
    ///
    /// # Errors
    /// If there is no such interface.
    pub fn set_interface(&self, interface: &str, up: bool) -> Result<()> {
        self.ip(&format!(
            "link set {interface} {}",
            if up { "up" } else { "down" }
        ))
    }

    /// Switches an offload with `ethtool -K`.
    ///
    /// # Errors
    /// If the interface does not know it.
    pub fn set_offload(&self, interface: &str, feature: &str, on: bool) -> Result<()> {
        let state = if on { "on" } else { "off" };
        let program = self
            .program("ethtool")
            .args(["-K", interface, feature, state]);
        program.success(LIMIT).map(drop)
    }

    /// Bytes received and sent on an interface since it was made.
    ///
    /// # Errors
    /// If there is no such interface.
    pub fn interface_bytes(&self, interface: &str) -> Result<(u64, u64)> {
        let table = self.enter(|| std::fs::read_to_string("/proc/thread-self/net/dev"))??;
        interface_bytes_in(&table, interface)
            .ok_or_else(|| anyhow!("no interface {interface} in {}", self.name()))
    }

    /// TCP segments sent again by the whole namespace since it was made.
    ///
    /// # Errors
    /// If the kernel's table cannot be read.
    pub fn tcp_retransmits(&self) -> Result<u64> {
        let table = self.enter(|| std::fs::read_to_string("/proc/thread-self/net/snmp"))??;
        snmp_value(&table, "Tcp:", "RetransSegs").context("no RetransSegs in the kernel's table")
    }

    /// Drops UDP arriving on `interfaces`, as a network between would: the sender sees nothing.
    ///
    /// # Errors
    /// If `nft` refuses.
    pub fn block_udp(&self, interfaces: &[&str]) -> Result<()> {
        self.drop_arriving("testbed_udp", interfaces, "meta l4proto udp")
    }

    /// Takes [`Namespace::block_udp`] back.
    ///
    /// # Errors
    /// If `nft` refuses.
    pub fn unblock_udp(&self) -> Result<()> {
        self.nft("table inet testbed_udp\ndelete table inet testbed_udp\n")
    }

    /// Drops every IP packet arriving on `interface`, or no longer.
    ///
    /// # Errors
    /// If `nft` refuses.
    pub fn set_deaf(&self, interface: &str, deaf: bool) -> Result<()> {
        let table = format!("testbed_deaf_{interface}");
        if deaf {
            self.drop_arriving(&table, &[interface], "")
        } else {
            self.nft(&format!("table inet {table}\ndelete table inet {table}\n"))
        }
    }

    fn drop_arriving(&self, table: &str, interfaces: &[&str], condition: &str) -> Result<()> {
        let mut script = format!("table inet {table}\ndelete table inet {table}\n");
        let _ = writeln!(script, "table inet {table} {{\nchain arriving {{");
        script.push_str("type filter hook prerouting priority -300;\n");
        for interface in interfaces {
            let _ = writeln!(script, "iifname \"{interface}\" {condition} drop");
        }
        script.push_str("}\n}\n");
        self.nft(&script)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        cleanup::delete_namespace(&self.name);
        self.ticket.release();
    }
}

/// Joins two namespaces with a veth pair, both ends up, with this MTU.
///
/// # Errors
/// If a name is taken or the MTU out of range.
pub fn veth(a: (&Namespace, &str), b: (&Namespace, &str), mtu: u32) -> Result<()> {
    Program::new("ip")
        .args([
            "-n",
            a.0.name(),
            "link",
            "add",
            a.1,
            "mtu",
            &mtu.to_string(),
        ])
        .args([
            "type",
            "veth",
            "peer",
            "name",
            b.1,
            "netns",
            b.0.name(),
            "mtu",
        ])
        .arg(mtu.to_string())
        .success(LIMIT)?;
    a.0.set_interface(a.1, true)?;
    b.0.set_interface(b.1, true)
}

/// `ADDRESS/LENGTH` as `ip` wants it, without duplicate address detection for IPv6.
#[must_use]
pub fn address_command(address: IpAddr, length: u8, interface: &str) -> String {
    let nodad = if address.is_ipv6() { " nodad" } else { "" };
    format!("addr add {address}/{length} dev {interface}{nodad}\n")
}

/// Received and sent bytes of one line of `/proc/net/dev`.
fn interface_bytes_in(table: &str, interface: &str) -> Option<(u64, u64)> {
    let line = table.lines().find_map(|line| {
        let (name, numbers) = line.split_once(':')?;
        (name.trim() == interface).then_some(numbers)
    })?;
    let numbers: Vec<u64> = line
        .split_whitespace()
        .filter_map(|n| n.parse().ok())
        .collect();
    Some((*numbers.first()?, *numbers.get(8)?))
}

/// A value of `/proc/net/snmp`: a line of names, then a line of numbers, both with the prefix.
fn snmp_value(table: &str, prefix: &str, key: &str) -> Option<u64> {
    let mut lines = table.lines().filter(|line| line.starts_with(prefix));
    let column = lines
        .next()?
        .split_whitespace()
        .position(|name| name == key)?;
    lines.next()?.split_whitespace().nth(column)?.parse().ok()
}

/// How long a neighbour that answered counts as there: longer than any test.
const NEIGHBOUR_KNOWN_MS: &str = "3600000";
const NEIGHBOUR_USED_S: &str = "3600";
/// Bound of one administrative command.
const LIMIT: Duration = Duration::from_secs(20);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_tables_are_read_by_name() {
        let dev = "Inter-| Receive\n face |bytes\n  up0: 10 1 0 0 0 0 0 0 20 2 0 0 0 0 0 0\n";
        assert_eq!(interface_bytes_in(dev, "up0"), Some((10, 20)));
        assert_eq!(interface_bytes_in(dev, "up1"), None);
        let snmp = "Ip: A B\nIp: 1 2\nTcp: Min RetransSegs\nTcp: -1 42\n";
        assert_eq!(snmp_value(snmp, "Tcp:", "RetransSegs"), Some(42));
        assert_eq!(snmp_value(snmp, "Tcp:", "Other"), None);
    }
}
