//! Pieces of the language of nft(8).

use ropewalk_core::protect::Ports;

/// Name, hook and rules of a chain. A chain comes behind those that it leads to.
pub type Chain = (String, &'static str, Vec<String>);

/// Ports as a set; `None` when there are none.
pub fn port_list(ports: &[Ports]) -> Option<String> {
    set(ports.iter().map(|ports| {
        if ports.start() == ports.end() {
            ports.start().to_string()
        } else {
            format!("{}-{}", ports.start(), ports.end())
        }
    }))
}

/// Items as a set; `None` when there are none.
pub fn set(items: impl Iterator<Item = String>) -> Option<String> {
    let items: Vec<String> = items.collect();
    (!items.is_empty()).then(|| format!("{{ {} }}", items.join(", ")))
}
