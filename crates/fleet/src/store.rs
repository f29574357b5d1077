//! Following etcd, and writing to it: a thread per hub.
//!
//! The thread talks to one endpoint at a time, and goes to the next one when that fails or answers too late. Everything
//! that it decides is in [`crate::copy`] and [`crate::plan`].
//!
//! Invariant: reads come from the copy, and never wait for etcd. A write that etcd has not confirmed is an error that
//! says so.

mod follow;
/// What commands need too.
pub(crate) mod follow_parts {
    pub(crate) use super::follow::{Left, answer, read_all};
}
mod write;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use anyhow::Context;
use etcd_client::{Certificate, Client, ConnectOptions, Identity, TlsOptions};
use ropewalk_host::files;
use ropewalk_transport::PublicKey;
use tokio::sync::{Notify, mpsc};

use crate::copy::{Change, Copy};
use crate::plan::{Done, Refusal, Request};
use crate::record::{Claim, HubLease};

/// Patience with an endpoint for one answer. Longer ones outlast an election (1 s as etcd comes), shorter ones find
/// the next endpoint sooner.
pub(crate) const ANSWER: Duration = Duration::from_secs(2);
/// Pause before the next endpoint is tried. Shorter ones find etcd again sooner, longer ones spare it.
const RETRY: Duration = Duration::from_millis(200);
/// How often the copy is compared with etcd. More often makes its age exact, and is one read of etcd each.
const COMPARE: Duration = Duration::from_secs(1);
/// Shortest time between two writes of the copy's file. Less often costs a power cut more, which counts only while
/// etcd is away at the next start.
const SAVE_PAUSE: Duration = Duration::from_secs(2);
/// Largest file of a copy that is read, bytes: some four times what 100,000 sites need.
const FILE_BYTES_MAX: u64 = 1 << 29;
/// Life of a hub's lease without a sign of life, seconds. Shorter ones say sooner that a hub is gone, longer ones
/// outlast an election of etcd. Sites do not wait for it.
pub const LEASE_SECONDS: i64 = 10;
/// Most claims that wait for etcd: one of each site of the largest cell.
const CLAIMS_MAX: usize = 1 << 17;

/// How to reach the fleet's etcd.
#[derive(Clone, Debug)]
pub struct Options {
    /// Name of the fleet: part of every key in etcd.
    pub fleet: String,
    /// Public key of the fleet: a state with another one is not taken.
    pub key: PublicKey,
    /// URLs of etcd's members, `https://10.0.0.1:2379`.
    pub endpoints: Vec<String>,
    /// Certificates.
    pub tls: Option<Tls>,
    /// User of etcd, whose role may read and write the prefix of the fleet.
    pub login: Option<Login>,
    /// File of the copy.
    pub file: PathBuf,
}

/// Certificates in PEM.
#[derive(Clone, Debug)]
pub struct Tls {
    /// Authority that has signed those of etcd.
    pub authority: PathBuf,
    /// Certificate of this hub, and its private key.
    pub own: Option<(PathBuf, PathBuf)>,
}

/// A user of etcd.
#[derive(Clone)]
pub struct Login {
    /// Name.
    pub user: String,
    /// Password.
    pub password: zeroize::Zeroizing<String>,
}

impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Login")
            .field("user", &self.user)
            .finish_non_exhaustive()
    }
}

impl Options {
    /// What all keys of the fleet begin with.
    #[must_use]
    pub fn prefix(&self) -> String {
        format!("/ropewalk/{}/", self.fleet)
    }

    /// Connects to the endpoint with this number, counted round.
    pub(crate) async fn connect(&self, number: usize) -> Result<Client, etcd_client::Error> {
        let endpoint = &self.endpoints[number % self.endpoints.len()];
        let mut options = ConnectOptions::new()
            .with_connect_timeout(ANSWER)
            .with_keep_alive(ANSWER, ANSWER)
            .with_keep_alive_while_idle(true)
            .with_require_leader(true)
            .with_auto_token_refresh(true);
        if let Some(tls) = &self.tls {
            let read = |path: &PathBuf| {
                std::fs::read(path).map_err(|error| {
                    let text = format!("{}: {error}", path.display());
                    etcd_client::Error::IoError(std::io::Error::new(error.kind(), text))
                })
            };
            let mut made =
                TlsOptions::new().ca_certificate(Certificate::from_pem(read(&tls.authority)?));
            if let Some((certificate, key)) = &tls.own {
                made = made.identity(Identity::from_pem(read(certificate)?, read(key)?));
            }
            options = options.with_tls(made);
        }
        if let Some(login) = &self.login {
            options = options.with_user(login.user.clone(), login.password.as_str());
        }
        let late = || etcd_client::Error::EndpointError(format!("{endpoint} does not answer"));
        let connecting = Client::connect([endpoint], Some(options));
        tokio::time::timeout(ANSWER, connecting)
            .await
            .map_err(|_| late())?
    }
}

