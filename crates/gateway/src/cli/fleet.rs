//! `ropewalk fleet`: makes a fleet of hubs, shows it, and keeps its state.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use ropewalk_api::{FleetHub, FleetStatus};
use ropewalk_config::reader::{Problem, Problems};
use ropewalk_config::values::{parse_name, parse_path};
use ropewalk_config::{self as config, FleetConfig, HubConfig, WrongUsage, common};
use ropewalk_fleet::backup::Difference;
use ropewalk_transport::Identity;
use serde_json::json;

use super::output::{Colour, Style, Table, printable};
use super::{Global, output, status};
use crate::client::Client;
use crate::fleet::desk::{self, Desk};
use crate::sites::Time;
use crate::{fleet, key_file};

/// Exit code after Ctrl-C, as shells have it: 128 and the number of SIGINT.
const INTERRUPTED: i32 = 130;

const EXAMPLES: &str = "Examples:
  ropewalk fleet init north --endpoint http://10.0.0.1:2379 >> /etc/ropewalk/hub.toml
                                    make the fleet with the pools of this hub; copy the section
                                    [fleet] that it prints to every other hub
  ropewalk fleet status             etcd, how old the copy here is, the hubs, what waits
  ropewalk fleet status --json | jq -r '.hubs[] | select(.runs) | .name'
                                    names of the hubs that run
  ropewalk fleet drain b --wait     its sites move to their spares, and new ones get other hubs;
                                    `--end` takes the mark away
  ropewalk fleet forget b           a hub that is gone for good
  ropewalk fleet backup fleet.backup
  ropewalk fleet restore fleet.backup
                                    into an etcd that is empty; --force replaces another state

Hubs of a fleet serve the same sites. They share sites, keys, addresses and invitations on etcd, and each
hub has a copy on its disk. While etcd is away, known sites join, move and run; invitations and revocations
wait. `ropewalk invite` works on every hub of the fleet. All these commands read [fleet] of the hub's
configuration.";

const INIT: &str = "Examples:
  ropewalk fleet init north --endpoint http://10.0.0.1:2379 >> /etc/ropewalk/hub.toml
  ropewalk fleet init north --endpoint https://10.0.0.1:2379 --endpoint https://10.0.0.2:2379 \\
      --endpoint https://10.0.0.3:2379 --ca /etc/ropewalk/etcd/ca.pem \\
      --user hub --password-file /etc/ropewalk/etcd/password >> /etc/ropewalk/hub.toml
  ropewalk fleet init               again: with [fleet] in the configuration, after a pool was enlarged

Makes the key of the fleet, unless there is one, and the record of the fleet in etcd. The addresses of
sites come from [pool] of this hub. All hubs of the fleet have the same [pool], and each its own `name`.
Prints the section [fleet] for the configuration of every hub. The key file is needed on no hub: keep it
where the configuration of hubs is kept, with a copy.";

const RESTORE: &str = "Examples:
  ropewalk fleet restore fleet.backup            into an etcd without a state of this fleet
  ropewalk fleet restore fleet.backup --force    replaces what etcd has, and goes on after an interruption

Nobody can tell an older state from a newer one, so every difference counts as newer: what was changed
since the backup is lost with --force. While the backup is written back no hub changes the state, and
all hubs serve the sites that they know.";

/// Make a fleet of hubs that serve the same sites, show it, and keep its state
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct FleetArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Make a fleet whose first hub this is
    Init(Init),
    /// Show etcd, the age of the copy on this hub, the hubs, and what waits
    Status(Form),
    /// Let the sites of a hub move to their spares; tokens name other hubs
    Drain(Drain),
    /// Forget a hub that is gone for good
    Forget(Forget),
    /// Write the state of the fleet to a new file
    Backup(Backup),
    /// Write a backup back to etcd
    Restore(Restore),
}

