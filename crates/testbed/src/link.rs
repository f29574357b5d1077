//! One link between two namespaces: emulated by `ropewalk-linkem`, or a bare veth pair.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use ropewalk_netem::{Counters, LinkPlan, Side};

use crate::namespace::{Namespace, veth};
use crate::process::Process;
use crate::programs;
use crate::statistics::mbit_per_second;

/// How a link behaves.
#[derive(Clone, Debug)]
pub enum LinkSpec {
    /// A veth pair without any limit.
    Unshaped {
        /// MTU in bytes.
        mtu: u32,
        /// Whether the pair passes UDP segments whole, as a network card that segments would.
        udp_segmentation: bool,
    },
    /// A link that `ropewalk-linkem` emulates.
    Emulated {
        /// Towards the site.
        down: Shape,
        /// From the site.
        up: Shape,
        /// MTU in bytes.
        mtu: u32,
        /// Seed of losses and jitter.
        seed: u64,
    },
    /// A link that `ropewalk-linkem` emulates by a plan, its traces named by absolute paths. Timed
    /// changes happen only after [`Link::restart`].
    Planned(Box<LinkPlan>),
}

/// One direction of an emulated link.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    /// How much it carries.
    pub capacity: Capacity,
    /// Time a packet is under way.
    pub delay: Duration,
    /// Standard deviation of the delay; order is kept.
    pub jitter: Duration,
    /// Share of packets lost at random, `0.0..=1.0`.
    pub loss: f64,
    /// Bytes that may wait.
    pub queue_bytes: u64,
}

/// How much a link carries.
#[derive(Clone, Debug, PartialEq)]
pub enum Capacity {
    /// A fixed rate of IP packets, Mbit/s.
    Fixed(f64),
    /// A recording in a file.
    Trace(PathBuf),
}

/// A link in being.
#[derive(Debug)]
pub struct Link {
    emulator: Option<Emulator>,
}

/// What passed each direction of an emulated link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCounters {
    /// From the site.
    pub up: Counters,
    /// Towards the site.
    pub down: Counters,
}

#[derive(Debug)]
struct Emulator {
    process: Process,
    control: PathBuf,
    begin: Instant,
}

impl LinkSpec {
    /// A fixed rate and delay, the same both ways, without loss.
    #[must_use]
    pub fn steady(rate_mbit: f64, delay: Duration) -> Self {
        let shape = Shape::steady(rate_mbit, delay);
        Self::Emulated {
            down: shape.clone(),
            up: shape,
            mtu: 1_500,
            seed: 1,
        }
    }

    /// Wi-Fi in motion: short delay with jitter, some loss, a modest queue.
    #[must_use]
    pub fn wifi_like(trace: PathBuf) -> Self {
        let shape = Shape {
            capacity: Capacity::Trace(trace),
            delay: Duration::from_millis(6),
            jitter: Duration::from_millis(2),
            loss: 0.002,
            queue_bytes: 192 * 1024,
        };
        Self::Emulated {
            up: shape.clone(),
            down: shape,
            mtu: 1_500,
            seed: 11,
        }
    }

    /// LTE in motion: longer delay, losses hidden by retransmission below, a deep queue.
    #[must_use]
    pub fn lte_like(trace: PathBuf) -> Self {
        let shape = Shape {
            capacity: Capacity::Trace(trace),
            delay: Duration::from_millis(25),
            jitter: Duration::from_millis(3),
            loss: 0.0,
            queue_bytes: 512 * 1024,
        };
        Self::Emulated {
            up: shape.clone(),
            down: shape,
            mtu: 1_500,
            seed: 12,
        }
    }

    /// A bare veth pair of Ethernet's MTU.
    #[must_use]
    pub const fn unshaped(udp_segmentation: bool) -> Self {
        Self::Unshaped {
            mtu: 1_500,
            udp_segmentation,
        }
    }

    /// This link with random loss in both directions.
    #[must_use]
    pub fn with_loss(mut self, share: f64) -> Self {
        if let Self::Emulated { down, up, .. } = &mut self {
            (down.loss, up.loss) = (share, share);
        }
        self
    }

    /// This link with such a queue in both directions, bytes.
    #[must_use]
    pub fn with_queue(mut self, bytes: u64) -> Self {
        if let Self::Emulated { down, up, .. } = &mut self {
            (down.queue_bytes, up.queue_bytes) = (bytes, bytes);
        }
        self
    }

    /// This link with another MTU, bytes; a planned link keeps that of Ethernet.
    #[must_use]
    pub fn with_mtu(mut self, bytes: u32) -> Self {
        match &mut self {
            Self::Unshaped { mtu, .. } | Self::Emulated { mtu, .. } => *mtu = bytes,
            Self::Planned(_) => {}
        }
        self
    }

