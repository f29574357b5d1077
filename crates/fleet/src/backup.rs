//! The beginning of a fleet, and its backups. These run in commands, and wait for etcd.
//!
//! Invariant: while a backup is being written back, `meta` says so, and no hub writes. A record that the backup and etcd
//! have alike is there all the time, so hubs serve their sites meanwhile.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, bail};
use etcd_client::{Client, Compare, CompareOp, GetOptions, Txn, TxnOp};
use ropewalk_host::files;
use ropewalk_transport::PublicKey;

use crate::copy::{Copy, Entry, Foreign, Stored};
use crate::record::{META, Meta, Pools, Record, Rest, Unreadable, is_of_running_hub};
use crate::store::follow_parts::{Header, Left, PAGE, answer, read_all};
use crate::store::{Options, draw, now, remedy};

/// Changes of one transaction: etcd takes 128 as it comes.
const CHANGES: usize = 100;
/// Keys and values of one transaction, bytes: etcd takes requests of 1.5 MiB as it comes.
const CHANGES_BYTES: usize = 1 << 20;
/// Largest backup that is read, bytes.
const FILE_BYTES_MAX: u64 = 1 << 29;

fn failed(left: Left) -> anyhow::Error {
    match left {
        Left::Failed(why) | Left::Range(why) => anyhow::anyhow!("etcd does not answer: {why}"),
        Left::Denied(why) | Left::Token(why) => {
            let remedy = remedy(&why);
            anyhow::anyhow!("etcd refuses ({why}). {remedy}")
        }
        Left::Foreign(foreign) => foreign.into(),
    }
}

/// The whole state, in smaller parts if those are too large.
async fn read(
    client: &mut Client,
    prefix: &str,
) -> anyhow::Result<(Header, BTreeMap<String, Stored>)> {
    let mut page = PAGE;
    loop {
        match read_all(client, prefix, page).await {
            Err(Left::Range(_)) if page > 1 => page /= 2,
            read => return read.map_err(failed),
        }
    }
}

fn entries(stored: BTreeMap<String, Stored>) -> BTreeMap<String, Entry> {
    let entries = stored.into_iter().map(|(key, stored)| {
        let entry = Entry::new(&key, stored.value, stored.revision);
        (key, entry)
    });
    entries.collect()
}

/// Runs something with a connection to the first endpoint that answers.
fn with_client<T>(
    options: &Options,
    run: impl AsyncFnOnce(Client) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    options.check()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let (mut problems, mut refused) = (Vec::new(), 0);
        for number in 0..options.endpoints.len() {
            let tried = async {
                let mut client = options.connect(number).await?;
                answer(client.get(options.prefix(), None)).await?;
                Ok::<_, Left>(client)
            };
            match tried.await {
                Ok(client) => return run(client).await,
                Err(left) => {
                    refused += usize::from(matches!(left, Left::Denied(_) | Left::Token(_)));
                    problems.push(format!("{}: {left}", options.endpoints[number]));
                }
            }
        }
        if refused > 0 {
            bail!(
                "etcd refuses the user of this hub or the role of the user ({}). {}",
                problems.join("; "),
                remedy("")
            );
        }
        bail!(
            "no endpoint of etcd answers; check that a majority runs ({})",
            problems.join("; ")
        )
    })
}

