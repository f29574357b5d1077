//! Network namespaces that vanish with the thread that made them.

#![allow(dead_code, reason = "every test file uses another part")]

use std::io;
use std::process::Command;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Longest time any wait in a test takes before it fails.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Whether the test can run; says so when it cannot.
pub fn privileged() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("SKIPPED: needs root");
    }
    root
}

/// A thread in a network namespace of its own that does what it is told.
pub struct Namespace {
    jobs: Option<mpsc::Sender<Box<dyn FnOnce() + Send>>>,
    thread: Option<JoinHandle<()>>,
    /// Thread whose namespace `ip link set … netns` can name.
    pub tid: String,
}

impl Namespace {
    pub fn new() -> Self {
        let (jobs, todo) = mpsc::channel::<Box<dyn FnOnce() + Send>>();
        let (ready, is_ready) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            // SAFETY: a new network namespace has no effect on file descriptors or memory.
            unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) }
                .expect("a new network namespace");
            ready
                .send(rustix::thread::gettid().as_raw_nonzero().to_string())
                .expect("ready");
            for job in todo {
                job();
            }
        });
        let tid = is_ready.recv().expect("the namespace exists");
        let namespace = Self {
            jobs: Some(jobs),
            thread: Some(thread),
            tid,
        };
        namespace.run("ip link set lo up");
        namespace
    }

    /// Runs `work` in the namespace.
    pub fn enter<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, result) = mpsc::channel();
        let job = move || drop(done.send(work()));
        self.jobs
            .as_ref()
            .expect("open")
            .send(Box::new(job))
            .expect("the thread lives");
        result.recv().expect("the work did not panic")
    }

    /// Runs a command in the namespace, which must succeed; returns its output.
    pub fn run(&self, command: &str) -> String {
        let words: Vec<String> = command.split_whitespace().map(str::to_owned).collect();
        let output = self.enter(move || Command::new(&words[0]).args(&words[1..]).output());
        let output = output.expect("the program exists");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command}: {errors}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Repeats `attempt` until it gives something.
pub fn wait_for<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = attempt() {
            return value;
        }
        assert!(Instant::now() < end, "waited too long for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The number of the system's error.
pub fn code<T>(result: io::Result<T>) -> Option<i32> {
    result.err().and_then(|e| e.raw_os_error())
}