/// Whether etcd answers. Times are seconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EtcdState {
    /// It does, and the copy follows.
    There,
    /// It does not.
    Away {
        /// Since when.
        since: u64,
        /// What the last attempt said.
        why: String,
    },
    /// It has no state of this fleet, or another one's: the copy stays as it was.
    Foreign {
        /// Since when.
        since: u64,
        /// What is wrong, and what to do.
        why: String,
    },
}

/// What a hub knows of its fleet's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Whether etcd answers.
    pub etcd: EtcdState,
    /// Revision of the copy; 0 without one.
    pub revision: i64,
    /// How old the copy is: the time since it was known to be the newest state. `None` without a copy.
    pub age: Option<Duration>,
    /// Claims that wait for etcd.
    pub claims_waiting: usize,
    /// Why this hub has no lease, if it wants one.
    pub lease_problem: Option<String>,
    /// Records that this program cannot read.
    pub unreadable: usize,
}

/// Why a write was not confirmed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// By the state of the fleet.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// Etcd has not answered in time.
    #[error(
        "etcd does not answer for {waited} s ({why}): {}. Known sites go on. Repeat the command when etcd is back",
        if *.maybe { "the change may have been made or not" } else { "nothing was changed" }
    )]
    Away {
        /// How long the write has waited, seconds.
        waited: u64,
        /// What the last attempt said.
        why: String,
        /// Whether etcd may have made the change.
        maybe: bool,
    },
}

/// What the thread and its users share.
pub(crate) struct Shared {
    pub options: Options,
    copy: RwLock<Copy>,
    etcd: Mutex<EtcdState>,
    claims: Mutex<BTreeMap<String, Claim>>,
    lease: Mutex<Option<HubLease>>,
    lease_problem: Mutex<Option<String>>,
    claims_there: Notify,
    lease_there: Notify,
    stop: Notify,
}

/// Locks whose holder has panicked are used on: every holder leaves whole values.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Seconds since 1970.
#[must_use]
pub fn now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

impl Shared {
    fn read<T>(&self, read: impl FnOnce(&Copy) -> T) -> T {
        read(&self.copy.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn change<T>(&self, change: impl FnOnce(&mut Copy) -> T) -> T {
        change(&mut self.copy.write().unwrap_or_else(PoisonError::into_inner))
    }

    fn is_there(&self) {
        let mut etcd = lock(&self.etcd);
        if *etcd != EtcdState::There {
            tracing::info!("etcd is there: the copy of the fleet's state follows");
            *etcd = EtcdState::There;
        }
    }

    fn is_away(&self, reason: String) {
        let mut etcd = lock(&self.etcd);
        match &mut *etcd {
            EtcdState::Away { why, .. } => *why = reason,
            EtcdState::There | EtcdState::Foreign { .. } => {
                tracing::warn!(
                    reason,
                    "etcd is away: known sites go on; invitations and revocations wait"
                );
                *etcd = EtcdState::Away {
                    since: now(),
                    why: reason,
                };
            }
        }
    }

    fn is_foreign(&self, reason: String) {
        let mut etcd = lock(&self.etcd);
        if !matches!(&*etcd, EtcdState::Foreign { why, .. } if *why == reason) {
            tracing::error!(reason, "the copy of the fleet's state is kept as it is");
            *etcd = EtcdState::Foreign {
                since: now(),
                why: reason,
            };
        }
    }
}

/// A write on its way.
pub(crate) struct Job {
    request: Request,
    patience: Duration,
    reply: std::sync::mpsc::Sender<Result<Done, WriteError>>,
}

/// What is told after each change of the copy.
pub type Tell = Box<dyn Fn(&[Change]) + Send>;

/// A fleet's state as one hub has it.
pub struct Fleet {
    shared: Arc<Shared>,
    jobs: Option<mpsc::UnboundedSender<Job>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl std::fmt::Debug for Fleet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fleet")
            .field("fleet", &self.shared.options.fleet)
            .finish_non_exhaustive()
    }
}

impl Fleet {
    /// Reads the copy from its file, and begins to follow etcd on a thread. Does not wait for etcd. `tell` is called on
    /// that thread after each change, and must not take long: it may wake the loop of a gateway.
    ///
    /// # Errors
    /// No endpoint, or the thread cannot be started. A damaged file is no error: the copy is filled from etcd.
    pub fn open(options: Options, tell: Tell) -> anyhow::Result<Self> {
        anyhow::ensure!(
            !options.endpoints.is_empty(),
            "no endpoint of etcd; give one at least"
        );
        files::create_parent(&options.file)?;
        let text = files::read_state(&options.file, FILE_BYTES_MAX);
        let copy = text.and_then(|text| match text {
            Some(text) => Copy::from_text(&text).map_err(anyhow::Error::msg),
            None => Ok(Copy::default()),
        });
        let copy = copy.unwrap_or_else(|error| {
            let file = options.file.display();
            tracing::warn!(%file, %error, "the copy of the fleet's state is not readable, and is read from etcd anew");
            Copy::default()
        });
        // Somebody has changed the configuration: the copy is another fleet's.
        let own = copy.meta().is_none_or(|meta| meta.fleet == options.key);
        let copy = if own { copy } else { Copy::default() };
        let etcd = EtcdState::Away {
            since: now(),
            why: "not yet connected".to_owned(),
        };
        let shared = Arc::new(Shared {
            options,
            copy: RwLock::new(copy),
            etcd: Mutex::new(etcd),
            claims: Mutex::default(),
            lease: Mutex::default(),
            lease_problem: Mutex::default(),
            claims_there: Notify::new(),
            lease_there: Notify::new(),
            stop: Notify::new(),
        });
        let (jobs, receiver) = mpsc::unbounded_channel();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("fleet".to_owned());
        let thread = thread.spawn(move || {
            runtime.block_on(async {
                tokio::join!(
                    follow::follow(&of_thread, tell),
                    write::serve(&of_thread, receiver),
                );
            });
        });
        let thread = thread.context("cannot start the thread that follows etcd")?;
        Ok(Self {
            shared,
            jobs: Some(jobs),
            thread: Some(thread),
        })
    }

