//! What NetworkManager and ModemManager say of uplinks, and what becomes of it.
//!
//! Invariant: they are only listened to. Which interfaces are up is what netlink says.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use ropewalk_api::Status;
use ropewalk_managers::{Everything, Sign, Watcher, signs};
use tokio::sync::watch;

/// How long an end that is announced counts, unless the interface is connected again: scripts that delay it
/// have ended by then. Longer: slow scripts are covered, an end that does not come keeps traffic away for longer.
pub(super) const COUNTS: Duration = Duration::from_secs(30);

/// Listens to both, and knows what it passed on.
#[derive(Debug)]
pub(super) struct Managers {
    watcher: Watcher,
    said: watch::Receiver<Everything>,
    known: Everything,
}

/// What is new.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct News {
    /// Interfaces that are metered, or are not; `None` where nothing of it changed.
    pub(super) metered: Option<BTreeMap<String, bool>>,
    /// Interfaces that are about to end, or are connected.
    pub(super) signs: Vec<(String, Sign)>,
}

impl Managers {
    pub(super) fn new() -> Self {
        let watcher = Watcher::default();
        Self {
            said: watcher.said(),
            watcher,
            known: Everything::new(),
        }
    }

    /// Listens at this socket of a system bus from now on, or at none. It needs a runtime of tokio.
    pub(super) fn follow(&mut self, socket: Option<&Path>) {
        self.watcher.follow(socket);
    }

    /// What is said now, and whenever it changes.
    pub(super) fn said(&self) -> watch::Receiver<Everything> {
        self.said.clone()
    }

    /// Waits for news.
    pub(super) async fn next(&mut self) -> News {
        if self.said.changed().await.is_err() {
            // Never: this has the sender itself.
            return std::future::pending().await;
        }
        let said = self.said.borrow_and_update().clone();
        let news = news(&self.known, &said);
        self.known = said;
        news
    }
}

fn news(before: &Everything, after: &Everything) -> News {
    let metered = |said: &Everything| -> BTreeMap<String, bool> {
        let known = |(name, said): (&String, &ropewalk_managers::Said)| {
            said.metered.map(|metered| (name.clone(), metered))
        };
        said.iter().filter_map(known).collect()
    };
    let (old, new) = (metered(before), metered(after));
    News {
        metered: (old != new).then_some(new),
        signs: signs(before, after),
    }
}

/// Adds what is said to a status.
pub(super) fn describe(said: &Everything, status: &mut Status) {
    for path in status
        .tunnels
        .iter_mut()
        .flat_map(|tunnel| &mut tunnel.paths)
    {
        let Some(said) = said.get(&path.uplink) else {
            continue;
        };
        path.said_metered = said.metered;
        path.technology = said.radio.map(|radio| radio.technology.to_owned());
        let percent = said.radio.and_then(|radio| radio.signal_percent);
        path.signal = percent.map(|percent| f64::from(percent) / 100.0);
    }
}
