//! Following etcd: filling the copy, the watch, the comparison, and the copy's file.
//!
//! Invariant: after each connection the copy is filled before the watch goes on, because etcd may have been set back
//! meanwhile: the same cluster and the same revision, with other contents. What is read page by page, and the watch
//! behind it, are of one history: the leader's term is the same in all answers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use etcd_client::{
    Client, EventType, GetOptions, ResponseHeader, WatchOptions, WatchResponse, WatchStream,
};
use ropewalk_host::files;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};

use super::{ANSWER, CLOSING, COMPARE, Moment, RETRY, SAVE_PAUSE, SAVE_RETRY, Shared, Tell, lock};
use crate::copy::{BYTES_MAX, Change, Copy, Event, Foreign, Stored};
use crate::record::META;

/// Most records of one answer while the copy is filled. More are fewer questions, fewer keep an answer small. After a
/// failure half of them are asked for.
pub(crate) const PAGE: i64 = 512;
/// Largest answer of etcd that is read, bytes: a page of the largest records. The client's own bound is 4 MB.
const ANSWER_BYTES_MAX: usize = 1 << 26;
/// A watch that does not come to the revision of etcd for so long is given up, and the copy is filled. Longer ones
/// spare a busy etcd, shorter ones find a watch that hangs sooner.
const LAG: Duration = Duration::from_secs(10);

/// Why the present endpoint is left.
#[derive(Debug)]
pub(crate) enum Left {
    /// No answer, or one that another attempt may change.
    Failed(String),
    /// An answer that is more than the client reads, or that etcd has no more.
    Range(String),
    /// Etcd refuses, as every member would.
    Denied(String),
    /// Etcd refuses the token of this connection. Another connection gets another one.
    Token(String),
    /// The state is none of this fleet's.
    Foreign(Foreign),
}

impl std::fmt::Display for Left {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Failed(why) | Self::Range(why) | Self::Denied(why) | Self::Token(why) => {
                f.write_str(why)
            }
            Self::Foreign(foreign) => foreign.fmt(f),
        }
    }
}

impl From<etcd_client::Error> for Left {
    fn from(error: etcd_client::Error) -> Self {
        // Codes of gRPC.
        const INVALID_ARGUMENT: i32 = 3;
        const PERMISSION_DENIED: i32 = 7;
        const RESOURCE_EXHAUSTED: i32 = 8;
        const FAILED_PRECONDITION: i32 = 9;
        const OUT_OF_RANGE: i32 = 11;
        const UNAUTHENTICATED: i32 = 16;
        let etcd_client::Error::GRpcStatus(status) = &error else {
            return Self::Failed(with_sources(&error));
        };
        let said = status.message();
        let why = if said.is_empty() {
            with_sources(&error)
        } else {
            let source = std::error::Error::source(status).map(with_sources);
            let source = source.filter(|source| !said.contains(source.as_str()));
            source.map_or_else(|| said.to_owned(), |source| format!("{said}: {source}"))
        };
        match i32::from(status.code()) {
            OUT_OF_RANGE => Self::Range(why),
            PERMISSION_DENIED => Self::Denied(why),
            INVALID_ARGUMENT
                if ["authentication failed", "user name is empty"]
                    .iter()
                    .any(|refused| said.contains(refused)) =>
            {
                Self::Denied(why)
            }
            FAILED_PRECONDITION
                if ["authentication is not enabled", "user name not found"]
                    .iter()
                    .any(|refused| said.contains(refused)) =>
            {
                Self::Denied(why)
            }
            UNAUTHENTICATED => Self::Token(why),
            RESOURCE_EXHAUSTED if said.contains("space exceeded") => Self::Denied(why),
            _ => Self::Failed(why),
        }
    }
}

/// An error with what lies below it, which says more in this client: a certificate that is not trusted.
fn with_sources(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = match error.downcast_ref::<etcd_client::Error>() {
        Some(etcd_client::Error::TransportError(inner)) => return with_sources(inner),
        Some(_) | None => error.to_string(),
    };
    let mut below = error.source();
    while let Some(source) = below {
        let more = source.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        below = source.source();
    }
    text
}

impl From<Foreign> for Left {
    fn from(foreign: Foreign) -> Self {
        Self::Foreign(foreign)
    }
}

