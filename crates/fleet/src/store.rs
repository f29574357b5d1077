//! Following etcd, and writing to it: a thread per hub.
//!
//! The thread follows one endpoint at a time: of those that it asks side by side, the first that answers. Writes go to one
//! endpoint, and to the next one when that fails or answers too late. Everything that the thread decides is in
//! [`crate::copy`] and [`crate::plan`].
//!
//! Invariant: reads come from the copy, and never wait for etcd. A write ends by its deadline. One that etcd has not
//! confirmed is an error that says so. A thread that panics is started again after a pause, counts that, and says so in
//! [`Status::etcd`] meanwhile.

mod follow;
/// What commands need too.
pub(crate) mod follow_parts {
    pub(crate) use super::follow::{Header, Left, PAGE, answer, read_all};
}
mod write;

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime};

use anyhow::Context;
use etcd_client::{Certificate, Client, ConnectOptions, Identity, TlsOptions};
use ropewalk_config::values::parse_name;
use ropewalk_host::files;
use ropewalk_transport::PublicKey;
use ropewalk_types::Pace;
use tokio::sync::{Notify, Semaphore, mpsc, watch};

use crate::copy::{Change, Copy, Foreign};
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
/// Time before the file is written again that could not be written. Shorter ones notice sooner that there is room.
const SAVE_RETRY: Duration = Duration::from_secs(10);
/// Patience with the disk, and with etcd, when the fleet is closed.
const CLOSING: Duration = Duration::from_secs(3);
/// Most writes that wait or run. Further ones are refused at once. Each takes some 1 kB.
pub const WRITES_WAIT_MAX: usize = 4096;
/// Most writes that run at a time. More are quicker, fewer leave etcd to others.
const WRITES_MAX: usize = 64;
/// Longest patience with a write.
pub const PATIENCE_MAX: Duration = Duration::from_secs(3600);
/// How much later than its deadline a write's answer may come before the thread counts as stuck.
const STUCK: Duration = Duration::from_secs(2);
/// Largest file of a copy that is read, bytes: some four times what 100,000 sites need.
const FILE_BYTES_MAX: u64 = 1 << 29;
/// Life of a hub's lease without a sign of life, seconds. Shorter ones say sooner that a hub is gone, longer ones
/// outlast an election of etcd. Sites do not wait for it.
pub const LEASE_SECONDS: i64 = 10;
/// Pause after a panic of the thread, and the longest one: each in a row doubles it. Longer: fewer lines about a fault that
/// comes again at once, and later news where it does not.
const RESTART: Duration = Duration::from_secs(1);
const RESTART_MAX: Duration = Duration::from_secs(60);
/// How often the thread looks meanwhile for writes, and whether the fleet was closed. Longer: less work, later answers.
const RESTING: Duration = Duration::from_millis(20);
/// What goes wrong again and again causes a line in the log once in this time on average. Longer: a shorter log.
const LINE_INTERVAL: Duration = Duration::from_secs(60);
/// And this often in a row.
const LINES: u32 = 5;
/// Most claims that wait for etcd: one of each site of the largest cell.
pub const CLAIMS_MAX: usize = 1 << 17;

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
    /// Whether the copy is read from its file only, and never written there. For commands beside a running hub: what they
    /// know may be older than what the hub has written meanwhile.
    pub read_only: bool,
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

    /// What is wrong with these options.
    ///
    /// # Errors
    /// In words, without a password.
    pub fn check(&self) -> anyhow::Result<()> {
        // A slash would put the fleet below another one, which would follow its records.
        parse_name(&self.fleet).map_err(anyhow::Error::msg)?;
        anyhow::ensure!(
            !self.endpoints.is_empty(),
            "no endpoint of etcd; give one at least"
        );
        for endpoint in &self.endpoints {
            anyhow::ensure!(
                !endpoint.contains('@'),
                "an endpoint of etcd has a user or a password in it; give both as the login"
            );
            let (secure, plain) = (
                endpoint.starts_with("https://"),
                endpoint.starts_with("http://"),
            );
            anyhow::ensure!(
                secure || plain,
                "{endpoint} is no endpoint of etcd; write https://ADDRESS:2379"
            );
            anyhow::ensure!(
                secure == self.tls.is_some(),
                "{endpoint}: certificates and https:// go together; give both, or none on a private network"
            );
        }
        Ok(())
    }

    /// The endpoint with this number, counted round.
    pub(crate) fn endpoint(&self, number: usize) -> &str {
        &self.endpoints[number % self.endpoints.len()]
    }

    /// Connects to the endpoint with this number, counted round.
    pub(crate) async fn connect(&self, number: usize) -> Result<Client, follow::Left> {
        let endpoint = self.endpoint(number);
        let mut options = ConnectOptions::new()
            .with_connect_timeout(ANSWER)
            .with_keep_alive(ANSWER, ANSWER)
            .with_keep_alive_while_idle(true)
            .with_require_leader(true)
            .with_auto_token_refresh(true);
        if let Some(tls) = &self.tls {
            let wrong = |error: anyhow::Error| follow::Left::Failed(format!("{error:#}"));
            let read = |path: &PathBuf| {
                let read = std::fs::read(path);
                read.with_context(|| format!("cannot read {}", path.display()))
                    .map_err(wrong)
            };
            let mut made =
                TlsOptions::new().ca_certificate(Certificate::from_pem(read(&tls.authority)?));
            if let Some((certificate, key)) = &tls.own {
                let key = files::read_secret(key, "a private key").map_err(wrong)?;
                made = made.identity(Identity::from_pem(read(certificate)?, key.as_bytes()));
            }
            options = options.with_tls(made);
        }
        if let Some(login) = &self.login {
            options = options.with_user(login.user.clone(), login.password.as_str());
        }
        follow::answer(Client::connect([endpoint], Some(options))).await
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
    /// It refuses the user of this hub, or what the role of the user may not do.
    Denied {
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
    /// The thread has ended: nothing is followed or written. It was closed, or has panicked and begins again soon.
    Ended {
        /// Since when.
        since: u64,
        /// Why.
        why: String,
    },
}

impl EtcdState {
    /// Since when it is not there.
    const fn since(&self) -> Option<u64> {
        match self {
            Self::There => None,
            Self::Away { since, .. }
            | Self::Denied { since, .. }
            | Self::Foreign { since, .. }
            | Self::Ended { since, .. } => Some(*since),
        }
    }
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
    /// Writes that wait or run, at most [`WRITES_WAIT_MAX`].
    pub writes: usize,
    /// How often the copy's file could not be written.
    pub file_failures: u64,
    /// Why the file on the disk is older than the copy, if the last attempt to write it failed.
    pub file_problem: Option<String>,
    /// How often the thread has panicked.
    pub panics: u64,
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
    /// Etcd answers, and refuses: the user has no right to the prefix, or etcd has no room.
    #[error(
        "etcd refuses the write ({why}): {}. {}",
        if *.maybe { "an earlier attempt may have made the change" } else { "nothing was changed" },
        remedy(.why)
    )]
    Denied {
        /// What etcd said.
        why: String,
        /// Whether etcd may have made the change at an earlier attempt.
        maybe: bool,
    },
    /// Too many writes wait.
    #[error(
        "{WRITES_WAIT_MAX} writes wait for etcd: nothing was changed. Repeat the command later"
    )]
    Busy,
    /// The thread has ended, or does not answer.
    #[error(
        "the thread that writes to etcd has ended or is stuck ({why}): the change may have been made or not. \
         Restart the hub"
    )]
    Ended {
        /// Why, as far as it is known.
        why: String,
    },
}