    /// This link with another seed.
    #[must_use]
    pub fn with_seed(mut self, number: u64) -> Self {
        if let Self::Emulated { seed, .. } = &mut self {
            *seed = number;
        }
        self
    }
}

impl Shape {
    /// A fixed rate and delay without loss, and the default queue.
    #[must_use]
    pub const fn steady(rate_mbit: f64, delay: Duration) -> Self {
        Self {
            capacity: Capacity::Fixed(rate_mbit),
            delay,
            jitter: Duration::ZERO,
            loss: 0.0,
            queue_bytes: QUEUE_BYTES,
        }
    }
}

impl Link {
    /// Joins two namespaces; both ends are up when this returns.
    ///
    /// # Errors
    /// If a name is taken, or the emulator is missing or refuses its arguments.
    pub(crate) fn create(
        spec: &LinkSpec,
        site: (&Namespace, &str),
        hub: (&Namespace, &str),
        directory: &Path,
    ) -> Result<Self> {
        match spec {
            LinkSpec::Unshaped {
                mtu,
                udp_segmentation,
            } => {
                veth(site, hub, *mtu)?;
                for (namespace, interface) in [site, hub] {
                    namespace.set_offload(interface, "tx-udp-segmentation", *udp_segmentation)?;
                }
                Ok(Self { emulator: None })
            }
            LinkSpec::Emulated { mtu, .. } => {
                let emulator = Emulator::start(&spec.plan(), *mtu, false, site, hub, directory)?;
                Ok(Self {
                    emulator: Some(emulator),
                })
            }
            LinkSpec::Planned(plan) => {
                let emulator =
                    Emulator::start(&plan.to_toml()?, ETHERNET_MTU, true, site, hub, directory)?;
                Ok(Self {
                    emulator: Some(emulator),
                })
            }
        }
    }

    /// Begins the link anew: time, traces, timed changes, randomness and counters. Packets inside
    /// are lost.
    ///
    /// # Errors
    /// If the link is not emulated or the emulator does not answer.
    pub fn restart(&self) -> Result<()> {
        self.emulator()?.command("restart").map(drop)
    }

    /// What passed each direction since the start.
    ///
    /// # Errors
    /// If the link is not emulated or the emulator does not answer.
    pub fn counters(&self) -> Result<LinkCounters> {
        let answer = self.emulator()?.command("stats")?;
        let answer: serde_json::Value = serde_json::from_str(&answer)?;
        let read = |side: &str| {
            serde_json::from_value(answer["stats"][side].clone())
                .with_context(|| format!("the emulator's counters have no `{side}`: {answer}"))
        };
        Ok(LinkCounters {
            up: read("up")?,
            down: read("down")?,
        })
    }

    fn emulator(&self) -> Result<&Emulator> {
        self.emulator
            .as_ref()
            .context("a bare veth pair cannot do this, only an emulated link")
    }

    /// Whether this link is emulated.
    #[must_use]
    pub const fn is_emulated(&self) -> bool {
        self.emulator.is_some()
    }

    /// Time since an emulated link began to run, and with it its traces and timed changes.
    #[must_use]
    pub fn age(&self) -> Duration {
        self.emulator
            .as_ref()
            .map_or(Duration::ZERO, |emulator| emulator.begin.elapsed())
    }

    /// Lets every packet vanish, both ways, or no longer.
    ///
    /// # Errors
    /// If the link is not emulated or the emulator does not answer.
    pub fn set_blackhole(&self, on: bool) -> Result<()> {
        self.set(
            "both",
            &format!("blackhole={}", if on { "on" } else { "off" }),
        )
    }

    /// Changes settings of a direction (`up`, `down` or `both`), written as `key=value` with the
    /// keys and units of a link plan.
    ///
    /// # Errors
    /// If the link is not emulated or the emulator refuses.
    pub fn set(&self, direction: &str, settings: &str) -> Result<()> {
        let command = format!("set {direction} {settings}");
        self.emulator()?.command(&command).map(drop)
    }
}

