//! Commands while running: a Unix socket, one command a line, one JSON answer a line.
//!
//! Clients, line length and unread answers are bounded; a client beyond a bound is closed.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use ropewalk_netem::{DirectionPlan, Selector, Side};
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::process::{PidfdFlags, getppid, pidfd_open};
use serde_json::json;

use crate::args::load_trace;
use crate::engine::Engine;
use crate::report::Stats;

/// The listening socket, its clients and the signals, behind one descriptor to wait on.
#[derive(Debug)]
pub(crate) struct Control {
    events: OwnedFd,
    signals: UnixStream,
    /// Becomes readable when the parent process has ended.
    parent: Option<OwnedFd>,
    listener: Option<(UnixListener, PathBuf)>,
    clients: Vec<Client>,
    /// Directory that traces named in commands are relative to.
    directory: PathBuf,
}

#[derive(Debug)]
struct Client {
    stream: UnixStream,
    pending: Vec<u8>,
}

/// Clients served at a time; more are closed at once. More: memory.
const CLIENTS_MAX: usize = 8;
/// Longest command in bytes.
const LINE_BYTES_MAX: usize = 4_096;

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Continue,
    Stop,
}

impl Control {
    /// Listens on `path`, if given, for SIGINT and SIGTERM, and for the end of the parent process
    /// if asked to.
    pub(crate) fn new(path: Option<&Path>, with_parent: bool) -> Result<Self> {
        let events = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let (signals, sender) = UnixStream::pair()?;
        signals.set_nonblocking(true)?;
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            signal_hook::low_level::pipe::register(signal, sender.try_clone()?)?;
        }
        let parent = if with_parent { Some(parent()?) } else { None };
        if let Some(parent) = &parent {
            watch(&events, parent.as_fd())?;
        }
        let listener = path.map(listen).transpose()?;
        watch(&events, signals.as_fd())?;
        if let Some((listener, _)) = &listener {
            watch(&events, listener.as_fd())?;
        }
        let directory = std::env::current_dir()?;
        Ok(Self {
            events,
            signals,
            parent,
            listener,
            clients: Vec::new(),
            directory,
        })
    }

    /// Handles everything that has come.
    pub(crate) fn handle(&mut self, engine: &mut Engine) -> Result<Verdict> {
        let mut byte = [0; 16];
        if matches!((&self.signals).read(&mut byte), Ok(1..)) {
            return Ok(Verdict::Stop);
        }
        if self.parent.as_ref().is_some_and(is_readable) {
            return Ok(Verdict::Stop);
        }
        self.accept()?;
        let mut verdict = Verdict::Continue;
        let directory = &self.directory;
        self.clients.retain_mut(|client| {
            client.serve(|line| {
                let (answer, stop) = execute(line, engine, directory);
                if stop {
                    verdict = Verdict::Stop;
                }
                answer
            })
        });
        Ok(verdict)
    }

    fn accept(&mut self) -> Result<()> {
        let Some((listener, _)) = &self.listener else {
            return Ok(());
        };
        while let Ok((stream, _)) = listener.accept() {
            if self.clients.len() >= CLIENTS_MAX {
                continue;
            }
            stream.set_nonblocking(true)?;
            watch(&self.events, stream.as_fd())?;
            self.clients.push(Client {
                stream,
                pending: Vec::new(),
            });
        }
        Ok(())
    }
}

