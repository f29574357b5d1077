//! Asks, over every uplink, targets on the internet for echoes, and web servers for a page that
//! only a captive portal would answer otherwise.
//!
//! Probes are bound to the interface and marked, so that they take the uplink's own routing table
//! and are neither tracked nor refused while the uplink is dead.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use ropewalk_core::balance::{self, Echoes};
use ropewalk_io::icmp::{Echo, TOKEN_BYTES};
use ropewalk_types::Instant;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::marks::{self, OWN};
use super::members::{FAMILIES, Family, Member, WayId};
use ropewalk_config::balance::{PortalUrl, ProbeConfig};

/// Answers that may wait for the loop; others are dropped. More: memory.
const ANSWERS_MAX: usize = 256;
/// Longest time a web server may take. Longer: slow uplinks are looked at, later verdicts.
const PORTAL_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of the answer that are read: the status line.
const STATUS_LINE_BYTES: usize = 12;

/// An echo that came back.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    /// The way it took.
    pub way: WayId,
    /// Sequence number of its request.
    sequence: u16,
    /// When it came.
    at: std::time::Instant,
}

/// Probes of all uplinks.
#[derive(Debug)]
pub struct Prober {
    targets: [Vec<IpAddr>; 2],
    ways: BTreeMap<WayId, Probed>,
    sender: mpsc::Sender<Answer>,
}

#[derive(Debug)]
struct Probed {
    member: (String, u32),
    echo: Arc<Echo>,
    reader: JoinHandle<()>,
    echoes: Echoes,
}

impl Drop for Probed {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

impl Prober {
    /// No probes yet; answers will come through the receiver.
    #[must_use]
    pub fn new(config: &ProbeConfig) -> (Self, mpsc::Receiver<Answer>) {
        let (sender, answers) = mpsc::channel(ANSWERS_MAX);
        let targets = FAMILIES.map(|family| {
            let all = config.targets.iter().copied();
            all.filter(|ip| Family::of(*ip) == family).collect()
        });
        let prober = Self {
            targets,
            ways: BTreeMap::new(),
            sender,
        };
        (prober, answers)
    }

    /// Whether there is anybody to ask in this family.
    #[must_use]
    pub fn asks(&self, family: Family) -> bool {
        !self.targets[family as usize].is_empty()
    }

    /// Probes exactly the ways of these uplinks that are present.
    pub fn follow(&mut self, members: &[Member]) {
        let mut wanted = BTreeMap::new();
        for member in members.iter().filter(|member| member.present) {
            for family in FAMILIES {
                if member.way(family).is_some() && self.asks(family) {
                    wanted.insert((member.number, family), member);
                }
            }
        }
        let same = |id: &WayId, probed: &Probed| {
            let member = wanted.get(id);
            member.is_some_and(|m| probed.member == (m.name.clone(), m.ifindex))
        };
        self.ways.retain(|id, probed| same(id, probed));
        for (id, member) in wanted {
            if self.ways.contains_key(&id) {
                continue;
            }
            match self.open(id, member) {
                Ok(probed) => {
                    self.ways.insert(id, probed);
                }
                Err(error) => tracing::warn!(uplink = member.name, %error, "cannot probe"),
            }
        }
    }

    fn open(&self, id: WayId, member: &Member) -> io::Result<Probed> {
        let mut token = [0; TOKEN_BYTES];
        ropewalk_crypto::rand::fill(&mut token)
            .map_err(|_| io::Error::other("no random numbers"))?;
        let mark = marks::key(id.0) | OWN;
        let echo = Echo::open(&member.name, id.1 == Family::V6, mark, token)?;
        let echo = Arc::new(echo);
        let ready = UdpSocket::from_std(echo.as_fd().try_clone_to_owned()?.into())?;
        let reader = tokio::spawn(read(ready, Arc::clone(&echo), id, self.sender.clone()));
        Ok(Probed {
            member: (member.name.clone(), member.ifindex),
            echo,
            reader,
            echoes: Echoes::default(),
        })
    }

    /// Sends one probe over every way, each time to the next target.
    pub fn send(&mut self, now: Instant) {
        for ((_, family), probed) in &mut self.ways {
            let targets = &self.targets[*family as usize];
            let sequence = probed.echoes.send(now);
            let target = targets[usize::from(sequence) % targets.len()];
            // Silence is what counts, whatever the reason.
            let _ = probed.echo.send(target, sequence);
        }
    }

    /// What an answer says; `None` when its way is not probed any more. `clock` is when the caller's
    /// instants began.
    pub fn take(&mut self, answer: &Answer, clock: std::time::Instant) -> Option<balance::Answer> {
        let probed = self.ways.get_mut(&answer.way)?;
        let now = Instant::ZERO + answer.at.saturating_duration_since(clock);
        Some(probed.echoes.handle_answer(now, answer.sequence))
    }
}

/// `ready` is another descriptor of the same socket, on which the loop waits.
async fn read(ready: UdpSocket, echo: Arc<Echo>, way: WayId, answers: mpsc::Sender<Answer>) {
    while ready.readable().await.is_ok() {
        // A failed reception, such as of an interface that went down, is silence too.
        if let Ok((_, sequence)) = ready.try_io(Interest::READABLE, || echo.receive()) {
            let at = std::time::Instant::now();
            let answer = Answer { way, sequence, at };
            // A loop that is behind has newer answers to come.
            let _ = answers.try_send(answer);
        }
    }
}

/// Whether a captive portal answers in place of the web server; `None` when nothing answers.
pub async fn is_captive(url: &PortalUrl, member: &Member, family: Family) -> Option<bool> {
    let asked = tokio::time::timeout(PORTAL_TIMEOUT, ask(url, member, family)).await;
    let status = asked.ok()?.ok()?;
    Some(status != "204")
}

/// The status of the answer.
async fn ask(url: &PortalUrl, member: &Member, family: Family) -> io::Result<String> {
    let of_family = |address: &SocketAddr| Family::of(address.ip()) == family;
    let mut addresses = tokio::net::lookup_host((url.host.as_str(), url.port)).await?;
    let address = addresses.find(of_family);
    let address = address.ok_or_else(|| io::Error::other("no address of this family"))?;
    let domain = Domain::for_address(address);
    let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
    socket.bind_device(Some(member.name.as_bytes()))?;
    ropewalk_io::set_mark(&socket, marks::key(member.number) | OWN)?;
    socket.set_nonblocking(true)?;
    match socket.connect(&address.into()) {
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {}
        other => other?,
    }
    let mut stream = TcpStream::from_std(socket.into())?;
    stream.writable().await?;
    let request = format!(
        "GET {} HTTP/1.0\r\nHost: {}\r\nConnection: close\r\n\r\n",
        url.path, url.host
    );
    stream.write_all(request.as_bytes()).await?;
    let mut line = [0; STATUS_LINE_BYTES];
    stream.read_exact(&mut line).await?;
    let line = String::from_utf8_lossy(&line).into_owned();
    let code = line.split(' ').nth(1).unwrap_or_default();
    Ok(code.to_owned())
}
