//! Three members of etcd, each in a namespace of its own beside the server, and what goes wrong with them.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use ropewalk_testbed::{Namespace, Process, veth};
use rustix::process::Signal;
use serde_json::Value;

/// Members of etcd.
pub const MEMBERS: usize = 3;
/// Longest time until etcd answers again.
const LIMIT: Duration = Duration::from_secs(40);
/// Longest time of one command of `etcdctl`.
const COMMAND: Duration = Duration::from_secs(10);

/// Members of etcd. Processes and namespaces end with the value.
#[derive(Debug)]
pub struct Etcd {
    members: Vec<Option<Process>>,
    /// Of the disk of each member, while it is slow.
    tracers: Vec<Process>,
    spaces: Vec<Namespace>,
    /// Where all of them are reached.
    server: Namespace,
    directory: PathBuf,
}

fn address(member: usize) -> String {
    format!("10.9.{}.2", 11 + member)
}

fn peer(member: usize) -> String {
    format!("http://{}:2380", address(member))
}

/// Where clients reach a member.
#[must_use]
pub fn url(member: usize) -> String {
    format!("http://{}:2379", address(member))
}

fn cluster() -> String {
    let members: Vec<_> = (0..MEMBERS).map(|n| format!("m{n}={}", peer(n))).collect();
    members.join(",")
}

/// A namespace for a member beside the server.
fn space(purpose: &str, member: usize, server: &Namespace) -> Result<Namespace> {
    let space = Namespace::create(purpose, &format!("etcd{member}"))?;
    let to = format!("toetcd{member}");
    veth((server, &to), (&space, "net"), 1_500)?;
    let gateway = format!("10.9.{}.1", 11 + member);
    server.ip(&format!("addr add {gateway}/30 dev {to}"))?;
    let own = address(member);
    space.ip(&format!(
        "addr add {own}/30 dev net\nroute add default via {gateway}"
    ))?;
    Ok(space)
}

impl Etcd {
    /// Starts a new cluster, and waits until it answers.
    ///
    /// # Errors
    /// `etcd` or `etcdctl` is missing, or no leader is found.
    pub fn new(purpose: &str, server: &Namespace, directory: &Path) -> Result<Self> {
        let spaces = (0..MEMBERS).map(|member| space(purpose, member, server));
        let mut etcd = Self {
            members: (0..MEMBERS).map(|_| None).collect(),
            tracers: Vec::new(),
            spaces: spaces.collect::<Result<_>>()?,
            server: server.clone(),
            directory: directory.to_owned(),
        };
        for member in 0..MEMBERS {
            etcd.start_as(member, "new")?;
        }
        etcd.await_writes()?;
        Ok(etcd)
    }

    fn data(&self, member: usize) -> PathBuf {
        self.directory.join(format!("etcd{member}"))
    }

    /// Starts a member with the data that it has, if it does not run.
    ///
    /// # Errors
    /// The program is missing.
    pub fn start(&mut self, member: usize) -> Result<()> {
        if self.runs(member) {
            return Ok(());
        }
        self.start_as(member, "existing")
    }

    fn start_as(&mut self, member: usize, state: &str) -> Result<()> {
        let (client, peer) = (url(member), peer(member));
        let program = self.spaces[member].program("etcd").args([
            "--name",
            &format!("m{member}"),
            "--listen-client-urls",
            &client,
            "--advertise-client-urls",
            &client,
            "--listen-peer-urls",
            &peer,
            "--initial-advertise-peer-urls",
            &peer,
            "--initial-cluster",
            &cluster(),
            "--initial-cluster-state",
            state,
            // Elections within 0.5 s on a busy machine.
            "--heartbeat-interval",
            "50",
            "--election-timeout",
            "500",
        ]);
        let program = program.arg("--data-dir").arg(self.data(member));
        let process = program.start(&self.directory, &format!("etcd{member}"))?;
        self.members[member] = Some(process);
        Ok(())
    }

    /// Whether a member runs.
    #[must_use]
    pub fn runs(&self, member: usize) -> bool {
        self.members[member].is_some()
    }

    /// Members that do not run.
    #[must_use]
    pub fn down(&self) -> usize {
        self.members.iter().filter(|one| one.is_none()).count()
    }

    /// Kills a member without warning.
    pub fn kill(&mut self, member: usize) {
        if let Some(mut process) = self.members[member].take() {
            process.kill();
        }
    }

    /// Starts every member that does not run, and waits until etcd takes writes.
    ///
    /// # Errors
    /// It does not in time.
    pub fn restore(&mut self) -> Result<()> {
        for member in 0..MEMBERS {
            self.start(member)?;
        }
        self.await_writes()
    }

    /// Cuts a member off from everybody, or joins it again.
    ///
    /// # Errors
    /// If `nft` refuses.
    pub fn cut(&self, member: usize, off: bool) -> Result<()> {
        self.spaces[member].set_deaf("net", off)?;
        self.server.set_deaf(&format!("toetcd{member}"), off)
    }