/// Makes the fleet, or enlarges its pools.
///
/// # Errors
/// The pools are wrong, a fleet with another key or with other pools is there, only the record of the fleet is missing,
/// or etcd does not answer.
pub fn init(options: &Options, pools: &Pools) -> anyhow::Result<()> {
    pools.check().map_err(anyhow::Error::msg)?;
    with_client(options, async |mut client| {
        let key = format!("{}{META}", options.prefix());
        let there = answer(client.get(key.clone(), None))
            .await
            .map_err(failed)?;
        let there = there.kvs().first();
        let mut former = None;
        if let Some(kv) = there {
            let Ok(Record::Meta(meta)) = Record::decode(META, kv.value()) else {
                bail!(
                    "etcd has a fleet {} that this program cannot read; update it",
                    options.fleet
                );
            };
            if meta.fleet != options.key {
                bail!(
                    "etcd has a fleet {} with another key, {}: to add this hub to it, copy [fleet] with its key from a hub \
                     of the fleet; to make a new fleet, choose another name",
                    options.fleet,
                    meta.fleet
                );
            }
            if meta.restoring {
                bail!("a backup is being written back; end `ropewalk fleet restore` first");
            }
            if !pools.extends(&meta.pools) {
                bail!(
                    "the pools of a fleet can only grow at their end, so that sites keep their addresses"
                );
            }
            former = Some(meta);
        }
        if there.is_none() {
            // Blocks of the sites that are there follow from pools that nobody knows.
            let all = GetOptions::new().with_prefix().with_count_only();
            let records = answer(client.get(options.prefix(), Some(all))).await;
            let records = records.map_err(failed)?.count();
            if records > 0 {
                bail!(
                    "etcd has {records} records of a fleet {} and none that says whose they are; write a backup back \
                     with `ropewalk fleet restore`, or remove them",
                    options.fleet
                );
            }
            check_copy(options)?;
        }
        let revision = there.map_or(0, etcd_client::KeyValue::mod_revision);
        let meta = new_meta(options, pools, former);
        let unchanged = Compare::mod_revision(key.clone(), CompareOp::Equal, revision);
        let put = TxnOp::put(key, Record::Meta(meta).encode(), None);
        let response = answer(client.txn(Txn::new().when([unchanged]).and_then([put])))
            .await
            .map_err(|left| match left {
                Left::Failed(_) | Left::Range(_) => failed(left).context(MaybeMade),
                refused @ (Left::Denied(_) | Left::Token(_) | Left::Foreign(_)) => failed(refused),
            })?;
        if !response.succeeded() {
            bail!(
                "somebody else has made the fleet at the same time; look at `ropewalk fleet status`"
            );
        }
        Ok(())
    })
}

/// The record of a fleet with these pools. One that was there keeps all else.
fn new_meta(options: &Options, pools: &Pools, former: Option<Meta>) -> Meta {
    let new = Meta {
        fleet: options.key,
        pools: pools.clone(),
        restoring: false,
        made: Some(draw()),
        replaces: None,
        rest: Rest::new(),
    };
    match former {
        Some(former) => Meta {
            pools: Pools {
                rest: former.pools.rest,
                ..new.pools
            },
            ..former
        },
        None => new,
    }
}

/// The record of a fleet was sent, and etcd has not said whether it has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("etcd may have made the fleet or not: repeat the command")]
pub struct MaybeMade;

/// The copy on this machine, if it has one that can be read.
fn copy_here(options: &Options) -> Option<Copy> {
    let text = files::read_state(&options.file, FILE_BYTES_MAX).ok()??;
    Copy::from_text(&text).ok()
}

/// Refuses a new and empty fleet in the place of one whose sites a copy on this machine has. Hubs without sites would
/// follow the empty fleet. Hubs of earlier programs would let their sites go.
fn check_copy(options: &Options) -> anyhow::Result<()> {
    let Some(copy) = copy_here(options) else {
        return Ok(());
    };
    let sites = copy.sites().count();
    let has_other_name = copy.name().is_some_and(|name| name != options.fleet);
    let has_own_key = copy.meta().is_some_and(|meta| meta.fleet == options.key);
    if sites == 0 || has_other_name && !has_own_key {
        return Ok(());
    }
    if let Some(words) = copy
        .instead(&options.fleet, &options.file)
        .filter(|_| has_other_name)
    {
        bail!("{words}. If nobody needs its sites, move the file away");
    }
    let (name, file) = (&options.fleet, options.file.display());
    let has = if sites == 1 { "site" } else { "sites" };
    bail!(
        "etcd has no state of fleet {name}, but this machine has a copy with {sites} {has}, {file}: a new fleet would cut \
         them off. Write the copy back with `ropewalk fleet restore {file}`. If nobody needs these sites, move the file away"
    );
}