/// What to do where etcd refuses.
pub(crate) fn remedy(why: &str) -> &'static str {
    if why.contains("space exceeded") {
        "Make room in etcd"
    } else {
        "Check user and password_file in [fleet], and the role of the user in etcd"
    }
}

/// Why a claim does not wait for etcd.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unqueued {
    /// The signature is wrong.
    #[error("the site has not signed this claim")]
    Forged,
    /// Too many wait.
    #[error("{CLAIMS_MAX} claims wait for etcd")]
    Full,
    /// One of the same or of a higher epoch waits.
    #[error("a claim as new waits already")]
    Older,
}

/// What lines in the log are about.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Topic {
    Etcd,
    Lease,
    Records,
}

/// Lines about one topic.
#[derive(Debug, Default)]
struct Lines {
    pace: Pace,
    /// Whether the last line said that something is wrong.
    told: bool,
}

/// What the thread and its users share.
pub(crate) struct Shared {
    pub options: Options,
    copy: RwLock<Copy>,
    etcd: Mutex<EtcdState>,
    /// How old the copy was at that time.
    age: Mutex<Option<(Duration, Instant)>>,
    /// Revision of the copy, for writes that wait until the copy has them.
    revision: watch::Sender<i64>,
    claims: Mutex<BTreeMap<String, Claim>>,
    lease: Mutex<Option<HubLease>>,
    lease_problem: Mutex<Option<String>>,
    file: Mutex<(u64, Option<String>)>,
    /// Slots that writes under way ask for.
    slots: Mutex<BTreeSet<u32>>,
    writes: AtomicUsize,
    panics: AtomicU64,
    begun: Instant,
    lines: Mutex<[Lines; 3]>,
    permits: Semaphore,
    line: tokio::sync::Mutex<write::Line>,
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

/// A number by chance, and no secret: it keeps hubs apart that ask for a slot at once, and fleets that were made anew.
pub(crate) fn draw() -> u64 {
    let mut bytes = [0; 8];
    let _ = ropewalk_crypto::rand::fill(&mut bytes);
    u64::from_le_bytes(bytes)
}

/// A time by both clocks: one for the file, one for ages.
#[derive(Clone, Copy, Debug)]
struct Moment {
    seconds: u64,
    instant: Instant,
}

impl Moment {
    fn now() -> Self {
        Self {
            seconds: now(),
            instant: Instant::now(),
        }
    }
}

impl Shared {
    fn new(options: Options, copy: Copy) -> Self {
        let etcd = EtcdState::Away {
            since: now(),
            why: "not yet connected".to_owned(),
        };
        let complete_at = copy.complete_at();
        let age = Duration::from_secs(now().saturating_sub(complete_at));
        Self {
            options,
            age: Mutex::new((complete_at > 0).then(|| (age, Instant::now()))),
            revision: watch::Sender::new(copy.revision()),
            copy: RwLock::new(copy),
            etcd: Mutex::new(etcd),
            claims: Mutex::default(),
            lease: Mutex::default(),
            lease_problem: Mutex::default(),
            file: Mutex::default(),
            slots: Mutex::default(),
            writes: AtomicUsize::new(0),
            panics: AtomicU64::new(0),
            begun: Instant::now(),
            lines: Mutex::default(),
            permits: Semaphore::new(WRITES_MAX),
            line: tokio::sync::Mutex::default(),
            claims_there: Notify::new(),
            lease_there: Notify::new(),
            stop: Notify::new(),
        }
    }