impl Emulator {
    fn start(
        plan: &str,
        mtu: u32,
        wait: bool,
        site: (&Namespace, &str),
        hub: (&Namespace, &str),
        directory: &Path,
    ) -> Result<Self> {
        let name = format!("link-{}", site.1);
        let plan_file = directory.join(format!("{name}.toml"));
        std::fs::write(&plan_file, plan)?;
        let control = directory.join(format!("{name}.sock"));
        let mut process = crate::process::Program::new(programs::own("ropewalk-linkem")?)
            .args(["--a", &format!("{}:{}", site.0.name(), site.1)])
            .args(["--b", &format!("{}:{}", hub.0.name(), hub.1)])
            .args(["--mtu", &mtu.to_string()])
            .arg("--plan")
            .arg(&plan_file)
            .arg("--control")
            .arg(&control)
            .args(wait.then_some("--wait"))
            .start(directory, &name)?;
        process
            .first_line(READY_LIMIT)
            .context("the link emulator did not start")?;
        let begin = Instant::now();
        site.0.set_interface(site.1, true)?;
        hub.0.set_interface(hub.1, true)?;
        Ok(Self {
            process,
            control,
            begin,
        })
    }

    fn command(&self, line: &str) -> Result<String> {
        let mut stream = UnixStream::connect(&self.control)
            .with_context(|| format!("{} does not listen", self.process.name()))?;
        stream.set_read_timeout(Some(READY_LIMIT))?;
        writeln!(stream, "{line}")?;
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer)?;
        if answer.contains("error") {
            bail!("{} refused `{line}`: {answer}", self.process.name());
        }
        Ok(answer)
    }
}

impl LinkSpec {
    /// The link as a plan for the emulator; empty of an unshaped one.
    fn plan(&self) -> String {
        let Self::Emulated { down, up, seed, .. } = self else {
            return String::new();
        };
        let mut text = format!("seed = {seed}\n");
        for (name, shape) in [("up", up), ("down", down)] {
            let _ = writeln!(text, "[{name}]\n{}", shape.plan());
        }
        text
    }

    /// What the link can carry towards the site between two times of its life, Mbit/s of IP
    /// packets; infinite if unshaped.
    ///
    /// # Errors
    /// If a trace cannot be read.
    pub fn capacity_mbit(&self, from: Duration, to: Duration) -> Result<f64> {
        let Self::Emulated { down, .. } = self else {
            return Ok(f64::INFINITY);
        };
        match &down.capacity {
            Capacity::Fixed(rate) => Ok(*rate),
            Capacity::Trace(_) => {
                let carried = self.carried_bytes(to)? - self.carried_bytes(from)?;
                Ok(mbit_per_second(carried, to.saturating_sub(from)))
            }
        }
    }

    /// Bytes that a full queue gets through towards the site until a time: the link model itself
    /// is asked, with nothing but the capacity in place.
    fn carried_bytes(&self, until: Duration) -> Result<u64> {
        let Self::Emulated { down, .. } = self else {
            return Ok(0);
        };
        let bare = Shape {
            delay: Duration::ZERO,
            jitter: Duration::ZERO,
            loss: 0.0,
            queue_bytes: 10 * FULL_PACKET as u64,
            ..down.clone()
        };
        let plan = LinkPlan::parse(&format!("[down]\n{}", bare.plan()))?;
        let load = |file: &str| std::fs::read_to_string(file).map_err(|e| e.to_string());
        let mut link = ropewalk_netem::Link::new(plan.resolve(load)?);
        let end = ropewalk_types::Instant::ZERO + until;
        let (mut now, mut carried) = (ropewalk_types::Instant::ZERO, 0);
        while now < end {
            while link.enqueue(now, Side::Down, FULL_PACKET, ()).is_ok() {}
            while link.poll(now, Side::Down).is_some() {
                carried += FULL_PACKET as u64;
            }
            now = link
                .poll_timeout()
                .map_or(end, |next| next.max(now + CAPACITY_STEP))
                .min(end);
        }
        Ok(carried)
    }
}

impl Shape {
    /// The keys of one direction of a plan.
    fn plan(&self) -> String {
        let capacity = match &self.capacity {
            Capacity::Fixed(rate) => format!("rate = \"{rate}Mbit\""),
            Capacity::Trace(path) => format!("trace = \"{}\"", path.display()),
        };
        format!(
            "{capacity}\ndelay = \"{}us\"\njitter = \"{}us\"\nloss = \"{}%\"\nqueue = \"{}\"\n",
            self.delay.as_micros(),
            self.jitter.as_micros(),
            self.loss * 100.0,
            self.queue_bytes,
        )
    }
}

/// Longest time an emulator may take to start or to answer.
const READY_LIMIT: Duration = Duration::from_secs(5);
/// MTU of a planned link, bytes.
const ETHERNET_MTU: u32 = 1_500;
/// IP length of a full packet, bytes.
const FULL_PACKET: usize = 1_500;
/// Smallest step in virtual time, so that the loop ends.
const CAPACITY_STEP: ropewalk_types::Duration = ropewalk_types::Duration::from_nanos(1);

/// Default queue of an emulated link, bytes.
pub const QUEUE_BYTES: u64 = 128 * 1024;
