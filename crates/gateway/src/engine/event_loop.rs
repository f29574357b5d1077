//! The event loop: waits for descriptors, commands and timers, and gives each its turn.
//!
//! One thread does everything for its tunnels, so nothing on the data path is shared. Work per
//! turn is bounded, so that a flood on one descriptor starves no other.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;

use anyhow::Context;
use ropewalk_io::clock::Clock;
use ropewalk_io::tun::{SendReport, Tun, TunConfig};
use ropewalk_io::{InnerPacket, TunPacket};
use ropewalk_transport::KeyCheck;
use ropewalk_types::{Duration, Instant};
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::fd::OwnedFd;

use super::control::Command;
use super::fabric::{Fabric, FabricConfig, LinkEvent, LinkId, Ready, Received};
use super::settings::{CommonSettings, EngineEvent};
use crate::status::Status;

// The tunnel header is written into the bytes the TUN side leaves free.
const _: () = assert!(ropewalk_io::HEADROOM == ropewalk_wire::HEADROOM);

/// Batches read from the TUN interface before others get their turn.
const TUN_READS_PER_TURN: usize = 1;
/// Descriptors reported per wait.
const EVENTS: usize = 64;
/// How long a smaller inner MTU must last before the TUN interface gets it: longer than a satellite path
/// needs to find out what it takes, or any to find that again after its large packets all got lost.
const MTU_PATIENCE: Duration = Duration::from_secs(20);
/// Bytes waiting at an entry beyond which the TUN interface is not read: its own queue then
/// pushes back on local senders.
pub const ENTRY_FULL_BYTES: u64 = 4 * 1024 * 1024;

/// What distinguishes a site from a hub.
pub trait Role {
    /// A command of the control side; `Shutdown`, `Status` and `MtuFloor` are handled by the loop.
    fn on_command(&mut self, now: Instant, fabric: &mut Fabric, command: Command);
    /// Something happened to a link.
    fn on_link(&mut self, now: Instant, fabric: &mut Fabric, link: LinkId, event: LinkEvent);
    /// A datagram came in.
    fn on_datagram(&mut self, now: Instant, fabric: &mut Fabric, received: Received);
    /// An inner packet came from the TUN interface.
    fn on_inner(&mut self, now: Instant, packet: TunPacket);
    /// Whether more inner packets are welcome.
    fn takes_inner(&self) -> bool;
    /// All of a batch is in: let packets through, take what is due for the TUN interface.
    fn end_batch(&mut self, now: Instant, out: &mut Vec<InnerPacket>);
    /// Moves packets to links.
    fn pump(&mut self, now: Instant, fabric: &mut Fabric);
    /// Timers.
    fn on_timeout(&mut self, now: Instant, fabric: &mut Fabric);
    /// When [`Role::on_timeout`] is wanted.
    fn poll_timeout(&self) -> Option<Instant>;
    /// Inner MTU that suits the paths now, if any works.
    fn mtu(&self) -> Option<usize>;
    /// Fills role, tunnels and drops in.
    fn status(&self, fabric: &Fabric, status: &mut Status);
    /// Says goodbye.
    fn shutdown(&mut self, now: Instant, fabric: &mut Fabric);
    /// Tells the control side.
    fn emit(&self, event: EngineEvent);
}

/// What the control side needs to know of the interface the engine opened.
#[derive(Clone, Debug)]
pub struct EngineInfo {
    /// Name of the TUN interface.
    pub interface: String,
    /// Its kernel index.
    pub ifindex: u32,
}

/// The control side's end of an engine.
#[derive(Debug)]
pub struct EngineHandle {
    commands: Sender<Command>,
    wake: Arc<OwnedFd>,
    thread: JoinHandle<anyhow::Result<()>>,
    info: EngineInfo,
}

impl EngineHandle {
    /// Sends a command.
    ///
    /// # Errors
    /// When the engine has stopped.
    pub fn send(&self, command: Command) -> anyhow::Result<()> {
        self.sender().send(command)
    }

    /// A sender that other threads may keep.
    #[must_use]
    pub fn sender(&self) -> CommandSender {
        CommandSender {
            commands: self.commands.clone(),
            wake: Arc::clone(&self.wake),
        }
    }

