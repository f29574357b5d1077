//! Which sites a running hub lets in: the sites file or the copy of the fleet's state, the firewall rules that follow from the file, and
//! the directory by which the engine knows keys.
//!
//! Invariants: one list at a time is read and taken over, so that the directory never goes back to an
//! older one: only one thread has the `Admission` (`inbox.rs`). A site that is no longer in
//! the list is shut out first, whatever fails after that. A new site is let in only once the rules count for it.

pub(super) mod inbox;

use std::cell::Cell;
use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;

use anyhow::Context;
use ropewalk_config::HubConfig;
use ropewalk_session::{SiteDirectory, SiteEntry};
use ropewalk_transport::PublicKey;
use ropewalk_types::PortBlock;

use self::inbox::Work;
use super::Commands;
use crate::engine::control::Command;
use crate::fleet::member::Member;
use crate::sites::{Enrolled, Refusal, Sites, Time};

/// Renews the firewall rules for a list of sites.
type Renew = Box<dyn Fn(&Sites) -> anyhow::Result<()> + Send>;

/// Sets the firewall rules again if they are gone.
type Keep = Box<dyn Fn() + Send>;

/// Is told of inner addresses, and of ports of shared addresses, that no site has any more.
type Forget = Box<dyn Fn(&[IpAddr], &[PortBlock]) + Send>;

/// Takes lists of sites over.
pub(super) struct Admission {
    /// As the user has it: the sites file must fit.
    pub(super) config: HubConfig,
    /// The fleet whose sites these are; without one they are those of the file.
    pub(super) fleet: Option<Arc<Member>>,
    /// Whether this machine carries IPv6 for sites.
    pub(super) ipv6: bool,
    /// The hub's own key.
    pub(super) hub: PublicKey,
    pub(super) renew: Renew,
    pub(super) keep_rules: Keep,
    /// Ends what the kernel remembers of connections of these inner addresses and ports.
    pub(super) forget: Forget,
    pub(super) directory: Arc<SiteDirectory>,
    pub(super) commands: Commands,
    /// How often in a row a change of the fleet could not be taken over.
    pub(super) failures: Cell<u64>,
}

impl Admission {
    /// Does what waits for the [thread](inbox::AdmissionThread). What became of it, in words.
    ///
    /// # Errors
    /// Those of [`Self::reload`]; errors of other work are in the log.
    pub(super) fn work(&self, work: Work) -> anyhow::Result<String> {
        match work {
            Work::Reload => return self.reload(),
            Work::Follow => self.follow(),
            Work::KeepRules => {
                (self.keep_rules)();
                // What could not be taken over is tried again.
                if self.fleet.as_ref().is_some_and(|fleet| fleet.has_news()) {
                    self.follow();
                }
            }
            Work::Confirm(key) => self.confirm(&key),
            Work::Enrol {
                invitation,
                key,
                proved,
            } => self.enrol(invitation, key, proved),
        }
        Ok(String::new())
    }

    /// Reads the sites file, and takes it over. May wait for the file and for `nft`. How many sites
    /// there are, in words.
    ///
    /// # Errors
    /// The file is not usable, the rules cannot be renewed, or the engine has stopped. Only sites that were let
    /// in before go on then, less those that the file has no more.
    pub(super) fn reload(&self) -> anyhow::Result<String> {
        let news = self.fleet.as_deref().map(NewsOfSites::take);
        let sites = match &self.fleet {
            Some(fleet) => fleet
                .sites()
                .inspect_err(|_| self.shut_out_of_fleet(fleet))?,
            None => Sites::load(&self.config)?,
        };
        self.take_over(&sites)?;
        if let Some(news) = news {
            news.end();
        }
        Ok(format!("{} sites", sites.all().len()))
    }

    /// The fleet's list does not fit this hub. Nobody new is let in, and who was revoked is out all the same.
    fn shut_out_of_fleet(&self, fleet: &Member) {
        let known = fleet.known_sites().entries(self.ipv6);
        if self.directory.shut_out(&known) && (self.commands.0)(Command::ReloadSites).is_err() {
            tracing::debug!("the engine has stopped");
        }
    }

