//! `ropewalk key`: shows, makes and replaces the key of this gateway.

use std::fmt::Write as _;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use ropewalk_api::{KeyChange, KeyRequest, Status, TunnelStatus};
use ropewalk_transport::Identity;
use serde::Serialize;

use super::output::{Colour, Style, Table};
use super::{Global, output};
use crate::client::Client;
use crate::exit::NotRunning;
use crate::hub_keys::HubKeys;
use crate::sites::Sites;
use crate::{key_file, service};
use ropewalk_config::WrongUsage;
use ropewalk_config::{self as config, Config};

const EXAMPLES: &str = "Examples:
  ropewalk key                 show the public key
  ropewalk key generate        make a key before joining; give the public key that it prints to
                               `ropewalk invite NAME --public-key KEY` on the hub
  ropewalk key rotate          change the key of this gateway; traffic goes on

The private key is never shown.";

const ROTATE: &str = "On a site: makes a new key and asks the hub to take it. The site makes new
connections with the new key, and the hub then ends the old key. Traffic goes
on. If the site does not run now, this begins at its next start.

On a hub: makes the next key and tells it to all connected sites, and to others
when they connect. `--status` says which sites know it. `--switch` makes it the
key of the hub: connections live on, and new ones have the new key. A site that
does not know the new key by then cannot connect any more, until somebody writes
the new key into [hub] of its site.toml and restarts it. Tokens that nobody has
used by then end, and `ropewalk invite --list` says so.

Examples:
  ropewalk key rotate            begin, and on a site wait until it is done
  ropewalk key rotate --status   how far it is
  ropewalk key rotate --switch   on a hub: the next key from now on
  ropewalk key rotate --by-hand  replace the key file only: the peer must be told
                                 by hand, with `ropewalk invite NAME --replace
                                 --public-key KEY` on the hub of a site; the
                                 former key is kept as FILE.former

If the key was stolen: on a hub use `ropewalk invite NAME --replace` for the
site, which ends the old key at once. A hub whose key was stolen needs a new one
by hand, at the hub and at each site.";