    /// The interface.
    #[must_use]
    pub const fn info(&self) -> &EngineInfo {
        &self.info
    }

    /// Waits for the engine to end.
    ///
    /// # Errors
    /// What ended it, if it was not asked to stop.
    pub fn join(self) -> anyhow::Result<()> {
        self.thread
            .join()
            .map_err(|_| anyhow::anyhow!("the engine thread panicked"))?
    }
}

/// Sends commands to an engine.
#[derive(Clone, Debug)]
pub struct CommandSender {
    commands: Sender<Command>,
    wake: Arc<OwnedFd>,
}

impl CommandSender {
    /// Sends a command.
    ///
    /// # Errors
    /// When the engine has stopped.
    pub fn send(&self, command: Command) -> anyhow::Result<()> {
        self.commands
            .send(command)
            .map_err(|_| anyhow::anyhow!("the engine has stopped"))?;
        rustix::io::write(&*self.wake, &1u64.to_ne_bytes()).context("cannot wake the engine")?;
        Ok(())
    }
}

/// Sets everything up and starts the thread.
pub(super) fn start<R: Role + Send + 'static>(
    settings: &CommonSettings,
    allowed: Option<KeyCheck>,
    role: impl FnOnce(&mut Fabric) -> anyhow::Result<R>,
) -> anyhow::Result<EngineHandle> {
    let tun = Tun::open(&TunConfig {
        name: settings.tun_name.clone(),
        mtu: settings.mtu.unwrap_or(super::settings::MTU_MIN),
        offload: settings.offload,
    })?;
    let clock = Clock::new();
    let epoll = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
    let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    let add = |fd: rustix::fd::BorrowedFd<'_>, ready: Ready| {
        epoll::add(
            &epoll,
            fd,
            epoll::EventData::new_u64(ready.encode()),
            epoll::EventFlags::IN,
        )
    };
    add(rustix::fd::AsFd::as_fd(&tun), Ready::Tun)?;
    add(rustix::fd::AsFd::as_fd(&*wake), Ready::Wake)?;
    let mut fabric = Fabric::new(FabricConfig {
        identity: settings.identity.clone(),
        allowed,
        congestion: settings.congestion,
        base: clock.to_std(Instant::ZERO),
        offload: settings.offload,
        socket_buffer_bytes: settings.socket_buffer_bytes,
        mtu_max: super::udp_payload_max_here(),
        epoll: Arc::clone(&epoll),
    })?;
    let role = role(&mut fabric)?;
    let info = EngineInfo {
        interface: tun.name().to_owned(),
        ifindex: tun.ifindex(),
    };
    let (commands, inbox) = channel();
    let (wake_engine, settings) = (Arc::clone(&wake), settings.clone());
    let thread = std::thread::Builder::new()
        .name("engine".into())
        .spawn(move || {
            let engine = Engine {
                clock,
                epoll,
                wake: wake_engine,
                tun,
                fabric,
                role,
                inbox,
                mtu: settings.mtu.unwrap_or(super::settings::MTU_MIN),
                mtu_short: None,
                mtu_floor: 0,
                settings,
                received: Vec::new(),
                from_tun: Vec::new(),
                to_tun: Vec::new(),
                tun_report: SendReport::default(),
                tun_watched: true,
            };
            engine.run()
        })?;
    Ok(EngineHandle {
        commands,
        wake,
        thread,
        info,
    })
}

struct Engine<R: Role> {
    clock: Clock,
    epoll: Arc<OwnedFd>,
    wake: Arc<OwnedFd>,
    tun: Tun,
    fabric: Fabric,
    role: R,
    inbox: Receiver<Command>,
    settings: CommonSettings,
    mtu: usize,
    /// Since when the paths take less than that.
    mtu_short: Option<Instant>,
    /// What the interface takes at least, bytes.
    mtu_floor: usize,
    received: Vec<Received>,
    from_tun: Vec<TunPacket>,
    to_tun: Vec<InnerPacket>,
    tun_report: SendReport,
    /// Whether the event queue tells when the TUN interface is readable.
    tun_watched: bool,
}

