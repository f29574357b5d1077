//! Reads a TOML file key by key and collects every problem with file, line, key and remedy.
//!
//! Invariant: a key that nobody asked for is a problem. Each section records the keys it was
//! asked for, so the list of known keys cannot drift from the code that reads them.
//! Source: TOML 1.0.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt;
use std::ops::{Range, RangeInclusive};
use std::path::{Path, PathBuf};

use super::survey::{Kind, Table, Text, Unless, in_units};
use ropewalk_types::closest;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Something wrong with a configuration file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The file.
    pub file: PathBuf,
    /// Line, counted from 1.
    pub line: usize,
    /// Dotted key, empty when the text cannot be read as TOML.
    pub key: String,
    /// What is wrong.
    pub what: String,
    /// What to do.
    pub remedy: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: ", self.file.display(), self.line)?;
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        write!(f, "{}; {}", self.what, self.remedy)
    }
}

/// Every problem of one file, in the order of its lines; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problems(pub Vec<Problem>);

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}

/// Parses `text`, which was read from `path`, with `read`.
///
/// # Errors
/// Every problem that `read` and the parser found.
pub fn read<T>(
    path: &Path,
    text: &str,
    read: impl FnOnce(&mut Section<'_>) -> T,
) -> Result<T, Problems> {
    let source = Source {
        path,
        text,
        problems: RefCell::default(),
    };
    let (document, errors) = DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        let problems = errors.iter().map(|error| source.no_toml(error));
        return Err(Problems(problems.collect()));
    }
    let mut root = Section {
        source: &source,
        name: String::new(),
        table: Some(document.get_ref()),
        span: 0..0,
        asked: BTreeSet::new(),
        pattern: None,
        survey: None,
    };
    let value = read(&mut root);
    root.reject_unknown_keys();
    let mut problems = source.problems.into_inner();
    if problems.is_empty() {
        return Ok(value);
    }
    problems.sort_by_key(|problem| problem.line);
    Err(Problems(problems))
}

/// What `read` asks a file for: sections that a file may lack and one table of each list are visited.
pub fn survey<T>(read: impl FnOnce(&mut Section<'_>) -> T) -> Table {
    let source = Source {
        path: Path::new(""),
        text: "",
        problems: RefCell::default(),
    };
    let mut root = Section {
        source: &source,
        name: String::new(),
        table: None,
        span: 0..0,
        asked: BTreeSet::new(),
        pattern: None,
        survey: Some(Table::default()),
    };
    read(&mut root);
    root.surveyed()
}

struct Source<'t> {
    path: &'t Path,
    text: &'t str,
    problems: RefCell<Vec<Problem>>,
}

impl Source<'_> {
    fn line(&self, offset: usize) -> usize {
        let end = offset.min(self.text.len());
        1 + self.text.as_bytes()[..end]
            .iter()
            .filter(|&&byte| byte == b'\n')
            .count()
    }

    /// Why the text cannot be read as TOML. A name that is there twice is told with both places.
    fn no_toml(&self, error: &toml::de::Error) -> Problem {
        let span = error.span().unwrap_or(0..0);
        let problem = Problem {
            file: self.path.to_owned(),
            line: self.line(span.start),
            key: String::new(),
            what: format!("this is no TOML: {}", error.message()),
            remedy: "write KEY = VALUE, texts in \"quotes\", lists in [brackets]".to_owned(),
        };
        let name = self.text.get(span).unwrap_or_default();
        if error.message() != DUPLICATE || name.is_empty() {
            return problem;
        }
        let lines: Vec<&str> = self.text.lines().collect();
        let line = lines.get(problem.line - 1).copied().unwrap_or_default();
        let header = line.trim_start().starts_with('[').then(|| header(line));
        let first = header.and_then(|header| {
            let place = lines.iter().position(|line| self::header(line) == header)?;
            Some((header, place + 1))
        });
        let (key, what, remedy) = match first {
            Some((header, first)) if first < problem.line => (
                header.trim_matches(['[', ']']),
                format!("the file has this section already, in line {first}"),
                format!("write the keys below {header} in line {first}, and remove this line"),
            ),
            _ => (
                name,
                "this section has the key already".to_owned(),
                "remove one of the two".to_owned(),
            ),
        };
        Problem {
            key: key.to_owned(),
            what,
            remedy,
            ..problem
        }
    }
}

/// How the parser calls a name that stands twice.
const DUPLICATE: &str = "duplicate key";

/// The header of a section, without what follows in its line.
fn header(line: &str) -> &str {
    line.split('#').next().unwrap_or_default().trim()
}

