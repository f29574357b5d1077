//! The file in which points and events outlive the process: JSON with a number of its format.
//!
//! A file of another format, or one that breaks a bound, is refused as a whole.

use ropewalk_api::{Happened, History as Answer};
use serde::{Deserialize, Serialize};

use crate::events::Events;
use crate::usage::Used;
use crate::{History, UPLINKS_MAX};

/// Largest file, bytes: 20 uplinks with all points and the longest events. A usual one has a tenth.
pub const BYTES_MAX: u64 = 1 << 20;
/// Number of the format. Raise it when a key changes its meaning.
const FORMAT: u32 = 1;
/// Longest name of an uplink, bytes.
const NAME_MAX: usize = 64;

/// Why a file is not taken.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// No JSON, or not of this shape.
    #[error("not a history: {0}")]
    Shape(#[from] serde_json::Error),
    /// Written by another version.
    #[error("format {0} of another version of ropewalk; this one writes {FORMAT}")]
    Format(u32),
    /// More than there can be.
    #[error("more uplinks or points than a history has")]
    Bound,
}

#[derive(Serialize, Deserialize)]
struct File {
    format: u32,
    /// A version that kept no minutes left nothing.
    #[serde(default)]
    minutes: Answer,
    hour: Answer,
    day: Answer,
    events: Vec<Happened>,
    /// A version that did not count left nothing.
    #[serde(default)]
    used: Vec<Used>,
}

impl History {
    /// The text of the file.
    ///
    /// # Errors
    /// Never in practice: the shape has no key that is no text.
    pub fn save(&self) -> Result<String, FileError> {
        let [minutes, hour, day] = &self.rings;
        let all = usize::MAX;
        Ok(serde_json::to_string(&File {
            format: FORMAT,
            minutes: minutes.answer(&self.names, all),
            hour: hour.answer(&self.names, all),
            day: day.answer(&self.names, all),
            events: self.events(),
            used: self.usage.save(),
        })?)
    }

    /// Takes points and events of an earlier run. Call it before the first sample.
    ///
    /// # Errors
    /// The text is no history of this format. Nothing is taken then.
    pub fn restore(&mut self, text: &str) -> Result<(), FileError> {
        #[derive(Deserialize)]
        struct Head {
            format: u32,
        }
        let head: Head = serde_json::from_str(text)?;
        if head.format != FORMAT {
            return Err(FileError::Format(head.format));
        }
        let file: File = serde_json::from_str(text)?;
        let ranges = [&file.minutes, &file.hour, &file.day];
        let uplinks = || ranges.iter().flat_map(|range| &range.uplinks);
        let mut names: Vec<String> = Vec::new();
        for uplink in uplinks() {
            if uplink.name.len() > NAME_MAX {
                return Err(FileError::Bound);
            }
            if !names.contains(&uplink.name) {
                names.push(uplink.name.clone());
            }
        }
        let long = |used: &Used| used.uplink.len() > NAME_MAX;
        if names.len().max(file.used.len()) > UPLINKS_MAX || file.used.iter().any(long) {
            return Err(FileError::Bound);
        }
        for (ring, answer) in self.rings.iter_mut().zip(ranges) {
            let place = |name: &String| names.iter().position(|known| known == name);
            let places = answer
                .uplinks
                .iter()
                .filter_map(|uplink| place(&uplink.name));
            ring.restore(answer, &places.collect::<Vec<_>>());
        }
        self.names = names;
        self.usage.restore(file.used);
        self.events = Events::default();
        for event in file.events {
            let site = event.site.filter(|name| name.len() <= NAME_MAX);
            self.events.push(event.at_s, site.as_deref(), event.what);
        }
        Ok(())
    }
}