    /// Reads the copy. Never waits for etcd; changes wait while `read` runs.
    pub fn read<T>(&self, read: impl FnOnce(&Copy) -> T) -> T {
        self.shared.read(read)
    }

    /// What this hub knows of the state, and of etcd.
    #[must_use]
    pub fn status(&self) -> Status {
        let (revision, complete_at, unreadable) = self.read(|copy| {
            (
                copy.revision(),
                copy.complete_at(),
                copy.unreadable().count(),
            )
        });
        let age = Duration::from_secs(now().saturating_sub(complete_at));
        Status {
            etcd: lock(&self.shared.etcd).clone(),
            revision,
            age: (complete_at > 0).then_some(age),
            claims_waiting: lock(&self.shared.claims).len(),
            lease_problem: lock(&self.shared.lease_problem).clone(),
            unreadable,
        }
    }

    /// Begins a write, and gives its answer when there is one.
    #[must_use]
    pub fn begin(
        &self,
        request: Request,
        patience: Duration,
    ) -> std::sync::mpsc::Receiver<Result<Done, WriteError>> {
        let (reply, answer) = std::sync::mpsc::channel();
        if let Some(jobs) = &self.jobs {
            // A thread that has ended drops the job, and so the answer.
            let _ = jobs.send(Job {
                request,
                patience,
                reply,
            });
        }
        answer
    }

    /// Writes, and waits for etcd no longer than `patience` and the answer to one last request.
    ///
    /// # Errors
    /// Refused by the state of the fleet, or not confirmed.
    pub fn write(&self, request: Request, patience: Duration) -> Result<Done, WriteError> {
        let ended = |_| WriteError::Away {
            waited: 0,
            why: "the thread has ended".to_owned(),
            maybe: true,
        };
        self.begin(request, patience).recv().map_err(ended)?
    }

    /// Writes the claim as soon as etcd answers. A claim with a higher epoch takes the place of one that waits.
    /// False when too many wait: claims are for those that look, and no site depends on this record.
    pub fn queue_claim(&self, claim: Claim) -> bool {
        let mut claims = lock(&self.shared.claims);
        let full = claims.len() >= CLAIMS_MAX;
        match claims.get_mut(&claim.site) {
            Some(former) if former.epoch >= claim.epoch => {}
            Some(former) => *former = claim,
            None if full => return false,
            None => {
                claims.insert(claim.site.clone(), claim);
            }
        }
        self.shared.claims_there.notify_one();
        true
    }

    /// Says from now on that this hub is there, with this record; `None` ends it. The record is gone
    /// [`LEASE_SECONDS`] after the hub has ended or cannot reach etcd.
    pub fn set_lease(&self, hub: Option<HubLease>) {
        *lock(&self.shared.lease) = hub;
        self.shared.lease_there.notify_one();
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.jobs = None;
        self.shared.stop.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
