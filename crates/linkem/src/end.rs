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
    pub(crate) name: EndName,
    /// Frames the kernel did not take, because the interface was down or memory short.
    pub(crate) refused: u64,
}

/// How an end presents itself in JSON.
#[derive(Debug, Serialize)]
pub(crate) struct EndReport<'a> {
    netns: &'a str,
    interface: &'a str,
    refused_frames: u64,
}

impl End {
    /// Makes the interface and sets it up.
    pub(crate) fn create(name: &EndName, mtu: u32, addresses: &[Address]) -> Result<Self> {
        let namespace = Namespace::open(&name.namespace)?;
        let config = TapConfig {
            name: name.interface.clone(),
            mtu,
            addresses: addresses
                .iter()
                .map(|Address(ip, prefix)| (*ip, *prefix))
                .collect(),
        };
        let tap = Tap::create(&namespace, &config)?;
        Ok(Self {
            tap,
            name: name.clone(),
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
            netns: &self.name.namespace,
            interface: &self.name.interface,
            refused_frames: self.refused,
        }
    }

    fn gone(&self) -> String {
        format!(
            "the interface {} in {} is gone",
            self.name.interface, self.name.namespace
        )
    }
}

/// Length of the IP packet in an Ethernet frame, in bytes.
pub(crate) fn ip_len(frame_len: usize) -> usize {
    frame_len.saturating_sub(ETHERNET_HEADER_LEN)
}
