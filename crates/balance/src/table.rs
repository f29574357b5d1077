//! Keeps the firewall table as it has to be, also when other programs change it.

use ropewalk_io::nft;

use super::kept::Affinity;
use super::order::{self, Extent, Found, Order};
use super::ruleset::View;
use super::{Balance, marks, names, ruleset};
use ropewalk_host::Changes;

impl Balance {
    pub(super) fn view(&self) -> View<'_> {
        View {
            members: &self.members,
            refused: &self.refused,
            rules: &self.config.rules,
            groups: self.groups.clone(),
            affinity: Affinity {
                time: self.config.affinity,
                sites: self.config.kept,
            },
            split: self.split.as_ref(),
        }
    }

    /// Brings the table up to date: the rules only where they differ, everything where another program
    /// took it away, as a firewall does that is loaded anew.
    pub(super) fn write(&mut self) -> anyhow::Result<()> {
        let frame = ruleset::frame(&self.view());
        // It may be taken away between the look and the update.
        if self.is_table_whole()? && frame == self.frame && self.order(Extent::Elements).is_ok() {
            return Ok(());
        }
        let is_own = self.is_table_whole()?;
        // One of the same name may have come back out of a file, or be an earlier run's.
        self.order(if is_own {
            Extent::Rules
        } else {
            Extent::Everything
        })?;
        let was_made = !std::mem::replace(&mut self.frame, frame).is_empty();
        // None when it was taken away again meanwhile: `keep` makes it anew.
        self.table = nft::table_handle(marks::TABLE)?;
        if !is_own && was_made {
            tracing::warn!("another program removed the firewall table; made again");
            self.look_up_names();
        }
        Ok(())
    }

    fn order(&self, extent: Extent) -> anyhow::Result<()> {
        let split = self.split.as_ref();
        let found = Found {
            members: self.members.clone(),
            refused: self.refused.clone(),
            groups: self.groups.clone(),
            inner: split.map(|split| split.inner.clone()).unwrap_or_default(),
            fallen_back: split.is_some_and(|split| split.fallen_back),
        };
        let order = Order::Table {
            version: self.version,
            found: Box::new(found),
            extent,
        };
        order::carry_out(&order, Some(&self.view()))
    }

    /// Whether the table is the one that was made last, with its rules.
    fn is_table_whole(&self) -> anyhow::Result<bool> {
        Ok(self.table.is_some()
            && nft::table_handle(marks::TABLE)? == self.table
            && nft::chain_rules(marks::TABLE, ruleset::ENTRANCE)? > Some(0))
    }

    /// Fills the sets of a new table.
    pub(super) fn look_up_names(&mut self) {
        self.names = names::Names::new(&self.config.rules);
        self.names.fill();
    }

    /// Makes good what other programs took away, such as a network manager the routing rules that it
    /// does not know. Routes are followed with the interfaces.
    pub(super) fn keep(&mut self, changes: &mut Changes) -> anyhow::Result<()> {
        let rules = self.setup.keep(changes)?;
        if rules > 0 {
            tracing::warn!(rules, "another program removed routing rules; set again");
        }
        if !self.is_table_whole()? {
            self.write()?;
        }
        Ok(())
    }

    /// Frees clients from uplinks that have become slow. Where the weight is set it is not for
    /// measurements to say which those are.
    pub(super) fn let_go(&mut self) -> anyhow::Result<()> {
        let readings = self.gauge.readings(&self.members);
        let members = self.members.iter().zip(readings).zip(&self.usable);
        let capacities: Vec<_> = members
            .filter(|((member, _), usable)| member.weight.is_none() && usable.contains(&true))
            .map(|((member, reading), _)| {
                (member.number, reading.known.then_some(reading.capacity))
            })
            .collect();
        let leaving = self.affinity.handle_capacities(self.now(), &capacities);
        if leaving.is_empty() || self.config.affinity.is_zero() {
            return Ok(());
        }
        for member in self.members.iter().filter(|m| leaving.contains(&m.number)) {
            tracing::info!(
                uplink = member.name,
                "uplink has become slow; clients choose anew"
            );
        }
        if order::carry_out(&Order::LetGo(leaving), None).is_err() {
            // Without the table there is nothing to let go; it is made anew.
            self.write()?;
        }
        Ok(())
    }
}
