//! What wpa_supplicant says of an uplink: that it is about to end, or is back.
//!
//! It tells whoever attaches to the control socket of an interface what it does with it. Nothing
//! that would change its ways is ever sent: where and when to roam is its business.
//!
//! Invariant: one listener per uplink, which ends with the [`Supplicants`] that started it.

use std::collections::BTreeMap;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram as StdDatagram};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::net::UnixDatagram;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::engine::random_u64;

/// How soon a socket that is not there is looked for again. Longer: less work, the first signs are
/// missed.
const RETRY: Duration = Duration::from_secs(2);
/// Silence after which wpa_supplicant is asked whether it is still there. Longer: less work, later
/// to find its successor.
const SILENCE: Duration = Duration::from_secs(10);
/// How long it may take to answer. Longer: surer on a busy machine, later to find its successor.
const ANSWER: Duration = Duration::from_secs(2);
/// How long a sign counts unless it is taken back: a roam is over by then, or has failed. Longer:
/// slow roams are covered, a false sign keeps traffic away for longer.
pub(super) const COUNTS: Duration = Duration::from_secs(10);
/// Signal, dBm, at which frames arrive at the lowest rates if at all. Events say so only where
/// wpa_supplicant watches the signal for reasons of its own (`bgscan`). Larger: sooner away, usable
/// paths are left.
const WEAK_DBM: i32 = -85;
/// Signal, dBm, at which it is not weak any more. Further above [`WEAK_DBM`]: fewer changes, later
/// return.
const GOOD_DBM: i32 = -80;
/// How often the same sign is passed on. Longer: less work, a sign may run out meanwhile.
const RENEW: Duration = Duration::from_secs(1);
/// Longest message that is read, bytes.
const MESSAGE_MAX: usize = 4_096;
/// Signs that may wait. More: memory.
const SIGNS_MAX: usize = 64;

/// What is told of an uplink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sign {
    /// It is about to end.
    Ends,
    /// It is there.
    Back,
}

/// Listens to what is said of uplinks.
#[derive(Debug)]
pub(super) struct Supplicants {
    listeners: BTreeMap<PathBuf, JoinHandle<()>>,
    sender: mpsc::Sender<(String, Sign)>,
    receiver: mpsc::Receiver<(String, Sign)>,
}

impl Supplicants {
    pub(super) fn new() -> Self {
        let (sender, receiver) = mpsc::channel(SIGNS_MAX);
        Self {
            listeners: BTreeMap::new(),
            sender,
            receiver,
        }
    }

    /// Listens to what is said of exactly these uplinks from now on.
    pub(super) fn follow<'a>(
        &mut self,
        directory: Option<&Path>,
        uplinks: impl Iterator<Item = &'a str>,
    ) {
        let wanted: BTreeMap<PathBuf, &str> = directory.map_or_else(BTreeMap::new, |directory| {
            uplinks.map(|name| (directory.join(name), name)).collect()
        });
        self.listeners.retain(|path, listener| {
            let stays = wanted.contains_key(path);
            if !stays {
                listener.abort();
            }
            stays
        });
        for (path, name) in wanted {
            self.listeners.entry(path).or_insert_with_key(|path| {
                let (path, name) = (path.clone(), name.to_owned());
                tokio::spawn(listen(path, name, self.sender.clone()))
            });
        }
    }

    /// The next sign, and of which uplink.
    pub(super) async fn next(&mut self) -> (String, Sign) {
        match self.receiver.recv().await {
            Some(sign) => sign,
            // Never: this has a sender itself.
            None => std::future::pending().await,
        }
    }
}

impl Drop for Supplicants {
    fn drop(&mut self) {
        for listener in self.listeners.values() {
            listener.abort();
        }
    }
}

async fn listen(path: PathBuf, name: String, signs: mpsc::Sender<(String, Sign)>) {
    let socket = path.display();
    let mut told = None;
    loop {
        match attach(&path, &name).await {
            Ok(attached) => {
                tracing::info!(%socket, "listening to wpa_supplicant");
                told = None;
                match pass_on(&attached, &name, &signs).await {
                    // What it said last counts as long as it would have.
                    Err(error) => tracing::info!(%socket, %error, "wpa_supplicant is gone"),
                    Ok(()) => return,
                }
            }
            // Most uplinks have none.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                if told.replace(error.kind()) != Some(error.kind()) {
                    tracing::info!(%socket, %error, "cannot listen to wpa_supplicant");
                }
            }
        }
        sleep(RETRY).await;
    }
}