    /// What `etcdctl` says.
    ///
    /// # Errors
    /// If it fails: the message holds what it printed.
    pub fn ctl(&self, arguments: &[&str]) -> Result<String> {
        let endpoints: Vec<_> = (0..MEMBERS).map(url).collect();
        let program = self.server.program("etcdctl").env("ETCDCTL_API", "3");
        let program = program.args(["--dial-timeout=1s", "--command-timeout=3s"]);
        let program = program.arg(format!("--endpoints={}", endpoints.join(",")));
        program.args(arguments).success(COMMAND)
    }

    /// Waits until etcd takes writes.
    ///
    /// # Errors
    /// It does not in time.
    pub fn await_writes(&self) -> Result<()> {
        let end = Instant::now() + LIMIT;
        loop {
            match self.ctl(&["put", "elsewhere", "1"]) {
                Ok(_) => return Ok(()),
                Err(error) if Instant::now() > end => {
                    return Err(error.context(format!("etcd takes no write for {LIMIT:?}")));
                }
                Err(_) => std::thread::sleep(Duration::from_millis(50)),
            }
        }
    }

    /// The member that leads.
    ///
    /// # Errors
    /// Nobody does.
    pub fn leader(&self) -> Result<usize> {
        for member in (0..MEMBERS).filter(|member| self.runs(*member)) {
            let program = self.server.program("etcdctl").env("ETCDCTL_API", "3");
            let program = program.args(["endpoint", "status", "-w", "json"]);
            let text = program.arg(format!("--endpoints={}", url(member)));
            let Ok(text) = text.success(COMMAND) else {
                continue;
            };
            let value: Value = serde_json::from_str(&text)?;
            let status = &value[0]["Status"];
            if status["leader"] == status["header"]["member_id"] {
                return Ok(member);
            }
        }
        bail!("etcd has no leader")
    }

    /// A member loses its data: it is taken out of the cluster, and comes back empty.
    ///
    /// # Errors
    /// `etcdctl` fails, or the member does not come back.
    pub fn lose_data(&mut self, member: usize) -> Result<()> {
        self.kill(member);
        std::fs::remove_dir_all(self.data(member))?;
        let list = self.ctl(&["member", "list"])?;
        let name = format!(", m{member}, ");
        let line = list.lines().find(|line| line.contains(&name));
        let id = line.and_then(|line| line.split(',').next());
        let id = id.with_context(|| format!("no member m{member} in {list}"))?;
        self.ctl(&["member", "remove", id])?;
        let end = Instant::now() + LIMIT;
        let urls = format!("--peer-urls={}", peer(member));
        while let Err(error) = self.ctl(&["member", "add", &format!("m{member}"), &urls]) {
            if Instant::now() > end {
                return Err(error);
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        self.start(member)?;
        self.await_writes()?;
        // The member that came back has what the others have.
        let end = Instant::now() + LIMIT;
        while self.ctl(&["endpoint", "health"]).is_err() {
            ensure!(Instant::now() < end, "member m{member} is not healthy");
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }

    /// Makes each `fsync` and `fdatasync` of every member last so much longer, as on a slow disk. `strace` delays these
    /// calls of the running programs.
    ///
    /// # Errors
    /// `strace` is missing, or may not trace.
    pub fn slow_disks(&mut self, delay: Duration) -> Result<()> {
        let inject = format!("inject=fsync,fdatasync:delay_enter={}", delay.as_micros());
        for (number, member) in self.members.iter().enumerate() {
            let Some(member) = member else { continue };
            let program = self.server.program("strace").args([
                "-f",
                "-q",
                "-e",
                "trace=fsync,fdatasync",
                "-e",
                &inject,
                "-p",
                &member.pid().to_string(),
            ]);
            let program = program.arg("-o").arg(self.trace(number));
            let tracer = program.start(&self.directory, &format!("strace{number}"))?;
            self.tracers.push(tracer);
        }
        std::thread::sleep(Duration::from_millis(500));
        for tracer in &mut self.tracers {
            ensure!(tracer.is_running(), "strace ended: {}", tracer.log_tail());
        }
        Ok(())
    }

    fn trace(&self, member: usize) -> PathBuf {
        self.directory.join(format!("strace{member}.trace"))
    }

    /// Ends [`Self::slow_disks`]. How many calls were delayed.
    pub fn quick_disks(&mut self) -> usize {
        for mut tracer in std::mem::take(&mut self.tracers) {
            // strace lets what it traces go on when it is told to end.
            tracer.signal(Signal::TERM);
            let _ = tracer.wait(Duration::from_secs(5));
        }
        let calls = (0..MEMBERS).map(|member| {
            let text = std::fs::read_to_string(self.trace(member)).unwrap_or_default();
            text.lines().filter(|line| line.contains("DELAYED")).count()
        });
        calls.sum()
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.quick_disks();
        // At once: as a whole etcd has nothing to hand over.
        (0..MEMBERS).for_each(|member| self.kill(member));
    }
}