/// How results are shown.
#[derive(Clone, Copy, Debug, Args)]
struct Form {
    /// One JSON object for programs
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = INIT)]
struct Init {
    /// Name of the fleet; without it [fleet] of the configuration is read
    #[arg(value_parser = parse_name, requires = "endpoint")]
    name: Option<String>,
    /// Member of etcd, such as https://10.0.0.1:2379; may be given several times
    #[arg(long, value_name = "URL", requires = "name", value_parser = endpoint)]
    endpoint: Vec<String>,
    /// Authority that has signed the certificates of etcd, PEM
    #[arg(long, value_name = "FILE", requires = "name", value_parser = parse_path)]
    ca: Option<PathBuf>,
    /// Certificate of the hubs for etcd, PEM
    #[arg(long, value_name = "FILE", requires_all = ["name", "certificate_key"], value_parser = parse_path)]
    certificate: Option<PathBuf>,
    /// Its private key, PEM
    #[arg(long, value_name = "FILE", requires_all = ["name", "certificate"], value_parser = parse_path)]
    certificate_key: Option<PathBuf>,
    /// User of etcd
    #[arg(long, requires_all = ["name", "password_file"], value_parser = parse_name)]
    user: Option<String>,
    /// File with the password of the user, of mode 0600
    #[arg(long, value_name = "FILE", requires_all = ["name", "user"], value_parser = parse_path)]
    password_file: Option<PathBuf>,
    /// Key of the fleet [default: keys/fleet.key beside the configuration]
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    #[command(flatten)]
    form: Form,
}

#[derive(Debug, Args)]
struct Drain {
    /// Name of the hub
    #[arg(value_parser = parse_name)]
    hub: String,
    /// Take the mark away: sites may be at the hub again
    #[arg(long)]
    end: bool,
    /// Wait until the hub serves no site any more, so many seconds at most
    #[arg(
        long,
        value_name = "SECONDS",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "60",
        conflicts_with = "end"
    )]
    wait: Option<u64>,
    #[command(flatten)]
    form: Form,
}

#[derive(Debug, Args)]
struct Forget {
    /// Name of the hub
    #[arg(value_parser = parse_name)]
    hub: String,
    #[command(flatten)]
    form: Form,
}

#[derive(Debug, Args)]
struct Backup {
    /// File, which must not be there yet; it is written with mode 0600
    file: PathBuf,
    #[command(flatten)]
    form: Form,
}

#[derive(Debug, Args)]
#[command(after_help = RESTORE)]
struct Restore {
    /// File that `ropewalk fleet backup` wrote
    file: PathBuf,
    /// Replace what etcd has
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    form: Form,
}

impl FleetArgs {
    /// Does what is asked.
    ///
    /// # Errors
    /// The configuration is wrong, etcd does not answer or refuses, or a file cannot be read or written.
    pub fn run(self, global: &Global) -> anyhow::Result<()> {
        let path = global
            .config
            .as_deref()
            .unwrap_or_else(|| Path::new(config::HUB_CONFIG));
        if let Action::Init(init) = self.action {
            return init.run(path);
        }
        let hub = config::load_hub(path).context("the configuration is not usable")?;
        let Some(fleet) = hub.fleet.as_deref() else {
            return Err(WrongUsage(format!(
                "{} has no section [fleet]; `ropewalk fleet init` makes a fleet and prints one",
                path.display()
            ))
            .into());
        };
        let socket = global.socket.as_deref().unwrap_or(&hub.common.socket);
        match self.action {
            // Above: there is no fleet yet.
            Action::Init(_) => Ok(()),
            Action::Status(form) => show(&hub, fleet, socket, form),
            Action::Drain(drain) => drain.run(&Desk::open(&hub, fleet, socket)?),
            Action::Forget(forget) => forget.run(&Desk::open(&hub, fleet, socket)?),
            Action::Backup(backup) => {
                let records = desk::save(&hub, fleet, &backup.file)?;
                let file = backup.file.display().to_string();
                let plural = if records == 1 { "" } else { "s" };
                let words = format!("wrote {file} with {records} record{plural}");
                backup
                    .form
                    .tell(&json!({"file": file, "records": records}), &words)
            }
            Action::Restore(restore) => {
                let changed = desk::restore(&hub, fleet, &restore.file, restore.force)?;
                let words = format!(
                    "{} records were missing in etcd, {} were changed, {} were removed",
                    changed.missing, changed.changed, changed.added
                );
                restore.form.tell(&restored(changed), &words)
            }
        }
    }
}

