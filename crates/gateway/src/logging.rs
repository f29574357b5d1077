//! Logs to standard error, and to a file when asked.
//!
//! Invariant: logging never stops or slows the gateway. A line that cannot be written (full disk,
//! closed terminal) is dropped and counted. The count is told when writing works again.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use anyhow::Context;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use ropewalk_config::common::{LogConfig, LogFormat};

/// Starts logging for the rest of the process.
///
/// A log file that cannot be opened is no reason to stay off the network: the log says so on standard error.
///
/// # Errors
/// `RUST_LOG` is not a filter.
pub fn start(verbose: u8, format: Option<LogFormat>, config: &LogConfig) -> anyhow::Result<()> {
    let level = match verbose {
        0 => config.level.as_str(),
        1 => "debug",
        _ => "trace",
    };
    let filter = match std::env::var("RUST_LOG") {
        Ok(text) if !text.is_empty() => EnvFilter::try_new(&text)
            .with_context(|| format!("RUST_LOG={text} is no log filter"))?,
        _ => EnvFilter::try_new(level).context("the log level is no log filter")?,
    };
    let open = |path: &PathBuf| LogFile::open(path.clone(), config.file_bytes_max);
    let (file, failed) = match config.file.as_ref().map(open) {
        Some(Ok(file)) => (Some(file), None),
        Some(Err(error)) => (None, Some(error)),
        None => (None, None),
    };
    let to_terminal = file.is_none() && io::IsTerminal::is_terminal(&io::stderr());
    let colours = to_terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(colours)
        // Its own complaint about a failed write would panic on a closed standard error.
        .log_internal_errors(false)
        .with_writer(Output { file });
    let result = match format.unwrap_or(config.format) {
        LogFormat::Text => builder.with_target(false).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    result.map_err(|error| anyhow::anyhow!("logging runs already: {error}"))?;
    if let Some(error) = failed {
        tracing::error!(error = format!("{error:#}"), "going on without a log file");
    }
    crate::panics::limit_messages();
    Ok(())
}

struct Output {
    file: Option<LogFile>,
}

impl<'a> MakeWriter<'a> for Output {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line { output: self }
    }
}

/// Takes one event as one write and never fails.
struct Line<'a> {
    output: &'a Output,
}

impl Write for Line<'_> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        write_stderr(line);
        if let Some(file) = &self.output.file {
            file.append(line);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes a line to standard error unless that would wait: for a terminal that is stopped, or a
/// pipe that nobody reads.
fn write_stderr(line: &[u8]) {
    static DROPPED: AtomicU64 = AtomicU64::new(0);
    if !takes_line(io::stderr().as_fd()) {
        DROPPED.fetch_add(1, Relaxed);
        return;
    }
    let dropped = DROPPED.swap(0, Relaxed);
    let mut stderr = io::stderr().lock();
    if dropped > 0 {
        let _ = writeln!(stderr, "{dropped} log lines dropped: nobody took them");
    }
    let _ = stderr.write_all(line);
}

/// Whether a line can be written without waiting. A pipe is ready while it has room for 4 KiB; a
/// longer line could still wait.
fn takes_line(output: BorrowedFd<'_>) -> bool {
    let mut ready = [PollFd::from_borrowed_fd(output, PollFlags::OUT)];
    let nothing = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // What cannot be asked is tried.
    poll(&mut ready, Some(&nothing)).map_or(true, |count| count > 0)
}

/// A log file of bounded size.
struct LogFile {
    path: PathBuf,
    bytes_max: u64,
    state: Mutex<LogState>,
}

struct LogState {
    file: Option<File>,
    bytes: u64,
    dropped: u64,
}

impl LogFile {
    fn open(path: PathBuf, bytes_max: u64) -> anyhow::Result<Self> {
        let file = open(&path).with_context(|| {
            format!(
                "cannot open the log file {}; change `file` in [log]",
                path.display()
            )
        })?;
        let bytes = file.metadata().map_or(0, |metadata| metadata.len());
        Ok(Self {
            path,
            bytes_max,
            state: Mutex::new(LogState {
                file: Some(file),
                bytes,
                dropped: 0,
            }),
        })
    }

    fn append(&self, line: &[u8]) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.bytes + line.len() as u64 > self.bytes_max {
            self.start_anew(&mut state);
        }
        if state.file.is_none() {
            state.file = open(&self.path).ok();
        }
        let dropped = state.dropped;
        let Some(file) = state.file.as_mut() else {
            state.dropped += 1;
            return;
        };
        let notice = if dropped > 0 {
            format!("{{\"dropped_log_lines\":{dropped}}}\n")
        } else {
            String::new()
        };
        let before = file.metadata().map_or(0, |metadata| metadata.len());
        let written = file
            .write_all(notice.as_bytes())
            .and_then(|()| file.write_all(line));
        if written.is_ok() {
            state.bytes = before + (notice.len() + line.len()) as u64;
            state.dropped = 0;
        } else {
            // Half a line would break readers of JSON.
            let _ = file.set_len(before);
            state.dropped += 1;
        }
    }

    /// Keeps the present file as `.1` in place of the one before.
    fn start_anew(&self, state: &mut LogState) {
        state.file = None;
        let mut former = self.path.clone().into_os_string();
        former.push(".1");
        if fs::rename(&self.path, former).is_err() {
            let _ = fs::remove_file(&self.path);
        }
        state.bytes = 0;
    }
}

fn open(path: &PathBuf) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_that_nobody_reads_takes_no_more_lines_and_blocks_nobody() {
        let (_reader, mut writer) = std::io::pipe().unwrap();
        let mut lines = 0;
        while takes_line(writer.as_fd()) {
            writer.write_all(&[b'x'; 1_000]).unwrap();
            lines += 1;
        }
        assert!((10..200).contains(&lines), "{lines}");
    }

    #[test]
    fn log_file_is_bounded_and_keeps_one_former() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let log = LogFile::open(path.clone(), 100).unwrap();
        for _ in 0..30 {
            log.append(b"0123456789abcdef\n");
        }
        let former = directory.path().join("log.1");
        for file in [&path, &former] {
            let length = fs::metadata(file).unwrap().len();
            assert!(length <= 100 && length % 17 == 0, "{length}");
        }
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2);
    }

    #[test]
    fn full_disk_drops_lines_and_tells_how_many_later() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let log = LogFile::open(path.clone(), 1_000).unwrap();
        log.append(b"one\n");
        log.state.lock().unwrap().file =
            Some(OpenOptions::new().write(true).open("/dev/full").unwrap());
        log.append(b"two\n");
        log.append(b"three\n");
        log.state.lock().unwrap().file = None;
        log.append(b"four\n");
        assert_eq!(
            fs::read_to_string(&path).unwrap(),
            "one\n{\"dropped_log_lines\":2}\nfour\n"
        );
    }
}