impl AsFd for Control {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        if let Some((_, path)) = &self.listener {
            // Someone may have removed it already.
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Client {
    /// Answers every complete line; whether to keep the client.
    fn serve(&mut self, mut answer: impl FnMut(&str) -> String) -> bool {
        let mut chunk = [0; LINE_BYTES_MAX];
        let open = match self.stream.read(&mut chunk) {
            Ok(0) => false,
            Ok(length) => {
                self.pending.extend_from_slice(&chunk[..length]);
                true
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
            Err(_) => return false,
        };
        while let Some(end) = self.pending.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.pending.drain(..=end).collect();
            let text = answer(String::from_utf8_lossy(&line).trim());
            // A client that does not read its answers is not waited for.
            if self
                .stream
                .write_all(format!("{text}\n").as_bytes())
                .is_err()
            {
                return false;
            }
        }
        open && self.pending.len() <= LINE_BYTES_MAX
    }
}

/// A descriptor of the process that started this one.
fn parent() -> Result<OwnedFd> {
    let pid = getppid().context("the parent process has ended already")?;
    let fd = pidfd_open(pid, PidfdFlags::empty())?;
    // It may have ended, and its id been reused, just before.
    if getppid() != Some(pid) {
        bail!("the parent process has ended already");
    }
    Ok(fd)
}

fn is_readable(fd: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

fn listen(path: &Path) -> Result<(UnixListener, PathBuf)> {
    // A socket that nobody listens on is left from a program that was killed.
    if UnixStream::connect(path).is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused) {
        let _ = std::fs::remove_file(path);
    }
    let listener = UnixListener::bind(path)
        .with_context(|| format!("cannot listen on the control socket {}", path.display()))?;
    listener.set_nonblocking(true)?;
    Ok((listener, path.into()))
}

fn watch(events: &OwnedFd, fd: BorrowedFd<'_>) -> Result<()> {
    epoll::add(
        events,
        fd,
        epoll::EventData::new_u64(0),
        epoll::EventFlags::IN,
    )?;
    Ok(())
}

/// Carries out a command; the answer, and whether to stop.
fn execute(line: &str, engine: &mut Engine, directory: &Path) -> (String, bool) {
    let mut words = line.split_whitespace();
    let result = match words.next() {
        Some("set") => set(words, engine, directory).map(|()| json!({ "ok": true })),
        Some("stats") => {
            let now = engine.now();
            let stats = Stats::collect(engine, now);
            serde_json::to_value(stats)
                .map(|stats| json!({ "ok": true, "stats": stats }))
                .map_err(Into::into)
        }
        Some("restart") => {
            engine.restart();
            Ok(json!({ "ok": true }))
        }
        Some("stop") => return (json!({ "ok": true }).to_string(), true),
        Some(other) => Err(anyhow::anyhow!(
            "unknown command `{other}`; use `set`, `stats`, `restart` or `stop`"
        )),
        None => Err(anyhow::anyhow!(
            "empty command; use `set`, `stats`, `restart` or `stop`"
        )),
    };
    let answer = result.unwrap_or_else(|e| json!({ "ok": false, "error": format!("{e:#}") }));
    (answer.to_string(), false)
}

/// `set up|down|both KEY VALUE [KEY VALUE ...]`, or `KEY=VALUE`.
fn set<'a>(
    mut words: impl Iterator<Item = &'a str>,
    engine: &mut Engine,
    directory: &Path,
) -> Result<()> {
    let (selector, section) = match words.next() {
        Some("up") => (Selector::One(Side::Up), "up"),
        Some("down") => (Selector::One(Side::Down), "down"),
        Some("both") => (Selector::Both, "both"),
        _ => bail!("write `set up|down|both KEY VALUE`, for example `set both blackhole on`"),
    };
    let mut plan = DirectionPlan::default();
    while let Some(word) = words.next() {
        let (key, value) = match word.split_once('=') {
            Some(pair) => pair,
            None => (
                word,
                words
                    .next()
                    .with_context(|| format!("`{word}` needs a value"))?,
            ),
        };
        plan.set(key, value)?;
    }
    if plan.is_empty() {
        bail!("nothing to set; add KEY VALUE, for example `rate 5Mbit`");
    }
    let change = plan.resolve(section, &mut |file| load_trace(directory, file))?;
    let now = engine.now();
    engine.link_mut().apply(now, selector, &change);
    Ok(())
}