/// What a restore has changed, in the words of the text.
fn restored(changed: Difference) -> serde_json::Value {
    json!({
        "missing": changed.missing, "changed": changed.changed, "removed": changed.added,
    })
}

/// A number of sites.
fn count(sites: usize) -> String {
    if sites == 1 {
        "1 site".to_owned()
    } else {
        format!("{sites} sites")
    }
}

fn endpoint(text: &str) -> Result<String, String> {
    config::parse_etcd_endpoint(text)
        .map_err(|what| format!("{what}; write it as https://10.0.0.1:2379"))
}

impl Form {
    /// Prints what was done: as JSON, or in words.
    fn tell(self, json: &serde_json::Value, words: &str) -> anyhow::Result<()> {
        if self.json {
            output::print(&format!("{json:#}\n"))?;
        } else {
            output::note(words);
        }
        Ok(())
    }
}

impl Drain {
    fn run(self, desk: &Desk<'_>) -> anyhow::Result<()> {
        let (hub, drained) = (&self.hub, !self.end);
        desk.drain(hub, drained)?;
        let Some(seconds) = self.wait else {
            let words = if drained {
                format!(
                    "sites of {hub} move to their spares from now on, and tokens name other hubs; `ropewalk fleet \
                     status` says how many are left"
                )
            } else {
                format!("hub {hub} is no longer drained")
            };
            let json = json!({"hub": hub, "drained": drained});
            return self.form.tell(&json, &words);
        };
        let tell = |sites: u32| {
            if !self.form.json {
                output::note(&format!("hub {hub} serves {}", count(sites as usize)));
            }
        };
        note_interrupt(format!(
            "hub {hub} stays drained, and its sites go on to move; `ropewalk fleet drain {hub} --end` takes the mark away"
        ));
        let left = desk.await_drained(hub, Duration::from_secs(seconds), tell);
        if left > 0 {
            bail!(
                "hub {hub} still serves {} after {seconds} s, {}; they stay until the hub stops, and break off then; \
                 `ropewalk status` on {hub} names them",
                count(left as usize),
                desk.why_sites_stay(hub)
            );
        }
        let json = json!({"hub": hub, "drained": true, "sites": left});
        let words = format!("hub {hub} serves no site any more, or does not run");
        self.form.tell(&json, &words)
    }
}

/// Says something when somebody ends the command with Ctrl-C.
fn note_interrupt(words: String) {
    let wait = move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let Ok(runtime) = runtime else {
            return;
        };
        if runtime.block_on(tokio::signal::ctrl_c()).is_ok() {
            output::note(&words);
            std::process::exit(INTERRUPTED);
        }
    };
    // Without the thread Ctrl-C ends the command without these words.
    let _ = std::thread::Builder::new().spawn(wait);
}

impl Forget {
    fn run(self, desk: &Desk<'_>) -> anyhow::Result<()> {
        desk.look();
        let hubs = desk.status().hubs;
        let known = hubs.iter().find(|hub| hub.name == self.hub);
        if known.is_none() && desk.status().etcd.is_there() {
            let words = format!(
                "the fleet knows no hub {:?} that runs or is drained: nothing need be done; it knows {}",
                self.hub,
                desk.names()
            );
            let json = json!({"hub": self.hub, "forgotten": false});
            return self.form.tell(&json, &words);
        }
        if known.is_some_and(|hub| hub.runs) {
            bail!(
                "hub {0} runs, and would be known again at once: stop it first, or drain it with `ropewalk fleet drain {0}`",
                self.hub
            );
        }
        desk.drain(&self.hub, false)?;
        let words = format!("the fleet has forgotten hub {}", self.hub);
        self.form
            .tell(&json!({"hub": self.hub, "forgotten": true}), &words)
    }
}