/// Writes the state of the fleet to a file that must not be there. How many records it has.
///
/// # Errors
/// Etcd does not answer, has no such fleet, or the file cannot be written.
pub fn backup(options: &Options, file: &Path) -> anyhow::Result<usize> {
    let (header, mut stored) = with_client(options, async |mut client| {
        read(&mut client, &options.prefix()).await
    })?;
    // What is no text is no record, and the file has text only.
    stored.retain(|key, record| {
        !is_of_running_hub(key) && std::str::from_utf8(&record.value).is_ok()
    });
    let count = stored.len();
    let mut copy = Copy::default();
    if let Err(foreign) = copy.fill(&options.key, header.cluster, header.revision, stored) {
        let instead = || copy_here(options)?.instead(&options.fleet, &options.file);
        if let Some(words) = Some(&foreign)
            .filter(|foreign| **foreign == Foreign::Missing)
            .and_then(|_| instead())
        {
            bail!(words);
        }
        return Err(foreign.into());
    }
    copy.is_of(&options.fleet);
    copy.was_complete(now());
    files::write_atomically(file, copy.to_text().as_bytes(), files::SECRET, false)
        .with_context(|| format!("cannot write {}; choose a new name", file.display()))?;
    Ok(count)
}

/// What a backup would change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    /// Records that only the backup has.
    pub missing: usize,
    /// Records that only etcd has.
    pub added: usize,
    /// Records that differ.
    pub changed: usize,
}

/// Writes a backup to etcd. What has changed there.
///
/// # Errors
/// The file is no backup of this fleet, etcd does not answer, or without `force` etcd has a state that is not the
/// backup's: a newer one, as far as anybody can tell. A restore that was interrupted goes on with `force`. The state of a
/// fleet with another key is never replaced.
pub fn restore(options: &Options, file: &Path, force: bool) -> anyhow::Result<Difference> {
    let text = files::read_state(file, FILE_BYTES_MAX)?;
    let text = text.with_context(|| format!("there is no file {}", file.display()))?;
    let backup = Copy::from_text(&text);
    let backup = backup.map_err(|why| anyhow::anyhow!("{} is no backup: {why}", file.display()))?;
    let meta = backup
        .meta()
        .with_context(|| format!("{} is no backup of a fleet", file.display()))?;
    if let Some(name) = backup.name().filter(|name| *name != options.fleet) {
        bail!(
            "{} is a backup of fleet {name}, and [fleet] of this hub is of fleet {}: restore it on a hub of fleet {name}",
            file.display(),
            options.fleet
        );
    }
    if meta.fleet != options.key {
        bail!(
            "{} is a backup of another fleet, with key {}",
            file.display(),
            meta.fleet
        );
    }
    let mut meta = meta.clone();
    meta.restoring = false;
    // The copy of a hub has the hubs that ran, too: without their leases they would run for ever.
    let mut wanted = backup.entries().clone();
    wanted.retain(|key, _| !is_of_running_hub(key));
    let wanted = &wanted;
    with_client(options, async |mut client| {
        let prefix = options.prefix();
        let (_, there) = read(&mut client, &prefix).await?;
        let mut there = entries(there);
        match there.get(META).map(|entry| &entry.record) {
            Some(Ok(Record::Meta(other))) if other.fleet != options.key => {
                return Err(Foreign::Other(other.fleet).into());
            }
            Some(Ok(Record::Meta(other))) => {
                meta.replaces = replaced(&meta, other);
            }
            // It may be another fleet's, and has more than this program would write.
            Some(Err(why @ Unreadable::Newer(_))) => {
                bail!("the record of the fleet in etcd is not replaced: {why}");
            }
            Some(_) | None => {}
        }
        there.retain(|key, _| !is_of_running_hub(key));
        let difference = compare(wanted, &there);
        if there.is_empty() || force {
            let written = write(&mut client, &prefix, meta, wanted).await;
            return written.map(|()| difference).with_context(|| {
                format!(
                    "the backup was not written back as a whole, and the fleet may be closed to changes until it is: known \
                     sites go on, and nobody joins; repeat `ropewalk fleet restore --force {}`",
                    file.display()
                )
            });
        }
        if difference == Difference::default() {
            return Ok(difference);
        }
        bail!(
            "etcd has another state than the backup of revision {}: {} records are not in the backup, {} are missing in \
             etcd, {} differ; use --force to put the backup in its place",
            backup.revision(),
            difference.added,
            difference.missing,
            difference.changed
        )
    })
}