    /// Takes over what has changed in the copy of the fleet's state. May wait as [`Self::reload`] does.
    fn follow(&self) {
        let Some(fleet) = &self.fleet else { return };
        if fleet.has_sites()
            && let Err(error) = self.reload()
        {
            // It is tried each second: fewer and fewer lines.
            let failures = self.failures.get() + 1;
            self.failures.set(failures);
            if failures.is_power_of_two() {
                tracing::error!(
                    error = format!("{error:#}"),
                    failures,
                    "this hub goes on with its former list of sites, and tries again each second"
                );
            }
        } else if self.failures.replace(0) > 0 {
            // The session may not have known the sites, or their next keys, when their claims came.
            fleet.look_at_all_claims();
        }
        if let Some(drained) = fleet.take_drained() {
            self.commands.send(Command::Drained(drained));
        }
        for statement in fleet.take_claims() {
            self.commands.send(Command::Claimed(statement));
        }
    }

    /// Gives the holder of an invitation the key that it says, or tells it why not. May wait as
    /// [`Self::reload`] does. When the hub cannot decide now, who holds an invitation is told so. Nobody else is told
    /// anything, and asks again: a site would give its next key up, and a site that joins a fleet would try no other hub.
    /// Sites of earlier versions have not `proved` that they hold the key.
    pub(super) fn enrol(&self, invitation: PublicKey, key: PublicKey, proved: bool) {
        let refusal = match self.try_enrol(invitation, key, proved) {
            Ok(refusal) => refusal,
            // At most as often as the session lets invitations ask.
            Err(error) => {
                let error = format!("{error:#}");
                if self.fleet.is_some() || !self.directory.is_invitation(&invitation) {
                    tracing::error!(
                        error,
                        "cannot record a site that joins, or the next key of a site; it asks again"
                    );
                    return;
                }
                tracing::error!(
                    error,
                    "cannot record a site that joins; it is told to try again later, with the same token"
                );
                Some(Refusal::NotNow)
            }
        };
        let owner = refusal.as_ref().and_then(Refusal::owner);
        let owner = owner.map(str::to_owned);
        self.commands.send(Command::Enrolled {
            invitation,
            key,
            refused: refusal.map(|refusal| refusal.to_string()),
            owner,
        });
    }

    /// A site has connected with its next key: the former one ends. May wait as [`Self::reload`] does.
    pub(super) fn confirm(&self, key: &PublicKey) {
        let confirmed = match &self.fleet {
            Some(fleet) => fleet
                .confirm(*key)
                .and_then(|site| Ok((site, fleet.sites()?))),
            None => Sites::edit(&self.config, |sites| {
                let confirmed = sites.confirm(key).map(|site| site.name.clone());
                Ok((confirmed, sites.clone()))
            }),
        };
        let (site, sites) = match confirmed {
            Ok(confirmed) => confirmed,
            Err(error) => {
                let error = format!("{error:#}");
                tracing::error!(
                    error,
                    %key,
                    "cannot write down that a site has its next key; both keys of the site are good until its next \
                     connection, at which this is tried again"
                );
                return;
            }
        };
        if let Some(site) = &site {
            tracing::info!(site, %key, "site has its next key");
        } else if self.directory.find(key).is_none_or(|site| site.key == *key) {
            return;
        }
        if let Err(error) = self.take_over(&sites) {
            let error = format!("{error:#}");
            tracing::error!(
                error,
                %key,
                "a site has its next key, which is written down, but this hub goes on with its former list of sites; \
                 the next connection of the site, or `systemctl reload ropewalk-hub`, tries again"
            );
        }
    }

    /// Why the site is refused, if it is.
    fn try_enrol(
        &self,
        invitation: PublicKey,
        key: PublicKey,
        proved: bool,
    ) -> anyhow::Result<Option<Refusal>> {
        if let Some(fleet) = &self.fleet {
            return self.try_enrol_in(fleet, invitation, key, proved);
        }
        let enrolled = Sites::edit(&self.config, |sites| {
            let (site, new) = sites.enrol(&self.hub, &invitation, key, proved, Time::now())?;
            let name = site.name.clone();
            Ok((name, new, sites.clone()))
        });
        match enrolled {
            Ok((site, new, sites)) => {
                match new {
                    Enrolled::Joined => {
                        tracing::info!(site, %key, proved, "site has joined by its invitation");
                    }
                    Enrolled::Next => {
                        tracing::info!(site, %key, proved, "site will have another key")
                    }
                    // An answer was lost.
                    Enrolled::Again if self.knows(&key) => return Ok(None),
                    Enrolled::Again => {}
                }
                // The site may connect as soon as it hears of its luck.
                self.take_over(&sites)?;
                Ok(None)
            }
            // The engine writes it down, as often as whoever asks may fill the log.
            Err(error) => error.downcast().map(Some),
        }
    }

