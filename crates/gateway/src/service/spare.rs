//! The hub that waits for a site.
//!
//! Its names are looked up beside everything else: a name that is not found, or a resolver that hangs, delays neither
//! the start of the site nor its kill switch. Names are looked up again until they are found, and from then on in case
//! the addresses change. Invariant: addresses of a name that were found once stay until others are found for it.

use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use ropewalk_config::hub::TCP_PORT;
use ropewalk_config::site::Spare as Config;
use ropewalk_session::{HubAddresses, SiteHub};
use ropewalk_transport::PublicKey;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

use super::guard::Guard;
use super::resolve::{Found, resolve, resolve_each, together};

/// The name of the spare in the status of its site.
pub const SPARE: &str = "spare";

/// How soon a look-up is repeated that has found nothing. Longer: fewer queries, later readiness of the spare.
const RETRY: Duration = Duration::from_secs(15);
/// How often names are looked up that were found. Longer: fewer queries, a spare that has moved is found later.
const REFRESH: Duration = Duration::from_mins(5);

/// The spare of a site, if its configuration names one.
pub(super) struct Spare(Option<Known>);

struct Known {
    key: PublicKey,
    addresses: Arc<HubAddresses>,
    /// Nothing is looked up where all endpoints are addresses.
    names: Option<Names>,
}

/// The look-up of names.
struct Names {
    task: JoinHandle<()>,
    /// Changes with the addresses.
    changed: watch::Receiver<()>,
    /// Names are to be looked up before it is their time.
    wanted: Arc<Notify>,
}

impl Drop for Names {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Spare {
    /// Begins to look the names of the spare up.
    pub(super) async fn find(config: Option<&Config>, guard: &Guard) -> Self {
        let Some(config) = config.cloned() else {
            return Self(None);
        };
        let of_address = |text: &str| text.parse::<IpAddr>().is_ok();
        if config.endpoints.iter().all(|place| of_address(&place.host)) {
            // Nobody is asked for these.
            let (addresses, _) = resolve(&config.endpoints, &[]).await;
            return Self(Some(Known {
                key: config.key,
                addresses: Arc::new(HubAddresses::new(&addresses)),
                names: None,
            }));
        }
        let servers = guard.servers().to_vec();
        let (key, endpoints) = (config.key, Arc::new(config.endpoints));
        Self::follow(key, move || {
            let (endpoints, servers) = (Arc::clone(&endpoints), servers.clone());
            async move { resolve_each(&endpoints, &servers).await }
        })
    }

    /// A spare whose endpoints are looked up by `look_up`, always the same ones in the same order.
    fn follow<L, F>(key: PublicKey, mut look_up: L) -> Self
    where
        L: FnMut() -> F + Send + 'static,
        F: Future<Output = Vec<Found>> + Send,
    {
        let addresses = Arc::new(HubAddresses::new(&[]));
        let wanted = Arc::new(Notify::new());
        let (change, changed) = watch::channel(());
        let known = Arc::clone(&addresses);
        let asked = Arc::clone(&wanted);
        let task = tokio::spawn(async move {
            let mut told = false;
            let mut places: Vec<Vec<SocketAddr>> = Vec::new();
            loop {
                let failures = keep(&mut places, look_up().await);
                let found = together(&places);
                if found.is_empty() && !told {
                    tracing::warn!(
                        ?failures,
                        "the spare's name is not found yet; trying until it is"
                    );
                    told = true;
                } else if !failures.is_empty() {
                    tracing::debug!(?failures, "names of the spare were not found");
                }
                let wait = if failures.len() < places.len() {
                    REFRESH
                } else {
                    RETRY
                };
                if found[..] != known.load()[..] {
                    tracing::info!(spare = ?found, "the spare has these addresses");
                    known.store(&found);
                    change.send_replace(());
                }
                tokio::select! {
                    () = tokio::time::sleep(wait) => {}
                    () = asked.notified() => {}
                }
            }
        });
        let names = Names {
            task,
            changed,
            wanted,
        };
        Self(Some(Known {
            key,
            addresses,
            names: Some(names),
        }))
    }

    /// Waits until the addresses of the spare have changed; forever where they cannot.
    pub(super) async fn changed(&mut self) {
        let names = self.0.as_mut().and_then(|known| known.names.as_mut());
        if let Some(names) = names
            && names.changed.changed().await.is_ok()
        {
            return;
        }
        std::future::pending().await
    }

