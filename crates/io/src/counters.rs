//! Bytes that interfaces carried (`/proc/net/dev`, proc(5)).

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_read_by_column() {
        let row = "  up0: 10 1 0 0 0 0 0 0 20 2 0 0 0 0 0 0";
        let (name, bytes) = line(row).expect("a row");
        assert_eq!((name.as_str(), bytes.received, bytes.sent), ("up0", 10, 20));
        assert!(line(" face |bytes    packets errs").is_none());
        assert!(interfaces().expect("readable").contains_key("lo"));
    }
}