/// Passes on what is said until nobody wants it any more.
///
/// # Errors
/// wpa_supplicant is gone.
async fn pass_on(
    socket: &UnixDatagram,
    name: &str,
    signs: &mpsc::Sender<(String, Sign)>,
) -> io::Result<()> {
    let mut signal = Signal::default();
    let mut last: Option<(Sign, Instant)> = None;
    let mut asked = false;
    loop {
        let text = match timeout(if asked { ANSWER } else { SILENCE }, receive(socket)).await {
            Ok(text) => text?,
            Err(_) if asked => {
                let problem = "no answer to PING";
                return Err(io::Error::new(io::ErrorKind::TimedOut, problem));
            }
            Err(_) => {
                socket.send(b"PING").await?;
                asked = true;
                continue;
            }
        };
        asked = false;
        let said = read(&text);
        if said == Some(Said::Terminating) {
            return Err(io::Error::other("it has ended"));
        }
        let Some(sign) = said.and_then(|said| signal.sign(said)) else {
            continue;
        };
        // A repeated report renews what is known, but not more often than needed.
        let now = Instant::now();
        if last.is_some_and(|(known, at)| known == sign && now < at + RENEW) {
            continue;
        }
        if last.is_none_or(|(known, _)| known != sign) {
            tracing::info!(
                uplink = name,
                ends = sign == Sign::Ends,
                text,
                "wpa_supplicant"
            );
        }
        last = Some((sign, now));
        if signs.send((name.to_owned(), sign)).await.is_err() {
            return Ok(());
        }
    }
}

/// Attaches to a control socket. An abstract name of its own never leaves a file behind.
async fn attach(path: &Path, name: &str) -> io::Result<UnixDatagram> {
    let socket = bind(name)?;
    socket.connect(path)?;
    socket.set_nonblocking(true)?;
    let socket = UnixDatagram::from_std(socket)?;
    socket.send(b"ATTACH").await?;
    let answered = async {
        while receive(&socket).await?.trim() != "OK" {}
        Ok(())
    };
    timeout(ANSWER, answered).await.unwrap_or_else(|_| {
        let problem = "no answer to ATTACH: is it in another network namespace?";
        Err(io::Error::new(io::ErrorKind::TimedOut, problem))
    })?;
    Ok(socket)
}

/// Each time one name, by which wpa_supplicant knows who is there already. Where that name is
/// taken, another one.
fn bind(name: &str) -> io::Result<StdDatagram> {
    let own = format!("ropewalk-{}-{name}", std::process::id());
    let bind = |name: &str| StdDatagram::bind_addr(&SocketAddr::from_abstract_name(name)?);
    match bind(&own) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            let random = random_u64().map_err(io::Error::other)?;
            bind(&format!("{own}-{random:x}"))
        }
        bound => bound,
    }
}

async fn receive(socket: &UnixDatagram) -> io::Result<String> {
    let mut bytes = [0; MESSAGE_MAX];
    let length = socket.recv(&mut bytes).await?;
    Ok(String::from_utf8_lossy(&bytes[..length]).into_owned())
}

/// What wpa_supplicant says, as far as it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    Ending,
    Connected,
    /// dBm.
    Signal(i32),
    Terminating,
}

/// Reads a message, such as `<3>CTRL-EVENT-CONNECTED …`; `None` when it does not matter.
fn read(text: &str) -> Option<Said> {
    const ENDING: [&str; 5] = [
        "CTRL-EVENT-DISCONNECTED",
        "CTRL-EVENT-BEACON-LOSS",
        // To another access point: what goes to this one is lost meanwhile.
        "SME: Trying to authenticate with",
        "Trying to authenticate with",
        "Trying to associate with",
    ];
    let behind = text.strip_prefix('<').and_then(|rest| rest.split_once('>'));
    let event = behind.map_or(text, |(_, event)| event);
    if event.starts_with("CTRL-EVENT-TERMINATING") {
        return Some(Said::Terminating);
    }
    if event.starts_with("CTRL-EVENT-CONNECTED") {
        return Some(Said::Connected);
    }
    if ENDING.iter().any(|sign| event.starts_with(sign)) {
        return Some(Said::Ending);
    }
    let values = event.strip_prefix("CTRL-EVENT-SIGNAL-CHANGE")?;
    let mut words = values.split_whitespace();
    let signal = words.find_map(|word| word.strip_prefix("signal="))?;
    // It writes something else for a strength that it does not know.
    let known = |dbm: &i32| (-120..=0).contains(dbm);
    signal.parse().ok().filter(known).map(Said::Signal)
}