    fn read<T>(&self, read: impl FnOnce(&Copy) -> T) -> T {
        read(&self.copy.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn change<T>(&self, change: impl FnOnce(&mut Copy) -> T) -> T {
        change(&mut self.copy.write().unwrap_or_else(PoisonError::into_inner))
    }

    /// Notes that the copy was the newest state at `at`.
    fn was_complete(&self, at: Moment) {
        self.change(|copy| copy.was_complete(at.seconds));
        *lock(&self.age) = Some((Duration::ZERO, at.instant));
    }

    /// Tells writes how far the copy has come.
    fn has_moved(&self) {
        self.revision.send_replace(self.read(Copy::revision));
    }

    fn follows(&self) -> bool {
        *lock(&self.etcd) == EtcdState::There
    }

    /// Whether a line may say now that something is wrong.
    fn may_tell(&self, topic: Topic) -> bool {
        let now = ropewalk_types::Instant::ZERO + self.begun.elapsed();
        let lines = &mut lock(&self.lines)[topic as usize];
        let allowed = lines.pace.allows(now, LINE_INTERVAL, LINES);
        lines.told |= allowed;
        allowed
    }

    /// Whether the last line said that something is wrong, which is right again.
    fn has_told(&self, topic: Topic) -> bool {
        std::mem::take(&mut lock(&self.lines)[topic as usize].told)
    }

    /// Says what is wrong with records that have changed.
    fn tell_faults(&self, changes: &[Change]) {
        let faults: Vec<_> = self.read(|copy| {
            let fault = |change: &Change| Some((change.key.clone(), copy.fault(&change.key)?));
            changes.iter().filter_map(fault).collect()
        });
        if let Some((key, why)) = faults.first()
            && self.may_tell(Topic::Records)
        {
            tracing::error!(
                key,
                why,
                count = faults.len(),
                "records in etcd are not believed; this hub goes by what they said before, if it could read that"
            );
        }
    }

    fn is_there(&self) {
        *lock(&self.etcd) = EtcdState::There;
        if self.has_told(Topic::Etcd) {
            tracing::info!("etcd is there: the copy of the fleet's state follows");
        }
    }

    /// Notes that there is nothing to follow. The time is that of the beginning, whatever has come in between.
    fn misses(&self, make: impl FnOnce(u64) -> EtcdState) {
        let mut etcd = lock(&self.etcd);
        let state = make(etcd.since().unwrap_or_else(now));
        let is_news = std::mem::discriminant(&*etcd) != std::mem::discriminant(&state)
            || !lock(&self.lines)[Topic::Etcd as usize].told;
        *etcd = state.clone();
        drop(etcd);
        if !is_news || !self.may_tell(Topic::Etcd) {
            return;
        }
        match state {
            EtcdState::There => {}
            EtcdState::Away { why, .. } => tracing::warn!(
                why,
                "etcd is away: known sites go on; invitations and revocations fail until it is back"
            ),
            EtcdState::Denied { why, .. } => tracing::error!(
                why,
                "etcd refuses the user of this hub or the role of the user: known sites go on; check user and \
                 password_file in [fleet], and the role in etcd"
            ),
            EtcdState::Foreign { why, .. } => {
                tracing::error!(why, "the copy of the fleet's state is kept as it is");
            }
            EtcdState::Ended { why, .. } => {
                tracing::error!(why, "nobody follows etcd now: known sites go on");
            }
        }
    }

    fn has_ended(&self, why: String) {
        self.misses(|since| EtcdState::Ended { since, why });
    }

    fn is_away(&self, why: String) {
        self.misses(|since| EtcdState::Away { since, why });
    }

    fn is_denied(&self, why: String) {
        self.misses(|since| EtcdState::Denied { since, why });
    }

    /// Why there is nothing to follow, and what to do. Who has a copy needs no new fleet.
    fn in_words(&self, foreign: &Foreign) -> String {
        let instead = match foreign {
            Foreign::Missing => {
                self.read(|copy| copy.instead(&self.options.fleet, &self.options.file))
            }
            Foreign::Remade(_) => {
                let file = self.options.file.display();
                Some(format!(
                    "{foreign}: write it back with `ropewalk fleet restore --force {file}`, which removes the sites of the new fleet; if nobody needs those of \
                     the copy, stop the \
                     hub, move the file away and start the hub"
                ))
            }
            Foreign::Other(_) | Foreign::Unreadable(_) | Foreign::TooLarge | Foreign::Restoring => {
                None
            }
        };
        instead.unwrap_or_else(|| foreign.to_string())
    }

    fn is_foreign(&self, why: String) {
        self.misses(|since| EtcdState::Foreign { since, why });
    }
}

/// A write on its way.
pub(crate) struct Job {
    request: Request,
    begun: Instant,
    deadline: Instant,
    reply: Reply,
}

/// Where an answer goes. One that nobody gives says that the thread has ended.
struct Reply {
    to: std::sync::mpsc::Sender<Result<Done, WriteError>>,
    given: bool,
    /// The place among the writes that wait.
    shared: Arc<Shared>,
}

impl Reply {
    fn give(mut self, answer: Result<Done, WriteError>) {
        self.given = true;
        self.shared.writes.fetch_sub(1, Ordering::Relaxed);
        // Whoever asked may have gone.
        let _ = self.to.send(answer);
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if !self.given {
            self.shared.writes.fetch_sub(1, Ordering::Relaxed);
            let why = match &*lock(&self.shared.etcd) {
                EtcdState::Ended { why, .. } => why.clone(),
                EtcdState::There
                | EtcdState::Away { .. }
                | EtcdState::Denied { .. }
                | EtcdState::Foreign { .. } => "it ended while it had this write".to_owned(),
            };
            let _ = self.to.send(Err(WriteError::Ended { why }));
        }
    }
}

/// What is told after each change of the copy.
pub type Tell = Box<dyn Fn(&[Change]) + Send>;

/// The thread. Whatever ends it, the owner is told. After a panic it begins again: the hub serves its sites meanwhile, and
/// ending the hub would cut all tunnels.
fn run(
    runtime: tokio::runtime::Runtime,
    shared: &Arc<Shared>,
    tell: &Tell,
    mut jobs: mpsc::UnboundedReceiver<Job>,
) {
    let (mut made, mut pause, mut again) = (Some(runtime), RESTART, false);
    loop {
        let begun = Instant::now();
        let runtime = made.take().map_or_else(new_runtime, Ok);
        let why = match runtime {
            Ok(runtime) => {
                let both = async {
                    tokio::join!(
                        follow::follow(shared, tell, again),
                        write::serve(shared, &mut jobs)
                    );
                };
                let lived = catch_unwind(AssertUnwindSafe(|| runtime.block_on(both)));
                // A name that is being looked up, or a disk that hangs, keeps nobody waiting.
                runtime.shutdown_timeout(Duration::ZERO);
                match lived {
                    Ok(()) => break,
                    Err(panic) => {
                        shared.panics.fetch_add(1, Ordering::Relaxed);
                        let text = panic.downcast_ref::<String>().map(String::as_str);
                        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
                        format!("it has panicked: {}", text.unwrap_or("without words"))
                    }
                }
            }
            Err(error) => format!("it cannot begin: {error}"),
        };
        if begun.elapsed() > RESTART_MAX {
            pause = RESTART;
        }
        let seconds = pause.as_secs();
        shared.has_ended(format!(
            "the thread that follows etcd begins again after {seconds} s; {why}"
        ));
        // The connection of writes was one of the runtime that is gone.
        if let Ok(mut line) = shared.line.try_lock() {
            *line = write::Line::default();
        }
        if !rest(&mut jobs, pause) {
            break;
        }
        (pause, again) = ((2 * pause).min(RESTART_MAX), true);
    }
    let why = "the fleet was closed".to_owned();
    *lock(&shared.etcd) = EtcdState::Ended { since: now(), why };
}

fn new_runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
}

/// Waits so long, and answers writes meanwhile. `false` when the fleet is closed.
fn rest(jobs: &mut mpsc::UnboundedReceiver<Job>, pause: Duration) -> bool {
    let end = Instant::now() + pause;
    while Instant::now() < end {
        match jobs.try_recv() {
            // Its answer says that nobody writes now.
            Ok(job) => drop(job),
            Err(mpsc::error::TryRecvError::Empty) => std::thread::sleep(RESTING),
            Err(mpsc::error::TryRecvError::Disconnected) => return false,
        }
    }
    true
}

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
    /// that thread after each change, and must not take long or call this fleet's [`Self::write`]: it may wake the loop
    /// of a gateway.
    ///
    /// # Errors
    /// The options are wrong ([`Options::check`]), the directory of the file cannot be made, or the thread cannot be
    /// started. A damaged file is no error: the copy is filled from etcd.
    pub fn open(options: Options, tell: Tell) -> anyhow::Result<Self> {
        options.check()?;
        if options.login.is_some() && options.tls.is_none() {
            tracing::warn!("the password for etcd is not encrypted: give certificates");
        }
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
        let own = copy.meta().is_some_and(|meta| meta.fleet == options.key);
        let copy = if own { copy } else { Copy::default() };
        let shared = Arc::new(Shared::new(options, copy));
        let (jobs, receiver) = mpsc::unbounded_channel();
        let runtime = new_runtime()?;
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("fleet".to_owned());
        let thread = thread.spawn(move || run(runtime, &of_thread, &tell, receiver));
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
        let (revision, unreadable) = self.read(|copy| (copy.revision(), copy.unreadable().count()));
        let age = lock(&self.shared.age).map(|(age, since)| age + since.elapsed());
        let (file_failures, file_problem) = lock(&self.shared.file).clone();
        Status {
            etcd: lock(&self.shared.etcd).clone(),
            revision,
            age,
            writes: self.shared.writes.load(Ordering::Relaxed),
            panics: self.shared.panics.load(Ordering::Relaxed),
            file_failures,
            file_problem,
            claims_waiting: lock(&self.shared.claims).len(),
            lease_problem: lock(&self.shared.lease_problem).clone(),
            unreadable,
        }
    }