    /// The same of a site of a fleet.
    fn try_enrol_in(
        &self,
        fleet: &Member,
        invitation: PublicKey,
        key: PublicKey,
        proved: bool,
    ) -> anyhow::Result<Option<Refusal>> {
        // An answer was lost.
        if fleet.is_enrolled(&invitation, &key) && self.knows(&key) {
            return Ok(None);
        }
        if key == self.hub {
            return Ok(Some(Refusal::KeyTaken("the hub".to_owned())));
        }
        let decided = match fleet.enrol(invitation, key, proved)? {
            Ok(decided) => decided,
            Err(refusal) => return Ok(Some(refusal)),
        };
        let site = decided.site;
        if decided.joined {
            tracing::info!(site, %key, proved, "site has joined by its invitation");
        } else {
            tracing::info!(site, %key, proved, "site will have another key");
        }
        self.take_over(&fleet.sites()?)?;
        // Otherwise the copy is behind, and the site asks again.
        anyhow::ensure!(
            self.knows(&key),
            "the copy of the fleet's state does not have the change yet"
        );
        Ok(None)
    }

    /// Whether a site with this key may connect already.
    fn knows(&self, key: &PublicKey) -> bool {
        self.directory.find(key).is_some()
    }

    /// For the next handshakes, and for the sites that are connected.
    fn take_over(&self, sites: &Sites) -> anyhow::Result<()> {
        let entries = sites.entries(self.ipv6);
        self.directory.set_invitations(sites.invitations());
        let before = self.directory.all();
        if self.directory.shut_out(&entries) {
            (self.commands.0)(Command::ReloadSites)?;
        }
        // The next site with such an address or such ports must not get what answers connections of the former one.
        let stay: HashSet<_> = entries.iter().flat_map(|entry| &entry.addresses).collect();
        let gone = before.iter().flat_map(|entry| &entry.addresses);
        let gone: Vec<_> = gone.filter(|ip| !stay.contains(ip)).copied().collect();
        let stay: HashSet<_> = entries.iter().filter_map(|entry| entry.block).collect();
        let blocks = before.iter().filter_map(|entry| entry.block);
        let blocks: Vec<_> = blocks.filter(|block| !stay.contains(block)).collect();
        if !gone.is_empty() || !blocks.is_empty() {
            (self.forget)(&gone, &blocks);
        }
        // Before a new site can send.
        (self.renew)(sites).context("cannot renew the rules of what sites may reach")?;
        if let Some(fleet) = &self.fleet {
            let known: HashSet<_> = before
                .iter()
                .map(|entry| (&entry.name, entry.key))
                .collect();
            let is_new = |entry: &&SiteEntry| !known.contains(&(&entry.name, entry.key));
            let new = entries.iter().filter(is_new);
            fleet.look_at_claims_of(new.map(|entry| &entry.name));
        }
        self.directory.replace(entries);
        self.directory.set_next_keys(sites.next_keys());
        (self.commands.0)(Command::ReloadSites)
    }
}

/// The news that the list of sites of a fleet has changed. They come back unless they are taken over, also after a panic.
struct NewsOfSites<'a>(Option<&'a Member>);

impl<'a> NewsOfSites<'a> {
    fn take(fleet: &'a Member) -> Self {
        fleet.take_sites();
        Self(Some(fleet))
    }

    fn end(mut self) {
        self.0 = None;
    }
}