/// Whether the signal was told to be weak; a good one takes back only that.
#[derive(Debug, Default)]
struct Signal {
    weak: bool,
}

impl Signal {
    fn sign(&mut self, said: Said) -> Option<Sign> {
        match said {
            Said::Ending => Some(Sign::Ends),
            Said::Connected => {
                self.weak = false;
                Some(Sign::Back)
            }
            Said::Signal(dbm) if dbm <= WEAK_DBM => {
                self.weak = true;
                Some(Sign::Ends)
            }
            Said::Signal(dbm) if dbm >= GOOD_DBM && std::mem::take(&mut self.weak) => {
                Some(Sign::Back)
            }
            Said::Signal(_) | Said::Terminating => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_ends_an_uplink_or_brings_it_back_is_read() {
        for (text, said) in [
            (
                "<3>CTRL-EVENT-DISCONNECTED bssid=02:00:00:00:00:01 reason=3",
                Some(Said::Ending),
            ),
            ("<3>CTRL-EVENT-BEACON-LOSS ", Some(Said::Ending)),
            (
                "<3>SME: Trying to authenticate with 02:00:00:00:00:02 (SSID='x')",
                Some(Said::Ending),
            ),
            (
                "<3>CTRL-EVENT-CONNECTED - Connection to 02:00:00:00:00:02",
                Some(Said::Connected),
            ),
            (
                "<3>CTRL-EVENT-SIGNAL-CHANGE above=0 signal=-88 noise=9999",
                Some(Said::Signal(-88)),
            ),
            (
                "<3>CTRL-EVENT-SIGNAL-CHANGE above=0 signal=-9999 noise=9999",
                None,
            ),
            ("<3>CTRL-EVENT-SIGNAL-CHANGE above=0 noise=9999", None),
            ("<3>CTRL-EVENT-SIGNAL-CHANGE signal=x", None),
            ("<3>CTRL-EVENT-TERMINATING ", Some(Said::Terminating)),
            ("<3>WPS-ENROLLEE-SEEN [CTRL-EVENT-TERMINATING]", None),
            ("<3>CTRL-EVENT-SCAN-RESULTS ", None),
            ("CTRL-EVENT-DISCONNECTED", Some(Said::Ending)),
            ("<3", None),
            ("", None),
        ] {
            assert_eq!(read(text), said, "{text}");
        }
    }

    #[test]
    fn a_good_signal_takes_back_only_that_it_was_weak() {
        let mut signal = Signal::default();
        assert_eq!(signal.sign(Said::Ending), Some(Sign::Ends));
        assert_eq!(signal.sign(Said::Signal(-60)), None);
        assert_eq!(signal.sign(Said::Connected), Some(Sign::Back));
        assert_eq!(signal.sign(Said::Signal(-86)), Some(Sign::Ends));
        assert_eq!(signal.sign(Said::Signal(-83)), None);
        assert_eq!(signal.sign(Said::Signal(-79)), Some(Sign::Back));
        assert_eq!(signal.sign(Said::Signal(-79)), None);
    }

    /// Plays wpa_supplicant: answers, says these, and ends.
    fn play(socket: &StdDatagram, said: &[&str]) {
        let mut bytes = [0; 64];
        let (length, peer) = socket.recv_from(&mut bytes).unwrap();
        assert_eq!(&bytes[..length], b"ATTACH");
        let ends = ["<3>CTRL-EVENT-TERMINATING "];
        for text in ["<2>early", "OK\n"].iter().chain(said).chain(&ends) {
            socket.send_to_addr(text.as_bytes(), &peer).unwrap();
        }
    }

    #[tokio::test]
    async fn every_sign_is_heard_once_and_who_comes_back_is_heard_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("wlan0");
        let mut supplicants = Supplicants::new();
        supplicants.follow(Some(directory.path()), ["wlan0"].into_iter());
        let loss = "<3>CTRL-EVENT-BEACON-LOSS ";
        for _ in 0..2 {
            let socket = StdDatagram::bind(&path).unwrap();
            socket.set_read_timeout(Some(RETRY * 3)).unwrap();
            let player = std::thread::spawn(move || {
                play(&socket, &[loss, loss, "<3>CTRL-EVENT-CONNECTED "]);
            });
            assert_eq!(supplicants.next().await, ("wlan0".into(), Sign::Ends));
            assert_eq!(supplicants.next().await, ("wlan0".into(), Sign::Back));
            player.join().unwrap();
            std::fs::remove_file(&path).unwrap();
        }
        supplicants.follow(None, std::iter::empty());
        assert!(supplicants.listeners.is_empty());
    }
}
