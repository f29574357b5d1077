//! The published baseline TCP/NC, which the laboratory compares with: datagrams of its peer.

use crate::input::Input;
use ropewalk_tcpnc::wire::{Ack, Combination, Datagram};
use ropewalk_tcpnc::{Endpoint, Redundancy};
use ropewalk_types::{Duration, Instant};

/// Most steps of an input.
const STEPS_MAX: usize = 200;

/// Takes the input for packets of a host, and for datagrams of the peer of an endpoint. A datagram that is read is
/// written as it was read.
///
/// # Panics
/// When it is not.
pub fn tcpnc(data: &[u8]) {
    let mut input = Input::new(data);
    let mut end = Endpoint::new(Redundancy::default());
    let mut now = Instant::ZERO;
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            break;
        }
        match input.u8() % 5 {
            0 => {
                let length = usize::from(input.u8());
                end.offer(now, input.bytes(length));
            }
            1 => {
                let length = usize::from(input.u8());
                datagram(&mut end, now, input.bytes(length));
            }
            2 => {
                let combination = Combination {
                    transmission: u32::from(input.u16()),
                    base: u32::from(input.u16()),
                    count: input.u8().max(1),
                    seed: input.u16(),
                    symbol: {
                        let length = usize::from(input.u8()) + 8;
                        let mut symbol = input.bytes(length).to_vec();
                        symbol.resize(length, 0);
                        symbol
                    },
                };
                datagram(&mut end, now, &Datagram::Combination(combination).write());
            }
            3 => {
                let ack = Ack {
                    next: u32::from(input.u16()),
                    transmission: u32::from(input.u16()),
                    innovative: input.flag(),
                };
                datagram(&mut end, now, &Datagram::Ack(ack).write());
            }
            _ => now += Duration::from_millis(u64::from(input.u8()) * 4),
        }
        end.handle_timeout(now);
        for _ in 0..STEPS_MAX {
            if end.poll_transmit().is_none() {
                break;
            }
        }
        while end.poll_packet().is_some() {}
    }
}

fn datagram(end: &mut Endpoint, now: Instant, bytes: &[u8]) {
    if let Ok(read) = Datagram::read(bytes) {
        assert_eq!(Datagram::read(&read.write()), Ok(read));
    }
    let _ = end.handle(now, bytes);
}
