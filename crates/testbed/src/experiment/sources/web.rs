//! Page loads by `curl`: the document, then what it names, over up to six connections.

use std::time::{Duration, Instant};

use anyhow::Result;
use ropewalk_plan::{Distribution, TrafficReport, page};
use ropewalk_types::Random;

use super::{Outcome, Source, Stage};
use crate::traffic::web::{ObjectServer, fetch};

/// Users and the server they ask.
#[derive(Debug)]
pub(super) struct Pages {
    stage: Stage,
    users: Vec<Random>,
    objects: u32,
    pause: Duration,
    server: ObjectServer,
}

impl Pages {
    /// Starts the server.
    pub(super) fn prepare(
        stage: &Stage,
        index: usize,
        users: u32,
        objects: u32,
        pause: Duration,
    ) -> Result<Self> {
        let mut random = Random::new(stage.seed ^ ((index as u64) << 32));
        Ok(Self {
            stage: stage.clone(),
            users: (0..users).map(|_| random.fork()).collect(),
            objects,
            pause,
            server: ObjectServer::start(&stage.ends)?,
        })
    }

    /// Loads one page after the other until the end.
    fn user(&self, mut random: Random, begin: Instant) -> Log {
        let end = begin + self.stage.window.to;
        let left = || end.saturating_duration_since(Instant::now());
        let mut log = Log::default();
        while !left().is_zero() {
            let begun = Instant::now();
            match self.load(&page::sizes(self.objects, &mut random), &left) {
                Ok(true) if self.stage.window.contains(begun - begin) => {
                    log.load_ms.push(begun.elapsed().as_secs_f64() * 1e3);
                }
                Ok(_) => {}
                Err(error) => log.failures.push(format!("{error:#}")),
            }
            std::thread::sleep(self.pause.max(PAUSE_MIN).min(left()));
        }
        log
    }

    /// Loads a page: its last object first. Whether there was time for it.
    fn load(&self, sizes: &[u32], left: &dyn Fn() -> Duration) -> Result<bool> {
        let urls: Vec<String> = sizes.iter().map(|size| self.server.url(*size)).collect();
        let (named, document) = urls.split_at(urls.len() - 1);
        for part in [document, named] {
            let limit = left();
            if limit.is_zero() {
                return Ok(false);
            }
            if !part.is_empty() && !fetch(&self.stage.ends, part, page::CONNECTIONS, limit)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// What one user saw.
#[derive(Debug, Default)]
struct Log {
    load_ms: Vec<f64>,
    failures: Vec<String>,
}

/// Least pause, so that pages that fail at once do not follow each other without end.
const PAUSE_MIN: Duration = Duration::from_millis(10);

impl Source for Pages {
    fn run(self: Box<Self>, begin: Instant) -> Result<Outcome> {
        let this = &*self;
        let logs: Vec<Log> = std::thread::scope(|scope| {
            let users = this.users.iter().cloned();
            let users: Vec<_> = users
                .map(|random| scope.spawn(move || this.user(random, begin)))
                .collect();
            let joined = users.into_iter().map(std::thread::ScopedJoinHandle::join);
            joined
                .map(|log| log.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                .collect()
        });
        let load_ms: Vec<f64> = logs.iter().flat_map(|log| &log.load_ms).copied().collect();
        let failures: Vec<&String> = logs.iter().flat_map(|log| &log.failures).collect();
        let failed = failures.first().map(|first| {
            let count = failures.len();
            format!("web: {count} pages failed, the first with: {first}")
        });
        Ok(Outcome {
            report: TrafficReport {
                kind: "web".into(),
                delay_ms: Some(Distribution::of(&load_ms)),
                ..TrafficReport::default()
            },
            notes: failed.into_iter().collect(),
        })
    }
}
