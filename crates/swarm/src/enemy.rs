//! The thread of a host that misbehaves.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ropewalk_transport::Identity;

use crate::args::Run;
use crate::hostile::{self, Behaviour, Target, usual_rate};

/// A host that misbehaves, and its thread's orders.
pub(crate) struct Enemy {
    behaviour: Behaviour,
    target: Target,
    begin: Barrier,
    stop: AtomicBool,
    begun: AtomicBool,
    count: AtomicU64,
}

impl Enemy {
    /// The one that is asked for, if any.
    ///
    /// # Errors
    /// Its key cannot be made.
    pub(crate) fn new(args: &Run, secret: &Identity) -> anyhow::Result<Option<Self>> {
        let Some(behaviour) = args.hostile else {
            return Ok(None);
        };
        Ok(Some(Self {
            behaviour,
            target: Target {
                hub: args.hub,
                hub_key: args.hub_key,
                identity: secret.derived(args.common.count)?,
                rate: args.hostile_rate.unwrap_or_else(|| usual_rate(behaviour)),
                sockets: args.hostile_sockets,
            },
            begin: Barrier::new(2),
            stop: AtomicBool::new(false),
            begun: AtomicBool::new(false),
            count: AtomicU64::new(0),
        }))
    }

    /// Waits, misbehaves until the end, and says how often.
    ///
    /// # Errors
    /// The socket cannot be used.
    pub(crate) fn run(&self) -> anyhow::Result<u64> {
        self.begin.wait();
        hostile::run(self.behaviour, &self.target, &self.stop, &self.count)?;
        Ok(self.count.load(Ordering::Relaxed))
    }

    /// Lets it begin.
    pub(crate) fn begin(&self) {
        if !self.begun.swap(true, Ordering::Relaxed) {
            self.begin.wait();
        }
    }

    /// Ends it.
    fn end(&self) {
        self.stop.store(true, Ordering::Relaxed);
        self.begin();
    }
}

/// Ends the thread of an enemy whatever happens here.
pub(crate) struct Ends<'a>(pub(crate) &'a Enemy);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}