/// Waits for an answer of etcd for [`ANSWER`].
pub(crate) async fn answer<T>(
    question: impl Future<Output = Result<T, etcd_client::Error>>,
) -> Result<T, Left> {
    match timeout(ANSWER, question).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(Left::Failed(format!(
            "no answer within {} s",
            ANSWER.as_secs()
        ))),
    }
}

/// Who answers, and from which state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub cluster: u64,
    /// Of the leader. Another one may be of a state that was set back.
    pub term: u64,
    pub revision: i64,
}

impl Header {
    fn of(header: Option<&ResponseHeader>) -> Result<Self, Left> {
        let header = header.ok_or_else(|| Left::Failed("an answer without a header".to_owned()))?;
        Ok(Self {
            cluster: header.cluster_id(),
            term: header.raft_term(),
            revision: header.revision(),
        })
    }

    /// Whether an answer is of the same history as this one.
    fn same(self, other: Self) -> Result<(), Left> {
        if (self.cluster, self.term) == (other.cluster, other.term) {
            return Ok(());
        }
        Err(Left::Failed(
            "etcd has another leader or is another cluster since the copy was filled".to_owned(),
        ))
    }
}

/// What following remembers between two endpoints.
struct Follower<'a> {
    shared: &'a Arc<Shared>,
    tell: &'a Tell,
    /// Whether all records are to be told as changed.
    again: bool,
    /// Records of one answer.
    page: i64,
    saved: Saved,
}

/// The copy's file.
struct Saved {
    /// What it has.
    revision: i64,
    /// When it may be written again.
    next: Instant,
    writing: Option<JoinHandle<(i64, std::io::Result<()>)>>,
}

/// Follows etcd until the fleet is closed. When it begins `again`, all records are told as changed at first: what a panic has
/// left untold is not known.
pub(super) async fn follow(shared: &Arc<Shared>, tell: &Tell, again: bool) {
    let mut follower = Follower::new(shared, tell, again);
    tokio::select! {
        () = follower.run() => {}
        () = shared.stop.notified() => {}
    }
    follower.saved.close(shared).await;
}

impl<'a> Follower<'a> {
    fn new(shared: &'a Arc<Shared>, tell: &'a Tell, again: bool) -> Self {
        Self {
            shared,
            tell,
            again,
            page: PAGE,
            saved: Saved {
                revision: shared.read(Copy::revision),
                next: Instant::now(),
                writing: None,
            },
        }
    }

    async fn run(&mut self) {
        let mut number = 0;
        loop {
            let client;
            (number, client) = self.reach(number).await;
            let Err(left) = self.visit(client).await;
            let foreign = matches!(left, Left::Foreign(_));
            self.fails(number, left).await;
            if foreign {
                sleep(COMPARE).await;
            }
            number += 1;
            sleep(RETRY).await;
        }
    }

    /// Notes why an endpoint cannot be followed.
    async fn fails(&mut self, number: usize, left: Left) {
        match left {
            Left::Foreign(foreign) => self.shared.is_foreign(self.shared.in_words(&foreign)),
            Left::Denied(why) => {
                let endpoint = self.shared.options.endpoint(number);
                self.shared.is_denied(format!("{endpoint}: {why}"));
            }
            // A new connection brings a new token.
            Left::Failed(why) | Left::Range(why) | Left::Token(why) => {
                let endpoint = self.shared.options.endpoint(number);
                self.shared.is_away(format!("{endpoint}: {why}"));
            }
        }
        self.saved.save(self.shared).await;
    }

    /// The first endpoint that answers for a majority of etcd, from this one on. An endpoint that says nothing keeps nobody
    /// waiting: every [`RETRY`] the next one is asked beside it.
    async fn reach(&mut self, number: usize) -> (usize, Client) {
        let question = |shared: Arc<Shared>, turn| async move { ask(&shared, turn).await };
        self.first_answer(number, question).await
    }

