//! Manual pages, from the same definitions that read the command line.
//!
//! Invariant: a program and each of its commands has a page of its own, `PROGRAM-COMMAND.1`, and what
//! the help sets in lines of its own stays so on the page.
//! Source: man-pages(7), groff_man(7).

#![forbid(unsafe_code)]

mod file;

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

pub use file::{FileKey, FilePage, FileSection};

/// What a program that only developers use is called with for its pages. No help names the option.
const OPTION: &str = "--manual";

/// The pages of a program that was called as `PROGRAM --manual DIRECTORY`: writes them. `None` if it
/// was called otherwise.
#[must_use]
pub fn asked(command: impl FnOnce() -> Command) -> Option<ExitCode> {
    let words: Vec<OsString> = std::env::args_os().skip(1).take(3).collect();
    let [option, directory] = words.as_slice() else {
        return None;
    };
    if option != OPTION {
        return None;
    }
    match write(command(), Path::new(directory)) {
        Ok(_) => Some(ExitCode::SUCCESS),
        Err(error) => {
            eprintln!("cannot write manual pages: {error}");
            Some(ExitCode::FAILURE)
        }
    }
}

/// Writes the pages of a program and of each of its commands as `NAME.1` into `directory`, which is
/// made if it is not there. Returns their paths.
///
/// # Errors
/// A page cannot be written; the message names its path.
pub fn write(command: Command, directory: &Path) -> io::Result<Vec<PathBuf>> {
    let (command, source) = built(command);
    std::fs::create_dir_all(directory).map_err(|error| named(directory, &error))?;
    let mut written = Vec::new();
    write_all(&command, None, &source, directory, &mut written)?;
    Ok(written)
}

/// The page of a program, without those of its commands.
///
/// # Errors
/// None: it is written to memory.
pub fn program(command: Command) -> io::Result<Vec<u8>> {
    let (command, source) = built(command);
    page(&command, None, &source)
}

/// The command with all that follows from it, and the program's name and version.
fn built(command: Command) -> (Command, String) {
    let mut command = command.disable_help_subcommand(true);
    command.build();
    let version = command.get_version().unwrap_or_default();
    let source = format!("{} {version}", command.get_name());
    (command, source)
}

fn write_all(
    command: &Command,
    parent: Option<&Command>,
    source: &str,
    directory: &Path,
    written: &mut Vec<PathBuf>,
) -> io::Result<()> {
    let path = directory.join(format!("{}.1", name(command)));
    let page = page(command, parent, source)?;
    std::fs::write(&path, page).map_err(|error| named(&path, &error))?;
    written.push(path);
    for sub in shown(command) {
        write_all(sub, Some(command), source, directory, written)?;
    }
    Ok(())
}

/// The page of one command, without those of its own commands.
fn page(command: &Command, parent: Option<&Command>, source: &str) -> io::Result<Vec<u8>> {
    let mut out = title(&name(command), 1, source).into_bytes();
    let man = Man::new(command.clone());
    man.render_name_section(&mut out)?;
    man.render_synopsis_section(&mut out)?;
    let about = command.get_long_about().or_else(|| command.get_about());
    let mut roff = Roff::new();
    roff.control("SH", ["DESCRIPTION"]);
    laid_out(
        &mut roff,
        &about.map(ToString::to_string).unwrap_or_default(),
    );
    roff.to_writer(&mut out)?;
    man.render_options_section(&mut out)?;
    if shown(command).next().is_some() {
        man.render_subcommands_section(&mut out)?;
    }
    let after = command
        .get_after_long_help()
        .or_else(|| command.get_after_help());
    let mut rest = Roff::new();
    let after = after.map(ToString::to_string).unwrap_or_default();
    // What comes before the first heading has none.
    if after.lines().next().is_some_and(|line| !is_heading(line)) {
        rest.control("SH", ["NOTES"]);
    }
    laid_out(&mut rest, &after);
    let others = shown(command).chain(parent).map(name);
    see_also(&mut rest, others.map(|name| (name, 1)));
    rest.to_writer(&mut out)?;
    Ok(out)
}

