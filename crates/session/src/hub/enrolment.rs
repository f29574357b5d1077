//! Enrolment: the holder of an invitation says which key the invited site has.
//!
//! The holder connects with the key that follows from the secret of the invitation, so the handshake
//! proves the secret, and binds the proof to this connection and to the hub's key (RFC 8446 §4.4.3).
//! The control side decides. It keeps the file of the sites, and the clock that invitations end by.
//!
//! A site that wants another key asks in the same way, on a connection with its present key.
//!
//! Invariants: the key of an invitation opens nothing but an enrolment, as no site has that key.
//! One connection has one question under way. One holder of an invitation takes no more than a small
//! part of the control side's time, whatever the number of its connections.

use bytes::Bytes;
use ropewalk_transport::PublicKey;
use ropewalk_types::{Instant, count_steps};
use ropewalk_wire::{Control, emit_control};

use super::Hub;
use super::tuning::{
    ENROL_INTERVAL, ENROL_PATIENCE, ENROLS, INVITATION_ENROLS, INVITATION_INTERVAL,
    REFUSAL_INTERVAL, REFUSALS,
};
use crate::keys::OTHER_WORKER;
use crate::links::{LinkId, Links};
use crate::pace::Pace;
use crate::session::Event;

/// An invitation by which somebody has tried to join.
#[derive(Debug, Default)]
pub(super) struct Invited {
    /// How often its holders may ask.
    questions: Pace,
    /// How often its refusals may cause lines in the log.
    lines: Pace,
}

impl Hub {
    /// Asks the control side. The site repeats what is left without an answer.
    pub(super) fn on_enrol(
        &mut self,
        now: Instant,
        links: &mut Links,
        link: LinkId,
        key: PublicKey,
    ) {
        let Some(pending) = self.pending.get_mut(&link) else {
            return;
        };
        let invitation = pending.key;
        // A question is lost when the control side has no time for it.
        let waits = pending
            .enrolling
            .is_some_and(|(_, since)| now.since(since) < ENROL_PATIENCE);
        let of_site = self.settings.sites.find(&invitation).is_some();
        if waits || !(of_site || self.settings.sites.is_invitation(&invitation)) {
            return;
        }
        let own = &mut self.invited.entry(invitation).or_default().questions;
        if !own.allows(now, INVITATION_INTERVAL, INVITATION_ENROLS)
            || !self.enrolments.allows(now, ENROL_INTERVAL, ENROLS)
        {
            return;
        }
        // The connections of a site are all at one worker.
        if of_site && self.others.worker_of(&key) != self.others.slice().index() {
            tracing::info!(%key, "a site wants a key that would take it to another worker, and makes another one");
            let refused = OTHER_WORKER.to_owned();
            links.queue_control(link, &Control::Enrolled { refused });
            return;
        }
        pending.enrolling = Some((key, now));
        self.events.push_back(Event::Enrol { invitation, key });
    }

    /// Tells those who asked; how many.
    pub(super) fn enrolled(
        &mut self,
        now: Instant,
        links: &mut Links,
        invitation: &PublicKey,
        key: PublicKey,
        refused: Option<&str>,
    ) -> usize {
        if let Some(refusal) = refused
            && let Some(invited) = self.invited.get_mut(invitation)
        {
            if invited.lines.allows(now, REFUSAL_INTERVAL, REFUSALS) {
                tracing::warn!(refusal, %key, "an invitation was refused");
            } else {
                self.invited_lines_left_out += 1;
            }
        }
        let Some(of_key) = self.links_of.get(invitation) else {
            return 0;
        };
        count_steps(of_key.len());
        let mut bytes = Vec::new();
        let words = refused.unwrap_or_default().to_owned();
        emit_control(&Control::Enrolled { refused: words }, &mut bytes);
        let answer = Bytes::from(bytes);
        let mut told = 0;
        for &link in of_key {
            if let Some(pending) = self.pending.get_mut(&link)
                && pending.enrolling.is_some_and(|(asked, _)| asked == key)
            {
                pending.enrolling = None;
                links.queue(link, answer.clone());
                told += 1;
            }
        }
        told
    }
}
