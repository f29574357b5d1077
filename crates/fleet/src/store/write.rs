//! Writing to etcd: requests, claims that wait, and the lease of this hub. All share one connection.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;
use std::time::{Duration, Instant};

use etcd_client::{Client, Compare, CompareOp, KeyValue, PutOptions, Txn, TxnOp, TxnOpResponse};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout, timeout_at};

use super::follow::{Left, answer};
use super::{CLOSING, Job, LEASE_SECONDS, RETRY, Shared, Topic, WriteError, draw, lock};
use crate::copy::{Entry, Foreign};
use crate::plan::{Done, Expect, Refusal, Request, Transaction, Unplanned, View, Write};
use crate::record::{Claim, HubLease, META, Record, hub_key, slot_key};

/// Time between two signs of life, of which a lease outlasts two that fail.
const ALIVE: Duration = Duration::from_secs(LEASE_SECONDS.cast_unsigned() / 3);
/// Time between two changes of a hub's record. Shorter ones say the number of sites sooner, longer ones spare etcd.
const LEASE_PAUSE: Duration = Duration::from_secs(1);
/// Patience with a sign of life and all that belongs to it: less than the life of a lease.
const LEASE_PATIENCE: Duration = Duration::from_secs(6);
/// Patience with claims before others have their turn.
const CLAIM: Duration = Duration::from_secs(5);
/// Claims that are written at a time. More are quicker when a hub takes many sites over, fewer leave etcd to others.
const CLAIMS_AT_ONCE: usize = 32;
/// A connection that owes an answer for so long at the deadline of a write is given up. Shorter ones find the next
/// endpoint sooner, longer ones let writes with less patience wait for a slow etcd.
const SILENT: Duration = Duration::from_millis(500);
/// How long a confirmed write waits until the copy has it too.
const SEEN: Duration = Duration::from_secs(1);

/// Serves requests until the fleet is closed.
pub(super) async fn serve(shared: &Arc<Shared>, jobs: &mut mpsc::UnboundedReceiver<Job>) {
    let mut running: JoinSet<()> = JoinSet::new();
    let mut lease = None;
    {
        let claims = claims(shared);
        let leases = leases(shared, &mut lease);
        tokio::pin!(claims, leases);
        loop {
            tokio::select! {
                // There are no more than `WRITES_WAIT_MAX`. Each runs at once, so that it ends by its deadline.
                job = jobs.recv() => {
                    let Some(job) = job else { break };
                    let shared = Arc::clone(shared);
                    running.spawn(async move {
                        let deadline = job.deadline.into();
                        let written = write(&shared, &job.request, job.begun, deadline, true).await;
                        job.reply.give(written);
                    });
                }
                Some(ended) = running.join_next() => {
                    if let Err(error) = ended {
                        tracing::error!(%error, "a write to etcd has panicked");
                    }
                }
                () = &mut claims => {}
                () = &mut leases => {}
            }
        }
    }
    drop(running);
    if let Some(id) = lease {
        let ended = async {
            let (mut client, _) = line(shared).await?;
            answer(client.lease_revoke(id)).await
        };
        if !matches!(timeout(CLOSING, ended).await, Ok(Ok(_))) {
            tracing::info!("the record of this hub stays in etcd until its lease has ended");
        }
    }
}

/// The connection of all writes.
#[derive(Default)]
pub(super) struct Line {
    client: Option<Client>,
    /// The endpoint that is tried next.
    number: usize,
    /// Counts connections: who fails on a former one does not end the present one.
    generation: u64,
}

/// The connection, made anew if there is none, and its generation.
async fn line(shared: &Shared) -> Result<(Client, u64), Left> {
    let mut line = shared.line.lock().await;
    if let Some(client) = &line.client {
        return Ok((client.clone(), line.generation));
    }
    match shared.options.connect(line.number).await {
        Ok(client) => {
            line.generation += 1;
            line.client = Some(client.clone());
            Ok((client, line.generation))
        }
        Err(left) => {
            let named = named(shared, line.number, left);
            line.number += 1;
            Err(named)
        }
    }
}