/// Show, make or change the key of this gateway
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Key {
    #[command(subcommand)]
    action: Option<KeyAction>,
    /// Key file, if not the configured one
    #[arg(long, global = true, value_name = "FILE")]
    key_file: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum KeyAction {
    /// Show the public key
    Show,
    /// Make a key where there is none
    Generate,
    /// Change the key while traffic goes on
    Rotate(Rotate),
}

/// How the key is changed.
#[derive(Debug, Args)]
#[command(after_help = ROTATE)]
struct Rotate {
    /// Say how far the change is, and begin nothing
    #[arg(long, conflicts_with_all = ["switch", "by_hand"])]
    status: bool,
    /// On a hub: use the next key from now on
    #[arg(long, conflicts_with = "by_hand")]
    switch: bool,
    /// With --switch: also though some sites do not know the next key
    #[arg(long, requires = "switch")]
    force: bool,
    /// Replace the key file only, now; the peer must be told by hand
    #[arg(long)]
    by_hand: bool,
    /// Print the state for programs
    #[arg(long, conflicts_with = "by_hand")]
    json: bool,
}

/// How long a site may take to have its new key. Longer: surer on bad links, later words where the hub does
/// not answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often the gateway is asked meanwhile.
const LOOK: Duration = Duration::from_millis(200);

/// How far a change of keys is.
#[derive(Debug, Serialize)]
struct Report {
    /// Key that the gateway has now.
    public_key: String,
    /// Key that it will have.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_key: Option<String>,
    /// `idle`, `asking`, `moving`, `refused` or `announced`.
    state: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// Of a hub that has announced a key.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    sites: Vec<Told>,
}

/// What a site of a hub knows.
#[derive(Debug, Serialize)]
struct Told {
    name: String,
    connected: bool,
    knows_next_key: bool,
}

impl Report {
    fn of(status: Status) -> Self {
        let told = |tunnel: TunnelStatus| {
            Some(Told {
                knows_next_key: tunnel.knows_next_key?,
                name: tunnel.peer,
                connected: tunnel.up,
            })
        };
        let rotation = status.rotation.unwrap_or_default();
        Self {
            public_key: status.public_key,
            next_key: Some(rotation.next_key).filter(|key| !key.is_empty()),
            state: Some(rotation.state)
                .filter(|state| !state.is_empty())
                .unwrap_or_else(|| "idle".to_owned()),
            reason: rotation.reason,
            sites: status.tunnels.into_iter().filter_map(told).collect(),
        }
    }

    fn text(&self, style: Style) -> String {
        let mut text = format!("key       {}\n", self.public_key);
        if let Some(next) = &self.next_key {
            let words = match self.state.as_str() {
                "asking" => "the hub has not taken it yet",
                "moving" => "the hub has taken it, and paths reconnect with it",
                "refused" => "the hub does not take it",
                "announced" => "sites are told; `ropewalk key rotate --switch` takes it up",
                other => other,
            };
            let _ = writeln!(text, "next key  {next}: {words}");
        } else {
            text.push_str("next key  none\n");
        }
        if let Some(reason) = &self.reason {
            let _ = writeln!(text, "reason    {reason}");
        }
        if !self.sites.is_empty() {
            let mut table = Table::new(&["SITE", "CONNECTED", "KNOWS THE NEXT KEY"]);
            for site in &self.sites {
                let word = |yes: bool| if yes { "yes" } else { "no" }.to_owned();
                let mark = if site.knows_next_key {
                    Colour::Green
                } else {
                    Colour::Yellow
                };
                table.row(vec![
                    (site.name.clone(), None),
                    (word(site.connected), None),
                    (word(site.knows_next_key), Some(mark)),
                ]);
            }
            text.push('\n');
            text.push_str(&table.render(style, ""));
        }
        text
    }

    fn print(&self, json: bool) -> anyhow::Result<()> {
        let text = if json {
            format!("{}\n", serde_json::to_string_pretty(self)?)
        } else {
            self.text(Style::of_stdout())
        };
        output::print(&text)?;
        Ok(())
    }
}

impl Key {
    /// Prints the public key, after making it if asked to.
    ///
    /// # Errors
    /// There is no key, or one that must not be overwritten.
    pub fn run(mut self, global: &Global) -> anyhow::Result<()> {
        let makes_first = matches!(self.action, Some(KeyAction::Generate));
        let action = self.action.take().unwrap_or(KeyAction::Show);
        if let KeyAction::Rotate(rotate) = &action
            && !rotate.by_hand
            && self.key_file.is_none()
        {
            return self.rotate(rotate, global);
        }
        let (path, whose) = self.path(global, makes_first)?;
        let identity = match action {
            KeyAction::Show => {
                let identity = key_file::load(&path)?;
                // Programs read the key from standard output.
                // Scripts take the key alone.
                if io::stdout().is_terminal() {
                    output::note(&format!("{whose}, {}:", path.display()));
                }
                identity
            }
            KeyAction::Generate => {
                let identity = Identity::generate()?;
                key_file::create(&path, &identity)?;
                output::note(&format!("wrote {}; the public key is", path.display()));
                identity
            }
            KeyAction::Rotate(_) => {
                // A key that cannot be read must not be lost by accident, nor invitations for nothing.
                key_file::load(&path).context("there must be a key to replace")?;
                let config = configured(global);
                match config.and_then(|config| uninvite(&config, &path)) {
                    Ok(names) => note_uninvited(&names),
                    // A stolen key is replaced all the same.
                    Err(error) => output::note(&format!(
                        "warning: {error:#}; tokens that nobody has used still look open, and are of no use any more"
                    )),
                }
                replace_by_hand(&path)?
            }
        };
        output::print(&format!("{}\n", identity.public_key()))?;
        Ok(())
    }

    /// Changes the key of a gateway by its API, or prepares that for its next start.
    fn rotate(&self, rotate: &Rotate, global: &Global) -> anyhow::Result<()> {
        let client = Client::find(global.config.as_deref(), global.socket.as_deref());
        let running = client.and_then(|client| Ok((client.status()?, client)));
        let (status, client) = match running {
            Ok(running) => running,
            Err(error) if error.is::<NotRunning>() && !rotate.status && !rotate.switch => {
                return self.prepare(global, rotate.json);
            }
            Err(error) => return Err(error),
        };
        let is_hub = status.role == "hub";
        let before = Report::of(status);
        if rotate.status {
            return before.print(rotate.json);
        }
        let (switch, force) = (rotate.switch, rotate.force);
        let change: KeyChange = client.post("/v1/key", &KeyRequest { switch, force })?;
        if is_hub {
            let done = if switch {
                "the hub has its next key; tokens that nobody has used are of no use any more"
            } else {
                "the next key is made, and sites are told; see --status, and then use --switch"
            };
            output::note(done);
            note_uninvited(&change.uninvited);
            return Report::of(client.status()?).print(rotate.json);
        }
        output::note(&format!(
            "the hub is asked to take the key {}; its answer may take {} s",
            change.key,
            PATIENCE.as_secs()
        ));
        let report = wait(&client, &before.public_key)?;
        report.print(rotate.json)?;
        match report.state.as_str() {
            "idle" if report.public_key != before.public_key => {
                output::note("the site has its new key, and the hub has ended the former one");
                Ok(())
            }
            "refused" => bail!(
                "the hub does not take the new key: {}; the site keeps its present key",
                report.reason.unwrap_or_default()
            ),
            _ => {
                let why = report.reason.unwrap_or_else(|| {
                    "a hub of an earlier version never answers: update the hub".to_owned()
                });
                bail!(
                    "the hub has not taken the new key within {} s; the site goes on trying, with its \
                     present key until then: see `ropewalk key rotate --status`. {why}",
                    PATIENCE.as_secs()
                )
            }
        }
    }

    /// Makes the next key of a gateway that does not run.
    fn prepare(&self, global: &Global, json: bool) -> anyhow::Result<()> {
        let path = &self.path(global, false)?.0;
        let file = configured(global)?;
        let own = key_file::load(path)
            .context("there must be a key to change")?
            .public_key();
        let (next, words) = match Config::load(&file)? {
            Config::Site(site) => {
                let hub = HubKeys::load(&site.common.state_dir, site.hub_key)?;
                let next = service::next_of_site(path, &hub)?;
                (
                    next,
                    "the site does not run: it asks its hub to take the new key when it starts",
                )
            }
            Config::Hub(_) => {
                let next = key_file::next_or_create(path, |_| true)?;
                (
                    next,
                    "the hub does not run: it tells its sites the next key when it starts",
                )
            }
            Config::Relay(_) | Config::Balance(_) => bail!(WrongUsage(format!(
                "the key of {} is changed by hand: use --by-hand",
                file.display()
            ))),
        };
        output::note(words);
        Report {
            public_key: own.to_string(),
            next_key: Some(next.public_key().to_string()),
            state: "prepared".to_owned(),
            reason: None,
            sites: Vec::new(),
        }
        .print(json)
    }

    /// The file of the key, and whose key that is. With `makes_first` the key may be made before the configuration.
    fn path(&self, global: &Global, makes_first: bool) -> anyhow::Result<(PathBuf, String)> {
        if let Some(path) = &self.key_file {
            return Ok((path.clone(), "key".to_owned()));
        }
        let config = configured(global)?;
        if !config.exists() && (makes_first || global.config.is_none()) {
            let path = config::common::key_file(&config, "site.key");
            return Ok((path, "site key".to_owned()));
        }
        match Config::load(&config)? {
            Config::Balance(_) => bail!(WrongUsage(format!(
                "{} is for `ropewalk balance`, which has no key; name the file of a key with \
                 --key-file",
                config.display()
            ))),
            config @ (Config::Hub(_) | Config::Site(_) | Config::Relay(_)) => {
                let common = config.common();
                Ok((common.key_file.clone(), format!("{} key", common.role)))
            }
        }
    }
}

/// The configuration whose key is meant.
fn configured(global: &Global) -> anyhow::Result<PathBuf> {
    match &global.config {
        Some(given) => Ok(given.clone()),
        None => only(&config::existing_paths()),
    }
}

/// The only one of the `existing` configurations that has a key, or that of a site that is still to be written.
///
/// # Errors
/// Several have one.
fn only(existing: &[&Path]) -> anyhow::Result<PathBuf> {
    // `ropewalk balance` has no key.
    let has_key = |path: &&Path| *path != Path::new(config::BALANCE_CONFIG);
    let found: Vec<_> = existing.iter().copied().filter(has_key).collect();
    match found.as_slice() {
        [] => Ok(PathBuf::from(config::SITE_CONFIG)),
        [one] => Ok((*one).to_owned()),
        several => {
            let files: Vec<_> = several
                .iter()
                .map(|path| path.display().to_string())
                .collect();
            bail!(WrongUsage(format!(
                "several gateways are configured here, each with a key of its own; choose with --config {}",
                files.join(" or ")
            )))
        }
    }
}

/// Ends the open invitations of a hub or a relay whose key in `key_file` is replaced by hand; the names of their sites.
fn uninvite(config: &Path, key_file: &Path) -> anyhow::Result<Vec<String>> {
    let inviting = match Config::load(config) {
        Ok(Config::Hub(hub)) => hub,
        Ok(Config::Relay(relay)) => relay.hub,
        Ok(Config::Site(_) | Config::Balance(_)) | Err(_) => return Ok(Vec::new()),
    };
    // A relay has another key towards the next hub.
    if inviting.common.key_file != key_file {
        return Ok(Vec::new());
    }
    Sites::uninvite(&inviting)
}

fn note_uninvited(names: &[String]) {
    for name in names {
        output::note(&format!(
            "the token of {name} is for the former key: make a new one with `ropewalk invite {name} --replace`"
        ));
    }
}

/// Replaces the key file; the peer is told by hand.
fn replace_by_hand(path: &Path) -> anyhow::Result<Identity> {
    let identity = Identity::generate()?;
    let former = key_file::replace(path, &identity)?;
    // Whoever has the present key may have the next one, too.
    key_file::remove_next(path)?;
    output::note(&format!(
        "replaced {}; restart this gateway after its peer knows the new public key. \
         The former key is in {}: move it back to undo this, else remove it",
        path.display(),
        former.display()
    ));
    Ok(identity)
}

/// Waits until the site has another key than `former`, or the hub refuses. Which one the site will have is not known:
/// a hub with several workers may want another one than the first.
fn wait(client: &Client, former: &str) -> anyhow::Result<Report> {
    let end = Instant::now() + PATIENCE;
    loop {
        let report = Report::of(client.status()?);
        let done = report.public_key != former && report.state == "idle";
        if done || report.state == "refused" || Instant::now() >= end {
            return Ok(report);
        }
        std::thread::sleep(LOOK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit;
    use crate::sites::{Credential, Invitation, Terms, Time};

    #[test]
    fn a_next_key_ends_with_the_key_that_it_was_to_follow() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("hub.key");
        key_file::load_or_create(&path).unwrap();
        key_file::next_or_create(&path, |_| true).unwrap();
        let identity = replace_by_hand(&path).unwrap();
        assert_eq!(key_file::load(&path).unwrap(), identity);
        assert_eq!(key_file::load_next(&path).unwrap(), None);
    }

    #[test]
    fn open_invitations_end_with_a_key_that_is_replaced_by_hand() {
        let directory = tempfile::tempdir().unwrap();
        let config = directory.path().join("hub.toml");
        let sites_file = directory.path().join("sites.toml");
        let text = format!("sites_file = {sites_file:?}\n[pool]\nipv4 = \"10.9.0.0/16\"\n");
        std::fs::write(&config, text).unwrap();
        let hub = config::load_inviting(&config).unwrap();
        key_file::load_or_create(&hub.common.key_file).unwrap();
        let key = Identity::generate().unwrap().public_key();
        let ends = Time::now().after(Duration::from_secs(3_600)).unwrap();
        let invitation = Credential::Invitation(Invitation::new(key, ends));
        let add = |sites: &mut Sites| sites.add(&hub, "boat", invitation, Terms::default());
        Sites::edit(&hub, add).unwrap();
        let key = Key {
            action: Some(KeyAction::Rotate(Rotate {
                status: false,
                switch: false,
                force: false,
                by_hand: true,
                json: false,
            })),
            key_file: None,
        };
        let global = Global {
            config: Some(config),
            ..Global::default()
        };
        key.run(&global).unwrap();
        let sites = Sites::load(&hub).unwrap();
        let state = sites.all()[0]
            .invitation
            .as_ref()
            .unwrap()
            .state(Time::now());
        assert!(state.starts_with("ended"), "{state}");
    }

    fn path(config: &Path, makes_first: bool) -> anyhow::Result<PathBuf> {
        let key = Key {
            action: None,
            key_file: None,
        };
        let global = Global {
            config: Some(config.to_owned()),
            ..Global::default()
        };
        key.path(&global, makes_first).map(|(path, _)| path)
    }

    #[test]
    fn where_several_gateways_have_keys_one_must_be_chosen() {
        let [site, hub, balance] = [
            config::SITE_CONFIG,
            config::HUB_CONFIG,
            config::BALANCE_CONFIG,
        ]
        .map(Path::new);
        assert_eq!(only(&[]).unwrap(), site);
        assert_eq!(only(&[hub, balance]).unwrap(), hub);
        let error = only(&[site, hub]).unwrap_err();
        assert_eq!(exit::code(&error), exit::USAGE);
        assert!(
            error
                .to_string()
                .ends_with("--config /etc/ropewalk/site.toml or /etc/ropewalk/hub.toml"),
            "{error}"
        );
    }

    #[test]
    fn a_key_is_called_by_the_role_that_has_it() {
        let directory = tempfile::tempdir().unwrap();
        let config = directory.path().join("hub.toml");
        std::fs::write(&config, "[pool]\nipv4 = \"10.9.0.0/16\"\n").unwrap();
        let key = Key {
            action: None,
            key_file: None,
        };
        let global = Global {
            config: Some(config),
            ..Global::default()
        };
        assert_eq!(key.path(&global, false).unwrap().1, "hub key");
    }

    #[test]
    fn a_missing_configuration_is_wrong_usage_unless_a_first_key_is_made() {
        let directory = tempfile::tempdir().unwrap();
        let config = directory.path().join("site.toml");
        let error = path(&config, false).unwrap_err();
        assert_eq!(exit::code(&error), exit::USAGE, "{error:#}");
        let first = path(&config, true).unwrap();
        assert_eq!(first, directory.path().join("keys/site.key"));
        // The key of an earlier version.
        let earlier = directory.path().join("site.key");
        std::fs::write(&earlier, "key").unwrap();
        assert_eq!(path(&config, true).unwrap(), earlier);
    }

    #[test]
    fn no_key_is_made_for_a_gateway_that_only_balances() {
        let directory = tempfile::tempdir().unwrap();
        let config = directory.path().join("balance.toml");
        std::fs::write(&config, "[balance]\n").unwrap();
        let error = path(&config, true).unwrap_err();
        assert_eq!(exit::code(&error), exit::USAGE);
        assert!(error.to_string().contains("has no key"), "{error:#}");
    }
}
