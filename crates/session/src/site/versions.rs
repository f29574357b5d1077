//! What a site does about a hub that speaks no version of the wire that the site speaks.
//!
//! The hub states its versions in its `Welcome`. Without a common one the site closes the connection,
//! says why, and tries again after a long time: somebody may upgrade the hub meanwhile.

use ropewalk_types::{Instant, PathId};
use ropewalk_wire::{Control, Datagram, NoCommonVersion, agree, is_control};

use super::Site;
use super::tuning::{ATTEMPT_JITTER, VERSION_RETRY};
use crate::links::{Links, Received};

impl Site {
    /// Whether this is a welcome of a hub that speaks no version of this site. Its path is then over.
    pub(super) fn is_refused(
        &mut self,
        now: Instant,
        links: &mut Links,
        received: &Received,
    ) -> bool {
        if !is_control(&received.data) {
            return false;
        }
        let Ok(Datagram::Control(Control::Welcome(welcome))) = Datagram::parse(&received.data)
        else {
            return false;
        };
        let Err(problem) = agree(welcome.versions, self.versions) else {
            return false;
        };
        let attempted = self.attempt_of(received.link).map(|(id, _)| id);
        let carried = self.peer.path_of(received.link).map(|(id, _)| id);
        if welcome.session == self.session {
            match attempted.or(carried) {
                Some(id) => self.bar(now, links, id, problem),
                None => self.bar_spare(now, links, received.link, &problem),
            }
        }
        true
    }

    /// Ends all connections of a path, and lets the path wait.
    fn bar(&mut self, now: Instant, links: &mut Links, id: PathId, problem: NoCommonVersion) {
        let Some(path) = &mut self.paths[id.index()] else {
            return;
        };
        let words = problem.to_string();
        for attempt in path.attempts.drain(..) {
            links.close(now, attempt.link, &words);
        }
        self.peer.remove_path(now, links, id, &words);
        let by_chance = ATTEMPT_JITTER * (2.0 * self.random.unit() - 1.0);
        path.barred_until = now + VERSION_RETRY.mul_f64(1.0 + by_chance);
        (path.unanswered, path.quic_wanted, path.tries) = (false, None, 0);
        if path.last_error.as_ref() != Some(&words) {
            tracing::error!(
                uplink = path.uplink.name,
                retry_s = VERSION_RETRY.as_secs_f64(),
                "{words}"
            );
            path.last_error = Some(words);
        }
    }
}
