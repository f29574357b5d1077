//! Enrolment: the holder of an invitation says which key the invited site has.
//!
//! The holder connects with the key that follows from the secret of the invitation, so the handshake
//! proves the secret, and binds the proof to this connection and to the hub's key (RFC 8446 §4.4.3).
//! The control side decides. It keeps the file of the sites, and the clock that invitations end by.
//!
//! A site that wants another key asks in the same way, on a connection with its present key.
//!
//! The question holds a proof of the key that is asked for, for the key of the connection. Sites of earlier versions
//! send none. A wrong proof is no question.
//!
//! Invariants: the key of an invitation opens nothing but an enrolment, as no site has that key.
//! One connection has one question under way. One holder of an invitation, or one site, takes no
//! more than a small part of the control side's time, whatever the number of its connections and keys.

use bytes::Bytes;
use ropewalk_transport::{Proof, PublicKey};
use ropewalk_types::{Instant, Pace, count_steps};
use ropewalk_wire::{Control, emit_control};

use super::Hub;
use super::tuning::{
    ENROL_INTERVAL, ENROL_PATIENCE, ENROLS, INVITATION_ENROLS, INVITATION_INTERVAL,
    REFUSAL_INTERVAL, REFUSALS, ROTATION_INTERVAL, ROTATIONS,
};
use crate::keys::{OTHER_WORKER, TOO_OFTEN};
use crate::links::{LinkId, Links};
use crate::session::Event;

/// An invitation by which somebody has tried to join, or a site that has asked for another key.
#[derive(Debug, Default)]
pub(super) struct Invited {
    /// How often its holders may ask.
    questions: Pace,
    /// How often its refusals may cause lines in the log.
    lines: Pace,
    /// How often the site may have another key.
    rotations: Pace,
    /// The key that it may have since it asked last.
    wanted: Option<PublicKey>,
}

impl Invited {
    /// Whether a site may have this key now. A question that is repeated counts once.
    fn may_have(&mut self, now: Instant, key: PublicKey) -> bool {
        if self.wanted != Some(key) {
            if !self.rotations.allows(now, ROTATION_INTERVAL, ROTATIONS) {
                return false;
            }
            self.wanted = Some(key);
        }
        true
    }
}

impl Hub {
    /// Asks the control side. The site repeats what is left without an answer.
    pub(super) fn on_enrol(
        &mut self,
        now: Instant,
        links: &mut Links,
        link: LinkId,
        key: PublicKey,
        proof: Option<Proof>,
    ) {
        let Some(pending) = self.pending.get_mut(&link) else {
            return;
        };
        let invitation = pending.key;
        // A question is lost when the control side has no time for it.
        let waits = pending
            .enrolling
            .is_some_and(|(_, since)| now.since(since) < ENROL_PATIENCE);
        let site = self.settings.sites.find(&invitation);
        if waits || !(site.is_some() || self.settings.sites.is_invitation(&invitation)) {
            return;
        }
        // The keys of a site change, and its name stays.
        let own = match &site {
            Some(site) => self.keys.asking.entry(site.name.clone()).or_default(),
            None => self.invited.entry(invitation).or_default(),
        };
        if !own
            .questions
            .allows(now, INVITATION_INTERVAL, INVITATION_ENROLS)
            || !self.enrolments.allows(now, ENROL_INTERVAL, ENROLS)
        {
            return;
        }
        // Older sites send none.
        let proved = proof.map(|proof| key.has_proved(&invitation, &proof));
        if proved == Some(false) {
            if own.lines.allows(now, REFUSAL_INTERVAL, REFUSALS) {
                tracing::warn!(%key, "somebody asks for a key with a proof that is wrong: the question is ignored");
            } else {
                self.invited_lines_left_out += 1;
            }
            return;
        }
        let refused = if site.is_none() {
            None
        } else if self.listed.worker_of(&key) != self.listed.slice().index() {
            // The connections of a site are all at one worker.
            Some(OTHER_WORKER)
        } else {
            Some(TOO_OFTEN).filter(|_| !own.may_have(now, key))
        };
        if let Some(refused) = refused {
            if own.lines.allows(now, REFUSAL_INTERVAL, REFUSALS) {
                tracing::info!(%key, refused, "a next key of a site is refused");
            }
            let refused = refused.to_owned();
            links.queue_control(link, &Control::Enrolled { refused });
            return;
        }
        pending.enrolling = Some((key, now));
        self.events.push_back(Event::Enrol {
            invitation,
            key,
            proved: proved.is_some(),
        });
    }

    /// Writes down that somebody was refused. Whoever asks again and again fills no log.
    pub(super) fn note_refusal(
        &mut self,
        now: Instant,
        invitation: &PublicKey,
        key: &PublicKey,
        refused: Option<&str>,
        owner: Option<String>,
    ) {
        let invited = match self.settings.sites.find(invitation) {
            Some(site) => self.keys.asking.get_mut(&site.name),
            None => self.invited.get_mut(invitation),
        };
        if let (Some(refusal), Some(invited)) = (refused, invited) {
            if invited.lines.allows(now, REFUSAL_INTERVAL, REFUSALS) {
                tracing::warn!(refusal, %key, owner, "an invitation or a next key was refused");
            } else {
                self.invited_lines_left_out += 1;
            }
        }
    }

    /// Tells those who asked; how many.
    pub(super) fn enrolled(
        &mut self,
        links: &mut Links,
        invitation: &PublicKey,
        key: PublicKey,
        refused: Option<String>,
    ) -> usize {
        let Some(of_key) = self.links_of.get(invitation) else {
            return 0;
        };
        count_steps(of_key.len());
        let mut bytes = Vec::new();
        let refused = refused.unwrap_or_default();
        emit_control(&Control::Enrolled { refused }, &mut bytes);
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