/// Goes to the next endpoint, unless somebody has done so or all are alike. The failure with the name of its endpoint.
async fn failed(shared: &Shared, generation: u64, left: Left) -> Left {
    let mut line = shared.line.lock().await;
    let named = named(shared, line.number, left);
    let mine = line.generation == generation && line.client.is_some();
    if mine && matches!(named, Left::Failed(_) | Left::Token(_)) {
        line.client = None;
        line.number += 1;
    }
    named
}

fn named(shared: &Shared, number: usize, left: Left) -> Left {
    let name = |why| format!("{}: {why}", shared.options.endpoint(number));
    match left {
        Left::Failed(why) | Left::Range(why) => Left::Failed(name(why)),
        Left::Denied(why) => Left::Denied(name(why)),
        Left::Token(why) => Left::Token(name(why)),
        Left::Foreign(foreign) => Left::Foreign(foreign),
    }
}

/// A write, as far as it has come.
struct Effort<'a> {
    shared: &'a Shared,
    request: &'a Request,
    /// Whether etcd may have made the change.
    maybe: bool,
    /// What the last attempt said.
    why: String,
    /// Whether the last attempt was refused for the token of its connection.
    token: bool,
    attempt: u32,
    /// The chance of this attempt.
    draw: u64,
    taken: BTreeSet<u32>,
    /// The slot that this write has kept from others of this hub.
    slot: Option<u32>,
    /// The connection that owes an answer, and since when.
    owes: Option<(u64, Instant)>,
}

impl Drop for Effort<'_> {
    fn drop(&mut self) {
        self.ask_for(None);
    }
}

/// Writes a request, at whatever endpoint answers, by the deadline.
async fn write(
    shared: &Shared,
    request: &Request,
    begun: Instant,
    deadline: tokio::time::Instant,
    wait: bool,
) -> Result<Done, WriteError> {
    let mut effort = Effort {
        shared,
        request,
        maybe: false,
        why: "other writes wait for it too".to_owned(),
        token: false,
        attempt: 0,
        draw: draw(),
        taken: BTreeSet::new(),
        slot: None,
        owes: None,
    };
    let ran = timeout_at(deadline, async {
        let permit = shared.permits.acquire().await;
        let ran = effort.run().await;
        drop(permit);
        ran
    });
    let Ok(ran) = ran.await else {
        // Nobody else may ever wait long enough to find that this endpoint does not answer.
        if let Some((generation, since)) = effort.owes.take()
            && since.elapsed() >= SILENT
        {
            let why = "no answer in time".to_owned();
            effort.why = failed(shared, generation, Left::Failed(why))
                .await
                .to_string();
        }
        if effort.token {
            return Err(WriteError::Denied {
                why: std::mem::take(&mut effort.why),
                maybe: effort.maybe,
            });
        }
        return Err(WriteError::Away {
            waited: begun.elapsed().as_secs(),
            why: std::mem::take(&mut effort.why),
            maybe: effort.maybe,
        });
    };
    let (done, revision) = ran?;
    if wait {
        // So that whoever has enrolled a site knows it. The slot is kept from others until the copy shows it taken.
        let mut copy = shared.revision.subscribe();
        let seen = copy.wait_for(|has| *has >= revision);
        let _ = timeout_at(deadline.min(tokio::time::Instant::now() + SEEN), seen).await;
    }
    Ok(done)
}

