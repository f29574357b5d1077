//! What happened lately, in words with a time.

use std::collections::{BTreeMap, VecDeque};

use ropewalk_api::Happened;

/// Most events. More: further back, memory and size of the file.
const EVENTS_MAX: usize = 200;
/// Longest text, bytes: names come from other machines.
const TEXT_MAX: usize = 300;

/// The newest events. When there are too many, whoever has the most gives up its oldest one: a site of a hub
/// that comes and goes pushes out no news of the others.
#[derive(Debug, Default)]
pub struct Events(VecDeque<Happened>);

impl Events {
    /// About this gateway, or about one `site` of a hub.
    pub fn push(&mut self, at_s: u64, site: Option<&str>, mut what: String) {
        if what.len() > TEXT_MAX {
            let end = (0..=TEXT_MAX).rev().find(|end| what.is_char_boundary(*end));
            what.truncate(end.unwrap_or_default());
        }
        if self.0.len() >= EVENTS_MAX {
            self.make_room();
        }
        let site = site.map(str::to_owned);
        self.0.push_back(Happened { at_s, what, site });
    }

    fn make_room(&mut self) {
        let mut counts = BTreeMap::<_, usize>::new();
        for event in &self.0 {
            *counts.entry(event.site.as_ref()).or_default() += 1;
        }
        let most = counts.values().max().copied();
        let of_most = |event: &Happened| counts.get(&event.site.as_ref()).copied() == most;
        if let Some(oldest) = self.0.iter().position(of_most) {
            self.0.remove(oldest);
        }
    }

    pub fn all(&self) -> Vec<Happened> {
        self.0.iter().cloned().collect()
    }
}
