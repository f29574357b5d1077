//! Child processes that never outlive their maker: bounded runs and guarded background programs.
//!
//! Invariants: every child is in its own process group, so that Ctrl-C reaches only this process,
//! which ends its children in order. Every child is registered for clean-up. The kernel kills it if
//! this process dies (`setpriv --pdeathsig`, see prctl(2) PR_SET_PDEATHSIG). That signal follows
//! the *thread* that forked, so all forking happens on one thread that lives as long as the
//! process.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, waitid};

use crate::cleanup::{self, Resource, Ticket};
use crate::namespace::Namespace;
use crate::programs;

/// A program to run, in a namespace or here.
#[derive(Clone, Debug)]
pub struct Program {
    program: OsString,
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    namespace: Option<String>,
    input: Option<String>,
}

/// What a bounded run left.
#[derive(Clone, Debug)]
pub struct Finished {
    /// Exit status.
    pub status: ExitStatus,
    /// Everything on standard output.
    pub stdout: String,
    /// Everything on standard error.
    pub stderr: String,
}

/// A background program; stopped when dropped.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    ticket: Ticket,
    output: PathBuf,
    log: PathBuf,
}

impl Program {
    /// A program found by path or in PATH.
    #[must_use]
    pub fn new(program: impl Into<OsString>) -> Self {
        Self {
            program: program.into(),
            arguments: Vec::new(),
            environment: Vec::new(),
            namespace: None,
            input: None,
        }
    }

    /// Adds one argument.
    #[must_use]
    pub fn arg(mut self, argument: impl Into<OsString>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// Adds arguments.
    #[must_use]
    pub fn args<I: IntoIterator<Item = S>, S: Into<OsString>>(mut self, arguments: I) -> Self {
        self.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn env(mut self, key: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.environment.push((key.into(), value.into()));
        self
    }

    /// Runs inside a namespace.
    #[must_use]
    pub fn inside(mut self, namespace: &Namespace) -> Self {
        self.namespace = Some(namespace.name().to_owned());
        self
    }

    /// Text for standard input of a bounded run.
    #[must_use]
    pub fn input(mut self, text: impl Into<String>) -> Self {
        self.input = Some(text.into());
        self
    }

    /// Runs to the end, at most for `limit`.
    ///
    /// # Errors
    /// If the program cannot be started, or does not end in time (it is killed then). A non-zero
    /// exit is no error here; see [`Program::success`].
    pub fn run(self, limit: Duration) -> Result<Finished> {
        let name = self.line();
        let (mut stdout, mut stderr) = (tempfile::tempfile()?, tempfile::tempfile()?);
        let mut command = self.command();
        command
            .stdout(stdout.try_clone()?)
            .stderr(stderr.try_clone()?);
        command.stdin(match &self.input {
            None => Stdio::null(),
            Some(text) => Stdio::from(file_with(text)?),
        });
        let mut child = fork(command).with_context(|| format!("cannot run `{name}`"))?;
        let ticket = cleanup::register(Resource::Process(child.id()));
        let status = wait(&mut child, limit);
        ticket.release();
        let Some(status) = status? else {
            cleanup::kill(child.id(), Signal::KILL);
            let _ = child.wait();
            bail!("`{name}` did not end within {} s", limit.as_secs_f64());
        };
        Ok(Finished {
            status,
            stdout: text_of(&mut stdout)?,
            stderr: text_of(&mut stderr)?,
        })
    }

    /// Runs to the end and wants exit code 0; returns standard output.
    ///
    /// # Errors
    /// As [`Program::run`], and if the exit code is not 0: the message holds what it printed.
    pub fn success(self, limit: Duration) -> Result<String> {
        let (name, input) = (self.line(), self.input.clone());
        let input = input
            .map(|text| format!(" with input\n{text}"))
            .unwrap_or_default();
        self.run(limit)?
            .success()
            .with_context(|| format!("`{name}`{input}"))
    }

    /// Starts in the background; standard output goes to `DIR/NAME.out`, standard error to
    /// `DIR/NAME.log`.
    ///
    /// # Errors
    /// If the program cannot be started or the files cannot be made.
    pub fn start(self, directory: &Path, name: &str) -> Result<Process> {
        let (output, log) = (
            directory.join(format!("{name}.out")),
            directory.join(format!("{name}.log")),
        );
        let open = |path: &Path| {
            File::options()
                .create(true)
                .append(true)
                .open(path)
                .with_context(|| format!("cannot write {}", path.display()))
        };
        let mut command = self.command();
        command
            .stdin(Stdio::null())
            .stdout(open(&output)?)
            .stderr(open(&log)?);
        let child = fork(command).with_context(|| format!("cannot start `{}`", self.line()))?;
        let ticket = cleanup::register(Resource::Process(child.id()));
        Ok(Process {
            name: name.to_owned(),
            child,
            ticket,
            output,
            log,
        })
    }

    /// The command as a person would type it.
    fn line(&self) -> String {
        let words = std::iter::once(&self.program).chain(&self.arguments);
        words
            .map(|word| word.to_string_lossy())
            .collect::<Vec<_>>()
            .join(" ")
    }

    /// The command with the wrappers that set the death signal and enter the namespace. Both
    /// replace themselves by what they start, so the child's id is the program's.
    fn command(&self) -> Command {
        let mut words: Vec<OsString> = Vec::new();
        if have_setpriv() {
            words.extend(["setpriv", "--pdeathsig", "KILL"].map(Into::into));
        }
        if let Some(namespace) = &self.namespace {
            words.extend(["ip", "netns", "exec", namespace].map(Into::into));
        }
        words.push(self.program.clone());
        words.extend(self.arguments.iter().cloned());
        let mut command = Command::new(&words[0]);
        command
            .args(&words[1..])
            .process_group(0)
            .env("PATH", programs::search_path())
            .envs(self.environment.iter().cloned());
        command
    }
}

impl Finished {
    /// Standard output of a run that ended with code 0.
    ///
    /// # Errors
    /// If the exit code is not 0: the message holds what it printed.
    pub fn success(self) -> Result<String> {
        if self.status.success() {
            return Ok(self.stdout);
        }
        let (stdout, stderr) = (self.stdout.trim(), self.stderr.trim());
        Err(anyhow!("failed ({}): {stderr} {stdout}", self.status))
    }
}

impl Process {
    /// The name given at the start.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it still runs.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Whether it has ended; whoever waits for it still can.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        // An error means that it was waited for already.
        !matches!(
            waitid(WaitId::Pid(Pid::from_child(&self.child)), look),
            Ok(None)
        )
    }

    /// Waits for the end; `None` when it still runs after `limit`.
    ///
    /// # Errors
    /// If the system call fails.
    pub fn wait(&mut self, limit: Duration) -> Result<Option<ExitStatus>> {
        wait(&mut self.child, limit)
    }

    /// Sends a signal.
    pub fn signal(&mut self, signal: Signal) {
        if self.is_running() {
            cleanup::kill(self.pid(), signal);
        }
    }

    /// Asks it to end (SIGINT), and kills it if it has not after [`STOP_LIMIT`]. Returns how it
    /// ended, `None` when it had to be killed.
    pub fn stop(&mut self) -> Option<ExitStatus> {
        self.signal(Signal::INT);
        if let Ok(Some(status)) = self.wait(STOP_LIMIT) {
            self.ticket.release();
            return Some(status);
        }
        self.kill();
        None
    }

    /// Kills it without warning (SIGKILL) and waits.
    pub fn kill(&mut self) {
        self.signal(Signal::KILL);
        let _ = self.child.wait();
        self.ticket.release();
    }

    /// What it has written to standard output so far.
    #[must_use]
    pub fn output(&self) -> String {
        std::fs::read_to_string(&self.output).unwrap_or_default()
    }

    /// What it has written to standard error so far.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The last lines of standard error, for a message about why it failed.
    #[must_use]
    pub fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
    }

