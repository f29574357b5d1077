//! `ropewalk kill-switch`: shows the kill switch of the site, and sets it again early after a start of
//! the machine.

use std::path::Path;

use anyhow::bail;
use clap::{Args, Subcommand};
use serde_json::json;

use super::down::Place;
use super::{Global, output};
use ropewalk_config::{self as config, WrongUsage};
use ropewalk_host::kill_switch::{self, KillSwitch, Local, Plan, State};

const EXAMPLES: &str = "Examples:
  ropewalk kill-switch           whether it is on, what it refused, and what is let through
  ropewalk kill-switch --json    the same for programs
  ropewalk kill-switch restore   set it again as it was: for the unit that runs early at boot
  ropewalk down                  lift it

`kill_switch = true` in [network] of the configuration has `ropewalk up` set it.";

/// Show the kill switch of the site, or set it again after a start of the machine
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct KillSwitchArgs {
    #[command(subcommand)]
    action: Option<Action>,
    /// Show it as one JSON object: `on`, `refused` packets, `portal_s`, the seconds for which a portal is open, and
    /// `local`, the networks that are reached beside the tunnel
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Say whether it is on
    Show,
    /// Set it again as it was before the machine was switched off; nothing if it was lifted
    Restore,
}

impl KillSwitchArgs {
    /// Shows or restores.
    ///
    /// # Errors
    /// Not permitted, or the rules cannot be set.
    pub fn run(self, global: &Global) -> anyhow::Result<()> {
        match self.action.unwrap_or(Action::Show) {
            Action::Show => {
                let place = Place::of_site(global, "kill-switch")?;
                let state = kill_switch::state(&place.tun)?;
                let text = if self.json {
                    for_programs(state.as_ref()).to_string()
                } else {
                    words(state.as_ref())
                };
                Ok(output::print(&format!("{text}\n"))?)
            }
            Action::Restore if self.json => bail!(WrongUsage(
                "--json is for what is shown: `ropewalk kill-switch --json`".to_owned()
            )),
            Action::Restore => {
                let place = Place::find(global)?;
                let plan = match kill_switch::read(&place.file()) {
                    Ok(Some(plan)) => plan,
                    Ok(None) => {
                        output::note("no kill switch was set: nothing to restore");
                        return Ok(());
                    }
                    Err(error) => plan_of_configuration(global, error)?,
                };
                let switch = KillSwitch::set(&place.file(), plan)?;
                output::note(&format!(
                    "the kill switch is on again: {}",
                    leaves(&switch.plan().local)
                ));
                Ok(())
            }
        }
    }
}

/// What to set where the file of the plan cannot be read: a start of the machine must not leave the uplinks
/// open for that.
///
/// # Errors
/// The configuration is of no use either, or has the kill switch off.
fn plan_of_configuration(global: &Global, error: anyhow::Error) -> anyhow::Result<Plan> {
    let path = global.config.as_deref();
    let site = config::load_site(path.unwrap_or_else(|| Path::new(config::SITE_CONFIG)));
    let Some(site) = site.ok().filter(|site| site.kill_switch) else {
        return Err(error);
    };
    output::note(&format!(
        "{error:#}; setting the kill switch of the configuration instead"
    ));
    Ok(Plan::new(&site))
}

fn for_programs(state: Option<&State>) -> serde_json::Value {
    let local = state.into_iter().flat_map(|state| &state.local);
    let local: Vec<_> = local.map(Local::to_string).collect();
    json!({
        "on": state.is_some(),
        "refused": state.map_or(0, |state| state.refused),
        "portal_s": state.and_then(|state| state.portal).map_or(0, |time| time.as_secs()),
        "local": local,
    })
}

/// The state of a kill switch, in a line.
#[must_use]
pub fn words(state: Option<&State>) -> String {
    let Some(state) = state else {
        return "kill switch off: traffic may leave beside the tunnel".to_owned();
    };
    let mut text = format!(
        "kill switch on: {}; {} packets refused",
        leaves(&state.local),
        state.refused
    );
    if let Some(time) = state.portal {
        text += &portal(time.as_secs());
    }
    text
}

/// What leaves this machine where these networks are reached beside the tunnel.
#[must_use]
pub fn leaves(local: &[Local]) -> String {
    let mut text = "only the tunnel leaves this machine".to_owned();
    if !local.is_empty() {
        let networks: Vec<_> = local.iter().map(Local::to_string).collect();
        text += ", and what goes to the local networks ";
        text += &networks.join(", ");
    }
    text
}

/// That a portal is open for so many seconds more.
#[must_use]
pub fn portal(seconds: u64) -> String {
    format!(
        "; portal open for {} more: pages and names of this machine leave beside the tunnel",
        output::duration(seconds as f64)
    )
}

/// What to add to the words for a gateway that does not run; nothing where no kill switch is set.
#[must_use]
pub fn note(global: &Global) -> Option<String> {
    let state = kill_switch::state(&Place::find(global).ok()?.tun).ok()??;
    Some(format!("{}; `ropewalk down` lifts it", words(Some(&state))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_say_on_off_and_how_long_a_portal_is_open() {
        assert!(words(None).starts_with("kill switch off"));
        let state = State {
            refused: 7,
            portal: Some(std::time::Duration::from_secs(61)),
            local: vec![Local {
                interface: Some("br-lan".to_owned()),
                network: "192.168.50.0/24".parse().unwrap(),
            }],
        };
        let text = words(Some(&state));
        assert!(text.contains("7 packets refused"), "{text}");
        assert!(
            text.contains("to the local networks 192.168.50.0/24 on br-lan;"),
            "{text}"
        );
        assert!(text.contains("open for 1 min 1 s more"), "{text}");
        let shown = for_programs(Some(&state)).to_string();
        assert_eq!(
            shown,
            r#"{"local":["192.168.50.0/24 on br-lan"],"on":true,"portal_s":61,"refused":7}"#
        );
        let off = for_programs(None).to_string();
        assert_eq!(off, r#"{"local":[],"on":false,"portal_s":0,"refused":0}"#);
        assert_eq!(leaves(&[]), "only the tunnel leaves this machine");
    }

    #[test]
    fn json_is_taken_before_and_behind_the_action_and_refused_for_restore() {
        #[derive(clap::Parser)]
        struct Command {
            #[command(flatten)]
            inner: KillSwitchArgs,
        }
        for words in ["--json", "--json show", "show --json"] {
            let words = std::iter::once("kill-switch").chain(words.split(' '));
            let parsed = <Command as clap::Parser>::try_parse_from(words).unwrap();
            assert!(parsed.inner.json);
        }
        let parsed = <Command as clap::Parser>::try_parse_from(["k", "restore", "--json"]).unwrap();
        let error = parsed.inner.run(&Global::default()).unwrap_err();
        assert!(error.is::<WrongUsage>(), "{error}");
    }
}