    /// The same, with any question.
    async fn first_answer<T: Send + 'static, Q>(
        &mut self,
        mut number: usize,
        question: impl Fn(Arc<Shared>, usize) -> Q,
    ) -> (usize, T)
    where
        Q: Future<Output = Result<T, Left>> + Send + 'static,
    {
        let endpoints = self.shared.options.endpoints.len();
        let mut asked = JoinSet::new();
        // One question at a time for each endpoint.
        let mut busy = BTreeSet::new();
        let mut turns = tokio::time::interval(RETRY);
        turns.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = turns.tick(), if busy.len() < endpoints => {
                    while !busy.insert(number % endpoints) {
                        number += 1;
                    }
                    let turn = number;
                    let answer = question(Arc::clone(self.shared), turn);
                    asked.spawn(async move { (turn, answer.await) });
                    number += 1;
                }
                Some(answer) = asked.join_next() => match answer {
                    Ok((turn, Ok(answer))) => return (turn, answer),
                    Ok((turn, Err(left))) => {
                        busy.remove(&(turn % endpoints));
                        self.fails(turn, left).await;
                    }
                    // Counted where this thread begins again.
                    Err(error) if error.is_panic() => {
                        std::panic::resume_unwind(error.into_panic())
                    }
                    Err(_) => busy.clear(),
                }
            }
        }
    }

    /// Follows one endpoint until it fails.
    async fn visit(&mut self, mut client: Client) -> Result<std::convert::Infallible, Left> {
        loop {
            let filled = self.fill(&mut client).await?;
            // A burst that is too large for the watch, or is compacted, is read page by page.
            match self.watch(&mut client, filled).await {
                Err(Left::Range(why)) => tracing::info!(why, "the copy is filled anew"),
                Err(left) => return Err(left),
                Ok(never) => match never {},
            }
        }
    }

    async fn fill(&mut self, client: &mut Client) -> Result<Header, Left> {
        let asked = Moment::now();
        let read = read_all(client, &self.shared.options.prefix(), self.page).await;
        let failed = matches!(read, Err(Left::Failed(_) | Left::Range(_) | Left::Token(_)));
        self.page = if failed {
            (self.page / 2).max(1)
        } else {
            (self.page * 2).min(PAGE)
        };
        let (header, stored) = match read {
            // Another endpoint may have what this one has no more.
            Err(Left::Range(why)) => return Err(Left::Failed(why)),
            read => read?,
        };
        let options = &self.shared.options;
        let mut changes = self.shared.change(|copy| {
            let changes = copy.fill(&options.key, header.cluster, header.revision, stored)?;
            copy.is_of(&options.fleet);
            Ok::<_, Foreign>(changes)
        })?;
        self.shared.was_complete(asked);
        if self.again {
            let all = |copy: &Copy| copy.entries().keys().cloned().collect::<Vec<_>>();
            let all = self.shared.read(all).into_iter();
            changes.extend(all.map(|key| Change { key }));
        }
        self.say(&changes);
        self.again = false;
        Ok(header)
    }

    fn say(&self, changes: &[Change]) {
        self.shared.has_moved();
        self.shared.tell_faults(changes);
        if !changes.is_empty() {
            (self.tell)(changes);
        }
    }

    /// Watches from the copy's revision on. Ends with [`Left::Range`] when the copy has to be filled.
    async fn watch(
        &mut self,
        client: &mut Client,
        filled: Header,
    ) -> Result<std::convert::Infallible, Left> {
        let prefix = self.shared.options.prefix();
        // Without fragments: a revision in parts would be a mixture for those who read the copy meanwhile.
        let options = WatchOptions::new()
            .with_prefix()
            .with_start_revision(filled.revision + 1);
        let mut watcher = client
            .watch_client()
            .max_decoding_message_size(ANSWER_BYTES_MAX);
        let mut stream = answer(watcher.watch(prefix.clone(), Some(options))).await?;
        let mut ticks = tokio::time::interval(COMPARE);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let (mut wanted, mut created) = (None, false);
        loop {
            tokio::select! {
                message = stream.message() => {
                    let Some(response) = message? else {
                        return Err(Left::Failed("etcd has ended the watch".to_owned()));
                    };
                    if response.canceled() {
                        let why = format!("the watch ended: {}", response.cancel_reason());
                        return Err(if response.compact_revision() > 0 {
                            Left::Range(why)
                        } else {
                            Left::Failed(why)
                        });
                    }
                    let header = Header::of(response.header())?;
                    if response.created() {
                        filled.same(header)?;
                        created = true;
                    }
                    let key = &self.shared.options.key;
                    let changes =
                        self.shared.change(|copy| copy.apply(key, events(&response, &prefix)))?;
                    self.say(&changes);
                    self.complete(&mut wanted, &response);
                }
                // Before the watch is there it says nothing of what the copy lacks.
                _ = ticks.tick(), if created => {
                    self.compare(client, &mut stream, &mut wanted).await?;
                    self.saved.save(self.shared).await;
                }
                () = sleep(LAG), if !created => {
                    return Err(Left::Failed("etcd does not begin the watch".to_owned()));
                }
            }
        }
    }

    /// Asks for the revision of etcd. The copy is complete as of now if it has that one, or if the watch comes to it.
    async fn compare(
        &self,
        client: &mut Client,
        stream: &mut WatchStream,
        wanted: &mut Option<(Moment, i64)>,
    ) -> Result<(), Left> {
        let asked = Moment::now();
        let (cluster, revision) = self.shared.read(|copy| (copy.cluster(), copy.revision()));
        let key = format!("{}{META}", self.shared.options.prefix());
        // A majority answers.
        let options = GetOptions::new().with_count_only();
        let response = answer(client.get(key, Some(options))).await?;
        let header = Header::of(response.header())?;
        if cluster != header.cluster || header.revision < revision {
            return Err(Left::Failed(
                "etcd was set back, or another cluster answers".to_owned(),
            ));
        }
        self.shared.is_there();
        if header.revision == revision {
            self.shared.was_complete(asked);
            *wanted = None;
            return Ok(());
        }
        match wanted {
            Some((since, _)) if since.instant.elapsed() > LAG => {
                return Err(Left::Failed(format!(
                    "the watch is more than {} s behind",
                    LAG.as_secs()
                )));
            }
            Some(_) => {}
            None => *wanted = Some((asked, header.revision)),
        }
        answer(stream.request_progress()).await
    }

    /// Events of a watch may lag behind the header of their message, so those count by their own revision.
    fn complete(&self, wanted: &mut Option<(Moment, i64)>, response: &WatchResponse) {
        let Some((asked, revision)) = *wanted else {
            return;
        };
        let said = match response.events().last() {
            Some(_) => self.shared.read(Copy::revision),
            None if response.created() => 0,
            None => response.header().map_or(0, ResponseHeader::revision),
        };
        if said >= revision {
            self.shared.was_complete(asked);
            *wanted = None;
        }
    }
}