impl Effort<'_> {
    /// Keeps a slot from other writes of this hub, in place of the one before.
    fn ask_for(&mut self, slot: Option<u32>) {
        let mut slots = lock(&self.shared.slots);
        if let Some(former) = std::mem::replace(&mut self.slot, slot) {
            slots.remove(&former);
        }
        slots.extend(slot);
    }

    /// Notes why an attempt has failed.
    fn fails(&mut self, left: &Left) {
        self.why = left.to_string();
        self.token = matches!(left, Left::Token(_));
    }

    /// Plans from the copy first, and lets the transaction say whether the copy is old. What is done, and the revision
    /// that has it.
    async fn run(&mut self) -> Result<(Done, i64), WriteError> {
        let shared = self.shared;
        let mut from_copy = shared.follows();
        let mut fresh = BTreeMap::new();
        loop {
            self.ask_for(None);
            let asked: BTreeSet<u32> = lock(&shared.slots).union(&self.taken).copied().collect();
            let planned = shared.read(|copy| {
                self.request.plan(&View {
                    fleet: &shared.options.key,
                    copy,
                    from_copy,
                    fresh: &fresh,
                    taken: &asked,
                    attempt: self.attempt,
                    draw: self.draw,
                })
            });
            let tried = match planned {
                Err(Unplanned::Read(key)) => match self.get(&key).await {
                    Ok(entry) => {
                        fresh.insert(key, entry);
                        continue;
                    }
                    Err(left) => Err(left),
                },
                // An old copy may be wrong.
                Err(Unplanned::Refused(_)) if from_copy => {
                    from_copy = false;
                    continue;
                }
                Ok(transaction) if from_copy && transaction.writes.is_empty() => {
                    from_copy = false;
                    continue;
                }
                // The first answer was lost: etcd has done it.
                Err(Unplanned::Refused(Refusal::NoSite(_)))
                    if self.maybe && matches!(self.request, Request::Revoke { .. }) =>
                {
                    return Ok((Done::Nothing, 0));
                }
                Err(Unplanned::Refused(Refusal::Full(_))) if !asked.is_empty() => Err(self.full()),
                Err(Unplanned::Refused(refusal)) => return Err(refusal.into()),
                Ok(transaction) if transaction.writes.is_empty() => {
                    return Ok((transaction.done, 0));
                }
                Ok(transaction) => self.commit(&transaction, &mut fresh).await.map(|done| {
                    from_copy = false;
                    self.attempt += 1;
                    self.draw = draw();
                    done.map(|revision| (transaction.done, revision))
                }),
            };
            match tried {
                Ok(Some(done)) => return Ok(done),
                Ok(None) => "other hubs change the same records".clone_into(&mut self.why),
                Err(Left::Denied(why)) => {
                    return Err(WriteError::Denied {
                        why,
                        maybe: self.maybe,
                    });
                }
                Err(left) => {
                    self.fails(&left);
                    from_copy = false;
                    fresh.clear();
                    sleep(RETRY).await;
                }
            }
        }
    }

    /// No place is free but those that others of this hub ask for, and may not get, and those that were freed since the
    /// copy.
    fn full(&mut self) -> Left {
        self.taken.clear();
        Left::Failed("other writes ask for the last places".to_owned())
    }

    async fn get(&mut self, key: &str) -> Result<Option<Entry>, Left> {
        let (mut client, generation) = line(self.shared).await?;
        let full = format!("{}{key}", self.shared.options.prefix());
        self.owes = Some((generation, Instant::now()));
        let answered = answer(client.get(full, None)).await;
        self.owes = None;
        match answered {
            Ok(response) => Ok(response.kvs().first().map(|kv| entry(key, kv))),
            Err(left) => Err(failed(self.shared, generation, left).await),
        }
    }

    /// Asks etcd for a transaction. The revision that made it; `None` with the present records if it was refused.
    async fn commit(
        &mut self,
        transaction: &Transaction,
        fresh: &mut BTreeMap<String, Option<Entry>>,
    ) -> Result<Option<i64>, Left> {
        let slot = transaction.writes.iter().find_map(|write| match write {
            Write::Put(Record::Slot(slot, owner)) if !owner.freed => Some(*slot),
            Write::Put(_) | Write::Delete(_) => None,
        });
        self.ask_for(slot);
        let (mut client, generation) = line(self.shared).await?;
        let prefix = self.shared.options.prefix();
        let before = std::mem::replace(&mut self.maybe, true);
        self.owes = Some((generation, Instant::now()));
        let answered = answer(client.txn(encode(transaction, &prefix))).await;
        self.owes = None;
        let response = match answered {
            Ok(response) => response,
            Err(left) => {
                // Etcd has said no before it made anything.
                if matches!(left, Left::Denied(_) | Left::Token(_)) {
                    self.maybe = before;
                }
                return Err(failed(self.shared, generation, left).await);
            }
        };
        self.maybe = before;
        if response.succeeded() {
            let header = response.header();
            return Ok(Some(
                header.map_or(0, etcd_client::ResponseHeader::revision),
            ));
        }
        fresh.clear();
        for (key, said) in transaction.expect.keys().zip(response.op_responses()) {
            let TxnOpResponse::Get(get) = said else {
                continue;
            };
            let there = get.kvs().first().map(|kv| entry(key, kv));
            if let Some(slot) = slot.filter(|slot| slot_key(*slot) == *key)
                && !holds(&transaction.expect[key], there.as_ref())
            {
                self.taken.insert(slot);
            } else {
                fresh.insert(key.clone(), there);
            }
        }
        Ok(None)
    }
}

