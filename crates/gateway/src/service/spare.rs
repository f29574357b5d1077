//! The hubs to which a site may move.
//!
//! Their names are looked up beside everything else: a name that is not found, or a resolver that hangs, delays neither
//! the start of the site nor its kill switch. Names are looked up again until they are found, and from then on in case
//! the addresses change. Invariant: addresses of a name that were found once stay until others are found for it.

use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use ropewalk_config::hub::TCP_PORT;
use ropewalk_config::site::{SPARES_MAX, Spare as Config};
use ropewalk_session::{HubAddresses, SiteHub};
use ropewalk_transport::PublicKey;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

use super::guard::Guard;
use super::resolve::{Found, resolve, resolve_each, together};

/// The names of the spares in the status of their site.
pub const SPARES: [&str; SPARES_MAX] = ["spare", "second spare"];

/// How soon a look-up is repeated that has found nothing. Longer: fewer queries, later readiness of the spare.
const RETRY: Duration = Duration::from_secs(15);
/// How often names are looked up that were found. Longer: fewer queries, a spare that has moved is found later.
const REFRESH: Duration = Duration::from_mins(5);

/// The spares of a site, in the order of its configuration.
pub(super) struct Spares {
    known: Vec<Known>,
    /// Changes with the addresses. Nobody sends where all endpoints are addresses.
    changed: watch::Receiver<()>,
}

struct Known {
    key: PublicKey,
    addresses: Arc<HubAddresses>,
    /// Nothing is looked up where all endpoints are addresses.
    names: Option<Names>,
}

/// The look-up of names.
struct Names {
    task: JoinHandle<()>,
    /// Names are to be looked up before it is their time.
    wanted: Arc<Notify>,
}

impl Drop for Names {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Spares {
    /// Begins to look the names of the spares up.
    pub(super) async fn find(configs: &[Config], guard: &Guard) -> Self {
        let (change, changed) = watch::channel(());
        let mut known = Vec::new();
        for (name, config) in SPARES.into_iter().zip(configs.iter().cloned()) {
            let of_address = |text: &str| text.parse::<IpAddr>().is_ok();
            if config.endpoints.iter().all(|place| of_address(&place.host)) {
                // Nobody is asked for these.
                let (addresses, _) = resolve(&config.endpoints, &[]).await;
                known.push(Known {
                    key: config.key,
                    addresses: Arc::new(HubAddresses::new(&addresses)),
                    names: None,
                });
                continue;
            }
            let servers = guard.servers().to_vec();
            let (key, endpoints) = (config.key, Arc::new(config.endpoints));
            known.push(Known::follow(name, key, change.clone(), move || {
                let (endpoints, servers) = (Arc::clone(&endpoints), servers.clone());
                async move { resolve_each(&endpoints, &servers).await }
            }));
        }
        Self { known, changed }
    }

    /// Waits until addresses have changed; forever where they cannot.
    pub(super) async fn changed(&mut self) {
        if self.changed.changed().await.is_err() {
            std::future::pending().await
        }
    }

    /// A spare may be needed soon: names are looked up now.
    pub(super) fn look_again(&self) {
        for names in self.known.iter().filter_map(|known| known.names.as_ref()) {
            names.wanted.notify_one();
        }
    }

    /// The hubs of the site: the home, and the spares after it.
    pub(super) fn after(&self, home: SiteHub) -> Vec<SiteHub> {
        let spares = SPARES
            .iter()
            .zip(&self.known)
            .map(|(&name, known)| SiteHub {
                name: name.into(),
                key: known.key,
                addresses: Arc::clone(&known.addresses),
                // A spare is reached over UDP only.
                tcp_port: TCP_PORT,
            });
        std::iter::once(home).chain(spares).collect()
    }

