//! Writing to etcd: requests, claims that wait, and the lease of this hub.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use etcd_client::{Client, Compare, CompareOp, PutOptions, Txn, TxnOp, TxnOpResponse};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::follow::{Left, answer};
use super::{Job, LEASE_SECONDS, RETRY, Shared, WriteError, lock};
use crate::copy::Entry;
use crate::plan::{Done, Expect, Request, Transaction, Unplanned, View, Write};
use crate::record::{HubLease, Record, hub_key};

/// Most writes at a time. More are quicker, fewer leave etcd to others.
const WRITES_MAX: usize = 64;
/// Time between two signs of life, of which a lease outlasts two that fail.
const ALIVE: Duration = Duration::from_secs(LEASE_SECONDS.cast_unsigned() / 3);
/// Patience with a claim before the next one has its turn.
const CLAIM: Duration = Duration::from_secs(5);

/// Serves requests until the fleet is closed.
pub(super) async fn serve(shared: &std::sync::Arc<Shared>, mut jobs: mpsc::UnboundedReceiver<Job>) {
    let mut running: JoinSet<()> = JoinSet::new();
    let claims = claims(shared);
    let leases = leases(shared);
    tokio::pin!(claims, leases);
    loop {
        tokio::select! {
            job = jobs.recv(), if running.len() < WRITES_MAX => {
                let Some(Job { request, patience, reply }) = job else { break };
                let shared = std::sync::Arc::clone(shared);
                running.spawn(async move {
                    // Whoever asked may have gone.
                    let _ = reply.send(Writer::default().write(&shared, &request, patience).await);
                });
            }
            Some(_) = running.join_next() => {}
            () = &mut claims => {}
            () = &mut leases => {}
        }
    }
}

/// A connection for writes, and the endpoint that it tries next.
#[derive(Default)]
struct Writer {
    client: Option<Client>,
    number: usize,
}

/// What etcd said to a transaction.
enum Said {
    Done(Done),
    /// Something has changed since it was read. The slot that it asked for, if that was taken.
    Again(Option<u32>),
}

impl Writer {
    async fn client(&mut self, shared: &Shared) -> Result<Client, Left> {
        if let Some(client) = &self.client {
            return Ok(client.clone());
        }
        let client = shared.options.connect(self.number).await?;
        self.client = Some(client.clone());
        Ok(client)
    }

    /// Writes a request, at whatever endpoint answers.
    async fn write(
        &mut self,
        shared: &Shared,
        request: &Request,
        patience: Duration,
    ) -> Result<Done, WriteError> {
        let begun = Instant::now();
        let (mut maybe, mut attempt, mut taken) = (false, 0, Vec::new());
        loop {
            let why = match self
                .attempt(shared, request, attempt, &taken, &mut maybe)
                .await
            {
                Ok(Ok(Said::Done(done))) => return Ok(done),
                Ok(Ok(Said::Again(slot))) => {
                    taken.extend(slot);
                    attempt += 1;
                    "other hubs change the same records".to_owned()
                }
                // The first answer was lost: etcd has done it.
                Ok(Err(crate::plan::Refusal::NoSite(_)))
                    if maybe && matches!(request, Request::Revoke { .. }) =>
                {
                    return Ok(Done::Nothing);
                }
                Ok(Err(refusal)) => return Err(refusal.into()),
                Err(left) => {
                    (self.client, self.number) = (None, self.number + 1);
                    sleep(RETRY).await;
                    match left {
                        Left::Failed(why) => why,
                        Left::Foreign(foreign) => foreign.to_string(),
                    }
                }
            };
            if begun.elapsed() >= patience {
                return Err(WriteError::Away {
                    waited: begun.elapsed().as_secs(),
                    why,
                    maybe,
                });
            }
        }
    }

    /// Reads what the request needs, plans it, and asks etcd.
    async fn attempt(
        &mut self,
        shared: &Shared,
        request: &Request,
        attempt: u32,
        taken: &[u32],
        maybe: &mut bool,
    ) -> Result<Result<Said, crate::plan::Refusal>, Left> {
        let mut client = self.client(shared).await?;
        let prefix = shared.options.prefix();
        let mut fresh = BTreeMap::new();
        let transaction = loop {
            let planned = shared.read(|copy| {
                request.plan(&View {
                    copy,
                    fresh: &fresh,
                    taken,
                    attempt,
                    draw: draw(),
                })
            });
            match planned {
                Ok(transaction) => break transaction,
                Err(Unplanned::Refused(refusal)) => return Ok(Err(refusal)),
                Err(Unplanned::Read(key)) => {
                    let response = answer(client.get(format!("{prefix}{key}"), None)).await?;
                    let entry = response.kvs().first();
                    let entry =
                        entry.map(|kv| Entry::new(&key, kv.value().to_vec(), kv.mod_revision()));
                    fresh.insert(key, entry);
                }
            }
        };
        if transaction.writes.is_empty() {
            return Ok(Ok(Said::Done(transaction.done)));
        }
        let slot = transaction.writes.iter().find_map(|write| match write {
            Write::Put(Record::Slot(slot, _)) => Some(*slot),
            Write::Put(_) | Write::Delete(_) => None,
        });
        let slot_key = slot.map(|slot| format!("{prefix}{}", crate::record::slot_key(slot)));
        let before = std::mem::replace(maybe, true);
        let response =
            answer(client.txn(encode(&transaction, &prefix, slot_key.as_deref()))).await?;
        *maybe = before;
        if response.succeeded() {
            return Ok(Ok(Said::Done(transaction.done)));
        }
        let there = response
            .op_responses()
            .into_iter()
            .any(|response| match response {
                TxnOpResponse::Get(get) => get.count() > 0,
                TxnOpResponse::Put(_) | TxnOpResponse::Delete(_) | TxnOpResponse::Txn(_) => false,
            });
        Ok(Ok(Said::Again(slot.filter(|_| there))))
    }
}