fn entry(key: &str, kv: &KeyValue) -> Entry {
    Entry::new(key, kv.value().to_vec(), kv.mod_revision())
}

fn holds(expect: &Expect, there: Option<&Entry>) -> bool {
    match (expect, there) {
        (Expect::Absent, there) => there.is_none(),
        (Expect::Is(value), there) => there.is_some_and(|there| there.value == *value),
    }
}

/// The transaction for etcd. If it is refused, it reads what it was planned from.
fn encode(transaction: &Transaction, prefix: &str) -> Txn {
    let expect = transaction.expect.iter().map(|(key, expect)| {
        let key = format!("{prefix}{key}");
        match expect {
            Expect::Absent => Compare::create_revision(key, CompareOp::Equal, 0),
            Expect::Is(value) => Compare::value(key, CompareOp::Equal, value.clone()),
        }
    });
    let writes = transaction.writes.iter().map(|write| match write {
        Write::Put(record) => {
            TxnOp::put(format!("{prefix}{}", record.key()), record.encode(), None)
        }
        Write::Delete(key) => TxnOp::delete(format!("{prefix}{key}"), None),
    });
    let keys = transaction.expect.keys();
    let otherwise = keys.map(|key| TxnOp::get(format!("{prefix}{key}"), None));
    Txn::new()
        .when(expect.collect::<Vec<_>>())
        .and_then(writes.collect::<Vec<_>>())
        .or_else(otherwise.collect::<Vec<_>>())
}

/// Writes the claims that wait, some at a time, for ever.
async fn claims(shared: &Arc<Shared>) {
    // All in turn, so that none that cannot be written keeps the others waiting.
    let mut last = String::new();
    loop {
        let after = (Bound::Excluded(last.clone()), Bound::Unbounded);
        let next: Vec<Claim> = lock(&shared.claims)
            .range(after)
            .map(|(_, claim)| claim.clone())
            .take(CLAIMS_AT_ONCE)
            .collect();
        let Some(end) = next.last() else {
            last.clear();
            if lock(&shared.claims).is_empty() {
                shared.claims_there.notified().await;
            }
            continue;
        };
        last.clone_from(&end.site);
        let mut running = JoinSet::new();
        for claim in next {
            let shared = Arc::clone(shared);
            running.spawn(async move {
                let begun = Instant::now();
                let request = Request::Claim(claim.clone());
                let deadline = (begun + CLAIM).into();
                let written = write(&shared, &request, begun, deadline, false).await;
                (claim, written)
            });
        }
        let mut later = false;
        while let Some(ended) = running.join_next().await {
            let Ok((claim, written)) = ended else {
                tracing::error!("the write of a claim has panicked");
                later = true;
                continue;
            };
            match written {
                Ok(_) => {}
                Err(WriteError::Refused(refusal)) if !refusal.is_of_state() => {
                    tracing::debug!(site = claim.site, %refusal, "a claim is not written");
                }
                // While a backup is written back, or etcd is away, it waits on.
                Err(_) => {
                    later = true;
                    continue;
                }
            }
            let mut waiting = lock(&shared.claims);
            if waiting.get(&claim.site) == Some(&claim) {
                waiting.remove(&claim.site);
            }
        }
        if later {
            sleep(LEASE_PAUSE).await;
        }
    }
}