    /// Begins a write. The receiver gets exactly one answer, by the end of `patience` ([`PATIENCE_MAX`] at most) from
    /// now, however many writes wait. On success the copy has the change already, unless the hub follows etcd more than
    /// a second behind.
    #[must_use]
    pub fn begin(
        &self,
        request: Request,
        patience: Duration,
    ) -> std::sync::mpsc::Receiver<Result<Done, WriteError>> {
        let (to, answer) = std::sync::mpsc::channel();
        let waiting = self.shared.writes.fetch_add(1, Ordering::Relaxed);
        let shared = Arc::clone(&self.shared);
        let reply = Reply {
            to,
            given: false,
            shared,
        };
        if waiting >= WRITES_WAIT_MAX {
            reply.give(Err(WriteError::Busy));
            return answer;
        }
        let begun = Instant::now();
        let job = Job {
            request,
            begun,
            deadline: begun + patience.min(PATIENCE_MAX),
            reply,
        };
        if let Some(jobs) = &self.jobs {
            // A thread that has ended drops the job, and so says that it has.
            let _ = jobs.send(job);
        }
        answer
    }

    /// Writes, and waits no longer than `patience`, as [`Self::begin`] does.
    ///
    /// # Errors
    /// Refused by the state of the fleet or by etcd, or not confirmed in time.
    pub fn write(&self, request: Request, patience: Duration) -> Result<Done, WriteError> {
        let answer = self.begin(request, patience);
        let answer = answer.recv_timeout(patience.min(PATIENCE_MAX) + STUCK);
        answer.unwrap_or_else(|_| {
            let why = "no answer by the deadline".to_owned();
            Err(WriteError::Ended { why })
        })
    }

