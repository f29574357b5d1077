//! State files after power cuts and kills: each has its former or its new contents, whole, and what a write has
//! confirmed is there.
//!
//! A power cut is a copy of a disk, taken while the writer is stopped between two system calls. What the kernel
//! has not brought to the disk yet is lost. The file system is ext4 without the help that it gives programs that
//! do not flush (`noauto_da_alloc`), and it flushes nothing by itself meanwhile (`commit=300`).
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ropewalk_host::files;
use rustix::process::{Pid, Signal, kill_process};

const CUTS: usize = 100;
const KILLS: usize = 200;
/// Directory of the writer.
const DIRECTORY: &str = "ROPEWALK_TEST_DIRECTORY";

/// Version `number` of the file: two blocks and a bit, which say at each end which one it is.
fn contents(number: u64) -> String {
    format!("{number} {} {number}\n", "x".repeat(9_000))
}

/// The version that a file has, if it is whole.
fn version(text: &str) -> Option<u64> {
    let number = text.split(' ').next()?.parse().ok()?;
    (text == contents(number)).then_some(number)
}

/// Not a test by itself: writes version after version, and says which one is confirmed.
#[test]
#[ignore = "started by the tests"]
fn writer() {
    let Some(directory) = std::env::var_os(DIRECTORY) else {
        return;
    };
    let path = Path::new(&directory).join("state");
    let present = std::fs::read_to_string(&path).unwrap_or_default();
    let first = version(&present).unwrap_or(0) + 1;
    for number in first.. {
        let text = contents(number);
        files::write_atomically(&path, text.as_bytes(), files::SECRET, true).unwrap();
        writeln!(std::io::stdout(), "confirmed {number}").unwrap();
    }
}

/// A writer, and what it has confirmed.
struct Writer {
    child: Child,
    confirmed: Arc<AtomicU64>,
}

impl Writer {
    fn start(mut command: Command, directory: &Path) -> Self {
        let mut child = command
            .env(DIRECTORY, directory)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let confirmed = Arc::new(AtomicU64::new(0));
        let shared = Arc::clone(&confirmed);
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if let Some((_, number)) = line.split_once("confirmed ") {
                    shared.store(number.parse().unwrap(), Ordering::SeqCst);
                }
            }
        });
        let mut this = Self { child, confirmed };
        while this.confirmed() == 0 {
            assert!(this.child.try_wait().unwrap().is_none(), "it ended");
            std::thread::sleep(Duration::from_millis(1));
        }
        this
    }

    fn confirmed(&self) -> u64 {
        self.confirmed.load(Ordering::SeqCst)
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Stops it between two system calls.
    fn stop(&self) {
        self.signal(Signal::STOP);
        let file = format!("/proc/{}/status", self.child.id());
        while !std::fs::read_to_string(&file)
            .unwrap()
            .contains("State:\tT")
        {
            std::thread::sleep(Duration::from_micros(100));
        }
        // Until all that it has said is read.
        let mut known = None;
        while known != Some(self.confirmed()) {
            known = Some(self.confirmed());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn this_program() -> [String; 5] {
    let program = std::env::current_exe().unwrap();
    let program = program.to_string_lossy().into_owned();
    let arguments = ["--exact", "writer", "--ignored", "--nocapture"].map(str::to_owned);
    let [a, b, c, d] = arguments;
    [program, a, b, c, d]
}

/// Times that spread over all moments of a write.
fn moment(round: usize) -> Duration {
    Duration::from_micros((round as u64).wrapping_mul(7_919) % 6_000)
}

/// Runs a script with `disk` mounted on `directory`, in a mount namespace of its own.
fn on_disk(disk: &Path, directory: &Path, script: &str) -> Command {
    let mut command = Command::new("unshare");
    let mount = format!(
        "mount -o loop,noauto_da_alloc,commit=300 {} {} && {script}",
        disk.display(),
        directory.display()
    );
    command.args(["-m", "sh", "-c", &mount]);
    command
}

#[test]
fn a_power_cut_between_any_two_system_calls_leaves_a_whole_file_and_all_that_was_confirmed() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| -> PathBuf { directory.path().join(name) };
    let (disk, copy, mounted) = (file("disk"), file("copy"), file("mounted"));
    std::fs::create_dir(&mounted).unwrap();
    std::fs::File::create(&disk)
        .unwrap()
        .set_len(8 << 20)
        .unwrap();
    let made = Command::new("mkfs.ext4").arg("-q").arg(&disk).status();
    let usable = |mut command: Command| command.output().is_ok_and(|o| o.status.success());
    if !made.is_ok_and(|made| made.success()) || !usable(on_disk(&disk, &mounted, "true")) {
        eprintln!("skipped: needs root, mkfs.ext4 and loop devices");
        return;
    }
    let script = format!("exec {}", this_program().join(" "));
    let writer = Writer::start(on_disk(&disk, &mounted, &script), &mounted);
    let mut halfway = 0;
    for round in 0..CUTS {
        std::thread::sleep(moment(round));
        writer.stop();
        let confirmed = writer.confirmed();
        std::fs::copy(&disk, &copy).unwrap();
        writer.signal(Signal::CONT);
        let read = format!("cat {0}/state && ls -A {0} >&2", mounted.display());
        let output = on_disk(&copy, &mounted, &read).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let found = version(&text);
        assert!(
            found.is_some_and(|found| found == confirmed || found == confirmed + 1),
            "cut {round}: {confirmed} was confirmed, and {} bytes are there ({found:?})",
            text.len()
        );
        halfway += usize::from(String::from_utf8_lossy(&output.stderr).contains(".state."));
    }
    let confirmed = writer.confirmed();
    eprintln!("{CUTS} cuts in {confirmed} writes, {halfway} with a temporary file on the disk");
    assert!(confirmed > CUTS as u64);
}

#[test]
fn a_kill_at_any_moment_leaves_a_whole_file_and_nothing_that_stays() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state");
    for round in 0..KILLS {
        let [program, arguments @ ..] = this_program();
        let mut command = Command::new(program);
        command.args(arguments);
        let writer = Writer::start(command, directory.path());
        std::thread::sleep(moment(round));
        let confirmed = writer.confirmed();
        drop(writer);
        let found = version(&std::fs::read_to_string(&path).unwrap());
        assert!(
            found.is_some_and(|found| found >= confirmed),
            "kill {round}: {confirmed} was confirmed, {found:?} is there"
        );
    }
    files::write_atomically(&path, b"last", files::SECRET, true).unwrap();
    let left = std::fs::read_dir(directory.path()).unwrap().count();
    assert_eq!(left, 1, "temporary files remain");
}
