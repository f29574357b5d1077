//! What happened lately, in words with a time.

use std::collections::VecDeque;

use ropewalk_api::Happened;

/// Most events. More: further back, memory and size of the file.
const EVENTS_MAX: usize = 200;
/// Longest text, bytes: names come from other machines.
const TEXT_MAX: usize = 300;

/// The newest events.
#[derive(Debug, Default)]
pub struct Events(VecDeque<Happened>);

impl Events {
    pub fn push(&mut self, at_s: u64, mut what: String) {
        if what.len() > TEXT_MAX {
            let end = (0..=TEXT_MAX).rev().find(|end| what.is_char_boundary(*end));
            what.truncate(end.unwrap_or_default());
        }
        if self.0.len() >= EVENTS_MAX {
            self.0.pop_front();
        }
        self.0.push_back(Happened { at_s, what });
    }

    pub fn all(&self) -> Vec<Happened> {
        self.0.iter().cloned().collect()
    }
}
