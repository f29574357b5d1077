//! What a reader asks a file for: keys, kinds, ranges, examples, sections and lists of tables.
//!
//! Invariant: whatever a reader asks is here, because the same calls that read a file fill a
//! [`Table`] when there is none. Conditions between keys are here where a schema can state them.

use std::ops::RangeInclusive;

/// What is asked of one table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// The keys in the order in which the reader asks for them.
    pub keys: Vec<Key>,
    /// Keys of which at least one must be there.
    pub one_of: Vec<&'static [&'static str]>,
    /// Keys that must be there unless another key has a value.
    pub unless: Vec<Unless>,
}

/// A key that must be there unless another one has a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unless {
    /// The key.
    pub key: &'static str,
    /// The other key.
    pub other: &'static str,
    /// The value.
    pub value: &'static str,
}

/// One key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    /// Name.
    pub name: &'static str,
    /// What it may be.
    pub kind: Kind,
    /// Whether it must be there.
    pub required: bool,
}

/// What a key may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A text.
    Text(Text),
    /// One of some words.
    Choice(Vec<&'static str>),
    /// True or false.
    Boolean,
    /// A whole number.
    Integer {
        /// The values.
        range: RangeInclusive<u64>,
        /// Whether it may also be the text `auto`.
        auto: bool,
    },
    /// A number, also with a point. The values are in thousandths.
    Decimal(RangeInclusive<u64>),
    /// A list of texts.
    List {
        /// The texts.
        text: Text,
        /// Fewest entries, 0 or 1.
        least: usize,
        /// Most entries.
        most: usize,
        /// Whether no entry may be there twice.
        unique: bool,
    },
    /// A section.
    Table(Table),
    /// A list of tables.
    Tables {
        /// Each of them.
        table: Table,
        /// Most of them.
        most: usize,
    },
}

/// Texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Text {
    /// As messages show it: TOML, or words.
    pub example: String,
    /// A regular expression (ECMA-262) that every right text matches, and some wrong ones.
    pub pattern: Option<&'static str>,
}

/// The least and the most of [`Kind::Decimal`].
#[must_use]
pub fn in_units(thousandths: &RangeInclusive<u64>) -> [f64; 2] {
    [thousandths.start(), thousandths.end()].map(|end| *end as f64 / 1e3)
}

impl Text {
    pub(crate) fn new(example: &str, pattern: Option<&'static str>) -> Self {
        Self {
            example: example.to_owned(),
            pattern,
        }
    }
}

impl Table {
    /// The key of a name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Key> {
        self.keys.iter().find(|key| key.name == name)
    }

    /// Whether a file without this table is wrong.
    #[must_use]
    pub fn is_required(&self) -> bool {
        !self.one_of.is_empty() || self.keys.iter().any(|key| key.required)
    }

    pub(crate) fn add(&mut self, name: &'static str, kind: Kind) {
        if self.get(name).is_none() {
            let required = matches!(&kind, Kind::Table(table) if table.is_required());
            self.keys.push(Key {
                name,
                kind,
                required,
            });
        }
    }

    pub(crate) fn change(&mut self, name: &str, change: impl FnOnce(&mut Key)) {
        if let Some(key) = self.keys.iter_mut().find(|key| key.name == name) {
            change(key);
        }
    }
}
