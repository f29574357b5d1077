//! Which paths a site has: it follows the uplinks and the user's wishes.

use ropewalk_api::PathUse;
use ropewalk_core::tunnel::PathState;
use ropewalk_types::{Instant, PATHS_MAX, PathId};
use ropewalk_wire::Control;

use super::Site;
use super::leaving::Leaving;
use super::path::SitePath;
use crate::command::Uplink;
use crate::links::Links;

impl Site {
    /// Follows the uplinks: new ones get a path, changed ones keep theirs, gone ones lose it.
    pub(super) fn set_uplinks(&mut self, now: Instant, links: &mut Links, uplinks: Vec<Uplink>) {
        for id in self.ids() {
            let Some(path) = &self.paths[id.index()] else {
                continue;
            };
            // The index outlives a rename; an interface plugged in again has a new one.
            if !uplinks.iter().any(|u| u.ifindex == path.uplink.ifindex) {
                self.drop_path(now, links, id, "the uplink is gone");
            }
        }
        for uplink in uplinks {
            let same = |p: &Option<SitePath>| {
                p.as_ref()
                    .is_some_and(|p| p.uplink.ifindex == uplink.ifindex)
            };
            if let Some(index) = self.paths.iter().position(same) {
                #[expect(clippy::cast_possible_truncation, reason = "PATHS_MAX is 16")]
                self.change_path(now, links, PathId(index as u8), uplink);
            } else if let Some(index) = self.paths.iter().position(Option::is_none) {
                tracing::info!(uplink = uplink.name, "uplink found");
                let enabled = !self.disabled.contains(&uplink.name);
                let path = SitePath::new(now, uplink, enabled, self.generations[index]);
                self.paths[index] = Some(path);
            } else {
                tracing::warn!(
                    uplink = uplink.name,
                    max = PATHS_MAX,
                    "too many uplinks: not used"
                );
            }
        }
        self.tick = now;
    }

    fn change_path(&mut self, now: Instant, links: &mut Links, id: PathId, uplink: Uplink) {
        let Some(path) = &mut self.paths[id.index()] else {
            return;
        };
        if path.uplink == uplink {
            return;
        }
        let old = std::mem::replace(&mut path.uplink, uplink);
        if old.name != path.uplink.name {
            // The socket is bound to the device by index; only the name people see changes.
            tracing::info!(from = old.name, to = path.uplink.name, "uplink renamed");
        }
        let lost = old
            .addresses
            .iter()
            .any(|a| !path.uplink.addresses.contains(a));
        let marks = |u: &Uplink| {
            (
                u.standby,
                u.metered,
                u.bottleneck,
                u.weight,
                u.protection_hourly,
                u.name.clone(),
            )
        };
        let renewed = marks(&old) != marks(&path.uplink);
        (path.next_attempt, path.tries, path.changed) = (now, 0, now);
        if renewed {
            path.unanswered = true;
            path.hello_due = now;
        }
        let config = path.config();
        let former = self.former.as_ref();
        if let Some(carrier) = former.and_then(|former| former.peer.paths[id.index()].as_ref())
            && lost
        {
            links.address_changed(carrier.link);
        }
        if let Some(carrier) = &mut self.peer.paths[id.index()] {
            carrier.name.clone_from(&path.uplink.name);
            if renewed {
                carrier.config = config.clone();
                self.peer.tunnel.set_path_config(id, config);
            }
            if lost {
                // The connection goes on from another address, which the hub validates.
                links.address_changed(carrier.link);
            }
        }
    }

    fn drop_path(&mut self, now: Instant, links: &mut Links, id: PathId, why: &str) {
        let Some(path) = self.paths[id.index()].take() else {
            return;
        };
        tracing::info!(uplink = path.uplink.name, why, "path dropped");
        for attempt in &path.attempts {
            links.close(now, attempt.link, why);
        }
        self.peer.remove_path(now, links, id, why);
        if let Some(former) = &mut self.former {
            former.peer.remove_path(now, links, id, why);
        }
        self.close_warm(now, links, id, why);
        for socket in path.sockets.into_iter().flatten() {
            // After the goodbyes, which leave with the next flush.
            links.close_udp(socket);
        }
        self.generations[id.index()] = path.generation;
        let gone = Control::PathGone {
            path: id.0,
            generation: path.generation,
        };
        self.peer.send_control(links, &gone);
    }

    pub(super) fn set_path(
        &mut self,
        now: Instant,
        links: &mut Links,
        uplink: &str,
        wanted: PathUse,
    ) -> Result<(), String> {
        let named = |p: &Option<SitePath>| p.as_ref().is_some_and(|p| p.uplink.name == uplink);
        let Some(index) = self.paths.iter().position(named) else {
            let known: Vec<_> = self
                .paths
                .iter()
                .flatten()
                .map(|p| p.uplink.name.as_str())
                .collect();
            return Err(format!(
                "no uplink {uplink:?}; uplinks: {}",
                known.join(", ")
            ));
        };
        #[expect(clippy::cast_possible_truncation, reason = "PATHS_MAX is 16")]
        let id = PathId(index as u8);
        let ends = matches!(wanted, PathUse::Leaving(_) | PathUse::Foretold(Some(_)));
        if ends && self.peer.tunnel.path_state(id) != Some(PathState::Up) {
            return Err(format!(
                "the path over {uplink} is not up: there is nothing to leave"
            ));
        }
        if let Some(path) = &mut self.paths[index] {
            // Nothing that was said counts any more once it has gone and come back.
            if !self.peer.tunnel.is_leaving(id) {
                path.leaving = Leaving::default();
            }
            match wanted {
                PathUse::Leaving(longest) => {
                    let until = longest.map_or(Instant::FAR_FUTURE, |longest| now + longest);
                    path.leaving.tell(until);
                }
                PathUse::Foretold(longest) => {
                    path.leaving.foretell(longest.map(|longest| now + longest));
                }
                PathUse::Returning | PathUse::Enabled | PathUse::Disabled => {
                    path.leaving = Leaving::default();
                }
            }
            self.peer.tunnel.set_leaving(id, path.leaving.counts(now));
        }
        if !matches!(wanted, PathUse::Enabled | PathUse::Disabled) {
            return Ok(());
        }
        self.disabled.retain(|name| name != uplink);
        if wanted == PathUse::Enabled {
            if let Some(path) = &mut self.paths[index] {
                path.enabled = true;
                (path.next_attempt, path.tries) = (now, 0);
            }
        } else {
            self.disabled.push(uplink.to_owned());
            let Some(path) = &self.paths[index] else {
                return Ok(());
            };
            let uplink = path.uplink.clone();
            self.drop_path(now, links, id, "disabled");
            let path = SitePath::new(now, uplink, false, self.generations[index]);
            self.paths[index] = Some(path);
        }
        self.tick = now;
        Ok(())
    }
}