/// Connects to an endpoint, and asks for what only a majority of the members knows.
async fn ask(shared: &Shared, number: usize) -> Result<Client, Left> {
    let mut client = shared.options.connect(number).await?;
    let key = format!("{}{META}", shared.options.prefix());
    let options = GetOptions::new().with_count_only();
    answer(client.get(key, Some(options))).await?;
    Ok(client)
}

/// Everything below the prefix of the fleet at one revision, `page` records an answer.
///
/// # Errors
/// No answer; [`Left::Range`] if an answer is too large or the revision was compacted; [`Foreign::TooLarge`].
pub(crate) async fn read_all(
    client: &mut Client,
    prefix: &str,
    page: i64,
) -> Result<(Header, BTreeMap<String, Stored>), Left> {
    // The end of the range is the prefix with its last byte, a slash, made one greater.
    let mut end = prefix.as_bytes().to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    let mut from = prefix.as_bytes().to_vec();
    let (mut first, mut entries, mut bytes) = (None, BTreeMap::new(), 0);
    let mut client = client
        .kv_client()
        .max_decoding_message_size(ANSWER_BYTES_MAX);
    loop {
        let mut options = GetOptions::new().with_range(end.clone()).with_limit(page);
        if let Some(Header { revision, .. }) = first {
            options = options.with_revision(revision);
        }
        let mut response = answer(client.get(from, Some(options))).await?;
        let header = Header::of(response.header())?;
        let first = first.get_or_insert(header);
        first.same(header)?;
        let more = response.more();
        let kvs = response.take_kvs();
        from = kvs
            .last()
            .map_or_else(Vec::new, |kv| [kv.key(), &[0]].concat());
        for kv in kvs {
            let revision = kv.mod_revision();
            let (key, value) = kv.into_key_value();
            bytes += key.len() + value.len();
            // Keys that are no text are nobody's of this schema.
            let Some(key) = std::str::from_utf8(&key).ok() else {
                continue;
            };
            let Some(key) = key.strip_prefix(prefix) else {
                continue;
            };
            entries.insert(key.to_owned(), Stored { value, revision });
        }
        if bytes > BYTES_MAX {
            return Err(Foreign::TooLarge.into());
        }
        if !more || from.is_empty() {
            return Ok((*first, entries));
        }
    }
}

