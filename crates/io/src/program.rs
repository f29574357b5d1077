//! Programs of others that are run for a gateway: nft(8), resolvectl(1), resolvconf(8).
//!
//! Invariant: nobody waits for a program longer than [`TIME_MAX`], and a second more for each part of
//! [`BYTES_A_SECOND`] of its input. A program that takes longer is killed and reaped, with all that it started
//! in its process group.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process_group};

/// Longest time that a program may take. Longer: a slow machine is surer to be set up, and the control side
/// of a gateway waits longer for a program that hangs. Far below the time that the service manager grants
/// (`WatchdogSec=30`).
pub const TIME_MAX: Duration = Duration::from_secs(5);
/// Input for which a program gets a second more. The rules of a hub with 1,000 sites that may reach two networks
/// each are 745 kB, and `nft` took 0.12 s for them in one run. Fewer: slower machines are sure to be set up.
pub const BYTES_A_SECOND: usize = 1 << 20;
/// Longest time of all, below the time that the service manager grants.
const TIME_MAX_OF_ALL: Duration = Duration::from_secs(20);
/// Most bytes that are kept of what a program says. The rest is read and left out.
const SAID_MAX: usize = 1 << 24;
/// How often an end of the program is looked for while its pipes say nothing. Longer: less work, and a
/// program that leaves others behind is told later.
const LOOK: Timespec = nanoseconds(20_000_000);
/// The same once all its pipes are closed: the end is near.
const LOOK_AT_END: Timespec = nanoseconds(1_000_000);
/// Bytes that are read or written at once. More: fewer system calls, more memory.
const CHUNK_BYTES: usize = 1 << 16;
/// Reads before the time is looked at.
const READS: usize = 16;

/// Why a program did not do its work.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// It cannot be started, or not be talked to.
    #[error("cannot run `{0}`: {1}")]
    Start(String, #[source] io::Error),
    /// It took too long.
    #[error("`{0}` had not ended after {n:.1} s, and was killed", n = .1.as_secs_f64())]
    Late(String, Duration),
    /// It said no, with its words.
    #[error("`{0}` failed: {1}")]
    Failed(String, String),
}

impl ProgramError {
    /// Whether there is no such program.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Start(_, error) if error.kind() == io::ErrorKind::NotFound)
    }
}

/// Runs a program with `input` on its standard input; what it says on standard output.
///
/// # Errors
/// See [`ProgramError`].
pub fn run(program: &str, arguments: &[&str], input: &str) -> Result<String, ProgramError> {
    let more = Duration::from_secs((input.len() / BYTES_A_SECOND) as u64);
    let limit = (TIME_MAX + more).min(TIME_MAX_OF_ALL);
    run_within(limit, program, arguments, input)
}

fn run_within(
    limit: Duration,
    program: &str,
    arguments: &[&str],
    input: &str,
) -> Result<String, ProgramError> {
    let mut command = Command::new(program);
    let ran = run_command(limit, command.args(arguments), input)?;
    if ran.status.success() {
        return Ok(ran.said);
    }
    let words = ran.complaints.trim().to_owned();
    Err(ProgramError::Failed(told(&command), words))
}

/// How a program ended, and what it said.
#[derive(Clone, Debug)]
pub struct Ended {
    /// Its exit code.
    pub status: ExitStatus,
    /// On standard output.
    pub said: String,
    /// On standard error.
    pub complaints: String,
}

fn told(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
    words.join(" ")
}

/// Runs a program with `input` on its standard input, and kills it when it has not ended after `limit`. A program that
/// says no has ended, too.
///
/// # Errors
/// It cannot be started, or takes too long.
pub fn run_command(
    limit: Duration,
    command: &mut Command,
    input: &str,
) -> Result<Ended, ProgramError> {
    let start = Instant::now();
    let spawned = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // Scripts start others, which hang in their place.
        .process_group(0)
        .spawn();
    let mut child = spawned.map_err(|error| ProgramError::Start(told(command), error))?;
    let ended = Talk::new(&mut child, input)
        .and_then(|mut talk| Ok((talk.until_end(&mut child, start + limit)?, talk)));
    match ended {
        Ok((Some(status), talk)) => Ok(Ended {
            status,
            said: text(&talk.said),
            complaints: text(&talk.complaints),
        }),
        Ok((None, _)) => {
            end(&mut child);
            Err(ProgramError::Late(told(command), start.elapsed()))
        }
        Err(error) => {
            end(&mut child);
            Err(ProgramError::Start(told(command), error))
        }
    }
}

/// Kills and reaps the program, which has not been reaped yet: its number is still its own.
fn end(child: &mut Child) {
    let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
    let _ = child.wait();
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The pipes of a program. One that is done with is `None`.
struct Talk<'a> {
    stdin: Option<std::process::ChildStdin>,
    stdout: Option<std::process::ChildStdout>,
    stderr: Option<std::process::ChildStderr>,
    /// What is left of the input.
    input: &'a [u8],
    said: Vec<u8>,
    complaints: Vec<u8>,
}