impl Init {
    fn run(self, path: &Path) -> anyhow::Result<()> {
        let key_file = self
            .key_file
            .clone()
            .unwrap_or_else(|| common::key_file(path, "fleet.key"));
        let text = std::fs::read_to_string(path).with_context(|| {
            format!(
                "cannot read {}; run `ropewalk hub --init` first",
                path.display()
            )
        })?;
        let hub = config::load_hub(path).context("the configuration is not usable")?;
        let (hub, section, identity) = match (&self.name, &hub.fleet) {
            (Some(_), Some(fleet)) => {
                return Err(WrongUsage(format!(
                    "{} has a section [fleet] already, of fleet {}: leave the name out, or remove the section",
                    path.display(),
                    fleet.name
                ))
                .into());
            }
            (None, None) => {
                return Err(WrongUsage(
                    "give the fleet a name and an endpoint of etcd, such as `ropewalk fleet init north --endpoint \
                     https://10.0.0.1:2379`"
                        .to_owned(),
                )
                .into());
            }
            (None, Some(_)) => (hub, None, None),
            (Some(name), None) => {
                let is_new = !key_file.exists();
                let identity = if is_new {
                    Identity::generate()?
                } else {
                    key_file::load(&key_file)?
                };
                self.check_endpoints()?;
                let section = self.section(name, &identity);
                // As a whole, so that what is wrong is told as it will be later.
                let hub = config::hub::parse(path, &format!("{}\n{section}", text.trim_end()))
                    .map_err(of_options)?;
                (hub, Some(section), is_new.then_some(identity))
            }
        };
        let config = hub
            .fleet
            .as_deref()
            .context("the section [fleet] is empty")?;
        // Before etcd has it: a fleet whose key is lost cannot be made again under its name.
        if let Some(identity) = &identity {
            key_file::create(&key_file, identity)?;
        }
        if let Err(error) = desk::init(&hub, config) {
            // The key of a fleet that was not made is nobody's.
            if identity.is_some() && !desk::may_have_made(&error) {
                let _ = std::fs::remove_file(&key_file);
            }
            return Err(error);
        }
        self.report(
            &hub,
            config,
            section.as_deref(),
            identity.is_some().then_some(&key_file),
        )
    }

    /// Refuses what would be wrong in [fleet], in the words of the command line.
    fn check_endpoints(&self) -> Result<(), WrongUsage> {
        let secure = self.endpoint.iter().filter(|url| url.starts_with("https:"));
        let secure = secure.count();
        let refuse = |words: &str| Err(WrongUsage(words.to_owned()));
        if secure > 0 && secure < self.endpoint.len() {
            return refuse("--endpoint: some are https:// and some http://; give https:// for all");
        }
        if secure > 0 && self.ca.is_none() {
            return refuse(
                "--endpoint: https:// needs the authority that has signed the certificates of etcd; give --ca FILE",
            );
        }
        if secure == 0 && self.ca.is_some() {
            return refuse(
                "--ca: certificates have no effect on http://; give --endpoint https://…",
            );
        }
        if secure == 0 && self.certificate.is_some() {
            return refuse(
                "--certificate: certificates have no effect on http://; give --endpoint https://…",
            );
        }
        Ok(())
    }

    /// The section for every hub.
    fn section(&self, name: &str, identity: &Identity) -> String {
        let quoted = |text: &str| toml::Value::String(text.to_owned()).to_string();
        let endpoints: Vec<_> = self.endpoint.iter().map(|url| quoted(url)).collect();
        let mut text = format!(
            "\n[fleet]\nname = {}\nkey = {}\nendpoints = [{}]\n",
            quoted(name),
            quoted(&identity.public_key().to_string()),
            endpoints.join(", ")
        );
        let file = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
        for (key, value) in [
            ("ca", file(&self.ca)),
            ("certificate", file(&self.certificate)),
            ("certificate_key", file(&self.certificate_key)),
            ("user", self.user.clone()),
            ("password_file", file(&self.password_file)),
        ] {
            if let Some(value) = value {
                let _ = writeln!(text, "{key} = {}", quoted(&value));
            }
        }
        text
    }