    /// The addresses of the home and of the spares.
    pub(super) fn beside(&self, home: &[SocketAddr]) -> Vec<SocketAddr> {
        let spares = self.known.iter();
        let spares = spares.flat_map(|known| known.addresses.load().to_vec());
        home.iter().copied().chain(spares).collect()
    }
}

impl Known {
    /// A spare whose endpoints are looked up by `look_up`, always the same ones in the same order. `change` is told when
    /// the addresses have changed.
    fn follow<L, F>(
        name: &'static str,
        key: PublicKey,
        change: watch::Sender<()>,
        mut look_up: L,
    ) -> Self
    where
        L: FnMut() -> F + Send + 'static,
        F: Future<Output = Vec<Found>> + Send,
    {
        let addresses = Arc::new(HubAddresses::new(&[]));
        let wanted = Arc::new(Notify::new());
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
                        spare = name,
                        ?failures,
                        "the name of a spare is not found yet; trying until it is"
                    );
                    told = true;
                } else if !failures.is_empty() {
                    tracing::debug!(spare = name, ?failures, "names of a spare were not found");
                }
                let wait = if failures.len() < places.len() {
                    REFRESH
                } else {
                    RETRY
                };
                if found[..] != known.load()[..] {
                    tracing::info!(spare = name, addresses = ?found, "a spare has these addresses");
                    known.store(&found);
                    change.send_replace(());
                }
                tokio::select! {
                    () = tokio::time::sleep(wait) => {}
                    () = asked.notified() => {}
                }
            }
        });
        Self {
            key,
            addresses,
            names: Some(Names { task, wanted }),
        }
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

    /// Spares that are looked up with these.
    fn spares<L, F>(look_ups: impl IntoIterator<Item = L>) -> Spares
    where
        L: FnMut() -> F + Send + 'static,
        F: Future<Output = Vec<Found>> + Send,
    {
        let (change, changed) = watch::channel(());
        let follow = |look_up| {
            let key = PublicKey::from_bytes([1; 32]);
            Known::follow(SPARES[0], key, change.clone(), look_up)
        };
        Spares {
            known: look_ups.into_iter().map(follow).collect(),
            changed,
        }
    }

    /// A look-up that finds these, and nothing after them, beside a name that is never found.
    fn finding(
        finds: impl IntoIterator<Item = Vec<SocketAddr>>,
    ) -> impl FnMut() -> std::future::Ready<Vec<Found>> + Send + 'static {
        let mut finds: VecDeque<_> = finds.into_iter().collect();
        move || {
            let found = finds.pop_front().unwrap_or_default();
            let missing = || Err("hub2: not found".to_owned());
            let found = if found.is_empty() {
                missing()
            } else {
                Ok(found)
            };
            std::future::ready(vec![found, missing()])
        }
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
        let mut hanging = spares([std::future::pending]);
        assert_eq!(hanging.beside(&[address(1)]), [address(1)]);
        let soon = Duration::from_millis(50);
        let changed = tokio::time::timeout(soon, hanging.changed()).await;
        assert!(changed.is_err(), "nothing was found");
    }

    #[tokio::test]
    async fn names_are_looked_up_again_when_they_are_wanted_and_what_was_found_stays() {
        let mut spare = spares([finding([
            vec![],
            vec![address(2)],
            vec![],
            vec![address(3)],
        ])]);
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

    #[tokio::test]
    async fn each_of_several_spares_has_its_addresses_and_its_name() {
        let mut both = spares([2, 3].map(|last| finding([vec![address(last)]])));
        while both.beside(&[]).len() < 2 {
            let change = tokio::time::timeout(Duration::from_secs(10), both.changed()).await;
            assert!(change.is_ok(), "both are found");
        }
        assert_eq!(both.beside(&[address(1)]), [1, 2, 3].map(address));
        let home = SiteHub {
            name: "hub".into(),
            key: PublicKey::from_bytes([2; 32]),
            addresses: Arc::new(HubAddresses::new(&[address(1)])),
            tcp_port: TCP_PORT,
        };
        let hubs = both.after(home);
        let names: Vec<_> = hubs.iter().map(|hub| &hub.name[..]).collect();
        assert_eq!(names, ["hub", "spare", "second spare"]);
        assert_eq!(hubs[2].addresses.load()[..], [address(3)]);
    }
}
