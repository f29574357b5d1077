//! The hub that waits for a site.

use std::net::SocketAddr;
use std::sync::Arc;

use ropewalk_config::hub::TCP_PORT;
use ropewalk_config::site::Spare as Config;
use ropewalk_session::{HubAddresses, SiteHub};

use super::guard::Guard;
use super::resolve::resolve;

/// The spare of a site, if its configuration names one.
pub(super) struct Spare(Option<(Config, Arc<HubAddresses>)>);

impl Spare {
    /// Looks the names of the spare up. The site starts without a spare that is not found, and looks again.
    pub(super) async fn find(config: Option<&Config>, guard: &Guard) -> Self {
        let Some(config) = config else {
            return Self(None);
        };
        let (addresses, failures) = resolve(&config.endpoints, guard.servers()).await;
        if addresses.is_empty() {
            tracing::warn!(
                ?failures,
                "the spare's name is not found yet; trying until it is"
            );
        }
        let addresses = Arc::new(HubAddresses::new(&addresses));
        Self(Some((config.clone(), addresses)))
    }

    /// Looks the names up if none was found; whether one is found now.
    pub(super) async fn find_again(&self, guard: &Guard) -> bool {
        let Some((config, known)) = &self.0 else {
            return false;
        };
        if !known.load().is_empty() {
            return false;
        }
        let (addresses, _) = resolve(&config.endpoints, guard.servers()).await;
        known.store(&addresses);
        !addresses.is_empty()
    }

    /// The hubs of the site: the home, and the spare after it.
    pub(super) fn after(&self, home: SiteHub) -> Vec<SiteHub> {
        let spare = self.0.iter().map(|(config, addresses)| SiteHub {
            name: "spare".into(),
            key: config.key,
            addresses: Arc::clone(addresses),
            // A spare is reached over UDP only.
            tcp_port: TCP_PORT,
        });
        std::iter::once(home).chain(spare).collect()
    }

    /// The addresses of the home and of the spare.
    pub(super) fn beside(&self, home: &[SocketAddr]) -> Vec<SocketAddr> {
        let spare = self.0.iter().flat_map(|(_, known)| known.load().to_vec());
        home.iter().copied().chain(spare).collect()
    }
}