/// Keeps the lease of this hub, for ever.
async fn leases(shared: &Shared, lease: &mut Option<i64>) {
    loop {
        let wanted = lock(&shared.lease).clone();
        let kept = match timeout(LEASE_PATIENCE, keep(shared, lease, wanted.as_ref())).await {
            Ok(kept) => kept,
            Err(_) => Err(Left::Failed(format!(
                "etcd has not kept the lease of this hub within {} s",
                LEASE_PATIENCE.as_secs()
            ))),
        };
        let pause = if kept.is_ok() { ALIVE } else { 2 * RETRY };
        let problem = kept.err().map(|left| match left {
            Left::Foreign(foreign) => shared.in_words(&foreign),
            Left::Failed(why) | Left::Range(why) | Left::Denied(why) | Left::Token(why) => why,
        });
        let problem = problem.filter(|_| wanted.is_some());
        let former = std::mem::replace(&mut *lock(&shared.lease_problem), problem.clone());
        // The reason names the endpoint, and changes with it.
        if let Some(why) = problem {
            if former.is_none() && shared.may_tell(Topic::Lease) {
                tracing::warn!(why, "the record of this hub is not in etcd, or soon is not");
            }
        } else if shared.has_told(Topic::Lease) {
            tracing::info!("the record of this hub is in etcd again");
        }
        if wanted.is_some() {
            sleep(LEASE_PAUSE.min(pause)).await;
        }
        tokio::select! {
            () = sleep(pause.saturating_sub(LEASE_PAUSE)) => {}
            () = shared.lease_there.notified() => {}
        }
    }
}

/// One sign of life. The record is looked at each time: somebody may have removed it, or set etcd back.
async fn keep(
    shared: &Shared,
    lease: &mut Option<i64>,
    wanted: Option<&HubLease>,
) -> Result<(), Left> {
    if wanted.is_none() && lease.is_none() {
        return Ok(());
    }
    let (client, generation) = line(shared).await?;
    match keep_by(shared, client, lease, wanted).await {
        Ok(()) => Ok(()),
        Err(left) => Err(failed(shared, generation, left).await),
    }
}

/// That the record of this hub is another machine's, in words, if it is. `there` is its value and the lease that it
/// ends with, `lease` that with which this hub has written a record.
fn taken_by_another(hub: &HubLease, there: (&[u8], i64), lease: Option<i64>) -> Option<String> {
    let (value, owner) = there;
    let is_own = lease == Some(owner);
    // The key of this hub may have changed.
    let record = Record::decode(&hub_key(&hub.id), value);
    if matches!(record, Ok(Record::Hub(other)) if other.key != hub.key) && !is_own {
        return Some(format!(
            "another hub has the name {}: give this one another name, or end that one",
            hub.id
        ));
    }
    // No machine keeps a record without a lease.
    (lease.is_some() && !is_own && owner != 0).then(|| {
        format!(
            "another machine runs with the name {} and has taken the place of this one: give one of the two another name and \
             another key, or end that one",
            hub.id
        )
    })
}