    fn report(
        &self,
        hub: &HubConfig,
        config: &FleetConfig,
        section: Option<&str>,
        new_key: Option<&PathBuf>,
    ) -> anyhow::Result<()> {
        let (name, key) = (&config.name, config.key);
        if self.form.json {
            let json = json!({
                "name": name,
                "key": key.to_string(),
                "key_file": new_key.map(|file| file.display().to_string()),
                "section": section,
            });
            output::print(&format!("{json:#}\n"))?;
            return Ok(());
        }
        if let Some(file) = new_key {
            output::note(&format!(
                "wrote {}, the key of the fleet; public key {key}; keep a copy, no hub needs the file",
                file.display()
            ));
        }
        let pools = [hub.pool_v4, hub.pool_v6].into_iter().flatten();
        let pools: Vec<_> = pools.map(|pool| pool.to_string()).collect();
        output::note(&format!(
            "etcd has fleet {name}; sites get addresses of {}",
            pools.join(" and ")
        ));
        if let Some(section) = section {
            output::note(
                "next: write the lines on standard output into the configuration of every hub, with the same [pool] and \
                 another `name` on each; then restart the hubs, and look at `ropewalk fleet status`",
            );
            output::print(section)?;
        }
        Ok(())
    }
}

/// What is wrong with the section that was made of the options: its lines are in no file yet.
fn of_options(problems: Problems) -> anyhow::Error {
    let of_section = |problem: &&Problem| problem.key.starts_with("fleet.");
    let Some(first) = problems.0.iter().find(of_section) else {
        return problems.into();
    };
    let key = first.key.trim_start_matches("fleet.");
    let key = key.split(['[', '.']).next().unwrap_or(key);
    let option = match key {
        "endpoints" => "endpoint".to_owned(),
        other => other.replace('_', "-"),
    };
    WrongUsage(format!("--{option}: {}; {}", first.what, first.remedy)).into()
}

/// Shows what the running hub knows, or else what etcd says.
fn show(hub: &HubConfig, config: &FleetConfig, socket: &Path, form: Form) -> anyhow::Result<()> {
    let running = match Client::new(socket).status() {
        Ok(status) => Some(status.fleet.context(
            "the hub that runs here has no fleet yet: restart it, so that it reads [fleet]",
        )?),
        Err(error) if status::is_not_running(&error) => None,
        Err(error) => return Err(error),
    };
    let (fleet, runs) = match running {
        Some(fleet) => (fleet, true),
        None => {
            let desk = Desk::open(hub, config, socket)?;
            desk.look();
            (desk.status(), false)
        }
    };
    if form.json {
        let text = serde_json::to_string_pretty(&fleet)?;
        output::print(&format!("{text}\n"))?;
        return Ok(());
    }
    output::print(&text(&fleet, runs, Style::of_stdout()))?;
    Ok(())
}

/// Etcd and the copy in a line, or two where something is wrong.
pub(super) fn line(fleet: &FleetStatus, style: Style) -> String {
    let copy = match fleet.age_s {
        None => "this hub has no copy of the fleet's state yet".to_owned(),
        Some(age) => format!(
            "the copy here has revision {} and is {} old",
            fleet.revision,
            output::duration(age)
        ),
    };
    let etcd = &fleet.etcd;
    let head = format!("fleet {}: etcd", fleet.name);
    if etcd.is_there() {
        let answers = style.paint(Colour::Green, "answers");
        return format!("{head} {answers}; {copy}\n");
    }
    let goes_on = if fleet.age_s.is_some() {
        "known sites join, move and run, while invitations and revocations fail"
    } else {
        "no site joins until it has one, and invitations and revocations fail"
    };
    format!(
        "{head} {}: {}\n{copy}; {goes_on}\n",
        style.paint(Colour::Red, &printable(&fleet::matter(etcd))),
        printable(etcd.why.as_deref().unwrap_or("no reason is known")),
    )
}