/// What stands at the top of every page.
const MANUAL: &str = "Ropewalk Manual";

/// A section that names other pages, each with its number; none if there are no others.
fn see_also(roff: &mut Roff, pages: impl Iterator<Item = (String, u8)>) {
    let mut inlines = Vec::new();
    for (name, section) in pages {
        if !inlines.is_empty() {
            inlines.push(roman(", "));
        }
        inlines.push(bold(name));
        inlines.push(roman(format!("({section})")));
    }
    if !inlines.is_empty() {
        roff.control("SH", ["SEE ALSO"]);
        roff.text(inlines);
    }
}

/// The line with which a page begins. It has no date, so that the same source gives the same page on each
/// day. Not by the library, which leaves empty values out.
fn title(name: &str, section: u8, source: &str) -> String {
    let escaped = [name, source, MANUAL].map(|text| text.replace('-', "\\-"));
    let [name, source, manual] = escaped;
    format!(".TH \"{name}\" {section} \"\" \"{source}\" \"{manual}\"\n")
}

/// Sets a text of a help. A line that ends with a colon is a heading, indented lines stay as they are, and other
/// lines are paragraphs.
fn laid_out(roff: &mut Roff, text: &str) {
    let mut as_is = false;
    for line in text.lines() {
        let indented = line.starts_with(' ');
        // An empty line may stand between indented ones; a following line that is not ends them.
        if as_is && !indented && !line.is_empty() {
            roff.control("fi", []);
            as_is = false;
        }
        if indented && !as_is {
            roff.control("nf", []);
            as_is = true;
        }
        if is_heading(line) {
            let heading = line.trim_end_matches(':').to_uppercase();
            roff.control("SH", [heading.as_str()]);
        } else if line.is_empty() && !as_is {
            roff.control("PP", []);
        } else {
            roff.text([roman(line)]);
        }
    }
    if as_is {
        roff.control("fi", []);
    }
}

/// Whether a line of a help is a heading: short, and with a colon at its end.
fn is_heading(line: &str) -> bool {
    line.ends_with(':') && !line.starts_with(' ') && line.len() <= HEADING_MAX
}

/// Longest heading, bytes. Longer lines with a colon at the end are sentences.
const HEADING_MAX: usize = 40;

/// The commands of a command that the help shows.
fn shown(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|sub| !sub.is_hide_set())
}

fn name(command: &Command) -> String {
    let shown = command.get_display_name();
    shown.unwrap_or_else(|| command.get_name()).to_owned()
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use clap::{Arg, Command};

    use super::write;

    #[test]
    fn each_command_has_a_page_and_examples_keep_their_lines() {
        let directory = tempfile::tempdir().unwrap();
        let program = Command::new("tool")
            .version("1.2")
            .about("Does things")
            .after_help("Made.\n\nExamples:\n  tool a\n\n  tool a b\nExit codes:\n  0  done")
            .subcommand(
                Command::new("a")
                    .about("Does a")
                    .subcommand(Command::new("b")),
            )
            .subcommand(Command::new("secret").hide(true))
            .arg(Arg::new("x").long("x").help("-1 as text"));
        let pages = write(program, &directory.path().join("man1")).unwrap();
        let names: Vec<_> = pages.iter().map(|path| path.file_name().unwrap()).collect();
        assert_eq!(names, ["tool.1", "tool-a.1", "tool-a-b.1"]);
        let text = std::fs::read_to_string(&pages[0]).unwrap();
        let after = &text[text.find(".SH NOTES").unwrap()..];
        assert_eq!(
            after,
            ".SH NOTES\nMade.\n.PP\n.SH EXAMPLES\n.nf\n  tool a\n\n  tool a b\n.fi\n.SH \"EXIT CODES\"\n.nf\n  0  done\n\
             .fi\n.SH \"SEE ALSO\"\n\\fBtool\\-a\\fR(1)\n"
        );
        let sub = std::fs::read_to_string(&pages[2]).unwrap();
        assert!(
            sub.contains("tool 1.2") && sub.contains("\\fBtool\\-a\\fR(1)"),
            "{sub}"
        );
    }
}