/// One table of the file, present or not.
pub struct Section<'t> {
    source: &'t Source<'t>,
    name: String,
    table: Option<&'t DeTable<'t>>,
    span: Range<usize>,
    asked: BTreeSet<&'static str>,
    /// Of the next text or list.
    pattern: Option<&'static str>,
    /// What was asked so far, if that is all that the caller wants.
    survey: Option<Table>,
}

impl<'t> Section<'t> {
    /// Reads the table `key`; when it is absent, `read` sees an empty one.
    pub fn section<T>(&mut self, key: &'static str, read: impl FnOnce(&mut Section<'t>) -> T) -> T {
        let found = self.value(key);
        let table = found.and_then(|value| {
            let table = value.get_ref().as_table();
            if table.is_none() {
                self.wrong_type(
                    key,
                    value,
                    "a table",
                    &format!("write [{}]", self.dotted(key)),
                );
            }
            table
        });
        let span = found.map_or_else(|| self.span.clone(), |value| value.span());
        let mut section = self.child(self.dotted(key), table, span);
        let value = read(&mut section);
        section.reject_unknown_keys();
        self.note(key, |_| Kind::Table(section.surveyed()));
        value
    }

    /// Reads the table `key` if it is there.
    pub fn optional<T>(
        &mut self,
        key: &'static str,
        read: impl FnOnce(&mut Section<'t>) -> T,
    ) -> Option<T> {
        if self.survey.is_none() && !self.has(key) {
            return None;
        }
        let value = self.section(key, read);
        if let Some(survey) = &mut self.survey {
            // Its own keys are required where it is there.
            survey.change(key, |key| key.required = false);
        }
        Some(value)
    }

    /// Reads each table of the list `key`, at most `max` of them.
    pub fn sections<T>(
        &mut self,
        key: &'static str,
        max: usize,
        mut read: impl FnMut(&mut Section<'t>) -> T,
    ) -> Vec<T> {
        if self.survey.is_some() {
            let mut section = self.child(self.dotted(key), None, self.span.clone());
            let value = read(&mut section);
            let table = section.surveyed();
            self.note(key, |_| Kind::Tables { table, most: max });
            return vec![value];
        }
        let Some(value) = self.value(key) else {
            return Vec::new();
        };
        let remedy = format!("start each with [[{}]]", self.dotted(key));
        let Some(array) = value.get_ref().as_array() else {
            self.wrong_type(key, value, "a list of tables", &remedy);
            return Vec::new();
        };
        if array.len() > max {
            self.reject(key, &format!("more than {max} entries"), "remove some");
        }
        let mut out = Vec::new();
        for (index, item) in array.iter().take(max).enumerate() {
            let Some(table) = item.get_ref().as_table() else {
                self.wrong_type(key, item, "a table", &remedy);
                continue;
            };
            let name = format!("{}[{}]", self.dotted(key), index + 1);
            let mut section = self.child(name, Some(table), item.span());
            out.push(read(&mut section));
            section.reject_unknown_keys();
        }
        out
    }

    /// The next text, or each text of the next list, matches `pattern` (ECMA-262) if it is right. A
    /// schema says so; the reader does not look at it.
    pub fn like(&mut self, pattern: &'static str) -> &mut Self {
        self.pattern = Some(pattern);
        self
    }

    /// Whether the file has `key`.
    pub fn has(&mut self, key: &'static str) -> bool {
        self.value(key).is_some()
    }

    /// The text at `key`, turned into `T`. `example` completes "write it like …".
    pub fn text<T, E: fmt::Display>(
        &mut self,
        key: &'static str,
        example: &str,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<T> {
        self.note(key, |pattern| Kind::Text(Text::new(example, pattern)));
        self.text_of(key, example, parse)
    }

    /// The text at `key`, one of `choices`, turned into `T`.
    pub fn choice<T, E: fmt::Display>(
        &mut self,
        key: &'static str,
        example: &str,
        choices: impl IntoIterator<Item = &'static str>,
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> Option<T> {
        if self.survey.is_some() {
            let choices: Vec<_> = choices.into_iter().collect();
            debug_assert!(choices.iter().all(|choice| parse(choice).is_ok()), "{key}");
            self.note(key, |_| Kind::Choice(choices));
        }
        self.text_of(key, example, parse)
    }

    fn text_of<T, E: fmt::Display>(
        &mut self,
        key: &'static str,
        example: &str,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<T> {
        let value = self.value(key)?;
        let remedy = format!("write it like {example}");
        let Some(text) = value.get_ref().as_str() else {
            self.wrong_type(key, value, "a text", &remedy);
            return None;
        };
        parse(text)
            .map_err(|error| self.problem(key, value.span(), &error.to_string(), &remedy))
            .ok()
    }

    /// The list of texts at `key`, each turned into `T`, at most `max` of them.
    pub fn list<T, E: fmt::Display>(
        &mut self,
        key: &'static str,
        example: &str,
        max: usize,
        mut parse: impl FnMut(&str) -> Result<T, E>,
    ) -> Option<Vec<T>> {
        self.note(key, |pattern| Kind::List {
            text: Text::new(example, pattern),
            least: 0,
            most: max,
            unique: false,
        });
        let value = self.value(key)?;
        let remedy = format!("write it like {example}");
        let Some(array) = value.get_ref().as_array() else {
            self.wrong_type(key, value, "a list", &remedy);
            return None;
        };
        if array.len() > max {
            self.reject(key, &format!("more than {max} entries"), "remove some");
            return None;
        }
        let mut out = Vec::new();
        for item in array {
            match item.get_ref().as_str().map(&mut parse) {
                None => self.wrong_type(key, item, "a text", &remedy),
                Some(Err(error)) => self.problem(key, item.span(), &error.to_string(), &remedy),
                Some(Ok(value)) => out.push(value),
            }
        }
        Some(out)
    }

    /// The truth value at `key`.
    pub fn boolean(&mut self, key: &'static str) -> Option<bool> {
        self.note(key, |_| Kind::Boolean);
        let value = self.value(key)?;
        let found = value.get_ref().as_bool();
        if found.is_none() {
            self.wrong_type(
                key,
                value,
                "true or false",
                "write true or false without quotes",
            );
        }
        found
    }

    /// The whole number at `key`, if it lies in `range`.
    pub fn integer(&mut self, key: &'static str, range: RangeInclusive<u64>) -> Option<u64> {
        self.note(key, |_| Kind::Integer {
            range: range.clone(),
            auto: false,
        });
        let value = self.value(key)?;
        let remedy = format!(
            "write a whole number from {} to {}",
            range.start(),
            range.end()
        );
        let Some(integer) = value.get_ref().as_integer() else {
            self.wrong_type(key, value, "a whole number", &remedy);
            return None;
        };
        let number = u64::from_str_radix(integer.as_str(), integer.radix())
            .ok()
            .filter(|number| range.contains(number));
        if number.is_none() {
            let what = format!("{} is out of range", integer.as_str());
            self.problem(key, value.span(), &what, &remedy);
        }
        number
    }

    /// The number at `key`, also with a point, if it lies in `range`, which is in thousandths.
    pub fn decimal(&mut self, key: &'static str, range: RangeInclusive<u64>) -> Option<f64> {
        self.note(key, |_| Kind::Decimal(range.clone()));
        let value = self.value(key)?;
        let [least, most] = in_units(&range);
        let remedy = format!("write a number from {least} to {most}");
        let item = value.get_ref();
        let text = match (item.as_integer(), item.as_float()) {
            (Some(integer), _) if integer.radix() == 10 => integer.as_str(),
            (_, Some(float)) => float.as_str(),
            _ => {
                self.wrong_type(key, value, "a number", &remedy);
                return None;
            }
        };
        let number = text.parse().ok();
        let number = number.filter(|number| (least..=most).contains(number));
        if number.is_none() {
            let what = format!("{text} is out of range");
            self.problem(key, value.span(), &what, &remedy);
        }
        number
    }

    /// [`Self::integer`] of a key that may also be the text `auto`, which is as if the key were absent.
    pub fn integer_or_auto(
        &mut self,
        key: &'static str,
        range: RangeInclusive<u64>,
    ) -> Option<u64> {
        self.note(key, |_| Kind::Integer {
            range: range.clone(),
            auto: true,
        });
        let value = self.value(key)?;
        if value.get_ref().as_str() == Some("auto") {
            return None;
        }
        self.integer(key, range)
    }

    /// Reports a missing key.
    pub fn require<T>(&mut self, key: &str, value: Option<T>, remedy: &str) -> Option<T> {
        if let Some(survey) = &mut self.survey {
            survey.change(key, |key| key.required = true);
        }
        self.missed(key, value, remedy)
    }

    /// Reports that none of `keys` is there.
    pub fn require_one(&mut self, keys: &'static [&'static str], what: &str, remedy: &str) {
        if let Some(survey) = &mut self.survey {
            survey.one_of.push(keys);
        }
        if keys.iter().all(|key| !self.has(key)) {
            self.reject(keys[0], what, remedy);
        }
    }

    /// Reports a missing key, if it is needed: it is unless the key `other` is the text `text`, which the
    /// caller knows.
    pub fn require_unless<T>(
        &mut self,
        (other, text): (&'static str, &'static str),
        needed: bool,
        key: &'static str,
        value: Option<T>,
        remedy: &str,
    ) -> Option<T> {
        if let Some(survey) = &mut self.survey {
            survey.unless.push(Unless {
                key,
                other,
                value: text,
            });
        }
        if needed {
            self.missed(key, value, remedy)
        } else {
            value
        }
    }

    fn missed<T>(&self, key: &str, value: Option<T>, remedy: &str) -> Option<T> {
        let present = self.find(key).is_some();
        if value.is_none() && !present {
            self.problem(key, self.span.clone(), "missing", remedy);
        }
        value
    }

    /// Reports a list that is there and has no entry.
    pub fn reject_empty<T>(
        &mut self,
        key: &'static str,
        list: Option<&Vec<T>>,
        what: &str,
        remedy: &str,
    ) {
        if let Some(survey) = &mut self.survey {
            survey.change(key, |key| {
                if let Kind::List { least, .. } = &mut key.kind {
                    *least = 1;
                }
            });
        }
        if list.is_some_and(Vec::is_empty) {
            self.reject(key, what, remedy);
        }
    }

    /// Reports an entry that a list has twice.
    pub fn reject_twice<T: Ord + fmt::Display>(
        &mut self,
        key: &'static str,
        list: Option<&Vec<T>>,
    ) {
        if let Some(survey) = &mut self.survey {
            survey.change(key, |key| {
                if let Kind::List { unique, .. } = &mut key.kind {
                    *unique = true;
                }
            });
        }
        let mut sorted: Vec<&T> = list.into_iter().flatten().collect();
        sorted.sort_unstable();
        if let Some(pair) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            self.reject(key, &format!("{} is listed twice", pair[0]), "remove one");
        }
    }

    /// Reports a problem with the value of `key`.
    pub fn reject(&self, key: &str, what: &str, remedy: &str) {
        let span = self
            .find(key)
            .map_or_else(|| self.span.clone(), Spanned::span);
        self.problem(key, span, what, remedy);
    }

    /// Whether nothing within this table has been reported so far.
    pub fn is_sound(&self) -> bool {
        let problems = self.source.problems.borrow();
        let inside = self.dotted("");
        !problems
            .iter()
            .any(|problem| problem.key.starts_with(&inside))
    }

    fn child(&self, name: String, table: Option<&'t DeTable<'t>>, span: Range<usize>) -> Self {
        Self {
            source: self.source,
            name,
            table,
            span,
            asked: BTreeSet::new(),
            pattern: None,
            survey: self.survey.as_ref().map(|_| Table::default()),
        }
    }

    /// Notes what `key` may be, if that is wanted.
    fn note(&mut self, key: &'static str, kind: impl FnOnce(Option<&'static str>) -> Kind) {
        let pattern = self.pattern.take();
        if let Some(survey) = &mut self.survey {
            survey.add(key, kind(pattern));
        }
    }

    /// What was asked, once everything was.
    fn surveyed(self) -> Table {
        let table = self.survey.unwrap_or_default();
        debug_assert!(
            self.asked.iter().all(|key| table.get(key).is_some()),
            "{}: a key of unknown kind",
            self.name
        );
        table
    }

    fn value(&mut self, key: &'static str) -> Option<&'t Spanned<DeValue<'t>>> {
        self.asked.insert(key);
        self.find(key)
    }

    fn find(&self, key: &str) -> Option<&'t Spanned<DeValue<'t>>> {
        let mut entries = self.table?.iter();
        entries
            .find(|(name, _)| name.get_ref() == key)
            .map(|(_, value)| value)
    }

    fn dotted(&self, key: &str) -> String {
        if self.name.is_empty() {
            key.to_owned()
        } else {
            format!("{}.{key}", self.name)
        }
    }

    fn wrong_type(&self, key: &str, value: &Spanned<DeValue<'_>>, expected: &str, remedy: &str) {
        let what = format!("expected {expected}, found {}", type_name(value.get_ref()));
        self.problem(key, value.span(), &what, remedy);
    }

    fn problem(&self, key: &str, span: Range<usize>, what: &str, remedy: &str) {
        self.source.problems.borrow_mut().push(Problem {
            file: self.source.path.to_owned(),
            line: self.source.line(span.start),
            key: self.dotted(key),
            what: what.to_owned(),
            remedy: remedy.to_owned(),
        });
    }

    fn reject_unknown_keys(&self) {
        let Some(table) = self.table else { return };
        for (name, _) in table.iter() {
            let name_text: &str = name.get_ref();
            if self.asked.contains(name_text) {
                continue;
            }
            let remedy = match closest(name_text, &self.asked) {
                Some(known) => format!("did you mean {known}?"),
                None => {
                    let known: Vec<_> = self.asked.iter().copied().collect();
                    format!("known keys here: {}", known.join(", "))
                }
            };
            self.problem(name_text, name.span(), "unknown key", &remedy);
        }
    }
}

fn type_name(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a text",
        DeValue::Integer(_) => "a whole number",
        DeValue::Float(_) => "a number with a fraction",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}
