//! What hosts send: bulk transfers, pings, calls, web pages.

pub mod delays;
pub mod flow;
pub mod multipath;
pub mod probe;
pub mod section;
pub mod transfer;
pub mod web;

use crate::packet::Packet;
use ropewalk_netem::Side;
use ropewalk_plan::Direction;

/// Packets hosts send in answer to an event, with the direction each goes.
pub type Outbox = Vec<(Side, Packet)>;

/// The direction on the link.
#[must_use]
pub const fn side(direction: Direction) -> Side {
    match direction {
        Direction::Up => Side::Up,
        Direction::Down => Side::Down,
    }
}

/// The way back.
#[must_use]
pub const fn back(side: Side) -> Side {
    match side {
        Side::Up => Side::Down,
        Side::Down => Side::Up,
    }
}
