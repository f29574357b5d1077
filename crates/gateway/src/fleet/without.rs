//! The parts of a fleet in a program that was built without fleets: a hub with `[fleet]` is refused in words.
//!
//! Invariant: neither a member nor a desk is ever made.

use ropewalk_api::EtcdStatus;
use ropewalk_config::HubConfig;

/// Why a hub of a fleet does not run with this program.
fn without() -> anyhow::Error {
    anyhow::anyhow!(
        "this program was built without fleets (cargo feature `fleet`): remove [fleet] from the configuration, or take the \
         program of the usual packages"
    )
}

/// In words, what is the matter with etcd. Nobody has any.
#[must_use]
pub fn matter(etcd: &EtcdStatus) -> String {
    etcd.state.clone()
}

/// See the module of the same name with fleets.
pub mod member {
    use super::{HubConfig, without};
    use crate::sites::{Refusal, Sites};
    use ropewalk_api::FleetStatus;
    use ropewalk_session::Statement;
    use ropewalk_transport::PublicKey;

    /// A hub in its fleet: there is none.
    #[derive(Debug)]
    pub enum Member {}

    /// What became of a site.
    #[derive(Debug)]
    pub struct Decided {
        /// Its name.
        pub site: String,
        /// Whether it has the key now.
        pub joined: bool,
    }

    #[expect(missing_docs, clippy::missing_errors_doc, reason = "never called")]
    impl Member {
        pub fn begin(
            hub: &HubConfig,
            _: PublicKey,
            _: impl Fn() + Send + Sync + 'static,
        ) -> anyhow::Result<Option<Self>> {
            hub.fleet.as_ref().map_or(Ok(None), |_| Err(without()))
        }
        pub fn sites(&self) -> anyhow::Result<Sites> {
            match *self {}
        }
        pub fn known_sites(&self) -> Sites {
            match *self {}
        }
        pub fn has_sites(&self) -> bool {
            match *self {}
        }
        pub fn take_sites(&self) {
            match *self {}
        }
        pub fn put_sites_back(&self) {
            match *self {}
        }
        pub fn has_news(&self) -> bool {
            match *self {}
        }
        pub fn take_drained(&self) -> Option<bool> {
            match *self {}
        }
        pub fn look_at_claims_of<'a>(&self, _: impl Iterator<Item = &'a String>) {
            match *self {}
        }
        pub fn look_at_all_claims(&self) {
            match *self {}
        }
        pub fn has_key(&self, _: PublicKey) {
            match *self {}
        }
        pub fn take_claims(&self) -> Vec<Statement> {
            match *self {}
        }
        pub fn enrol(
            &self,
            _: PublicKey,
            _: PublicKey,
            _: bool,
        ) -> anyhow::Result<Result<Decided, Refusal>> {
            match *self {}
        }
        pub fn is_enrolled(&self, _: &PublicKey, _: &PublicKey) -> bool {
            match *self {}
        }
        pub fn confirm(&self, _: PublicKey) -> anyhow::Result<Option<String>> {
            match *self {}
        }
        pub fn serves(&self, _: &str, _: &Statement) {
            match *self {}
        }
        pub fn keep_lease(&self, _: usize) {
            match *self {}
        }
        pub fn leave(&self) {
            match *self {}
        }
        #[must_use]
        pub fn status(&self) -> FleetStatus {
            match *self {}
        }
    }
}

/// See the module of the same name with fleets.
pub mod desk {
    use std::convert::Infallible;
    use std::marker::PhantomData;
    use std::path::Path;

    use super::{HubConfig, without};
    use crate::sites::{Credential, Site, Sites, Terms};
    use ropewalk_api::FleetStatus;
    use ropewalk_config::FleetConfig;
    use ropewalk_config::token::Place;
    use ropewalk_transport::PublicKey;

    /// A fleet, as a command has it: there is none.
    #[derive(Debug)]
    pub struct Desk<'a>(Infallible, PhantomData<&'a ()>);

    #[expect(missing_docs, clippy::missing_errors_doc, reason = "never called")]
    impl<'a> Desk<'a> {
        pub fn open(_: &'a HubConfig, _: &'a FleetConfig, _: &'a Path) -> anyhow::Result<Self> {
            Err(without())
        }
        pub fn look(&self) {
            match self.0 {}
        }
        #[must_use]
        pub fn key(&self) -> PublicKey {
            match self.0 {}
        }
        #[must_use]
        pub fn status(&self) -> FleetStatus {
            match self.0 {}
        }
        pub fn sites(&self) -> anyhow::Result<Sites> {
            match self.0 {}
        }
        pub fn add(&self, _: &str, _: Credential, _: Terms) -> anyhow::Result<Site> {
            match self.0 {}
        }
        pub fn revoke(&self, _: &str) -> anyhow::Result<()> {
            match self.0 {}
        }
        #[must_use]
        pub fn places(&self, _: Place) -> Vec<Place> {
            match self.0 {}
        }
    }

    /// The sites that a hub has on its disk.
    ///
    /// # Errors
    /// Always.
    pub fn sites_on_disk(_: &HubConfig) -> anyhow::Result<Sites> {
        Err(without())
    }
}