impl<'a> Talk<'a> {
    fn new(child: &mut Child, input: &'a str) -> io::Result<Self> {
        let this = Self {
            stdin: child.stdin.take(),
            stdout: child.stdout.take(),
            stderr: child.stderr.take(),
            input: input.as_bytes(),
            said: Vec::new(),
            complaints: Vec::new(),
        };
        for pipe in this.pipes() {
            rustix::io::ioctl_fionbio(pipe, true)?;
        }
        Ok(this)
    }

    fn pipes(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let pipes = [
            self.stdin.as_ref().map(AsFd::as_fd),
            self.stdout.as_ref().map(AsFd::as_fd),
            self.stderr.as_ref().map(AsFd::as_fd),
        ];
        pipes.into_iter().flatten()
    }

    /// Writes and reads until the program has ended; `None` when it has not by `deadline`.
    fn until_end(
        &mut self,
        child: &mut Child,
        deadline: Instant,
    ) -> io::Result<Option<ExitStatus>> {
        loop {
            self.pass()?;
            if let Some(status) = child.try_wait()? {
                // What it said last. Those that it left behind may keep the pipes open.
                self.pass()?;
                return Ok(Some(status));
            }
            if Instant::now() >= deadline {
                return Ok(None);
            }
            let output = self
                .stdin
                .as_ref()
                .map(|pipe| (pipe.as_fd(), PollFlags::OUT));
            let input = self.pipes().skip(usize::from(output.is_some()));
            let mut waited: Vec<PollFd<'_>> = output
                .into_iter()
                .chain(input.map(|pipe| (pipe, PollFlags::IN)))
                .map(|(pipe, flags)| PollFd::from_borrowed_fd(pipe, flags))
                .collect();
            let time = if waited.is_empty() { LOOK_AT_END } else { LOOK };
            match poll(&mut waited, Some(&time)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Writes and reads what goes without waiting.
    fn pass(&mut self) -> io::Result<()> {
        while let Some(pipe) = self.stdin.as_mut().filter(|_| !self.input.is_empty()) {
            let part = &self.input[..self.input.len().min(CHUNK_BYTES)];
            match pipe.write(part) {
                Ok(count) => self.input = &self.input[count..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // One that ended early says why on standard error.
                Err(_) => self.input = &[],
            }
        }
        if self.input.is_empty() {
            self.stdin = None;
        }
        drain(&mut self.stdout, &mut self.said)?;
        drain(&mut self.stderr, &mut self.complaints)
    }
}

/// Reads some of what is there, so that the caller looks at the time between; the pipe is gone at its end.
fn drain(pipe: &mut Option<impl Read>, into: &mut Vec<u8>) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK_BYTES];
    for _ in 0..READS {
        let Some(open) = pipe else { break };
        match open.read(&mut chunk) {
            Ok(0) => *pipe = None,
            Ok(count) => {
                let room = SAID_MAX.saturating_sub(into.len());
                into.extend_from_slice(&chunk[..count.min(room)]);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

const fn nanoseconds(count: i64) -> Timespec {
    Timespec {
        tv_sec: 0,
        tv_nsec: count,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(300);

    #[test]
    fn a_program_that_hangs_is_killed_with_what_it_started_and_the_error_says_which_and_how_long() {
        let file = std::env::temp_dir().join(format!("hangs-{}", std::process::id()));
        let script = format!("sleep 60 & echo $$ $! > {}; sleep 60", file.display());
        let start = Instant::now();
        let error = run_within(SHORT, "sh", &["-c", &script], "").expect_err("late");
        assert!(start.elapsed() < 10 * SHORT, "{:?}", start.elapsed());
        let text = error.to_string();
        assert!(text.starts_with("`sh -c sleep 60"), "{text}");
        assert!(
            text.ends_with("had not ended after 0.3 s, and was killed"),
            "{text}"
        );
        let numbers = std::fs::read_to_string(&file).expect("it ran");
        std::fs::remove_file(&file).expect("its file");
        for number in numbers.split_whitespace() {
            // The one that it started is init's to reap.
            let gone = || {
                let status = std::fs::read_to_string(format!("/proc/{number}/status"));
                status.map_or(true, |text| text.contains("State:\tZ"))
            };
            while !gone() {
                assert!(start.elapsed() < 10 * SHORT, "{number} lives on");
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }

    #[test]
    fn a_program_that_ends_is_not_waited_for_on_behalf_of_those_that_it_leaves_behind() {
        let start = Instant::now();
        let said = run_within(10 * SHORT, "sh", &["-c", "sleep 4 & echo done"], "");
        assert_eq!(said.expect("it ended"), "done\n");
        assert!(start.elapsed() < 5 * SHORT, "{:?}", start.elapsed());
    }

    #[test]
    fn long_texts_pass_both_ways_at_once_and_refusals_come_with_their_words() {
        let long = "x".repeat(1 << 20);
        assert_eq!(run("cat", &[], &long).expect("a copy"), long);
        let error =
            run("sh", &["-c", "cat > /dev/null; echo no >&2; exit 3"], &long).expect_err("refused");
        assert!(error.to_string().ends_with("failed: no"), "{error}");
        let error = run("/nonexistent/nft", &[], "").expect_err("none");
        assert!(error.is_missing() && error.to_string().contains("/nonexistent/nft"));
    }
}