/// The state in words.
fn text(fleet: &FleetStatus, runs: bool, style: Style) -> String {
    let mut out = line(fleet, style);
    let _ = writeln!(out, "public key of the fleet {}", fleet.key);
    if !runs {
        out.push_str("no hub runs here; this is what the configuration leads to\n");
    }
    if fleet.claims_waiting + fleet.writes_waiting > 0 {
        let _ = writeln!(
            out,
            "for etcd wait {} claims of sites and {} other changes",
            fleet.claims_waiting, fleet.writes_waiting
        );
    }
    for problem in &fleet.problems {
        let _ = writeln!(out, "{}", style.paint(Colour::Yellow, &printable(problem)));
    }
    let _ = writeln!(out, "{}\n", count(fleet.sites));
    if fleet.hubs.is_empty() {
        out.push_str("no hub runs, as far as this one knows\n");
        return out;
    }
    if let Some(age) = fleet.age_s.filter(|_| !fleet.etcd.is_there()) {
        let _ = writeln!(
            out,
            "hubs as they were {} ago{}",
            output::duration(age),
            if runs {
                ", apart from the number of sites of this one"
            } else {
                ""
            }
        );
    }
    out.push_str(&hubs(fleet, style));
    out
}

fn hubs(fleet: &FleetStatus, style: Style) -> String {
    let mut table = Table::new(&["HUB", "STATE", "SITES", "REGION", "VERSION", "ENDPOINTS"]);
    for hub in &fleet.hubs {
        let own = if hub.name == fleet.hub { " (this)" } else { "" };
        let or_none = |text: &str| {
            if text.is_empty() {
                "-".to_owned()
            } else {
                text.to_owned()
            }
        };
        let (state, colour) = state(hub);
        table.row(vec![
            (format!("{}{own}", hub.name), Some(Colour::Bold)),
            (state, Some(colour)),
            (hub.sites.to_string(), None),
            (or_none(&hub.region), None),
            (or_none(&hub.version), None),
            (or_none(&hub.endpoints.join(" ")), None),
        ]);
    }
    table.render(style, "  ")
}