/// In whose place a backup is written. An interrupted restore that is done again finds the number of the backup, and
/// still takes the place of the fleet before.
fn replaced(backup: &Meta, there: &Meta) -> Option<u64> {
    let other = there.made.filter(|made| backup.made != Some(*made));
    other.or(there.replaces)
}

fn compare(wanted: &BTreeMap<String, Entry>, there: &BTreeMap<String, Entry>) -> Difference {
    let differs = |(key, entry): &(&String, &Entry)| {
        there
            .get(*key)
            .is_some_and(|other| other.value != entry.value)
    };
    Difference {
        missing: wanted
            .keys()
            .filter(|key| !there.contains_key(*key))
            .count(),
        added: there
            .keys()
            .filter(|key| !wanted.contains_key(*key))
            .count(),
        changed: wanted.iter().filter(differs).count(),
    }
}

async fn write(
    client: &mut Client,
    prefix: &str,
    meta: Meta,
    wanted: &BTreeMap<String, Entry>,
) -> anyhow::Result<()> {
    let key = format!("{prefix}{META}");
    let closed = Record::Meta(Meta {
        restoring: true,
        ..meta.clone()
    });
    answer(client.put(key.clone(), closed.encode(), None))
        .await
        .map_err(failed)?;
    // Read after the closing: nothing else is written from here on.
    let (_, there) = read(client, prefix).await?;
    let same = |(key, entry): &(&String, &Entry)| {
        there
            .get(*key)
            .is_none_or(|other| other.value != entry.value)
            && key.as_str() != META
    };
    let puts = wanted.iter().filter(same);
    let puts = puts.map(|(key, entry)| {
        let key = format!("{prefix}{key}");
        let bytes = key.len() + entry.value.len();
        (TxnOp::put(key, entry.value.clone(), None), bytes)
    });
    let extra = there
        .keys()
        .filter(|key| !is_of_running_hub(key) && !wanted.contains_key(*key));
    let deletes = extra.map(|key| {
        let key = format!("{prefix}{key}");
        let bytes = key.len();
        (TxnOp::delete(key, None), bytes)
    });
    let (mut part, mut size) = (Vec::new(), 0);
    for (change, bytes) in puts.chain(deletes) {
        if part.len() == CHANGES || (size + bytes > CHANGES_BYTES && !part.is_empty()) {
            let full = std::mem::take(&mut part);
            answer(client.txn(Txn::new().and_then(full)))
                .await
                .map_err(failed)?;
            size = 0;
        }
        part.push(change);
        size += bytes;
    }
    answer(client.txn(Txn::new().and_then(part)))
        .await
        .map_err(failed)?;
    answer(client.put(key, Record::Meta(meta).encode(), None))
        .await
        .map_err(failed)?;
    Ok(())
}

/// Public key of the fleet in a backup.
///
/// # Errors
/// The file is no backup.
pub fn fleet_of(file: &Path) -> anyhow::Result<PublicKey> {
    let text = files::read_state(file, FILE_BYTES_MAX)?.context("there is no such file")?;
    let copy = Copy::from_text(&text).map_err(anyhow::Error::msg)?;
    Ok(copy
        .meta()
        .context("the file is no backup of a fleet")?
        .fleet)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restore_that_is_done_again_takes_the_place_of_the_fleet_before_too() {
        let meta = |made, replaces| Meta {
            fleet: PublicKey::from_bytes([1; 32]),
            pools: Pools::default(),
            restoring: false,
            made,
            replaces,
            rest: Rest::new(),
        };
        let backup = meta(Some(1), None);
        assert_eq!(replaced(&backup, &meta(Some(2), None)), Some(2));
        assert_eq!(replaced(&backup, &meta(Some(1), Some(2))), Some(2));
        assert_eq!(replaced(&backup, &meta(Some(1), None)), None);
        assert_eq!(replaced(&backup, &meta(None, None)), None);
    }
}