async fn keep_by(
    shared: &Shared,
    mut client: Client,
    lease: &mut Option<i64>,
    wanted: Option<&HubLease>,
) -> Result<(), Left> {
    let Some(hub) = wanted else {
        if let Some(id) = lease.take() {
            answer(client.lease_revoke(id)).await?;
        }
        return Ok(());
    };
    if let Some(id) = *lease {
        // A lease that etcd does not know any more is an error of the client. One that is forgotten here ends by
        // itself.
        *lease = None;
        let (mut keeper, mut answers) = answer(client.lease_keep_alive(id)).await?;
        answer(keeper.keep_alive()).await?;
        let alive = answer(answers.message()).await?;
        *lease = alive.filter(|alive| alive.ttl() > 0).map(|_| id);
    }
    let prefix = shared.options.prefix();
    let name = hub_key(&hub.id);
    let (meta_key, key) = (format!("{prefix}{META}"), format!("{prefix}{name}"));
    let both = [&meta_key, &key].map(|key| TxnOp::get(key.clone(), None));
    let response = answer(client.txn(Txn::new().and_then(both))).await?;
    let mut there = response.op_responses().into_iter().map(|said| match said {
        TxnOpResponse::Get(get) => get.kvs().first().cloned(),
        TxnOpResponse::Put(_) | TxnOpResponse::Delete(_) | TxnOpResponse::Txn(_) => None,
    });
    let (meta, there) = (there.next().flatten(), there.next().flatten());
    // A hub writes nothing into the state of another fleet.
    let meta = meta.ok_or(Foreign::Missing)?;
    match Record::decode(META, meta.value()) {
        Ok(Record::Meta(meta)) if meta.fleet == shared.options.key => {
            shared.read(|copy| copy.check_made(&meta))?;
        }
        Ok(Record::Meta(meta)) => return Err(Foreign::Other(meta.fleet).into()),
        Ok(_) => return Err(Foreign::Missing.into()),
        Err(why) => return Err(Foreign::Unreadable(why).into()),
    }
    let value = Record::Hub(Box::new(hub.clone())).encode();
    if let Some(kv) = &there {
        if kv.value() == value && Some(kv.lease()) == *lease {
            return Ok(());
        }
        if let Some(problem) = taken_by_another(hub, (kv.value(), kv.lease()), *lease) {
            return Err(Left::Denied(problem));
        }
    }
    let id = match *lease {
        Some(id) => id,
        None => answer(client.lease_grant(LEASE_SECONDS, None)).await?.id(),
    };
    let revision = there.map_or(0, |kv| kv.mod_revision());
    let expected = [
        Compare::value(meta_key, CompareOp::Equal, meta.value()),
        Compare::mod_revision(key.clone(), CompareOp::Equal, revision),
    ];
    let put = TxnOp::put(key, value, Some(PutOptions::new().with_lease(id)));
    let response = answer(client.txn(Txn::new().when(expected).and_then([put]))).await?;
    if !response.succeeded() {
        return Err(Left::Denied(
            "the record of this hub was changed meanwhile".to_owned(),
        ));
    }
    // A lease that has written nothing would not tell who wrote the record. It ends by itself.
    *lease = Some(id);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ropewalk_transport::PublicKey;

    #[test]
    fn a_record_that_another_machine_keeps_is_told_and_one_that_nobody_keeps_is_written_again() {
        let hub = |key| HubLease {
            id: "b".to_owned(),
            key: PublicKey::from_bytes([key; 32]),
            endpoints: Vec::new(),
            tcp_port: 443,
            region: String::new(),
            version: String::new(),
            certificate: None,
            sites: 0,
        };
        let own = hub(1);
        let said = |key, owner, lease| {
            let value = Record::Hub(Box::new(hub(key))).encode();
            taken_by_another(&own, (&value, owner), lease)
        };
        // This hub wrote it, or ran before and was killed.
        assert_eq!(said(1, 7, Some(7)), None);
        assert_eq!(said(1, 7, None), None);
        // Its key has changed since.
        assert_eq!(said(2, 7, Some(7)), None);
        // A copy of this machine.
        let copied = said(1, 8, Some(7)).unwrap();
        assert!(copied.contains("another machine runs"), "{copied}");
        // Somebody has written it by hand, or back.
        assert_eq!(said(1, 0, Some(7)), None);
        for lease in [None, Some(7)] {
            let other = said(2, 8, lease).unwrap();
            assert!(other.contains("another hub has the name b"), "{other}");
        }
    }
}
