//! Names that users write, and what they probably meant.

use core::fmt;

/// Letters of a name for which one slip of the keys is forgiven.
const LETTERS_PER_SLIP: usize = 3;

/// The known name that `name` was most likely meant to be, if one is close: one slip of the keys
/// (a letter too many, too few, wrong, or two swapped) for every three letters, at least one.
pub fn closest<'a>(name: &str, known: impl IntoIterator<Item = &'a &'a str>) -> Option<&'a str> {
    let slips_max = (name.chars().count() / LETTERS_PER_SLIP).max(1);
    known
        .into_iter()
        .map(|known| (strsim::osa_distance(name, known), *known))
        .filter(|(slips, _)| *slips <= slips_max)
        .min_by_key(|(slips, _)| *slips)
        .map(|(_, known)| known)
}

/// A name that is not in its table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownName {
    noun: &'static str,
    name: String,
    remedy: String,
}

impl UnknownName {
    /// `name` is none of the `known` names of a `noun`.
    pub(crate) fn new(noun: &'static str, name: &str, known: &[&'static str]) -> Self {
        let remedy = match closest(name, known) {
            Some(close) => format!(", did you mean {close}?"),
            None => format!("; there are {}", known.join(", ")),
        };
        Self {
            noun,
            name: name.to_owned(),
            remedy,
        }
    }
}

impl fmt::Display for UnknownName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { noun, name, remedy } = self;
        write!(f, "unknown {noun} {name:?}{remedy}")
    }
}

impl core::error::Error for UnknownName {}