    /// The spare may be needed soon: its names are looked up now.
    pub(super) fn look_again(&self) {
        if let Some(names) = self.0.as_ref().and_then(|known| known.names.as_ref()) {
            names.wanted.notify_one();
        }
    }

    /// The hubs of the site: the home, and the spare after it.
    pub(super) fn after(&self, home: SiteHub) -> Vec<SiteHub> {
        let spare = self.0.iter().map(|known| SiteHub {
            name: SPARE.into(),
            key: known.key,
            addresses: Arc::clone(&known.addresses),
            // A spare is reached over UDP only.
            tcp_port: TCP_PORT,
        });
        std::iter::once(home).chain(spare).collect()
    }

    /// The addresses of the home and of the spare.
    pub(super) fn beside(&self, home: &[SocketAddr]) -> Vec<SocketAddr> {
        let spare = self
            .0
            .iter()
            .flat_map(|known| known.addresses.load().to_vec());
        home.iter().copied().chain(spare).collect()
    }
}

/// Takes what was found for each endpoint in place of what was known. What was not found, in words.
fn keep(places: &mut Vec<Vec<SocketAddr>>, all: Vec<Found>) -> Vec<String> {
    places.resize(all.len(), Vec::new());
    let mut failures = Vec::new();
    for (place, found) in places.iter_mut().zip(all) {
        match found {
            Ok(found) if !found.is_empty() => *place = found,
            Ok(_) => failures.push("a name without an address".to_owned()),
            Err(why) => failures.push(why),
        }
    }
    failures
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    fn address(last: u8) -> SocketAddr {
        SocketAddr::from(([203, 0, 113, last], 4_443))
    }

    /// A spare whose look-ups find these, and nothing after them.
    fn spare(finds: impl IntoIterator<Item = Vec<SocketAddr>>) -> Spare {
        let mut finds: VecDeque<_> = finds.into_iter().collect();
        Spare::follow(PublicKey::from_bytes([1; 32]), move || {
            let found = finds.pop_front().unwrap_or_default();
            let missing = || Err("hub2: not found".to_owned());
            let found = if found.is_empty() {
                missing()
            } else {
                Ok(found)
            };
            async move { vec![found, missing()] }
        })
    }

    #[test]
    fn a_name_that_is_not_found_now_keeps_its_addresses_beside_one_that_is() {
        let mut places = Vec::new();
        let missing = || Err("hub2: not found".to_owned());
        let mut after = |all| {
            let failures = keep(&mut places, all).len();
            (together(&places), failures)
        };
        assert_eq!(after(vec![missing(), missing()]), (vec![], 2));
        let [one, two, three] = [2, 3, 4].map(address);
        assert_eq!(
            after(vec![Ok(vec![one]), Ok(vec![two])]),
            (vec![one, two], 0)
        );
        assert_eq!(
            after(vec![Ok(vec![three]), missing()]),
            (vec![three, two], 1)
        );
        assert_eq!(after(vec![missing(), Ok(vec![])]), (vec![three, two], 2));
    }

    #[tokio::test]
    async fn a_resolver_that_hangs_delays_nothing() {
        let mut hanging = Spare::follow(PublicKey::from_bytes([1; 32]), std::future::pending);
        assert_eq!(hanging.beside(&[address(1)]), [address(1)]);
        let soon = Duration::from_millis(50);
        let changed = tokio::time::timeout(soon, hanging.changed()).await;
        assert!(changed.is_err(), "nothing was found");
    }

    #[tokio::test]
    async fn names_are_looked_up_again_when_they_are_wanted_and_what_was_found_stays() {
        let mut spare = spare([vec![], vec![address(2)], vec![], vec![address(3)]]);
        let wait = Duration::from_secs(10);
        for now in [[address(1), address(2)], [address(1), address(3)]] {
            // Each look-up that finds nothing is followed by another one on demand.
            let changed = async {
                loop {
                    tokio::select! {
                        () = spare.changed() => return,
                        () = tokio::time::sleep(Duration::from_millis(5)) => spare.look_again(),
                    }
                }
            };
            let found = tokio::time::timeout(wait, changed).await;
            assert!(found.is_ok(), "the next addresses are found");
            assert_eq!(spare.beside(&[address(1)]), now);
        }
    }
}