impl Drop for NewsOfSites<'_> {
    fn drop(&mut self) {
        if let Some(fleet) = self.0 {
            fleet.put_sites_back();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::inbox::{AdmissionThread, Inbox};
    use super::*;
    use crate::sites::{Credential, Invitation, Terms};
    use ropewalk_transport::Identity;

    fn key(number: u8) -> PublicKey {
        Identity::from_seed([number; 32]).unwrap().public_key()
    }

    /// A hub with site "van" of key 3, and an invitation of key 100 for "boat".
    struct Scene {
        admission: Admission,
        /// Whether the rules can be renewed.
        rules: Arc<AtomicBool>,
        commands: Arc<Mutex<Vec<Command>>>,
        /// Addresses whose connections are over.
        forgotten: Arc<Mutex<Vec<IpAddr>>>,
        /// And ports.
        forgotten_blocks: Arc<Mutex<Vec<PortBlock>>>,
    }

    fn scene(directory: &Path) -> Scene {
        let file = directory.join("sites.toml");
        let text = format!(
            "sites_file = \"{}\"\n[pool]\nipv4 = \"10.9.0.0/16\"\nshared = [\"203.0.113.7\"]\n",
            file.display()
        );
        let config = ropewalk_config::hub::parse(&directory.join("hub.toml"), &text).unwrap();
        let ends = Time::now().after(Duration::from_secs(600)).unwrap();
        let invitation = Credential::Invitation(Invitation::new(key(100), ends));
        Sites::edit(&config, |sites| {
            sites.add(&config, "van", key(3), Terms::default())?;
            sites.add(&config, "boat", invitation, Terms::default())
        })
        .unwrap();
        let rules = Arc::new(AtomicBool::new(true));
        let commands = Arc::<Mutex<Vec<_>>>::default();
        let forgotten = Arc::<Mutex<Vec<_>>>::default();
        let forgotten_blocks = Arc::<Mutex<Vec<_>>>::default();
        let (renewed, sink) = (Arc::clone(&rules), Arc::clone(&commands));
        let admission = Admission {
            config,
            fleet: None,
            ipv6: false,
            hub: key(0),
            renew: Box::new(move |_| {
                anyhow::ensure!(renewed.load(Ordering::Relaxed), "no nft");
                Ok(())
            }),
            keep_rules: Box::new(|| {}),
            forget: {
                let (addresses, ports) = (Arc::clone(&forgotten), Arc::clone(&forgotten_blocks));
                Box::new(move |gone, blocks| {
                    addresses.lock().unwrap().extend_from_slice(gone);
                    ports.lock().unwrap().extend_from_slice(blocks);
                })
            },
            directory: Arc::default(),
            commands: Commands(Arc::new(move |command| {
                sink.lock().unwrap().push(command);
                Ok(())
            })),
            failures: Cell::default(),
        };
        admission.reload().unwrap();
        assert!(admission.directory.find(&key(3)).is_some());
        commands.lock().unwrap().clear();
        Scene {
            admission,
            rules,
            commands,
            forgotten,
            forgotten_blocks,
        }
    }

    /// What the holder of an invitation is told while the hub has trouble.
    fn not_now() -> Option<String> {
        let words = Refusal::NotNow.to_string();
        assert!(words.len() <= ropewalk_wire::REASON_MAX, "{}", words.len());
        Some(words)
    }

    /// What those who asked were told.
    fn answers(scene: &Scene) -> Vec<Option<String>> {
        let mut commands = scene.commands.lock().unwrap();
        let answer = |command| {
            if let Command::Enrolled { refused, .. } = command {
                Some(refused)
            } else {
                None
            }
        };
        commands.drain(..).filter_map(answer).collect()
    }

    #[test]
    fn a_revoked_site_is_shut_out_though_the_rules_cannot_be_renewed() {
        let directory = tempfile::tempdir().unwrap();
        let scene = scene(directory.path());
        let config = &scene.admission.config;
        let van = scene.admission.directory.find(&key(3)).unwrap();
        Sites::edit(config, |sites| {
            sites.add(config, "car", key(4), Terms::default())?;
            sites.revoke("van")
        })
        .unwrap();
        scene.rules.store(false, Ordering::Relaxed);
        let error = scene.admission.reload().unwrap_err();
        assert!(format!("{error:#}").contains("no nft"), "{error:#}");
        let known = |number| scene.admission.directory.find(&key(number)).is_some();
        assert!(!known(3), "the revoked site may still connect");
        assert!(!known(4), "a site is let in without its rules");
        let told = std::mem::take(&mut *scene.commands.lock().unwrap());
        assert!(matches!(told[..], [Command::ReloadSites]), "{told:?}");
        assert_eq!(*scene.forgotten.lock().unwrap(), van.addresses);
        let block = van.block.expect("the van shares an address");
        assert_eq!(*scene.forgotten_blocks.lock().unwrap(), [block]);
        scene.rules.store(true, Ordering::Relaxed);
        scene.admission.reload().unwrap();
        assert!(known(4));
    }

    #[test]
    fn a_hub_that_cannot_let_a_site_in_now_says_so_and_the_token_stays_good() {
        let directory = tempfile::tempdir().unwrap();
        let scene = scene(directory.path());
        let admission = &scene.admission;
        scene.rules.store(false, Ordering::Relaxed);
        admission.enrol(key(100), key(1), true);
        assert_eq!(answers(&scene), [not_now()]);
        assert!(admission.directory.find(&key(1)).is_none());
        scene.rules.store(true, Ordering::Relaxed);
        // A file that nobody can read now says nothing of the invitation either.
        let file = &admission.config.sites_file;
        let text = std::fs::read_to_string(file).unwrap();
        std::fs::write(file, "[[site]]\nnmae = 1\n").unwrap();
        admission.enrol(key(100), key(1), true);
        assert_eq!(answers(&scene), [not_now()]);
        // A site that asks for its next key would give that key up.
        admission.enrol(key(3), key(5), true);
        assert_eq!(answers(&scene), []);
        std::fs::write(file, text).unwrap();
        admission.enrol(key(100), key(1), true);
        assert_eq!(answers(&scene), [None], "the same key asks again");
        assert!(admission.directory.find(&key(1)).is_some());
        admission.enrol(key(100), key(2), true);
        let refused = answers(&scene).remove(0).unwrap();
        assert!(refused.contains("was used on"), "{refused}");
    }

    #[test]
    fn a_site_has_two_keys_until_it_has_connected_with_the_next_one() {
        let directory = tempfile::tempdir().unwrap();
        let scene = scene(directory.path());
        let admission = &scene.admission;
        let known = |number| {
            let found = admission.directory.find(&key(number));
            found.map(|site| (site.name.clone(), site.key))
        };
        admission.enrol(key(3), key(5), true);
        assert_eq!(answers(&scene), [None]);
        for number in [3, 5] {
            assert_eq!(known(number), Some(("van".to_owned(), key(3))));
        }
        // Keys of others are refused, and the answer that was lost comes again.
        admission.enrol(key(5), key(5), true);
        admission.enrol(key(3), key(100), true);
        admission.enrol(key(3), key(0), true);
        let words = answers(&scene);
        assert_eq!(words[0], None);
        // The words do not say whose key it is.
        assert!(
            words[1]
                .as_ref()
                .unwrap()
                .contains("does not take this key")
        );
        assert_eq!(words[1], words[2]);
        // A question that was answered before costs no reload.
        admission.enrol(key(3), key(5), true);
        let told = std::mem::take(&mut *scene.commands.lock().unwrap());
        assert!(
            matches!(told[..], [Command::Enrolled { refused: None, .. }]),
            "{told:?}"
        );
        admission.reload().unwrap();
        assert!(known(5).is_some(), "also after a start of the hub");
        admission.confirm(&key(5));
        assert_eq!(known(5), Some(("van".to_owned(), key(5))));
        assert_eq!(known(3), None, "the former key still opens");
        assert_eq!(*scene.forgotten.lock().unwrap(), [] as [IpAddr; 0]);
        admission.confirm(&key(5));
        let sites = Sites::load(&admission.config).unwrap();
        let van = sites.all().iter().find(|site| site.name == "van").unwrap();
        assert_eq!((van.key, van.next_key), (Some(key(5)), None));
    }

    #[test]
    fn the_log_is_not_filled_here_by_who_asks_for_the_key_of_another() {
        let directory = tempfile::tempdir().unwrap();
        let scene = scene(directory.path());
        let log = tempfile::NamedTempFile::new().unwrap();
        let lines = log.reopen().unwrap();
        let subscriber = tracing_subscriber::fmt().with_writer(Mutex::new(lines));
        tracing::subscriber::with_default(subscriber.finish(), || {
            for _ in 0..50 {
                scene.admission.enrol(key(100), key(3), true);
            }
        });
        // The engine writes it, at its pace, and knows whose key it is.
        let told = std::mem::take(&mut *scene.commands.lock().unwrap());
        let told = told.iter().filter(|command| {
            matches!(command, Command::Enrolled { refused: Some(_), owner: Some(owner), .. }
                if owner == "site van")
        });
        assert_eq!(told.count(), 50);
        let log = std::fs::read_to_string(log.path()).unwrap();
        assert_eq!(log.lines().count(), 0, "{log}");
    }

    #[test]
    fn lists_are_taken_over_in_the_order_in_which_they_are_read() {
        let directory = tempfile::tempdir().unwrap();
        let mut scene = scene(directory.path());
        // The first take-over stops in the middle until the second has been asked for.
        let (begun, begins) = channel();
        let (end, ended) = channel();
        scene.admission.renew = Box::new(move |_| {
            begun.send(()).unwrap();
            ended.recv().unwrap();
            Ok(())
        });
        let (config, known) = (
            scene.admission.config.clone(),
            Arc::clone(&scene.admission.directory),
        );
        let admission = scene.admission;
        let thread =
            AdmissionThread::start(Inbox::default(), move |work| admission.work(work)).unwrap();
        thread.inbox.enrol(key(100), key(1), true);
        begins.recv().unwrap();
        Sites::edit(&config, |sites| sites.revoke("van")).unwrap();
        let reload = thread.inbox.reload();
        (0..2).for_each(|_| end.send(()).unwrap());
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        let what = runtime.unwrap().block_on(reload).unwrap();
        assert_eq!(what, "1 sites");
        assert!(known.find(&key(1)).is_some());
        assert!(
            known.find(&key(3)).is_none(),
            "an older list has brought the revoked site back"
        );
    }

    /// A copy with site "boat" and its claim, which nobody changes.
    #[cfg(feature = "fleet")]
    fn in_fleet(directory: &Path, scene: &mut Scene) -> Arc<Member> {
        use ropewalk_fleet::copy::Stored;
        use ropewalk_fleet::record::{Rest, Signature};
        use ropewalk_fleet::{Claim, Copy, Meta, Record};
        use ropewalk_session::Statement;

        let (fleet, site) = (key(50), Identity::from_seed([3; 32]).unwrap());
        let config = crate::fleet::member::without_etcd(directory, fleet);
        let signed = Statement::sign(&site, 2, &key(0));
        let claim = Record::Claim(Claim {
            site: "boat".to_owned(),
            key: site.public_key(),
            epoch: signed.epoch,
            hub: signed.hub,
            signature: Signature(signed.signature),
        });
        let meta = Record::Meta(Meta {
            fleet,
            pools: crate::fleet::pools(&config),
            restoring: false,
            made: None,
            replaces: None,
            rest: Rest::new(),
        });
        let of = |key: &str, text: String| (key.to_owned(), text.into_bytes());
        let boat = format!(
            "{{\"v\":1,\"key\":\"{}\",\"slot\":0,\"enabled\":true}}",
            site.public_key()
        );
        let owner = "{\"v\":1,\"site\":\"boat\"}".to_owned();
        let records = [meta, claim].map(|record| (record.key(), record.encode()));
        let records = records
            .into_iter()
            .chain([of("site/boat", boat), of("slot/00000000", owner)]);
        let stored = records.map(|(key, value)| (key, Stored { value, revision: 1 }));
        let mut copy = Copy::default();
        copy.fill(&fleet, 1, 1, stored.collect()).unwrap();
        std::fs::write(directory.join("fleet.json"), copy.to_text()).unwrap();
        let member = Arc::new(Member::begin(&config, key(0), || {}).unwrap().unwrap());
        (scene.admission.config, scene.admission.fleet) = (config, Some(Arc::clone(&member)));
        member
    }

    #[cfg(feature = "fleet")]
    #[test]
    fn news_of_a_fleet_that_were_not_taken_over_are_there_still() {
        let directory = tempfile::tempdir().unwrap();
        let mut scene = scene(directory.path());
        let member = in_fleet(directory.path(), &mut scene);
        let claims = |scene: &Scene| {
            let told = std::mem::take(&mut *scene.commands.lock().unwrap());
            let is_claim = |command: &&Command| matches!(command, Command::Claimed(_));
            told.iter().filter(is_claim).count()
        };
        scene.admission.work(Work::Follow).unwrap();
        assert_eq!((claims(&scene), member.has_news()), (1, false));
        // The session may not have known the site, or its next key, when the claim came.
        scene.rules.store(false, Ordering::Relaxed);
        member.put_sites_back();
        scene.admission.work(Work::Follow).unwrap();
        assert_eq!((claims(&scene), member.has_news()), (0, true));
        scene.rules.store(true, Ordering::Relaxed);
        scene.admission.work(Work::Follow).unwrap();
        assert_eq!((claims(&scene), member.has_news()), (1, false));
        scene.admission.renew = Box::new(|_| panic!("as the test wants"));
        member.put_sites_back();
        let work = std::panic::AssertUnwindSafe(|| scene.admission.work(Work::Follow));
        assert!(std::panic::catch_unwind(work).is_err());
        assert!(member.has_news(), "the panic has cost the news");
    }
}