    /// The last line of standard error that says something.
    #[must_use]
    pub fn last_line(&self) -> String {
        let log = self.log();
        let mut lines = log.lines().rev().map(str::trim);
        lines
            .find(|line| !line.is_empty())
            .unwrap_or_default()
            .to_owned()
    }

    /// Waits until it has written a whole first line to standard output.
    ///
    /// # Errors
    /// If it ends before, or `limit` passes; the message holds the end of its log.
    pub fn first_line(&mut self, limit: Duration) -> Result<String> {
        let end = Instant::now() + limit;
        loop {
            if let Some((line, _)) = self.output().split_once('\n') {
                return Ok(line.to_owned());
            }
            if !self.is_running() {
                bail!("{} ended at once:\n{}", self.name, self.log_tail());
            }
            if Instant::now() > end {
                bail!(
                    "{} was not ready after {limit:?}:\n{}",
                    self.name,
                    self.log_tail()
                );
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// CPU time of all its living threads in seconds, exact to the scheduler's clock.
    #[must_use]
    pub fn cpu_seconds(&self) -> f64 {
        cpu_seconds(self.pid())
    }

    /// Resident memory in bytes.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid()));
        status
            .ok()
            .and_then(|text| {
                let line = text
                    .lines()
                    .find(|line| line.starts_with("VmRSS:"))?
                    .to_owned();
                line.split_whitespace().nth(1)?.parse::<u64>().ok()
            })
            .map_or(0, |kib| kib * 1024)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.is_running() {
            self.stop();
        } else {
            self.ticket.release();
        }
    }
}

/// CPU time of all living threads of a process in seconds (first field of `schedstat`).
#[must_use]
pub fn cpu_seconds(pid: u32) -> f64 {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else {
        return 0.0;
    };
    let run_ns: u64 = tasks
        .flatten()
        .filter_map(|task| {
            let text = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
            text.split_whitespace().next()?.parse::<u64>().ok()
        })
        .sum();
    Duration::from_nanos(run_ns).as_secs_f64()
}

/// CPU time of the kernel's packet threads (`ksoftirqd`) of all cores in seconds.
#[must_use]
pub fn softirq_cpu_seconds() -> f64 {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return 0.0;
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
        .filter(|pid| {
            std::fs::read_to_string(format!("/proc/{pid}/comm"))
                .is_ok_and(|name| name.starts_with("ksoftirqd/"))
        })
        .map(cpu_seconds)
        .sum()
}

/// Waits for the end of a child without blocking for more than `limit`.
fn wait(child: &mut Child, limit: Duration) -> Result<Option<ExitStatus>> {
    let end = Instant::now() + limit;
    let mut pause = Duration::from_millis(1);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= end {
            return Ok(None);
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

/// Forks on the one thread whose death would take the children along: it ends with the process.
fn fork(command: Command) -> Result<Child> {
    type Request = (Command, Sender<std::io::Result<Child>>);
    static REQUESTS: OnceLock<Mutex<Sender<Request>>> = OnceLock::new();
    let requests = REQUESTS.get_or_init(|| {
        let (requests, inbox) = channel::<Request>();
        std::thread::spawn(move || {
            for (mut command, reply) in inbox {
                let _ = reply.send(command.spawn());
            }
        });
        Mutex::new(requests)
    });
    let (reply, answer) = channel();
    let sent = requests
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .send((command, reply));
    sent.map_err(|_| anyhow!("the thread that starts programs has ended"))?;
    Ok(answer
        .recv()
        .context("the thread that starts programs has ended")??)
}

/// An unnamed file at its start, holding `text`.
fn file_with(text: &str) -> Result<File> {
    let mut file = tempfile::tempfile()?;
    file.write_all(text.as_bytes())?;
    file.seek(SeekFrom::Start(0))?;
    Ok(file)
}

fn text_of(file: &mut File) -> Result<String> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Whether `setpriv` is there; without it children still go on drop and on Ctrl-C.
fn have_setpriv() -> bool {
    static HAVE: OnceLock<bool> = OnceLock::new();
    *HAVE.get_or_init(|| crate::programs::in_path("setpriv").is_some())
}

/// How long a program may take to end after SIGINT.
pub const STOP_LIMIT: Duration = Duration::from_secs(5);

/// Lines of log in an error message.
const TAIL_LINES: usize = 15;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_returns_both_streams_and_the_exit_code() {
        let script = "cat; echo bad >&2; exit 3";
        let finished = Program::new("sh")
            .args(["-c", script])
            .input("good")
            .run(Duration::from_secs(10))
            .unwrap();
        assert_eq!(finished.status.code(), Some(3));
        assert_eq!(
            (finished.stdout.as_str(), finished.stderr.as_str()),
            ("good", "bad\n")
        );
    }

    #[test]
    fn a_run_that_takes_too_long_is_killed() {
        let error = Program::new("sleep")
            .arg("100")
            .run(Duration::from_millis(50))
            .unwrap_err();
        assert!(error.to_string().contains("did not end within"), "{error}");
    }

    #[test]
    fn an_ended_process_is_known_and_can_still_be_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let program = Program::new("sh").args(["-c", "echo first >&2; echo last >&2; echo >&2"]);
        let mut process = program.start(directory.path(), "sh").unwrap();
        let end = Instant::now() + Duration::from_secs(20);
        while !process.has_ended() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(process.has_ended() && process.has_ended());
        assert_eq!(process.last_line(), "last");
        assert!(process.wait(Duration::ZERO).unwrap().is_some());
        assert!(process.has_ended());
    }

    #[test]
    fn a_dropped_process_is_gone() {
        let directory = tempfile::tempdir().unwrap();
        let process = Program::new("sleep")
            .arg("100")
            .start(directory.path(), "sleep")
            .unwrap();
        let entry = format!("/proc/{}", process.pid());
        assert!(Path::new(&entry).exists());
        drop(process);
        assert!(!Path::new(&entry).exists());
    }

    #[test]
    fn a_child_outlives_the_thread_that_asked_for_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().to_owned();
        let asked = std::thread::spawn(move || Program::new("sleep").arg("100").start(&path, "s"));
        let mut process = asked.join().unwrap().unwrap();
        std::thread::sleep(Duration::from_millis(100));
        assert!(process.is_running());
    }
}
