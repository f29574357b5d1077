//! Bytes that interfaces carried (`/proc/net/dev`, proc(5)), and what the kernel's tracking of connections refused.

use std::collections::BTreeMap;
use std::io;

/// Bytes since the interface was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bytes {
    /// That arrived.
    pub received: u64,
    /// That left.
    pub sent: u64,
}

/// The counters of every interface of this thread's network namespace, by name.
///
/// # Errors
/// The table cannot be read.
pub fn interfaces() -> io::Result<BTreeMap<String, Bytes>> {
    let table = std::fs::read_to_string("/proc/thread-self/net/dev")?;
    Ok(table.lines().filter_map(line).collect())
}

fn line(line: &str) -> Option<(String, Bytes)> {
    let (name, numbers) = line.split_once(':')?;
    let mut numbers = numbers.split_whitespace().map(str::parse);
    let received = numbers.next()?.ok()?;
    // Eight columns of received things come first.
    let sent = numbers.nth(7)?.ok()?;
    Some((name.trim().to_owned(), Bytes { received, sent }))
}

/// Packets that this thread's network namespace dropped because the connection that they open could not be tracked, as
/// when all ports for address translation are in use; `None` where the kernel does not say.
///
/// Source: `ct_cpu_seq_show` in `net/netfilter/nf_conntrack_standalone.c`: a row of names, and a row of hexadecimal
/// numbers for each processor.
#[must_use]
pub fn untracked() -> Option<u64> {
    failed(&std::fs::read_to_string("/proc/thread-self/net/stat/nf_conntrack").ok()?)
}

fn failed(table: &str) -> Option<u64> {
    let mut lines = table.lines();
    let mut names = lines.next()?.split_whitespace();
    let column = names.position(|name| name == "insert_failed")?;
    let of_processor = |line: &str| {
        let number = line.split_whitespace().nth(column)?;
        u64::from_str_radix(number, 16).ok()
    };
    lines.map(of_processor).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_not_be_tracked_is_summed_over_processors() {
        let table = "entries  insert insert_failed drop\n0000001a  00000000 0000000f 00000001\n0000001a  00000000 00000010 00000000\n";
        assert_eq!(failed(table), Some(31));
        assert_eq!(failed("entries drop\n00 00\n"), None);
    }

    #[test]
    fn the_table_is_read_by_column() {
        let row = "  up0: 10 1 0 0 0 0 0 0 20 2 0 0 0 0 0 0";
        let (name, bytes) = line(row).expect("a row");
        assert_eq!((name.as_str(), bytes.received, bytes.sent), ("up0", 10, 20));
        assert!(line(" face |bytes    packets errs").is_none());
        assert!(interfaces().expect("readable").contains_key("lo"));
    }
}
