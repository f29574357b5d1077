//! Following etcd: filling the copy, the watch, the comparison, and the copy's file.

use std::collections::BTreeMap;
use std::time::Instant;

use etcd_client::{Client, EventType, GetOptions, WatchOptions, WatchResponse, WatchStream};
use ropewalk_host::files;
use tokio::time::{sleep, timeout};

use super::{ANSWER, COMPARE, RETRY, SAVE_PAUSE, Shared, Tell, now};
use crate::copy::{Change, Copy, Entry, Event, Foreign};
use crate::record::META;

/// Records of one answer while the copy is filled. More are fewer questions, fewer keep an answer below the 4 MB that
/// the protocol takes.
const PAGE: i64 = 1000;

/// Why the present endpoint is left.
#[derive(Debug)]
pub(crate) enum Left {
    Failed(String),
    Foreign(Foreign),
}

impl From<etcd_client::Error> for Left {
    fn from(error: etcd_client::Error) -> Self {
        Self::Failed(error.to_string())
    }
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

/// The copy's file, and when it was written.
struct Saved {
    revision: i64,
    at: Instant,
}

/// Follows etcd until the fleet is closed.
pub(super) async fn follow(shared: &Shared, tell: Tell) {
    let mut saved = Saved {
        revision: shared.read(Copy::revision),
        at: Instant::now(),
    };
    let following = async {
        let mut number = 0;
        loop {
            match visit(shared, &tell, number, &mut saved).await {
                Left::Failed(why) => {
                    let endpoint =
                        &shared.options.endpoints[number % shared.options.endpoints.len()];
                    shared.is_away(format!("{endpoint}: {why}"));
                }
                Left::Foreign(foreign) => shared.is_foreign(foreign.to_string()),
            }
            save(shared, &mut saved);
            number += 1;
            sleep(RETRY).await;
        }
    };
    tokio::select! {
        () = following => {}
        () = shared.stop.notified() => {}
    }
    saved.revision = -1;
    save(shared, &mut saved);
}

/// Follows one endpoint until it fails.
async fn visit(shared: &Shared, tell: &Tell, number: usize, saved: &mut Saved) -> Left {
    let watching = async {
        let mut client = shared.options.connect(number).await?;
        // What a watch would say first is what made the state foreign.
        let mut full = matches!(*super::lock(&shared.etcd), super::EtcdState::Foreign { .. });
        loop {
            let asked = now();
            let meta = ask_meta(shared, &mut client).await?;
            // Another cluster, or one that was set back: what a watch would say is not what is missing.
            let (cluster, revision) = shared.read(|copy| (copy.cluster(), copy.revision()));
            if full || revision == 0 || cluster != meta.cluster || meta.revision < revision {
                fill(shared, tell, &mut client, asked).await?;
            }
            full = watch(shared, tell, &mut client, saved).await? == Ended::Compacted;
        }
    };
    let result: Result<std::convert::Infallible, Left> = watching.await;
    match result {
        Ok(never) => match never {},
        Err(left) => left,
    }
}

struct Header {
    cluster: u64,
    revision: i64,
}

/// Asks a majority of etcd for its revision.
async fn ask_meta(shared: &Shared, client: &mut Client) -> Result<Header, Left> {
    let key = format!("{}{META}", shared.options.prefix());
    let options = GetOptions::new().with_count_only();
    let response = answer(client.get(key, Some(options))).await?;
    let header = response
        .header()
        .ok_or_else(|| Left::Failed("no header".to_owned()))?;
    Ok(Header {
        cluster: header.cluster_id(),
        revision: header.revision(),
    })
}

/// Everything below the prefix of the fleet at one revision: cluster, revision and entries.
pub(crate) async fn read_all(
    client: &mut Client,
    prefix: &str,
) -> Result<(u64, i64, BTreeMap<String, Entry>), Left> {
    // The end of the range is the prefix with its last byte, a slash, made one greater.
    let mut end = prefix.as_bytes().to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    let mut from = prefix.as_bytes().to_vec();
    let (mut cluster, mut revision, mut entries) = (0, 0, BTreeMap::new());
    loop {
        let mut options = GetOptions::new().with_range(end.clone()).with_limit(PAGE);
        if revision > 0 {
            options = options.with_revision(revision);
        }
        let response = answer(client.get(from.clone(), Some(options))).await?;
        if revision == 0 {
            let header = response
                .header()
                .ok_or_else(|| Left::Failed("no header".to_owned()))?;
            (cluster, revision) = (header.cluster_id(), header.revision());
        }
        for kv in response.kvs() {
            // Keys that are no text are nobody's of this schema.
            let Some(key) = kv.key_str().ok().and_then(|key| key.strip_prefix(prefix)) else {
                continue;
            };
            entries.insert(
                key.to_owned(),
                Entry::new(key, kv.value().to_vec(), kv.mod_revision()),
            );
        }
        match response.kvs().last() {
            Some(last) if response.more() => from = [last.key(), &[0]].concat(),
            _ => return Ok((cluster, revision, entries)),
        }
    }
}

async fn fill(shared: &Shared, tell: &Tell, client: &mut Client, asked: u64) -> Result<(), Left> {
    let (cluster, revision, entries) = read_all(client, &shared.options.prefix()).await?;
    let changes = shared.change(|copy| {
        let changes = copy.fill(&shared.options.key, cluster, revision, entries)?;
        copy.was_complete(asked);
        Ok::<_, Foreign>(changes)
    })?;
    say(tell, &changes);
    Ok(())
}

fn say(tell: &Tell, changes: &[Change]) {
    if !changes.is_empty() {
        tell(changes);
    }
}

#[derive(PartialEq, Eq)]
enum Ended {
    Compacted,
    Otherwise,
}

/// Watches from the copy's revision on.
async fn watch(
    shared: &Shared,
    tell: &Tell,
    client: &mut Client,
    saved: &mut Saved,
) -> Result<Ended, Left> {
    let prefix = shared.options.prefix();
    let next = shared.read(Copy::revision) + 1;
    let options = WatchOptions::new().with_prefix().with_start_revision(next);
    let mut stream = answer(client.watch(prefix.clone(), Some(options))).await?;
    let mut ticks = tokio::time::interval(COMPARE);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut wanted = None;
    loop {
        tokio::select! {
            message = stream.message() => {
                let Some(response) = message? else { return Ok(Ended::Otherwise) };
                if response.canceled() {
                    if response.compact_revision() > 0 {
                        return Ok(Ended::Compacted);
                    }
                    return Err(Left::Failed(format!("the watch ended: {}", response.cancel_reason())));
                }
                let changes = shared.change(|copy| copy.apply(events(&response, &prefix)))?;
                say(tell, &changes);
                complete(shared, &mut wanted, &response);
            }
            _ = ticks.tick() => {
                compare(shared, client, &mut stream, &mut wanted).await?;
                save(shared, saved);
            }
        }
    }
}

/// Asks for the revision of etcd. The copy is complete as of now if it has that one, or if the watch comes to it.
async fn compare(
    shared: &Shared,
    client: &mut Client,
    stream: &mut WatchStream,
    wanted: &mut Option<(u64, i64)>,
) -> Result<(), Left> {
    let asked = now();
    let meta = ask_meta(shared, client).await?;
    let (cluster, revision) = shared.read(|copy| (copy.cluster(), copy.revision()));
    if cluster != meta.cluster {
        return Err(Left::Failed("another cluster of etcd answers".to_owned()));
    }
    shared.is_there();
    if meta.revision <= revision {
        shared.change(|copy| copy.was_complete(asked));
        return Ok(());
    }
    if wanted.is_none() {
        *wanted = Some((asked, meta.revision));
    }
    answer(stream.request_progress()).await
}

/// Events of a watch may lag behind the header of their message, so those count by their own revision.
fn complete(shared: &Shared, wanted: &mut Option<(u64, i64)>, response: &WatchResponse) {
    let Some((asked, revision)) = *wanted else {
        return;
    };
    let said = match response.events().last() {
        Some(_) => shared.read(Copy::revision),
        None if response.created() => 0,
        None => response
            .header()
            .map_or(0, etcd_client::ResponseHeader::revision),
    };
    if said >= revision {
        shared.change(|copy| copy.was_complete(asked));
        *wanted = None;
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

/// Writes the copy's file if there is something new, and not too often.
fn save(shared: &Shared, saved: &mut Saved) {
    let (revision, empty) = shared.read(|copy| (copy.revision(), copy.entries().is_empty()));
    let closing = saved.revision < 0;
    if empty || revision == saved.revision || (!closing && saved.at.elapsed() < SAVE_PAUSE) {
        return;
    }
    let text = shared.read(Copy::to_text);
    let file = &shared.options.file;
    if let Err(error) = files::write_atomically(file, text.as_bytes(), files::SECRET, true) {
        let file = file.display();
        tracing::warn!(%file, %error, "the copy of the fleet's state cannot be written; make room on the disk");
    }
    *saved = Saved {
        revision,
        at: Instant::now(),
    };
}