/// A number by chance; collisions of hubs are all that it is for.
fn draw() -> u64 {
    let mut bytes = [0; 8];
    let _ = ropewalk_crypto::rand::fill(&mut bytes);
    u64::from_le_bytes(bytes)
}

fn encode(transaction: &Transaction, prefix: &str, slot_key: Option<&str>) -> Txn {
    let expect = transaction.expect.iter().map(|(key, expect)| {
        let key = format!("{prefix}{key}");
        match expect {
            Expect::Absent => Compare::create_revision(key, CompareOp::Equal, 0),
            Expect::At(revision) => Compare::mod_revision(key, CompareOp::Equal, *revision),
        }
    });
    let writes = transaction.writes.iter().map(|write| match write {
        Write::Put(record) => {
            TxnOp::put(format!("{prefix}{}", record.key()), record.encode(), None)
        }
        Write::Delete(key) => TxnOp::delete(format!("{prefix}{key}"), None),
    });
    let otherwise = slot_key.map(|key| TxnOp::get(key, None));
    Txn::new()
        .when(expect.collect::<Vec<_>>())
        .and_then(writes.collect::<Vec<_>>())
        .or_else(otherwise.into_iter().collect::<Vec<_>>())
}

/// Writes the claims that wait, for ever.
async fn claims(shared: &Shared) {
    let mut writer = Writer::default();
    loop {
        let next = lock(&shared.claims).values().next().cloned();
        let Some(claim) = next else {
            shared.claims_there.notified().await;
            continue;
        };
        let written = writer
            .write(shared, &Request::Claim(claim.clone()), CLAIM)
            .await;
        if matches!(written, Err(WriteError::Away { .. })) {
            continue;
        }
        if let Err(refusal) = written {
            tracing::debug!(site = claim.site, %refusal, "a claim is not written");
        }
        let mut waiting = lock(&shared.claims);
        if waiting.get(&claim.site) == Some(&claim) {
            waiting.remove(&claim.site);
        }
    }
}

/// Keeps the lease of this hub, for ever.
async fn leases(shared: &Shared) {
    let mut writer = Writer::default();
    let (mut lease, mut written) = (None, None);
    loop {
        let wanted = lock(&shared.lease).clone();
        let kept = keep(
            shared,
            &mut writer,
            &mut lease,
            &mut written,
            wanted.as_ref(),
        )
        .await;
        let pause = if kept.is_ok() { ALIVE } else { 2 * RETRY };
        let problem = kept.err().map(|left| match left {
            Left::Failed(why) => why,
            Left::Foreign(foreign) => foreign.to_string(),
        });
        if problem.is_some() {
            // A lease that etcd does not know any more is an error of the client.
            (writer.client, writer.number) = (None, writer.number + 1);
            (lease, written) = (None, None);
        }
        *lock(&shared.lease_problem) = problem.filter(|_| wanted.is_some());
        tokio::select! {
            () = sleep(pause) => {}
            () = shared.lease_there.notified() => {}
        }
    }
}

async fn keep(
    shared: &Shared,
    writer: &mut Writer,
    lease: &mut Option<i64>,
    written: &mut Option<HubLease>,
    wanted: Option<&HubLease>,
) -> Result<(), Left> {
    let Some(hub) = wanted else {
        if let Some(id) = lease.take() {
            answer(writer.client(shared).await?.lease_revoke(id)).await?;
        }
        *written = None;
        return Ok(());
    };
    let mut client = writer.client(shared).await?;
    if let Some(id) = *lease {
        let (mut keeper, mut answers) = answer(client.lease_keep_alive(id)).await?;
        answer(keeper.keep_alive()).await?;
        let alive = answer(answers.message())
            .await?
            .is_some_and(|alive| alive.ttl() > 0);
        if !alive {
            (*lease, *written) = (None, None);
        }
    }
    if written.as_ref() == Some(hub) {
        return Ok(());
    }
    let name = hub_key(&hub.id);
    let key = format!("{}{name}", shared.options.prefix());
    let there = answer(client.get(key.clone(), None)).await?;
    let revision = there
        .kvs()
        .first()
        .map_or(0, etcd_client::KeyValue::mod_revision);
    if let Some(Ok(Record::Hub(other))) = there
        .kvs()
        .first()
        .map(|kv| Record::decode(&name, kv.value()))
        && other.certificate.hub.key != hub.certificate.hub.key
    {
        return Err(Left::Failed(format!(
            "another hub has the name {}: give this one another name, or end that one",
            hub.id
        )));
    }
    let id = match *lease {
        Some(id) => id,
        None => answer(client.lease_grant(LEASE_SECONDS, None)).await?.id(),
    };
    *lease = Some(id);
    let unchanged = Compare::mod_revision(key.clone(), CompareOp::Equal, revision);
    let value = Record::Hub(Box::new(hub.clone())).encode();
    let put = TxnOp::put(key, value, Some(PutOptions::new().with_lease(id)));
    let response = answer(client.txn(Txn::new().when([unchanged]).and_then([put]))).await?;
    if !response.succeeded() {
        return Err(Left::Failed(
            "the record of this hub was changed meanwhile".to_owned(),
        ));
    }
    *written = Some(hub.clone());
    Ok(())
}
