//! What wpa_supplicant says of an uplink: that it is about to end, or is back.
//!
//! It tells whoever attaches to the control socket of an interface what it does with it. Nothing
//! that would change its ways is ever sent: where and when to roam is its business.
//!
//! Invariant: one listener per uplink, which ends with the [`Supplicants`] that started it.

use std::collections::BTreeMap;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::net::UnixDatagram;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

/// How soon a socket that is not there is looked for again.
const RETRY: Duration = Duration::from_secs(2);
/// Silence after which it is asked whether it is still there, and how long it may take to answer.
const SILENCE: Duration = Duration::from_secs(10);
const ANSWER: Duration = Duration::from_secs(2);
/// How long a sign counts unless it is taken back: a roam is over by then, or has failed.
pub(super) const COUNTS: Duration = Duration::from_secs(10);
/// Signal, dBm, at which frames arrive at the lowest rates if at all. Events say so only where
/// wpa_supplicant watches the signal for reasons of its own (`bgscan`).
const WEAK_DBM: i32 = -85;
const MESSAGE_MAX: usize = 4_096;
/// Signs that may wait.
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
    loop {
        if let Ok(socket) = attach(&path, &name).await {
            tracing::info!(socket = %path.display(), "listening to wpa_supplicant");
            let mut ends = false;
            let ended = loop {
                match message(&socket).await {
                    Ok(Some(text)) => {
                        let Some(sign) = read(&text) else { continue };
                        ends = sign == Sign::Ends;
                        tracing::debug!(uplink = name, ?sign, text, "wpa_supplicant");
                        if signs.send((name.clone(), sign)).await.is_err() {
                            return;
                        }
                    }
                    Ok(None) => {}
                    Err(error) => break error,
                }
            };
            tracing::info!(socket = %path.display(), %ended, "wpa_supplicant is gone");
            // Nobody is left to take back what was said last.
            if ends && signs.send((name.clone(), Sign::Back)).await.is_err() {
                return;
            }
        }
        sleep(RETRY).await;
    }
}

/// Attaches to a control socket. An abstract name of its own leaves no file behind, whatever happens.
async fn attach(path: &Path, name: &str) -> io::Result<UnixDatagram> {
    let own = format!("ropewalk-{}-{name}", std::process::id());
    let socket =
        std::os::unix::net::UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(own)?)?;
    socket.connect(path)?;
    socket.set_nonblocking(true)?;
    let socket = UnixDatagram::from_std(socket)?;
    ask(&socket, "ATTACH", "OK").await?;
    Ok(socket)
}

/// Asks, and lets events pass that come before the answer.
async fn ask(socket: &UnixDatagram, question: &str, answer: &str) -> io::Result<()> {
    socket.send(question.as_bytes()).await?;
    let answered = async {
        while receive(socket).await?.trim() != answer {}
        Ok(())
    };
    timeout(ANSWER, answered).await.unwrap_or_else(|_| {
        let problem = format!("no answer to {question}");
        Err(io::Error::new(io::ErrorKind::TimedOut, problem))
    })
}

/// The next message; `None` when there was none for long.
async fn message(socket: &UnixDatagram) -> io::Result<Option<String>> {
    match timeout(SILENCE, receive(socket)).await {
        Ok(text) => {
            let text = text?;
            if event(&text).starts_with("CTRL-EVENT-TERMINATING") {
                return Err(io::Error::other("it has ended"));
            }
            Ok(Some(text))
        }
        Err(_) => ask(socket, "PING", "PONG").await.map(|()| None),
    }
}

async fn receive(socket: &UnixDatagram) -> io::Result<String> {
    let mut bytes = [0; MESSAGE_MAX];
    let length = socket.recv(&mut bytes).await?;
    Ok(String::from_utf8_lossy(&bytes[..length]).into_owned())
}

/// A message without its level, such as `<3>`.
fn event(text: &str) -> &str {
    let behind = text.strip_prefix('<').and_then(|rest| rest.split_once('>'));
    behind.map_or(text, |(_, event)| event)
}

