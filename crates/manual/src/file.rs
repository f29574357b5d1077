//! Pages of configuration files, in section 5.

use clap_mangen::roff::{Roff, bold, roman};

use crate::{see_also, title};

/// What a page of a configuration file says.
#[derive(Clone, Debug, Default)]
pub struct FilePage {
    /// Name of the page.
    pub name: String,
    /// What the file is, in a few words.
    pub about: String,
    /// Program and version.
    pub source: String,
    /// Where the file is.
    pub path: String,
    /// Paragraphs about the file.
    pub description: Vec<String>,
    /// The keys, by section of the file.
    pub sections: Vec<FileSection>,
    /// A whole file.
    pub example: String,
    /// Other pages, with their sections of the manual.
    pub see_also: Vec<(String, u8)>,
}

/// A section of a configuration file.
#[derive(Clone, Debug, Default)]
pub struct FileSection {
    /// Header; empty for the keys before the first section.
    pub header: String,
    /// What it is; empty if there is nothing to say.
    pub about: String,
    /// The keys.
    pub keys: Vec<FileKey>,
}

/// A key of a configuration file.
#[derive(Clone, Debug, Default)]
pub struct FileKey {
    /// Name.
    pub name: String,
    /// Type, range, default.
    pub facts: String,
    /// Meaning; empty if there is nothing to say.
    pub meaning: String,
}

impl FilePage {
    /// The page as troff reads it.
    #[must_use]
    pub fn render(&self) -> String {
        let mut roff = Roff::new();
        roff.control("SH", ["NAME"]);
        roff.text([roman(format!("{} - {}", self.name, self.about))]);
        roff.control("SH", ["SYNOPSIS"]);
        roff.text([bold(&self.path)]);
        roff.control("SH", ["DESCRIPTION"]);
        for (index, paragraph) in self.description.iter().enumerate() {
            if index > 0 {
                roff.control("PP", []);
            }
            roff.text([roman(paragraph)]);
        }
        roff.control("SH", ["KEYS"]);
        for section in &self.sections {
            section.render(&mut roff);
        }
        roff.control("SH", ["EXAMPLE"]);
        roff.control("nf", []);
        for line in self.example.trim().lines() {
            roff.text([roman(line)]);
        }
        roff.control("fi", []);
        see_also(&mut roff, self.see_also.iter().cloned());
        title(&self.name, 5, &self.source) + &roff.render()
    }
}

impl FileSection {
    fn render(&self, roff: &mut Roff) {
        if !self.header.is_empty() {
            roff.control("SS", [self.header.as_str()]);
        }
        if !self.about.is_empty() {
            roff.text([roman(&self.about)]);
        }
        for key in &self.keys {
            roff.control("TP", []);
            roff.text([bold(&key.name), roman(format!(" ({})", key.facts))]);
            roff.text([roman(&key.meaning)]);
        }
    }
}