impl<R: Role> Engine<R> {
    fn run(mut self) -> anyhow::Result<()> {
        let result = self.turns();
        let now = self.clock.now();
        self.role.shutdown(now, &mut self.fabric);
        // Hosts whose connections cannot go on are told so.
        self.role.end_batch(now, &mut self.to_tun);
        self.write_tun();
        self.fabric.flush_all(now);
        let error = result.as_ref().err().map(|e| format!("{e:#}"));
        self.role.emit(EngineEvent::Stopped { error });
        result
    }

    fn turns(&mut self) -> anyhow::Result<()> {
        let mut events = Vec::with_capacity(EVENTS);
        let mut tun_ready = false;
        loop {
            self.watch_tun()?;
            let timeout = if tun_ready && self.role.takes_inner() {
                Some(Timespec {
                    tv_sec: 0,
                    tv_nsec: 0,
                })
            } else {
                self.timeout()
            };
            events.clear();
            match epoll::wait(
                &self.epoll,
                rustix::buffer::spare_capacity(&mut events),
                timeout.as_ref(),
            ) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error).context("waiting for events failed"),
            }
            let now = self.clock.now();
            for event in &events {
                let data = event.data;
                match Ready::decode(data.u64()) {
                    Ready::Tun => tun_ready = true,
                    Ready::Wake => {
                        let mut counter = [0; 8];
                        rustix::io::read(&*self.wake, &mut counter).ok();
                    }
                    Ready::Udp(socket) => self.fabric.read_udp(now, socket, &mut self.received),
                    Ready::Stream(slot) => {
                        self.fabric.serve_stream(slot, &mut self.received);
                    }
                    Ready::Listener(index) => self.fabric.accept(now, index),
                }
            }
            if !self.commands(now) {
                return Ok(());
            }
            self.timers(now);
            self.link_events(now);
            for received in self.received.drain(..) {
                self.role.on_datagram(now, &mut self.fabric, received);
            }
            if tun_ready && self.role.takes_inner() {
                tun_ready = self.read_tun(now)?;
            }
            self.role.end_batch(now, &mut self.to_tun);
            self.write_tun();
            self.role.pump(now, &mut self.fabric);
            self.fabric.flush_all(now);
            self.follow_mtu(now);
        }
    }

    /// Waits for the TUN interface only while more inner packets are welcome: it stays readable
    /// while nobody reads it, and the loop would spin.
    fn watch_tun(&mut self) -> anyhow::Result<()> {
        let welcome = self.role.takes_inner();
        if welcome != self.tun_watched {
            self.tun_watched = welcome;
            let flags = if welcome {
                epoll::EventFlags::IN
            } else {
                epoll::EventFlags::empty()
            };
            let data = epoll::EventData::new_u64(Ready::Tun.encode());
            epoll::modify(&self.epoll, &self.tun, data, flags)
                .context("cannot wait for the TUN interface")?;
        }
        Ok(())
    }

    fn timeout(&mut self) -> Option<Timespec> {
        let due = [self.fabric.poll_timeout(), self.role.poll_timeout()];
        let due = due.into_iter().flatten().min()?;
        let wait = due.since(self.clock.now());
        Some(Timespec {
            tv_sec: i64::try_from(wait.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(wait.subsec_nanos()),
        })
    }

    fn timers(&mut self, now: Instant) {
        if self.fabric.poll_timeout().is_some_and(|at| at <= now) {
            self.fabric.handle_timeout(now);
        }
        if self.role.poll_timeout().is_some_and(|at| at <= now) {
            self.role.on_timeout(now, &mut self.fabric);
        }
    }

    fn link_events(&mut self, now: Instant) {
        while let Some((link, event)) = self.fabric.poll_event() {
            self.role.on_link(now, &mut self.fabric, link, event);
        }
    }

    /// Reads batches of inner packets; whether more may wait.
    fn read_tun(&mut self, now: Instant) -> anyhow::Result<bool> {
        for _ in 0..TUN_READS_PER_TURN {
            let read = self.tun.recv_batch(&mut self.from_tun);
            for packet in self.from_tun.drain(..) {
                self.role.on_inner(now, packet);
            }
            match read {
                Ok(0) => return Ok(false),
                Ok(_) => {}
                Err(error) => return Err(error).context("reading the TUN interface failed"),
            }
        }
        Ok(true)
    }

    fn write_tun(&mut self) {
        if self.to_tun.is_empty() {
            return;
        }
        match self.tun.send_batch(&mut self.to_tun) {
            Ok(report) => {
                self.tun_report.written += report.written;
                self.tun_report.calls += report.calls;
                self.tun_report.dropped_invalid += report.dropped_invalid;
                self.tun_report.dropped_full += report.dropped_full;
                self.tun_report.dropped_refused += report.dropped_refused;
            }
            Err(error) => tracing::warn!(%error, "writing the TUN interface failed"),
        }
    }

    /// Hosts remember a smaller MTU for minutes, so what a path is only just found out to take, or
    /// takes for a moment, is not told them: meanwhile the tunnel splits packets.
    fn follow_mtu(&mut self, now: Instant) {
        if self.settings.mtu.is_some() {
            return;
        }
        let Some(mtu) = self.role.mtu() else { return };
        let mtu = mtu.max(self.mtu_floor);
        let mtu = mtu.clamp(super::settings::MTU_MIN, super::settings::MTU_MAX);
        if mtu >= self.mtu {
            self.mtu_short = None;
        } else if now.since(*self.mtu_short.get_or_insert(now)) < MTU_PATIENCE {
            return;
        }
        if mtu == self.mtu {
            return;
        }
        self.mtu = mtu;
        match self.tun.set_mtu(mtu) {
            Ok(()) => {
                tracing::debug!(mtu, "inner MTU follows the paths");
                self.role.emit(EngineEvent::MtuChanged(mtu));
            }
            Err(error) => tracing::warn!(%error, mtu, "cannot set the MTU of the TUN interface"),
        }
    }

    /// Serves waiting commands; false when the engine shall stop.
    fn commands(&mut self, now: Instant) -> bool {
        loop {
            match self.inbox.try_recv() {
                Ok(Command::Shutdown) | Err(TryRecvError::Disconnected) => return false,
                Ok(Command::Status(reply)) => {
                    // Nobody waiting any more is no error.
                    reply.try_send(self.status(now)).ok();
                }
                Ok(Command::MtuFloor(bytes)) => self.mtu_floor = bytes,
                Ok(command) => self.role.on_command(now, &mut self.fabric, command),
                Err(TryRecvError::Empty) => return true,
            }
        }
    }

    fn status(&self, now: Instant) -> Status {
        let offloads = self.tun.offloads();
        let on = [
            ("tso", offloads.tso),
            ("uso", offloads.uso),
            ("checksum", offloads.checksum),
        ];
        let mut listed: Vec<String> = on
            .iter()
            .filter(|o| o.1)
            .map(|o| format!("tun {}", o.0))
            .collect();
        listed.extend(
            offloads
                .given_up
                .iter()
                .map(|reason| format!("given up: {reason}")),
        );
        let mut status = Status {
            version: env!("CARGO_PKG_VERSION").into(),
            public_key: self.settings.identity.public_key().to_string(),
            interface: self.tun.name().into(),
            mtu: self.mtu,
            uptime_s: now.since(Instant::ZERO).as_secs_f64(),
            offloads: listed,
            ..Status::default()
        };
        let (fabric, endpoint) = (self.fabric.drops(), self.fabric.endpoint_stats());
        let counts = [
            ("tun_invalid", self.tun_report.dropped_invalid as u64),
            ("tun_full", self.tun_report.dropped_full as u64),
            ("tun_refused", self.tun_report.dropped_refused as u64),
            ("socket_full", fabric.socket_full),
            ("unreachable", fabric.unreachable),
            ("link_refused", fabric.link_refused),
            ("streams_refused", fabric.streams_refused),
            ("garbage_datagrams", endpoint.garbage_datagrams),
            ("keys_refused", endpoint.keys_refused),
            ("retries_sent", endpoint.retries_sent),
            ("handshakes_refused", endpoint.handshakes_refused),
            ("handshakes_failed", endpoint.handshakes_failed),
        ];
        status
            .drops
            .extend(counts.iter().map(|&(name, n)| (name.to_owned(), n)));
        self.role.status(&self.fabric, &mut status);
        status
    }
}