/// What a message of wpa_supplicant means for the uplink; `None` when nothing.
fn read(text: &str) -> Option<Sign> {
    const ENDING: [&str; 5] = [
        "CTRL-EVENT-DISCONNECTED",
        "CTRL-EVENT-BEACON-LOSS",
        // To another access point: what goes to this one is lost meanwhile.
        "SME: Trying to authenticate with",
        "Trying to authenticate with",
        "Trying to associate with",
    ];
    let event = event(text);
    if event.starts_with("CTRL-EVENT-CONNECTED") {
        return Some(Sign::Back);
    }
    if ENDING.iter().any(|sign| event.starts_with(sign)) {
        return Some(Sign::Ends);
    }
    let values = event.strip_prefix("CTRL-EVENT-SIGNAL-CHANGE")?;
    let signal = values
        .split_whitespace()
        .find_map(|word| word.strip_prefix("signal="));
    let weak = signal?.parse::<i32>().ok()? <= WEAK_DBM;
    Some(if weak { Sign::Ends } else { Sign::Back })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_ends_an_uplink_or_brings_it_back_is_a_sign() {
        for (text, sign) in [
            (
                "<3>CTRL-EVENT-DISCONNECTED bssid=02:00:00:00:00:01 reason=3",
                Some(Sign::Ends),
            ),
            ("<3>CTRL-EVENT-BEACON-LOSS ", Some(Sign::Ends)),
            (
                "<3>SME: Trying to authenticate with 02:00:00:00:00:02 (SSID='x' freq=2412 MHz)",
                Some(Sign::Ends),
            ),
            (
                "<3>CTRL-EVENT-CONNECTED - Connection to 02:00:00:00:00:02 completed",
                Some(Sign::Back),
            ),
            (
                "<3>CTRL-EVENT-SIGNAL-CHANGE above=0 signal=-88 noise=9999 txrate=6000",
                Some(Sign::Ends),
            ),
            (
                "<3>CTRL-EVENT-SIGNAL-CHANGE above=0 signal=-71 noise=9999 txrate=54000",
                Some(Sign::Back),
            ),
            ("<3>CTRL-EVENT-SIGNAL-CHANGE above=0 noise=9999", None),
            ("<3>CTRL-EVENT-SIGNAL-CHANGE signal=x", None),
            ("<3>CTRL-EVENT-SCAN-RESULTS ", None),
            ("CTRL-EVENT-DISCONNECTED", Some(Sign::Ends)),
            ("<3", None),
            ("", None),
        ] {
            assert_eq!(read(text), sign, "{text}");
        }
    }

    /// Plays wpa_supplicant: answers, says one thing, and ends.
    fn play(socket: &std::os::unix::net::UnixDatagram, said: &str) {
        let mut bytes = [0; 64];
        let (length, peer) = socket.recv_from(&mut bytes).unwrap();
        assert_eq!(&bytes[..length], b"ATTACH");
        for text in ["<2>early", "OK\n", said, "<3>CTRL-EVENT-TERMINATING "] {
            socket.send_to_addr(text.as_bytes(), &peer).unwrap();
        }
    }

    #[tokio::test]
    async fn what_was_said_last_does_not_outlive_who_said_it_and_who_comes_back_is_heard() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("wlan0");
        let mut supplicants = Supplicants::new();
        supplicants.follow(Some(directory.path()), ["wlan0"].into_iter());
        for _ in 0..2 {
            let socket = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
            socket.set_read_timeout(Some(RETRY * 3)).unwrap();
            let player = std::thread::spawn(move || play(&socket, "<3>CTRL-EVENT-BEACON-LOSS "));
            assert_eq!(supplicants.next().await, ("wlan0".into(), Sign::Ends));
            assert_eq!(supplicants.next().await, ("wlan0".into(), Sign::Back));
            player.join().unwrap();
            std::fs::remove_file(&path).unwrap();
        }
        supplicants.follow(None, std::iter::empty());
        assert!(supplicants.listeners.is_empty());
    }
}
