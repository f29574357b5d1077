//! The event loop: waits for descriptors, commands and timers, and gives each its turn.
//!
//! One thread does everything for its tunnels, so nothing on the data path is shared. Work per
//! turn is bounded, so that a flood on one descriptor starves no other.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;

use anyhow::Context;
use ropewalk_driver::{self as driver, Owner, Ready, SocketOptions, Sockets};
use ropewalk_io::clock::Clock;
use ropewalk_io::tun::{SendReport, Tun, TunConfig};
use ropewalk_io::{InnerPacket, TunPacket};
use ropewalk_session::{
    self as session, CommonSettings, Environment, Event, MTU_DEFAULT, Role, Session,
};
use ropewalk_transport::TransportError;
use ropewalk_types::{Duration, Instant};
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::fd::OwnedFd;

use super::asked::Asked;
use super::control::Command;
use super::pulse::Pulse;
use super::random_u64;
use super::settings::{EngineEvent, EventSink, HostSettings};
use super::workers::Colleagues;
use ropewalk_api::{Status, WorkerStatus};

// The tunnel header is written into the bytes the TUN side leaves free.
const _: () = assert!(ropewalk_io::HEADROOM == ropewalk_wire::HEADROOM);

/// Batches read from the TUN interface before others get their turn. More: fewer turns, later
/// reading of the sockets.
const TUN_READS_PER_TURN: usize = 1;
/// What it takes to ask for events that are there already, 1 to 4 µs: no rest. More: short rests count for less.
const ASKING: Duration = Duration::from_micros(4);
/// Packets of other workers taken before others get their turn. More: fewer turns, later reading of the
/// sockets.
const MAILS_PER_TURN: usize = 192;
/// Descriptors reported per wait. More: fewer waits, longer turns.
const EVENTS: usize = 64;
/// The only session of an engine.
const SESSION: Owner = Owner(0);
/// Descriptors of the engine itself, as [`Ready::Own`] has them.
const TUN: u32 = 0;
const WAKE: u32 = 1;

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
    pulse: Pulse,
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

    /// The turns of its loop.
    #[must_use]
    pub const fn pulse(&self) -> &Pulse {
        &self.pulse
    }

    /// Of a thread that hears no commands and does `work` instead of moving packets.
    #[cfg(test)]
    pub(crate) fn detached(work: impl FnOnce() -> anyhow::Result<()> + Send + 'static) -> Self {
        let wake = eventfd(0, EventfdFlags::NONBLOCK).expect("an eventfd");
        let wake = Arc::new(wake);
        Self {
            commands: channel().0,
            pulse: Pulse::new("engine-0".into(), Arc::default(), Arc::clone(&wake)),
            wake,
            thread: std::thread::spawn(work),
            info: EngineInfo {
                interface: "ropewalk0".into(),
                ifindex: 1,
            },
        }
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

/// Sets everything up and starts a thread for each of `workers`. `session` makes the session that a
/// worker drives.
pub(super) fn start<R: Role + Send + 'static>(
    host: &HostSettings,
    common: &CommonSettings,
    events: &EventSink,
    workers: usize,
    mut session: impl FnMut(&Environment) -> Result<Session<R>, TransportError>,
) -> anyhow::Result<Vec<EngineHandle>> {
    let tun = TunConfig {
        name: host.tun_name.clone(),
        mtu: common.mtu.unwrap_or(MTU_DEFAULT),
        offload: host.offload,
    };
    let queues = Tun::open_queues(&tun, workers)?;
    let clock = Clock::new();
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    let wake = queues.iter().map(|_| Ok(Arc::new(eventfd(0, flags)?)));
    let wake: Vec<_> = wake.collect::<anyhow::Result<_>>()?;
    let colleagues = Colleagues::new(&wake)?;
    // All sockets are open before the first packet is read, and in the order of the workers.
    let mut engines = Vec::new();
    for ((tun, wake), colleagues) in queues.into_iter().zip(wake).zip(colleagues) {
        let session = session(&Environment {
            base: clock.to_std(Instant::ZERO),
            segmentation: host.offload,
            udp_payload_max: super::udp_payload_max_here(),
            session: random_u64()?.max(1),
            tunnels: random_u64()?,
            transport: None,
            slice: colleagues.slice(),
        })?;
        let (commands, inbox) = channel();
        let mut engine = Engine {
            clock,
            sockets: Sockets::new(
                epoll::create(epoll::CreateFlags::CLOEXEC)?,
                SocketOptions {
                    buffer_bytes: host.socket_buffer_bytes,
                    devices: true,
                    mark: host.mark,
                    slice: colleagues.slice(),
                },
            ),
            wake,
            tun,
            session,
            inbox,
            events: events.clone(),
            from_tun: Vec::new(),
            to_tun: Vec::new(),
            tun_report: SendReport::default(),
            tun_watched: true,
            asked: Asked::default(),
            colleagues,
            turns: Arc::default(),
        };
        engine.open()?;
        engines.push((engine, commands));
    }
    let spawn = |(engine, commands)| Engine::spawn(engine, commands);
    engines.into_iter().map(spawn).collect()
}