fn state(hub: &FleetHub) -> (String, Colour) {
    match (hub.runs, hub.drained_since) {
        (true, None) => ("runs".to_owned(), Colour::Green),
        (true, Some(since)) => (
            format!("drained since {}", Time::from_unix(since)),
            Colour::Yellow,
        ),
        (false, Some(since)) => (
            format!("gone, drained since {}", Time::from_unix(since)),
            Colour::Dim,
        ),
        (false, None) => ("gone".to_owned(), Colour::Red),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ropewalk_api::EtcdStatus;

    fn status() -> FleetStatus {
        FleetStatus {
            name: "north".to_owned(),
            key: "KEY".to_owned(),
            hub: "a".to_owned(),
            etcd: EtcdStatus {
                state: "there".to_owned(),
                since: None,
                why: None,
            },
            revision: 12,
            age_s: Some(1.4),
            sites: 3,
            claims_waiting: 0,
            writes_waiting: 0,
            problems: Vec::new(),
            hubs: vec![
                FleetHub {
                    name: "a".to_owned(),
                    runs: true,
                    sites: 3,
                    version: "1".to_owned(),
                    endpoints: vec!["192.0.2.1:4443".to_owned()],
                    ..FleetHub::default()
                },
                FleetHub {
                    name: "b".to_owned(),
                    drained_since: Some(0),
                    ..FleetHub::default()
                },
            ],
        }
    }

    #[test]
    fn a_fleet_is_shown_with_the_age_of_the_copy_and_each_hub() {
        let text = text(&status(), true, Style::plain());
        let expected = "fleet north: etcd answers; the copy here has revision 12 and is 1 s old\n\
            public key of the fleet KEY\n\
            3 sites\n\n\
            \x20 HUB       STATE                                        SITES  REGION  VERSION  ENDPOINTS\n\
            \x20 a (this)  runs                                         3      -       1        192.0.2.1:4443\n\
            \x20 b         gone, drained since 1970-01-01 00:00:00 UTC  0      -       -        -\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn a_hub_without_a_copy_does_not_say_that_known_sites_go_on() {
        let mut empty = status();
        empty.etcd.state = "foreign".to_owned();
        (empty.age_s, empty.sites, empty.revision) = (None, 1, 0);
        let text = text(&empty, true, Style::plain());
        assert!(!text.contains("known sites"), "{text}");
        assert!(text.contains("no site joins until it has one"), "{text}");
        assert!(text.contains("\n1 site\n"), "{text}");
    }

    #[test]
    fn a_restore_says_the_same_in_json_as_in_words() {
        let changed = Difference {
            missing: 1,
            added: 2,
            changed: 3,
        };
        let expected = json!({"missing": 1, "changed": 3, "removed": 2});
        assert_eq!(restored(changed), expected);
    }

    /// The hub of `directory` without a fleet, whose `fleet init` has these arguments.
    fn init(directory: &Path, arguments: &str) -> anyhow::Result<()> {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            init: Init,
        }
        let file = directory.join("hub.toml");
        let text = format!(
            "name = \"a\"\nstate_dir = \"{}\"\n[pool]\nipv4 = \"10.9.0.0/16\"\n[network]\nmasquerade = false\n",
            directory.display()
        );
        std::fs::write(&file, text).unwrap();
        let arguments = ["init"].into_iter().chain(arguments.split_whitespace());
        let line = <Line as clap::Parser>::try_parse_from(arguments)?;
        line.init.run(&file)
    }

    #[test]
    fn what_is_wrong_with_an_option_names_the_option_and_no_line_of_a_file() {
        let directory = tempfile::tempdir().unwrap();
        for (arguments, option) in [
            ("north --endpoint 10.0.0.1:2379", "--endpoint"),
            ("north --endpoint https://10.0.0.1:2379", "give --ca FILE"),
            (
                "north --endpoint http://10.0.0.1:2379 --ca /ca.pem",
                "--ca: ",
            ),
            (
                "north --endpoint http://10.0.0.1:2379 --endpoint http://10.0.0.1:2379",
                "--endpoint: ",
            ),
            (
                "north --endpoint http://10.0.0.1:2379 --user hub",
                "--password-file",
            ),
        ] {
            let words = format!("{:#}", init(directory.path(), arguments).unwrap_err());
            assert!(words.contains(option), "{arguments}: {words}");
            assert!(!words.contains("hub.toml"), "{arguments}: {words}");
        }
    }

    #[test]
    fn an_init_that_made_no_fleet_leaves_no_key() {
        let directory = tempfile::tempdir().unwrap();
        let error = init(directory.path(), "north --endpoint http://127.0.0.1:1").unwrap_err();
        assert!(
            format!("{error:#}").contains("no endpoint of etcd answers"),
            "{error:#}"
        );
        assert!(!directory.path().join("keys/fleet.key").exists());
    }

    /// Whoever writes to etcd may write anything.
    #[test]
    fn what_hubs_say_of_themselves_moves_no_cursor() {
        let mut status = status();
        status.hubs[0].region = "\u{1b}[2J\u{202e}Köln's".to_owned();
        status.hubs[0].version = "1\r\n2".to_owned();
        status.problems = vec!["\u{7}".to_owned()];
        let text = text(&status, true, Style::plain());
        let hidden = |letter: char| letter != '\n' && letter.is_control() || letter == '\u{202e}';
        assert!(!text.contains(hidden), "{text:?}");
        assert!(
            text.contains("Köln's") && text.contains("1\\r\\n2"),
            "{text}"
        );
        assert_eq!(text.lines().count(), 8);
    }

    #[test]
    fn a_hub_that_misses_etcd_says_since_when_and_what_goes_on() {
        let mut cut = status();
        cut.etcd = EtcdStatus {
            state: "away".to_owned(),
            since: Some(60),
            why: Some("no answer".to_owned()),
        };
        cut.age_s = Some(754.0);
        cut.claims_waiting = 2;
        let text = text(&cut, true, Style::plain());
        for (state, words) in [
            (
                "foreign",
                "etcd has no state of this fleet that could be followed since",
            ),
            ("ended", "etcd is not asked by this hub since"),
        ] {
            let mut other = cut.clone();
            other.etcd.state = state.to_owned();
            let line = line(&other, Style::plain());
            assert!(line.contains(words), "{line}");
        }
        for part in [
            "etcd is away since 1970-01-01 00:01:00 UTC: no answer",
            "is 12 min 34 s old; known sites join, move and run",
            "hubs as they were 12 min 34 s ago",
            "for etcd wait 2 claims of sites and 0 other changes",
        ] {
            assert!(text.contains(part), "{text}\nwithout {part}");
        }
    }
}
