//! What `epoll` says is ready, as the user data of its events.

use ropewalk_session::{SocketId, StreamId};

/// Names a session among those of one thread; below 2²⁴.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner(pub u32);

/// Most sessions of one thread.
pub const OWNERS_MAX: u32 = 1 << 24;

/// What is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ready {
    /// A descriptor that the driver registered itself, by its own number.
    Own(u32),
    /// A UDP socket.
    Udp(SocketId),
    /// A TCP connection.
    Stream(StreamId),
    /// A listening TCP socket.
    Listener(u32),
}

/// Something of a session is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Whose it is.
    pub owner: Owner,
    /// What it is.
    pub ready: Ready,
}

impl Event {
    /// As user data: eight bits of kind, 24 of owner, 32 of the name.
    #[must_use]
    pub const fn encode(self) -> u64 {
        let (kind, name) = match self.ready {
            Ready::Own(i) => (0, i),
            Ready::Udp(SocketId(i)) => (1, i),
            Ready::Stream(StreamId(i)) => (2, i),
            Ready::Listener(i) => (3, i),
        };
        kind << 56 | (self.owner.0 as u64 & (OWNERS_MAX as u64 - 1)) << 32 | name as u64
    }

    /// From user data.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "the parts are that long")]
    pub const fn decode(data: u64) -> Self {
        let name = data as u32;
        let ready = match data >> 56 {
            1 => Ready::Udp(SocketId(name)),
            2 => Ready::Stream(StreamId(name)),
            3 => Ready::Listener(name),
            _ => Ready::Own(name),
        };
        Self {
            owner: Owner((data >> 32) as u32 & (OWNERS_MAX - 1)),
            ready,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_survive_the_user_data() {
        for owner in [0, 1, 4_999, OWNERS_MAX - 1] {
            for name in [0, 7, u32::MAX] {
                for ready in [
                    Ready::Own(name),
                    Ready::Udp(SocketId(name)),
                    Ready::Stream(StreamId(name)),
                    Ready::Listener(name),
                ] {
                    let event = Event {
                        owner: Owner(owner),
                        ready,
                    };
                    assert_eq!(Event::decode(event.encode()), event);
                }
            }
        }
    }
}
