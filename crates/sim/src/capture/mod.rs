//! Packets of a run as `tcpdump` and `tshark` read them: one file for each interface.
//!
//! The format is that of libpcap with nanoseconds (magic number 0xa1b23c4d) and the link type
//! LINKTYPE_RAW: every record begins with an IP header. Times begin at zero, with the plan. At most
//! [`KEPT_MAX`] bytes of a packet are kept; the record says how long the packet was.

mod outer;

use crate::headers::Headers;
use crate::packet::{Packet, UDP_HEADERS};
use ropewalk_netem::Side;
use ropewalk_testkit::packet::Packet as Outer;
use std::fs::File;
use std::io::{BufWriter, Error, Write};
use std::path::{Path, PathBuf};

/// Bytes of a packet that are kept: headers with all options, and the beginning of the content.
const KEPT_MAX: usize = 128;
const MAGIC_NANOSECONDS: u32 = 0xa1b2_3c4d;
const VERSION: [u16; 2] = [2, 4];
/// LINKTYPE_RAW: IP without any header before it.
const LINK_TYPE: u32 = 101;

/// The files of a run.
pub struct Capture {
    /// The site's host and the server.
    hosts: [Interface; 2],
    /// The ends of each path, at the site and at the hub or server.
    paths: Vec<[Interface; 2]>,
    headers: Headers,
    /// The packet that is being written.
    ip: Vec<u8>,
}

struct Interface {
    file: PathBuf,
    sink: BufWriter<File>,
    error: Option<Error>,
}

impl Capture {
    /// Makes the files in a directory, which is made, too: `host-site.pcap`, `host-server.pcap`, and
    /// `path-NAME-site.pcap` and `path-NAME-hub.pcap` for each path.
    ///
    /// # Errors
    /// The file or directory that cannot be made, and why.
    pub fn create(directory: &Path, paths: &[&str]) -> Result<Self, String> {
        let told = |file: &Path, error: Error| format!("cannot write {}: {error}", file.display());
        std::fs::create_dir_all(directory).map_err(|error| told(directory, error))?;
        let open = |name: String| {
            let file = directory.join(name);
            Interface::create(&file).map_err(|error| told(&file, error))
        };
        let both = |name: &str| -> Result<[Interface; 2], String> {
            // A name is free text; a separator in it must not lead elsewhere.
            let name = name.replace(['/', '\\', '\0'], "_");
            Ok([
                open(format!("path-{name}-site.pcap"))?,
                open(format!("path-{name}-hub.pcap"))?,
            ])
        };
        Ok(Self {
            hosts: [
                open("host-site.pcap".into())?,
                open("host-server.pcap".into())?,
            ],
            paths: paths
                .iter()
                .map(|name| both(name))
                .collect::<Result<_, _>>()?,
            headers: Headers::default(),
            ip: Vec::new(),
        })
    }

    /// A host's packet at its host (`leaves`) or at the other one.
    pub fn host(&mut self, now_ns: u64, direction: Side, leaves: bool, packet: &Packet) {
        self.write(direction, packet);
        self.hosts[end(direction, leaves)].record(now_ns, &self.ip, packet.bytes as usize);
    }

    /// A host's packet at an end of a path without a tunnel. Links beside the paths have no file.
    pub fn bare(
        &mut self,
        now_ns: u64,
        path: usize,
        (direction, leaves): (Side, bool),
        packet: &Packet,
    ) {
        self.write(direction, packet);
        if let Some(ends) = self.paths.get_mut(path) {
            ends[end(direction, leaves)].record(now_ns, &self.ip, packet.bytes as usize);
        }
    }

    /// A packet of a gateway at an end of a path.
    pub fn outer(
        &mut self,
        now_ns: u64,
        path: usize,
        (direction, leaves): (Side, bool),
        packet: &Outer,
    ) {
        if let Some(ends) = self.paths.get_mut(path) {
            outer::write(packet, &mut self.ip);
            ends[end(direction, leaves)].record(now_ns, &self.ip, packet.ip_bytes());
        }
    }

    /// The bytes of a host's packet, as tunnels have them.
    fn write(&mut self, direction: Side, packet: &Packet) {
        self.ip.clear();
        self.ip
            .resize((packet.bytes as usize).max(UDP_HEADERS as usize), 0);
        self.headers.fill(direction, packet, &mut self.ip);
    }

    /// Ends all files; what went wrong with them.
    pub fn finish(&mut self) -> Vec<String> {
        let all = self.hosts.iter_mut().chain(self.paths.iter_mut().flatten());
        let failed = all.filter_map(|interface| {
            let error = interface
                .error
                .take()
                .or_else(|| interface.sink.flush().err())?;
            Some(format!(
                "{} is incomplete: {error}",
                interface.file.display()
            ))
        });
        failed.collect()
    }
}

/// Which of two ends a packet is seen at: 0 is the site's.
const fn end(direction: Side, leaves: bool) -> usize {
    match (direction, leaves) {
        (Side::Up, true) | (Side::Down, false) => 0,
        (Side::Up, false) | (Side::Down, true) => 1,
    }
}

impl Interface {
    fn create(file: &Path) -> Result<Self, Error> {
        let mut sink = BufWriter::new(File::create(file)?);
        sink.write_all(&MAGIC_NANOSECONDS.to_le_bytes())?;
        for part in VERSION {
            sink.write_all(&part.to_le_bytes())?;
        }
        // Time zone and accuracy: none; then the most bytes of a packet, and the link type.
        for word in [0, 0, KEPT_MAX as u32, LINK_TYPE] {
            sink.write_all(&word.to_le_bytes())?;
        }
        Ok(Self {
            file: file.to_owned(),
            sink,
            error: None,
        })
    }

    /// After an error nothing more is written.
    fn record(&mut self, now_ns: u64, ip: &[u8], length: usize) {
        if self.error.is_some() {
            return;
        }
        let kept = &ip[..ip.len().min(KEPT_MAX)];
        let lengths = [kept.len(), length].map(|bytes| u32::try_from(bytes).unwrap_or(u32::MAX));
        let [seconds, nanos] = [now_ns / 1_000_000_000, now_ns % 1_000_000_000];
        let times = [seconds, nanos].map(|part| u32::try_from(part).unwrap_or(u32::MAX));
        let words = times.into_iter().chain(lengths);
        let header: Vec<u8> = words.flat_map(u32::to_le_bytes).collect();
        let written = self.sink.write_all(&header);
        self.error = written.and_then(|()| self.sink.write_all(kept)).err();
    }
}
