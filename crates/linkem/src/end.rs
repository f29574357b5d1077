//! One end of the link: an Ethernet interface, and what is counted there.

use anyhow::{Context, Result};
use ropewalk_io::netns::Namespace;
use ropewalk_io::tap::{ETHERNET_HEADER_LEN, Tap, TapConfig};
use serde::Serialize;

use crate::args::{Address, EndName};

/// An end that is up.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) tap: Tap,
    interface: String,
    namespace: Namespace,
    /// Frames the kernel did not take, because the interface was down or memory short.
    refused: u64,
}

/// How an end presents itself in JSON.
#[derive(Debug, Serialize)]
pub(crate) struct EndReport<'a> {
    netns: &'a str,
    interface: &'a str,
    /// Frames the namespace did not take.
    refused_frames: u64,
    /// Frames the interface dropped before this program could read them; null when unknown.
    overrun_frames: Option<u64>,
}

impl End {
    /// Makes the interface and sets it up.
    pub(crate) fn create(name: &EndName, mtu: u32, addresses: &[Address]) -> Result<Self> {
        Self::create_in(
            Namespace::open(&name.namespace)?,
            &name.interface,
            mtu,
            addresses,
        )
    }

    /// The same in a namespace that is open already.
    pub(crate) fn create_in(
        namespace: Namespace,
        interface: &str,
        mtu: u32,
        addresses: &[Address],
    ) -> Result<Self> {
        let config = TapConfig {
            name: interface.into(),
            mtu,
            addresses: addresses
                .iter()
                .map(|Address(ip, prefix)| (*ip, *prefix))
                .collect(),
        };
        let tap = Tap::create(&namespace, &config)?;
        Ok(Self {
            tap,
            interface: interface.into(),
            namespace,
            refused: 0,
        })
    }

    /// Writes a frame; a refused one is counted.
    pub(crate) fn write(&mut self, frame: &[u8]) -> Result<()> {
        let taken = self.tap.write(frame).with_context(|| self.gone())?;
        self.refused += u64::from(!taken);
        Ok(())
    }

    /// Reads a frame; `None` when there is none.
    pub(crate) fn read(&self, buffer: &mut [u8]) -> Result<Option<usize>> {
        self.tap.read(buffer).with_context(|| self.gone())
    }

    pub(crate) fn report(&self) -> EndReport<'_> {
        EndReport {
            netns: self.namespace.name(),
            interface: &self.interface,
            refused_frames: self.refused,
            overrun_frames: self.overrun(),
        }
    }

    /// Frames dropped in the interface's transmit queue, which the kernel counts.
    fn overrun(&self) -> Option<u64> {
        let read = || std::fs::read_to_string("/proc/thread-self/net/dev");
        let text = self.namespace.enter(read).ok()?.ok()?;
        transmit_drops(&text, &self.interface)
    }

    fn gone(&self) -> String {
        format!(
            "the interface {} in {} is gone",
            self.interface,
            self.namespace.name()
        )
    }
}

/// Length of the IP packet in an Ethernet frame, in bytes.
pub(crate) fn ip_len(frame_len: usize) -> usize {
    frame_len.saturating_sub(ETHERNET_HEADER_LEN)
}

/// Transmit drops of `interface` in the format of `/proc/net/dev` (proc(5)).
fn transmit_drops(text: &str, interface: &str) -> Option<u64> {
    let fields = text.lines().find_map(|line| {
        let (name, fields) = line.split_once(':')?;
        (name.trim() == interface).then_some(fields)
    })?;
    fields.split_whitespace().nth(TRANSMIT_DROPS)?.parse().ok()
}

/// Eight receive fields, then bytes, packets and errors sent.
const TRANSMIT_DROPS: usize = 8 + 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transmit_drops_are_found_by_interface() {
        let text = "Inter-| Receive | Transmit\n face |bytes packets |bytes\n\
             lo: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n\
             wan0:21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36\n";
        assert_eq!(transmit_drops(text, "wan0"), Some(32));
        assert_eq!(transmit_drops(text, "lo"), Some(12));
        assert_eq!(transmit_drops(text, "wan1"), None);
    }
}
