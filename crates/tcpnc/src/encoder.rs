//! The source's layer of network coding: packets in, combinations out.
//!
//! Every packet of a coding window gives one combination of all packets of the window so far, and
//! the last one gives `k` more. So any `k` of the `n + k` combinations may be lost, and the first
//! packets need not wait for the last. No packet is sent as it is.

use crate::wire::{Combination, LENGTH_BYTES, coefficient};
use ropewalk_gf256::add_multiple;
use std::collections::VecDeque;

/// A coding window, the last one perhaps still open.
#[derive(Clone, Debug)]
struct Window {
    base: u32,
    count: u8,
    closed: bool,
    /// Numbers of its combinations that may be under way, ascending.
    under_way: VecDeque<u32>,
}

impl Window {
    fn end(&self) -> u32 {
        self.base + u32::from(self.count)
    }
}

/// State of the source.
#[derive(Clone, Debug, Default)]
pub struct Encoder {
    /// Symbols of the packets of all windows that are kept.
    symbols: VecDeque<Vec<u8>>,
    windows: VecDeque<Window>,
    transmissions: u32,
    seed: u16,
    out: VecDeque<Combination>,
    retransmissions: u64,
}

impl Encoder {
    /// Takes the next packet in; with it the window has ended if it has `n` packets.
    pub fn push(&mut self, packet: &[u8], n: u8, k: u8) {
        let length = u16::try_from(packet.len()).unwrap_or(u16::MAX);
        let mut symbol = Vec::with_capacity(LENGTH_BYTES + packet.len());
        symbol.extend_from_slice(&length.to_be_bytes());
        symbol.extend_from_slice(packet);
        let next = self.windows.back().map_or(0, Window::end);
        if self.windows.back().is_none_or(|window| window.closed) {
            self.windows.push_back(Window {
                base: next,
                count: 0,
                closed: false,
                under_way: VecDeque::new(),
            });
        }
        self.symbols.push_back(symbol);
        let last = self.windows.len() - 1;
        self.windows[last].count += 1;
        self.send(last);
        if self.windows[last].count >= n {
            self.close(n, k);
        }
    }

    /// Ends the open window with its share of the redundancy.
    pub fn close(&mut self, n: u8, k: u8) {
        let Some(window) = self.windows.back_mut().filter(|window| !window.closed) else {
            return;
        };
        window.closed = true;
        let share = share(window.count.into(), n, k);
        for _ in 0..share {
            self.send(self.windows.len() - 1);
        }
    }

    /// Whether a window waits for more packets.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.windows.back().is_some_and(|window| !window.closed)
    }

    /// Everything before `una` was seen: windows that end before it are done.
    pub fn forget_before(&mut self, una: u32) {
        while let Some(window) = self.windows.front() {
            // The last window tells where the next one begins.
            if window.end() > una || self.windows.len() == 1 {
                return;
            }
            let count = usize::from(window.count);
            self.symbols.drain(..count);
            self.windows.pop_front();
        }
    }

    /// Sends what the window of `una` lacks beyond what of it is still under way, with redundancy.
    /// A link keeps the order: all before the latest transmission known to have `arrived` are gone.
    /// After a timeout everything is, which the caller says by the number of the next one.
    pub fn repair(&mut self, una: u32, arrived: u32, n: u8, k: u8) {
        let holds = |window: &Window| window.base <= una && una < window.end();
        let Some(at) = self.windows.iter().position(holds) else {
            return;
        };
        let window = &mut self.windows[at];
        let gone = window
            .under_way
            .partition_point(|&number| number <= arrived);
        window.under_way.drain(..gone);
        let missing = window.end() - una;
        let coming = u32::try_from(window.under_way.len()).unwrap_or(u32::MAX);
        let Some(lacking) = missing.checked_sub(coming).filter(|&lacking| lacking > 0) else {
            return;
        };
        // What is repaired is complete: the next packets are another window.
        window.closed = true;
        let wanted = lacking + share(lacking, n, k);
        for _ in 0..wanted {
            self.send(at);
        }
        self.retransmissions += u64::from(wanted);
    }

    fn send(&mut self, at: usize) {
        let first = self.windows[0].base;
        let window = &mut self.windows[at];
        window.under_way.push_back(self.transmissions);
        self.seed = self.seed.wrapping_add(1);
        let skipped = (window.base - first) as usize;
        let packets = self.symbols.iter().skip(skipped);
        let packets = packets.take(usize::from(window.count));
        let longest = packets.clone().map(Vec::len).max().unwrap_or_default();
        let mut symbol = vec![0; longest];
        for (place, packet) in (0..).zip(packets) {
            add_multiple(&mut symbol, coefficient(self.seed, place), packet);
        }
        self.out.push_back(Combination {
            transmission: self.transmissions,
            base: window.base,
            count: window.count,
            seed: self.seed,
            symbol,
        });
        self.transmissions += 1;
    }

    /// The next combination to transmit.
    pub fn poll(&mut self) -> Option<Combination> {
        self.out.pop_front()
    }

    /// Combinations sent so far.
    #[must_use]
    pub const fn transmissions(&self) -> u32 {
        self.transmissions
    }

    /// How many of them repaired what TCP found lost.
    #[must_use]
    pub const fn retransmissions(&self) -> u64 {
        self.retransmissions
    }
}

/// The redundancy that so many packets of a window of `n` get.
fn share(packets: u32, n: u8, k: u8) -> u32 {
    (u32::from(k) * packets).div_ceil(u32::from(n.max(1)))
}
