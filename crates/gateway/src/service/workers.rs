//! Commands for all workers of a hub: each goes to those it is about, and answers are put together.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Instant;

use anyhow::Context;
use ropewalk_api::Status;

use super::{ANSWER_TIMEOUT, Commands};
use crate::engine::control::Command;

/// Hands commands to all of them. May wait for each. A site has one.
pub(super) fn together(mut workers: Vec<Commands>) -> Commands {
    if workers.len() == 1 {
        return workers.remove(0);
    }
    Commands(Arc::new(move |command| {
        match command {
            Command::Status(reply) => {
                let states = ask(&workers, Command::Status)?;
                // The caller may not wait any more.
                reply.try_send(merge(states)).ok();
            }
            Command::SetScheduler {
                direction,
                kind,
                peer,
                reply,
            } => {
                let answers = ask(&workers, |reply| Command::SetScheduler {
                    direction,
                    kind,
                    peer: peer.clone(),
                    reply,
                })?;
                reply.try_send(sum(answers)).ok();
            }
            Command::ReloadSites => send_all(&workers, || Command::ReloadSites)?,
            // The others have no such connection.
            Command::Enrolled {
                invitation,
                key,
                refused,
                owner,
            } => send_all(&workers, || Command::Enrolled {
                invitation,
                key,
                refused: refused.clone(),
                owner: owner.clone(),
            })?,
            // The others do not serve the site.
            Command::Claimed(statement) => send_all(&workers, || Command::Claimed(statement))?,
            Command::Drained(drained) => send_all(&workers, || Command::Drained(drained))?,
            Command::MtuFloor(bytes) => send_all(&workers, || Command::MtuFloor(bytes))?,
            Command::Key(step) => send_all(&workers, || Command::Key(step.clone()))?,
            Command::Shutdown => send_all(&workers, || Command::Shutdown)?,
            // The first one says that a hub has no uplinks.
            Command::SetPath { .. } | Command::Uplinks(_) => {
                workers.first().map_or(Ok(()), |first| (first.0)(command))?;
            }
        }
        Ok(())
    }))
}

fn send_all(workers: &[Commands], command: impl Fn() -> Command) -> anyhow::Result<()> {
    workers.iter().try_for_each(|worker| (worker.0)(command()))
}

/// Asks all, then waits for all.
fn ask<T>(
    workers: &[Commands],
    command: impl Fn(SyncSender<T>) -> Command,
) -> anyhow::Result<Vec<T>> {
    let ask_one = |worker: &Commands| -> anyhow::Result<Receiver<T>> {
        let (reply, answer) = sync_channel(1);
        (worker.0)(command(reply))?;
        Ok(answer)
    };
    let answers: Vec<_> = workers.iter().map(ask_one).collect::<anyhow::Result<_>>()?;
    let deadline = Instant::now() + ANSWER_TIMEOUT;
    let wait = |(index, answer): (usize, &Receiver<T>)| {
        let left = deadline.saturating_duration_since(Instant::now());
        let answer = answer.recv_timeout(left);
        answer.with_context(|| format!("worker {index} does not answer"))
    };
    answers.iter().enumerate().map(wait).collect()
}

/// How many tunnels all of them changed; an error when none did.
fn sum(answers: Vec<Result<usize, String>>) -> Result<usize, String> {
    let changed: usize = answers
        .iter()
        .filter_map(|answer| answer.as_ref().ok())
        .sum();
    let refused = answers.into_iter().find(Result::is_err);
    match refused {
        Some(refused) if changed == 0 => refused,
        _ => Ok(changed),
    }
}

/// One state of all workers; sites stand by name.
fn merge(states: Vec<Status>) -> Status {
    let mut states = states.into_iter();
    let Some(mut all) = states.next() else {
        return Status::default();
    };
    for state in states {
        for (reason, count) in state.drops {
            *all.drops.entry(reason).or_default() += count;
        }
        all.mtu = all.mtu.max(state.mtu);
        if let Some(passed) = state.passed {
            let sum = all.passed.get_or_insert_default();
            sum.passed_on += passed.passed_on;
            sum.unwrapped += passed.unwrapped;
        }
        for offload in state.offloads {
            if !all.offloads.contains(&offload) {
                all.offloads.push(offload);
            }
        }
        all.tunnels.extend(state.tunnels);
        all.workers.extend(state.workers);
    }
    all.tunnels.sort_by(|a, b| a.peer.cmp(&b.peer));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use ropewalk_api::{Direction, PassedStatus, TunnelStatus, WorkerStatus};
    use ropewalk_core::schedule::SchedulerKind;

    fn worker(number: usize, sites: &'static [&'static str]) -> Commands {
        Commands(Arc::new(move |command| {
            match command {
                Command::Status(reply) => {
                    let tunnel = |name: &&str| TunnelStatus {
                        peer: (*name).to_owned(),
                        ..TunnelStatus::default()
                    };
                    reply.try_send(Status {
                        mtu: 1_500 + number,
                        passed: Some(PassedStatus {
                            passed_on: 3,
                            unwrapped: 5,
                        }),
                        tunnels: sites.iter().map(tunnel).collect(),
                        drops: [("unroutable".to_owned(), 2)].into(),
                        workers: vec![WorkerStatus {
                            worker: number,
                            ..WorkerStatus::default()
                        }],
                        ..Status::default()
                    })?;
                }
                Command::SetScheduler { peer, reply, .. } => {
                    let count = sites
                        .iter()
                        .filter(|site| peer.as_deref().is_none_or(|name| name == **site))
                        .count();
                    let none = count == 0 && peer.is_some();
                    let answer = if none {
                        Err("no site".to_owned())
                    } else {
                        Ok(count)
                    };
                    reply.try_send(answer)?;
                }
                Command::Uplinks(_)
                | Command::SetPath { .. }
                | Command::ReloadSites
                | Command::Enrolled { .. }
                | Command::Claimed(_)
                | Command::Drained(_)
                | Command::Key(_)
                | Command::MtuFloor(_)
                | Command::Shutdown => {}
            }
            Ok(())
        }))
    }

    #[test]
    fn the_state_of_all_workers_is_one() {
        let hub = together(vec![worker(0, &["van", "boat"]), worker(1, &["farm"])]);
        let (reply, answer) = sync_channel(1);
        (hub.0)(Command::Status(reply)).unwrap();
        let status = answer.try_recv().unwrap();
        let peers: Vec<_> = status.tunnels.iter().map(|t| t.peer.as_str()).collect();
        assert_eq!(peers, ["boat", "farm", "van"]);
        assert_eq!((status.mtu, status.drops["unroutable"]), (1_501, 4));
        assert_eq!(status.workers.len(), 2);
        let passed = status.passed.unwrap();
        assert_eq!((passed.passed_on, passed.unwrapped), (6, 10));
    }

    #[test]
    fn a_scheduler_is_set_wherever_the_site_is() {
        let hub = together(vec![worker(0, &["van", "boat"]), worker(1, &["farm"])]);
        for (peer, expected) in [
            (None, Ok(3)),
            (Some("farm"), Ok(1)),
            (Some("boat"), Ok(1)),
            (Some("ship"), Err("no site".to_owned())),
        ] {
            let (reply, answer) = sync_channel(1);
            let command = Command::SetScheduler {
                direction: Direction::Both,
                kind: SchedulerKind::default(),
                peer: peer.map(str::to_owned),
                reply,
            };
            (hub.0)(command).unwrap();
            assert_eq!(answer.try_recv().unwrap(), expected, "{peer:?}");
        }
    }
}