/// Tells the control side when the thread panics: other workers may go on, and the hub has to end.
struct PanicNotice(EventSink);

impl Drop for PanicNotice {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let error = Some("an engine thread panicked".to_owned());
            self.0.send(EngineEvent::Stopped { error });
        }
    }
}

/// Does the work of an engine's thread.
pub(crate) fn with_notice<T>(events: &EventSink, work: impl FnOnce() -> T) -> T {
    let _notice = PanicNotice(events.clone());
    work()
}

struct Engine<R: Role> {
    clock: Clock,
    wake: Arc<OwnedFd>,
    tun: Tun,
    sockets: Sockets,
    session: Session<R>,
    inbox: Receiver<Command>,
    events: EventSink,
    from_tun: Vec<TunPacket>,
    to_tun: Vec<InnerPacket>,
    tun_report: SendReport,
    /// Whether the event queue tells when the TUN interface is readable.
    tun_watched: bool,
    asked: Asked,
    /// The other workers.
    colleagues: Colleagues,
    /// Turns of the loop, for whoever wants to know that it does not hang.
    turns: Arc<AtomicU64>,
}

impl<R: Role + Send + 'static> Engine<R> {
    /// Opens the sockets that the session asks for at the start, and waits for descriptors.
    fn open(&mut self) -> anyhow::Result<()> {
        let add = |fd: rustix::fd::BorrowedFd<'_>, ready: Ready| {
            epoll::add(
                self.sockets.epoll(),
                fd,
                user_data(ready),
                epoll::EventFlags::IN,
            )
        };
        add(rustix::fd::AsFd::as_fd(&self.tun), Ready::Own(TUN))?;
        add(rustix::fd::AsFd::as_fd(&*self.wake), Ready::Own(WAKE))?;
        self.sockets.of(SESSION).serve_all(&mut self.session)
    }

    fn spawn(self, commands: Sender<Command>) -> anyhow::Result<EngineHandle> {
        let info = EngineInfo {
            interface: self.tun.name().to_owned(),
            ifindex: self.tun.ifindex(),
        };
        let wake = Arc::clone(&self.wake);
        let name = format!("engine-{}", self.colleagues.slice().index());
        let pulse = Pulse::new(name.clone(), Arc::clone(&self.turns), Arc::clone(&wake));
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            let events = self.events.clone();
            with_notice(&events, || self.run())
        })?;
        Ok(EngineHandle {
            commands,
            wake,
            thread,
            info,
            pulse,
        })
    }

    fn run(mut self) -> anyhow::Result<()> {
        let result = self.turns();
        let now = self.clock.now();
        self.session.shutdown(now, &mut self.sockets.of(SESSION));
        // Hosts whose connections cannot go on are told so.
        self.write_tun(now);
        let error = result.as_ref().err().map(|e| format!("{e:#}"));
        self.events.send(EngineEvent::Stopped { error });
        result
    }

    fn turns(&mut self) -> anyhow::Result<()> {
        let mut events = Vec::with_capacity(EVENTS);
        let (mut tun_ready, mut more_mail) = (false, false);
        let mut completed = 0_u64;
        loop {
            // Nobody else stores, and nothing else is read by what it says.
            self.turns.store(completed, Ordering::Relaxed);
            completed += 1;
            self.watch_tun()?;
            let more = more_mail || (tun_ready && self.session.takes_inner());
            let before = self.clock.now();
            let timeout = if more {
                Some(Duration::ZERO)
            } else {
                self.timeout(before)
            };
            ropewalk_io::events::wait(self.sockets.epoll(), &mut events, timeout)
                .context("waiting for events failed")?;
            let now = self.clock.now();
            // Beyond what was asked for, the thread waited for a processor.
            let asked = timeout.unwrap_or(Duration::MAX);
            let rest = now.since(before).min(asked).saturating_sub(ASKING);
            self.session.handle_rest(now, rest);
            for event in &events {
                let data = event.data;
                match driver::Event::decode(data.u64()).ready {
                    Ready::Own(TUN) => tun_ready = true,
                    Ready::Own(_) => {
                        let mut counter = [0; 8];
                        rustix::io::read(&*self.wake, &mut counter).ok();
                    }
                    ready @ (Ready::Udp(_) | Ready::Stream(_) | Ready::Listener(_)) => {
                        self.sockets.of(SESSION).read(now, ready, &mut self.session);
                    }
                }
            }
            if !self.commands(now) {
                return Ok(());
            }
            self.answer_status(now);
            self.sockets.of(SESSION).end_input(now, &mut self.session);
            more_mail = self.read_mailbox(now);
            if tun_ready && self.session.takes_inner() {
                tun_ready = self.read_tun(now)?;
            }
            self.write_tun(now);
            self.sockets.of(SESSION).serve(now, &mut self.session);
            self.session.pump(now, &mut self.sockets.of(SESSION));
            self.sockets.of(SESSION).serve(now, &mut self.session);
            self.hand_over();
            self.session_events();
        }
    }

    /// Waits for the TUN interface only while more inner packets are welcome: it stays readable
    /// while nobody reads it, and the loop would spin.
    fn watch_tun(&mut self) -> anyhow::Result<()> {
        let welcome = self.session.takes_inner();
        if welcome != self.tun_watched {
            self.tun_watched = welcome;
            let flags = if welcome {
                epoll::EventFlags::IN
            } else {
                epoll::EventFlags::empty()
            };
            let data = user_data(Ready::Own(TUN));
            epoll::modify(self.sockets.epoll(), &self.tun, data, flags)
                .context("cannot wait for the TUN interface")?;
        }
        Ok(())
    }

    fn timeout(&mut self, now: Instant) -> Option<Duration> {
        let due = [
            self.session.poll_timeout(),
            self.sockets.poll_timeout(),
            self.asked.due(),
        ];
        let due = due.into_iter().flatten().min()?;
        Some(due.since(now))
    }

    fn session_events(&mut self) {
        while let Some(event) = self.session.poll_event() {
            let event = match event {
                Event::Assigned {
                    addresses,
                    hub_addresses,
                    block,
                } => EngineEvent::Assigned {
                    addresses,
                    hub_addresses,
                    block,
                },
                Event::TunnelUp { peer } => EngineEvent::TunnelUp { peer },
                Event::TunnelDown { peer } => EngineEvent::TunnelDown { peer },
                Event::Enrol {
                    invitation,
                    key,
                    proved,
                } => EngineEvent::Enrol {
                    invitation,
                    key,
                    proved,
                },
                Event::Key(event) => EngineEvent::Key(event),
                Event::Served {
                    site,
                    addresses,
                    statement,
                } => EngineEvent::Served {
                    site,
                    addresses,
                    statement,
                },
                Event::Withdrawn { site, addresses } => EngineEvent::Withdrawn { site, addresses },
                Event::Moved { hub, epoch } => EngineEvent::Moved { hub, epoch },
                Event::MtuChanged(mtu) => {
                    let set = |mtu| self.tun.set_mtu(mtu).map(|()| mtu);
                    match self.colleagues.agree_on_mtu(mtu, set) {
                        Ok(mtu) => EngineEvent::MtuChanged(mtu),
                        Err(error) => {
                            tracing::warn!(%error, mtu, "cannot set the MTU of the TUN interface");
                            continue;
                        }
                    }
                }
            };
            self.events.send(event);
        }
    }

    /// Takes what other workers have handed over; whether more may wait.
    fn read_mailbox(&mut self, now: Instant) -> bool {
        let mut left = MAILS_PER_TURN;
        while left > 0
            && let Some((data, checksum_partial)) = self.colleagues.next_packet()
        {
            left -= 1;
            self.session.handle_inner(now, data, checksum_partial);
        }
        while self.session.poll_elsewhere().is_some() {
            self.colleagues.count_astray();
        }
        while let Some(moved) = self.colleagues.next_stream() {
            self.sockets
                .of(SESSION)
                .adopt(now, moved, &mut self.session);
        }
        left == 0
    }

    /// Hands over what belongs to other workers.
    fn hand_over(&mut self) {
        while let Some(packet) = self.session.poll_elsewhere() {
            self.colleagues.hand_over(packet);
        }
        for moved in self.sockets.take_moved() {
            self.colleagues.move_stream(moved);
        }
        self.colleagues.wake();
    }

    /// Reads batches of inner packets; whether more may wait.
    fn read_tun(&mut self, now: Instant) -> anyhow::Result<bool> {
        for _ in 0..TUN_READS_PER_TURN {
            let read = self.tun.recv_batch(&mut self.from_tun);
            for packet in self.from_tun.drain(..) {
                self.session
                    .handle_inner(now, packet.data, packet.checksum_partial);
            }
            match read {
                Ok(0) => return Ok(false),
                Ok(_) => {}
                Err(error) => return Err(error).context(
                    "reading the TUN interface failed; something may have removed the interface",
                ),
            }
        }
        Ok(true)
    }

    /// Ends a batch of input and writes what it brought for this machine.
    fn write_tun(&mut self, now: Instant) {
        self.session.end_batch(now);
        while let Some(inner) = self.session.poll_inner() {
            self.to_tun.push(InnerPacket {
                head: inner.head,
                data: inner.data,
                checksum_partial: inner.checksum_partial,
            });
        }
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

    /// Serves waiting commands; false when the engine shall stop.
    fn commands(&mut self, now: Instant) -> bool {
        loop {
            let command = match self.inbox.try_recv() {
                Ok(command) => command,
                Err(TryRecvError::Disconnected) => return false,
                Err(TryRecvError::Empty) => return true,
            };
            let session = &mut self.session;
            // The caller may not wait for an answer any more.
            match command {
                Command::Shutdown => return false,
                Command::Status(reply) => self.asked.push(reply),
                Command::SetScheduler {
                    direction,
                    kind,
                    peer,
                    reply,
                } => {
                    let command = session::Command::SetScheduler {
                        direction,
                        kind,
                        peer,
                    };
                    reply.try_send(session.handle_command(now, command)).ok();
                }
                Command::SetPath {
                    uplink,
                    wanted,
                    reply,
                } => {
                    let command = session::Command::SetPath { uplink, wanted };
                    let done = session.handle_command(now, command);
                    reply.try_send(done.map(drop::<usize>)).ok();
                }
                Command::Uplinks(uplinks) => {
                    told(session.handle_command(now, session::Command::Uplinks(uplinks)));
                }
                Command::ReloadSites => {
                    told(session.handle_command(now, session::Command::ReloadSites));
                }
                Command::Enrolled {
                    invitation,
                    key,
                    refused,
                    owner,
                } => {
                    told(session.handle_command(
                        now,
                        session::Command::Enrolled {
                            invitation,
                            key,
                            refused,
                            owner,
                        },
                    ));
                }
                Command::Claimed(statement) => {
                    told(session.handle_command(now, session::Command::Claimed(statement)));
                }
                Command::Drained(drained) => {
                    told(session.handle_command(now, session::Command::Drained(drained)));
                }
                Command::MtuFloor(bytes) => {
                    told(session.handle_command(now, session::Command::MtuFloor(bytes)));
                }
                Command::Key(step) => {
                    told(session.handle_command(now, session::Command::Key(step)));
                }
            }
        }
    }

    /// Makes a status for those who wait.
    fn answer_status(&mut self, now: Instant) {
        let mut waiting = self.asked.take(now);
        let Some(last) = waiting.pop() else {
            return;
        };
        let begun = self.clock.now();
        let status = self.status(now);
        // The callers may not wait for an answer any more.
        for reply in waiting {
            reply.try_send(status.clone()).ok();
        }
        last.try_send(status).ok();
        self.asked.answered(begun, self.clock.now());
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
        let session = self.session.status();
        let mut status = Status {
            role: session.role.into(),
            version: env!("CARGO_PKG_VERSION").into(),
            public_key: session.public_key,
            rotation: session.rotation,
            interface: self.tun.name().into(),
            mtu: self.session.mtu(),
            addresses: session.addresses,
            uptime_s: now.since(Instant::ZERO).as_secs_f64(),
            offloads: listed,
            passed: session.passed,
            tunnels: session.tunnels,
            drops: session.drops,
            ..Status::default()
        };
        let slice = self.colleagues.slice();
        if slice.count() > 1 {
            let (handed_over, handover_drops) = self.colleagues.counters();
            let cpu = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
            status.workers = vec![WorkerStatus {
                worker: slice.index(),
                sites: status.tunnels.len(),
                paths_up: status.paths_up(),
                cpu_s: cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9,
                handed_over,
                handover_drops,
            }];
        }
        let sockets = self.sockets.drops();
        let counts = [
            ("tun_invalid", self.tun_report.dropped_invalid as u64),
            ("tun_full", self.tun_report.dropped_full as u64),
            ("tun_refused", self.tun_report.dropped_refused as u64),
            ("socket_full", sockets.full),
            ("unreachable", sockets.unreachable),
        ];
        status
            .drops
            .extend(counts.iter().map(|&(name, n)| (name.to_owned(), n)));
        status
    }
}

const fn user_data(ready: Ready) -> epoll::EventData {
    let owner = SESSION;
    epoll::EventData::new_u64(driver::Event { owner, ready }.encode())
}

/// Nobody waits for the answer.
fn told(answer: Result<usize, String>) {
    if let Err(error) = answer {
        tracing::debug!(error, "a command was not served");
    }
}
