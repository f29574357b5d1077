//! Enrolment: the holder of an invitation says which key the invited site has.
//!
//! The holder connects with the key that follows from the secret of the invitation, so the handshake
//! proves the secret, and binds the proof to this connection and to the hub's key (RFC 8446 §4.4.3).
//! The control side decides. It keeps the file of the sites, and the clock that invitations end by.
//!
//! Invariants: the key of an invitation opens nothing but an enrolment, as no site has that key.
//! One connection has one question under way.

use bytes::Bytes;
use ropewalk_transport::PublicKey;
use ropewalk_types::Instant;
use ropewalk_wire::{Control, emit_control};

use super::Hub;
use super::tuning::{ENROL_INTERVAL, ENROLS};
use crate::links::{LinkId, Links};
use crate::session::Event;

impl Hub {
    /// Asks the control side. The site repeats what is left without an answer.
    pub(super) fn on_enrol(&mut self, now: Instant, link: LinkId, key: PublicKey) {
        let Some(pending) = self.pending.get_mut(&link) else {
            return;
        };
        let invitation = pending.key;
        if pending.enrolling.is_some()
            || !self.settings.sites.is_invitation(&invitation)
            || !self.enrolments.allows(now, ENROL_INTERVAL, ENROLS)
        {
            return;
        }
        pending.enrolling = Some(key);
        self.events.push_back(Event::Enrol { invitation, key });
    }

    /// Tells those who asked; how many.
    pub(super) fn enrolled(
        &mut self,
        links: &mut Links,
        invitation: &PublicKey,
        key: PublicKey,
        refused: Option<&str>,
    ) -> usize {
        let mut bytes = Vec::new();
        let refused = refused.unwrap_or_default().to_owned();
        emit_control(&Control::Enrolled { refused }, &mut bytes);
        let answer = Bytes::from(bytes);
        let mut told = 0;
        for (&link, pending) in &mut self.pending {
            if pending.key == *invitation && pending.enrolling == Some(key) {
                pending.enrolling = None;
                links.queue(link, answer.clone());
                told += 1;
            }
        }
        told
    }
}