    /// Writes the claim as soon as etcd answers. A claim with a higher epoch, or of another key of the site, takes the
    /// place of one of the same site that waits. Claims that wait are lost when the hub ends. They are for those that look: no site depends on this
    /// record. Checks a signature: some 50 µs.
    ///
    /// # Errors
    /// The claim does not wait. [`Unqueued::Older`] needs no answer.
    pub fn queue_claim(&self, claim: Claim) -> Result<(), Unqueued> {
        if !claim.is_genuine() {
            return Err(Unqueued::Forged);
        }
        let mut claims = lock(&self.shared.claims);
        let full = claims.len() >= CLAIMS_MAX;
        match claims.get_mut(&claim.site) {
            Some(former) if former.key == claim.key && former.epoch >= claim.epoch => {
                return Err(Unqueued::Older);
            }
            Some(former) => *former = claim,
            None if full => return Err(Unqueued::Full),
            None => {
                claims.insert(claim.site.clone(), claim);
            }
        }
        drop(claims);
        self.shared.claims_there.notify_one();
        Ok(())
    }

    /// Says from now on that this hub is there, with this record; `None` ends it, and so does the end of this value. The
    /// record is gone [`LEASE_SECONDS`] after the hub was killed or cannot reach etcd. Changes are written once a second
    /// at most. [`Status::lease_problem`] says why the record is not there.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn shared() -> Shared {
        let options = Options {
            fleet: "test".to_owned(),
            key: PublicKey::from_bytes([1; 32]),
            endpoints: Vec::new(),
            tls: None,
            login: None,
            file: PathBuf::new(),
            read_only: true,
        };
        Shared::new(options, Copy::default())
    }

    #[test]
    fn trouble_with_etcd_has_begun_when_it_began_whatever_kind_it_is_now() {
        let shared = shared();
        let why = || "no answer".to_owned();
        let since = || lock(&shared.etcd).since();
        *lock(&shared.etcd) = EtcdState::Away {
            since: 5,
            why: why(),
        };
        for _ in 0..3 {
            shared.is_foreign(why());
            assert_eq!(since(), Some(5));
            shared.is_away(why());
            assert_eq!(since(), Some(5));
        }
        shared.has_ended(why());
        assert_eq!(since(), Some(5));
        shared.is_there();
        assert_eq!(since(), None);
        shared.is_away(why());
        assert!(since() > Some(5));
    }

    #[test]
    fn what_fails_and_recovers_all_the_time_fills_no_log() {
        let shared = shared();
        let lines = (0..1_000).filter(|_| {
            let told = shared.may_tell(Topic::Lease);
            assert_eq!(
                told,
                shared.has_told(Topic::Lease),
                "only what was told ends"
            );
            told
        });
        assert_eq!(lines.count(), LINES as usize);
        assert!(shared.may_tell(Topic::Etcd), "another topic");
    }
}