fn events(response: &WatchResponse, prefix: &str) -> Vec<Event> {
    let event = |event: &etcd_client::Event| {
        let kv = event.kv()?;
        let key = kv.key_str().ok()?.strip_prefix(prefix)?.to_owned();
        let revision = kv.mod_revision();
        Some(match event.event_type() {
            EventType::Put => Event::Put {
                key,
                value: kv.value().to_vec(),
                revision,
            },
            EventType::Delete => Event::Delete { key, revision },
        })
    };
    response.events().iter().filter_map(event).collect()
}

impl Saved {
    /// Writes the copy's file on a thread of its own if there is something new, and not too often: a slow disk keeps
    /// neither writes nor leases waiting.
    async fn save(&mut self, shared: &Arc<Shared>) {
        if shared.options.read_only {
            return;
        }
        if self
            .writing
            .as_ref()
            .is_some_and(|task| !task.is_finished())
        {
            return;
        }
        self.written(shared).await;
        let (revision, empty) = shared.read(|copy| (copy.revision(), copy.entries().is_empty()));
        if !empty && revision != self.revision && Instant::now() >= self.next {
            self.begin(shared);
        }
    }

    fn begin(&mut self, shared: &Arc<Shared>) {
        let shared = Arc::clone(shared);
        self.writing = Some(tokio::task::spawn_blocking(move || {
            let (revision, text) = shared.read(|copy| (copy.revision(), copy.to_text()));
            let file = &shared.options.file;
            let written = files::write_atomically(file, text.as_bytes(), files::SECRET, true);
            (revision, written)
        }));
    }

    /// Waits for the file, and notes how it went.
    async fn written(&mut self, shared: &Shared) {
        let Some(task) = self.writing.take() else {
            return;
        };
        let problem = match task.await {
            Ok((revision, Ok(()))) => {
                self.revision = revision;
                None
            }
            Ok((_, Err(error))) => Some(error.to_string()),
            Err(error) => Some(error.to_string()),
        };
        let pause = if problem.is_some() {
            SAVE_RETRY
        } else {
            SAVE_PAUSE
        };
        self.next = Instant::now() + pause;
        let (failures, former) = &mut *lock(&shared.file);
        if let Some(error) = &problem {
            *failures += 1;
            if problem != *former {
                let file = shared.options.file.display();
                tracing::warn!(%file, error, "the copy of the fleet's state cannot be written; make room on the disk");
            }
        }
        *former = problem;
    }

    /// Writes the file a last time, with the time at which the copy was complete.
    async fn close(&mut self, shared: &Arc<Shared>) {
        if shared.options.read_only {
            return;
        }
        let last = async {
            self.written(shared).await;
            if !shared.read(|copy| copy.entries().is_empty()) {
                self.begin(shared);
                self.written(shared).await;
            }
        };
        if timeout(CLOSING, last).await.is_err() {
            let file = shared.options.file.display();
            tracing::warn!(%file, "the copy of the fleet's state was not written in time");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::super::{Options, new_runtime};
    use super::*;

    /// What comes of asking these endpoints, within 10 s.
    fn ask_by<Q>(endpoints: usize, question: fn(usize) -> Q) -> std::thread::Result<Option<usize>>
    where
        Q: Future<Output = Result<(), Left>> + Send + 'static,
    {
        let options = Options {
            fleet: "test".to_owned(),
            key: ropewalk_transport::PublicKey::from_bytes([1; 32]),
            endpoints: vec!["http://127.0.0.1:1".to_owned(); endpoints],
            tls: None,
            login: None,
            file: std::path::PathBuf::new(),
            read_only: true,
        };
        let shared = Arc::new(Shared::new(options, Copy::default()));
        let tell: Tell = Box::new(|_| {});
        let mut follower = Follower::new(&shared, &tell, false);
        let runtime = new_runtime().unwrap();
        let first = async {
            let first = follower.first_answer(0, |_, turn| question(turn));
            timeout(Duration::from_secs(10), first).await.ok()
        };
        let first = catch_unwind(AssertUnwindSafe(|| runtime.block_on(first)));
        first.map(|first| first.map(|(turn, ())| turn))
    }

    #[test]
    fn an_endpoint_that_says_nothing_keeps_nobody_waiting() {
        let second = ask_by(2, |turn| async move {
            if turn == 0 {
                std::future::pending::<()>().await;
            }
            Ok(())
        });
        assert_eq!(second.unwrap(), Some(1));
    }

    #[test]
    fn a_panic_of_a_question_ends_the_round_where_the_thread_counts_it() {
        let panic = ask_by(1, |_| async { panic!("a fault") }).unwrap_err();
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"a fault"));
    }
}
