//! `ropewalk join`: makes this machine a site.
//!
//! Invariant: whenever the program ends in between, the same command with the same token goes on from
//! there. The new key has a file of its own, named after the invitation, until all else is done. The file
//! stays when the hub refuses: the hub may have recorded the key before. An existing key is replaced with
//! `--force` only.

use std::convert::Infallible;
use std::fmt;
use std::io::{self, ErrorKind, IsTerminal, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, bail};
use clap::Args;
use ropewalk_transport::{Identity, PublicKey};
use zeroize::Zeroizing;

use super::{Global, output, remote};
use crate::client::Client;
use crate::enrolment;
use crate::service::{lock_path, spare::SPARES};
use crate::token::{Secret, Token, TokenError};
use crate::{hub_keys, key_file};
use ropewalk_config as config;
use ropewalk_config::common::{self, Common};
use ropewalk_config::template::{self, SiteTemplate};
use ropewalk_config::{SiteConfig, WrongUsage};
use ropewalk_host::files::{self, Lock};

const EXAMPLES: &str = "Examples:
  ropewalk join                        asks for the token; then `ropewalk up`, or with the Debian
                                       package `systemctl enable --now ropewalk-site`
  ropewalk join boat.token             reads the token from a file
  ssh hub ropewalk invite boat | ropewalk join
                                       reads the token from standard input
  ropewalk join boat.token --config ./site.toml
                                       key and configuration somewhere else

Makes the site's key (readable by its owner only), gives the public half to the hub, and writes the
configuration (readable by its owner and group). The hub must run. Existing files are kept unless you say --force.
A join that was interrupted is repeated with the same token on the same machine.";

/// Join a hub with a token: make a key, tell the hub, write the configuration
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Join {
    /// File with the line that `ropewalk invite` printed; `-` is standard input. Without it standard
    /// input is read, or you are asked. The line itself works too, but others see it
    #[arg(value_name = "FILE")]
    token: Option<Given>,
    /// Replace an existing key and configuration; the former ones are kept as *.bak, *.bak2 and so on
    #[arg(long)]
    force: bool,
}

/// Longest input that is read, bytes.
const INPUT_MAX: usize = 8_192;
/// Most former files of one name that are kept.
const FORMER_MAX: u32 = 99;

/// The name of a file with a token, or a token itself, which is a secret.
#[derive(Clone)]
pub(super) struct Given(Zeroizing<String>);

impl Given {
    pub(super) fn text(&self) -> &str {
        &self.0
    }
}

impl FromStr for Given {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Self(Zeroizing::new(text.to_owned())))
    }
}

impl fmt::Debug for Given {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Given")
    }
}

impl Join {
    /// Enrols this machine, and writes key and configuration.
    ///
    /// # Errors
    /// The token is damaged, the hub refuses or does not answer, or the machine is a site already.
    pub fn run(self, global: &Global) -> anyhow::Result<()> {
        let path = global
            .config
            .as_deref()
            .unwrap_or_else(|| Path::new(config::SITE_CONFIG));
        let token = read_token(self.token.as_ref().map(Given::text))?;
        if !token.networks.is_empty() {
            return Err(WrongUsage(
                "this token is for a relay: run `ropewalk relay --join`".to_owned(),
            )
            .into());
        }
        let entry = Entry::begin(&token, path, "site.key", "site", self.force)?;
        let former_key = key_file::load(&entry.key).ok().map(|key| key.public_key());
        let found = entry.enrol(&token)?;
        tell(&found);
        let mut places: Vec<_> = found.into_iter().map(|found| found.place).collect();
        let home = places.remove(0);
        let endpoint = home.endpoints[0].clone();
        let config = template::site(&SiteTemplate {
            name: token.name.clone(),
            hub_key: home.key,
            endpoints: home.endpoints,
            tcp_port: home.tcp_port,
            spares: places,
        });
        let former = entry.finish(&config)?;
        if let Some(former) = &former {
            output::note(&replaced(former, &config));
        }
        let site = config::load_site(path).ok();
        if let Some(warning) = site.as_ref().and_then(remote::warning) {
            output::note(&format!("careful: {warning}"));
        }
        let option = global.config_option();
        let running = site.map_or(Running::None, |site| running(&site.common, former_key));
        let next = next(running, &option, global.config.is_none());
        output::note(&format!(
            "this machine is site {} of the hub at {}; wrote {} and its key\n\
             `ropewalk up{option}` sets the kill switch: then nothing leaves this machine beside the tunnel, until \
             `ropewalk down{option}`\n\
             to do without the kill switch, write kill_switch = false in [network]\n\
             next: {next}",
            token.name,
            endpoint,
            path.display(),
        ));
        Ok(())
    }
}

/// Says which hub of a fleet is the home, which ones are spares, and why.
fn tell(found: &[enrolment::Found]) {
    if found.len() == 1 {
        return;
    }
    let line = |number: usize, hub: &enrolment::Found| {
        let role = match number {
            0 => "home",
            spare => SPARES.get(spare - 1).unwrap_or(&"not used"),
        };
        let after = hub.after.map_or_else(
            || "no answer when the hubs were compared".to_owned(),
            |after| format!("answers after {} ms", after.as_millis()),
        );
        format!("  {role}: {} ({after})", hub.place.endpoints[0])
    };
    let lines: Vec<_> = found
        .iter()
        .enumerate()
        .map(|(number, hub)| line(number, hub))
        .collect();
    output::note(&format!("hubs of the fleet:\n{}", lines.join("\n")));
}

/// The gateway that runs with the state directory of a new configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Running {
    /// There is none.
    None,
    /// The one that has joined anew.
    Same,
    /// One with another configuration.
    Other,
}

/// Which site or relay runs with the state directory of a configuration; the one that has joined anew had `former_key`,
/// if it had one.
fn running(common: &Common, former_key: Option<PublicKey>) -> Running {
    let runs = |role| Lock::is_held(&lock_path(&common.state_dir, role));
    let of_other_role = ["site", "relay"]
        .into_iter()
        .find(|role| *role != common.role);
    if !runs(common.role) {
        return if of_other_role.is_some_and(runs) {
            Running::Other
        } else {
            Running::None
        };
    }
    // A relay has a key of its own for sites, which it says.
    if common.role != "site" {
        return former_key.map_or(Running::Other, |_| Running::Same);
    }
    let status = Client::new(&common.socket).status().ok();
    same_or_other(
        former_key,
        status.as_ref().map(|status| status.public_key.as_str()),
    )
}

/// Whether the running site, which has the key `runs` if it answers, is the one that had `former`.
fn same_or_other(former: Option<PublicKey>, runs: Option<&str>) -> Running {
    match (former, runs) {
        (None, _) => Running::Other,
        (Some(former), Some(runs)) if former.to_string() != runs => Running::Other,
        (Some(_), _) => Running::Same,
    }
}

/// What to do after a join, by which site runs already: the same keeps its former key until it starts anew.
fn next(running: Running, option: &str, is_usual: bool) -> String {
    // The unit reads the file in its usual place.
    let command = if running == Running::None {
        "enable --now"
    } else {
        "restart"
    };
    let unit = if is_usual {
        format!(", or with the Debian package `systemctl {command} ropewalk-site`")
    } else {
        String::new()
    };
    let before = match running {
        Running::None => "",
        Running::Same => "the site runs on with its former key: stop it, then ",
        Running::Other => {
            "another site runs with the same state_dir: stop it, or give this one a state_dir, api.socket and \
             tunnel.interface of its own; then "
        }
    };
    format!("{before}`ropewalk up{option}`{unit}")
}

/// Where the former configuration is, and which of its settings the new one, `config`, has not.
pub(super) fn replaced(former: &Path, config: &str) -> String {
    let text = std::fs::read_to_string(former).unwrap_or_default();
    let file = former.display();
    match lost(&text, config).as_slice() {
        [] => format!("the former configuration is {file}"),
        lost => format!(
            "the former configuration is {file}; the new one does not have its {}: copy what you still want",
            lost.join(", "),
        ),
    }
}

/// Keys that a token decides, by section.
const OF_TOKEN: [(&str, &str); 5] = [
    ("", "name"),
    ("", "spare"),
    ("hub", "key"),
    ("hub", "endpoints"),
    ("hub", "tcp_port"),
];

/// The settings of a former configuration that a new one has not, or has otherwise. Nothing where one of them is no
/// TOML.
fn lost(former: &str, new: &str) -> Vec<String> {
    let (Ok(former), Ok(new)) = (former.parse::<toml::Table>(), new.parse::<toml::Table>()) else {
        return Vec::new();
    };
    let differ = |section: &str, former: &toml::Table, new: Option<&toml::Table>| -> Vec<String> {
        let is_lost = |(key, value): &(&String, &toml::Value)| {
            !OF_TOKEN.contains(&(section, key.as_str()))
                && new.and_then(|new| new.get(*key)) != Some(*value)
        };
        let lost = former.iter().filter(is_lost);
        lost.map(|(key, _)| key.clone()).collect()
    };
    let mut all = Vec::new();
    for key in differ("", &former, Some(&new)) {
        let value = &former[&key];
        let mut list = value.as_array().into_iter().flatten();
        if let Some(section) = value.as_table() {
            let new = new.get(&key).and_then(toml::Value::as_table);
            let keys = differ(&key, section, new);
            all.extend(keys.iter().map(|of| format!("`{of}` in [{key}]")));
        } else if list.any(toml::Value::is_table) {
            all.push(format!("[[{key}]]"));
        } else {
            all.push(format!("`{key}`"));
        }
    }
    all
}

/// The token: in the file `given`, on standard input when that is `-`, or `given` itself. Without
/// `given` from standard input, or asked for at a terminal.
pub(super) fn read_token(given: Option<&str>) -> anyhow::Result<Token> {
    let wrong = |error: TokenError| WrongUsage(error.to_string()).into();
    let text = match given {
        None if io::stdin().is_terminal() => {
            let asked = rpassword::prompt_password("token (not shown): ");
            let is_text = asked.as_ref().map_err(io::Error::kind) != Err(ErrorKind::InvalidData);
            if !is_text {
                return Err(no_text("what was typed"));
            }
            Zeroizing::new(asked.context("cannot ask for the token")?)
        }
        None | Some("-") => read_all(io::stdin(), "standard input")?,
        Some(given) if given.trim().is_empty() => {
            let why = "the argument for the token is empty: name the file with the line that `ropewalk invite` printed, or \
                       leave the argument out to be asked";
            return Err(WrongUsage(why.to_owned()).into());
        }
        Some(given) => match Token::decode(given) {
            Err(TokenError::NotAToken) => {
                let name = shown(given);
                let file = std::fs::File::open(given);
                let file = file.with_context(|| format!("no token, and no file: {name}"))?;
                read_all(file, &name)?
            }
            Err(error) => return Err(wrong(error)),
            Ok(token) => {
                output::note(
                    "warning: a token on the command line is seen in `ps` and kept in the history \
                     of the shell; `ropewalk join` without it asks",
                );
                return Ok(token);
            }
        },
    };
    if text.trim().is_empty() {
        let why = "there is no token: nothing was read; did the command before the pipe fail?";
        return Err(WrongUsage(why.to_owned()).into());
    }
    Token::decode(&text).map_err(wrong)
}

/// Most characters of an argument that an error shows.
const SHOWN_MAX: usize = 64;

/// An argument as errors show it.
fn shown(given: &str) -> String {
    let mut chars = given.chars();
    let mut text: String = chars.by_ref().take(SHOWN_MAX).collect();
    if chars.next().is_some() {
        text.push_str("...");
    }
    text
}

/// What to do about bytes that are no text in place of a token. Where they came from is `source`.
fn no_text(source: &str) -> anyhow::Error {
    WrongUsage(format!(
        "{source} holds no token: it is no text; a token is the line that `ropewalk invite` printed: give the file with \
         that line, or copy the line anew"
    ))
    .into()
}

/// Reads a token from a file or from standard input, which errors call `source`.
fn read_all(input: impl Read, source: &str) -> anyhow::Result<Zeroizing<String>> {
    // A buffer that grows leaves copies of the secret behind.
    let mut text = Zeroizing::new(String::with_capacity(INPUT_MAX + 1));
    match input.take(INPUT_MAX as u64).read_to_string(&mut text) {
        Ok(_) => Ok(text),
        Err(error) if error.kind() == ErrorKind::InvalidData => Err(no_text(source)),
        Err(error) => Err(error).with_context(|| format!("the token cannot be read from {source}")),
    }
}

/// A machine on its way to be a site, or a relay.
#[derive(Debug)]
pub(super) struct Entry<'a> {
    config: &'a Path,
    key: PathBuf,
    /// What proves the invitation, and where the new key is until the end.
    invited: Option<(Secret, PathBuf)>,
}

impl<'a> Entry<'a> {
    /// Looks for what would be overwritten, and for the key that a token without a secret is for.
    /// Changes nothing.
    ///
    /// # Errors
    /// The machine is such a gateway already, or has no key.
    pub(super) fn begin(
        token: &Token,
        config: &'a Path,
        key: &str,
        role: &str,
        force: bool,
    ) -> anyhow::Result<Self> {
        let key = common::key_file(config, key);
        let invited = match &token.secret {
            Some(secret) => {
                let invitation = secret.identity(token.inviting_key())?.public_key();
                let file = pending_file(&key, invitation.as_bytes());
                Some((secret.clone(), file))
            }
            None => None,
        };
        let written = [Some(config), invited.as_ref().map(|_| key.as_path())];
        let existing = written.into_iter().flatten().find(|file| file.exists());
        // A join that was interrupted at its end has left the configuration, and the key in its own file.
        let goes_on = invited.as_ref().is_some_and(|(_, file)| file.exists())
            && !key.exists()
            && is_of(config, token);
        if let Some(existing) = existing.filter(|_| !force && !goes_on) {
            bail!(
                "{} exists: this machine is a {role} already; say --force to replace it (the \
                 former file is kept), or give another --config",
                existing.display()
            );
        }
        if invited.is_none() {
            let identity = key_file::load(&key)
                .context("this token holds no secret, and this machine has no key")?;
            output::note(&format!(
                "using the key of this machine, {}",
                identity.public_key()
            ));
        }
        Ok(Self {
            config,
            key,
            invited,
        })
    }

    /// Enrols at the hub, or at the best one of several. The hubs of the token, that one first. A token without a secret
    /// enrols nowhere: the hubs are only compared.
    ///
    /// # Errors
    /// The hub refuses or does not answer, or the new key cannot be written.
    pub(super) fn enrol(&self, token: &Token) -> anyhow::Result<Vec<enrolment::Found>> {
        match &self.invited {
            Some((secret, pending)) => enrolment::enrol(token, secret, &pending_key(pending)?),
            None => Ok(enrolment::compare(token, &key_file::load(&self.key)?)),
        }
    }

    /// Writes the configuration and the key. Returns where the former configuration is now, if there was another.
    ///
    /// # Errors
    /// A file cannot be written.
    pub(super) fn finish(self, config: &str) -> anyhow::Result<Option<PathBuf>> {
        let before = config::Config::load(self.config).ok();
        let former_key = key_file::load(&self.key).ok().map(|key| key.public_key());
        let same = |text: String| text == config;
        let is_other =
            self.config.exists() && !std::fs::read_to_string(self.config).is_ok_and(same);
        let former = if is_other {
            Some(keep_former(self.config)?)
        } else {
            None
        };
        files::create_parent(self.config)?;
        if !self.config.exists() {
            files::write_atomically(self.config, config.as_bytes(), files::CONFIGURATION, false)
                .with_context(|| format!("cannot write {}", self.config.display()))?;
        }
        // As the configuration is now: it may be one that an interrupted join has written.
        let written =
            config::Config::load(self.config).context("the configuration is not usable")?;
        let common = written.common();
        if running(common, former_key) == Running::Other {
            output::note(&format!(
                "careful: another gateway runs with the same state_dir, {}",
                common.state_dir.display()
            ));
        }
        if let Some(written) = as_site(&written) {
            self.forget_hub_keys(before.as_ref().and_then(as_site), written)?;
        }
        if let Some((_, pending)) = &self.invited {
            if self.key.exists() {
                keep_former(&self.key)?;
            }
            // A change that had not ended was one of the former key.
            key_file::remove_next(&self.key)?;
            files::rename(pending, &self.key)
                .with_context(|| format!("cannot write {}", self.key.display()))?;
            remove_pending(&self.key);
        }
        Ok(former)
    }

    /// Forgets what a site has written down of its hub's keys where that would count for the new configuration,
    /// `written`: the hub may have its first key again. The hub has proved the pinned key to whoever enrolled, so
    /// another site that pins this key loses nothing. Where nothing was proved only the place of the configuration
    /// `before` is looked at.
    fn forget_hub_keys(
        &self,
        before: Option<&SiteConfig>,
        written: &SiteConfig,
    ) -> anyhow::Result<()> {
        let own = before.map(|site| &site.common.state_dir);
        let new = &written.common.state_dir;
        if own == Some(new) || self.invited.is_some() {
            hub_keys::forget(new, written.hub_key, own == Some(new))?;
        }
        // Its `state_dir` may be copied into the new configuration.
        match own.filter(|own| *own != new) {
            Some(own) => hub_keys::forget(own, written.hub_key, false),
            None => Ok(()),
        }
    }
}

/// The part of a configuration that is about the hub to which it connects, if it is one of a site or a relay.
const fn as_site(config: &config::Config) -> Option<&SiteConfig> {
    match config {
        config::Config::Site(site) => Some(site),
        config::Config::Relay(relay) => Some(&relay.site),
        config::Config::Hub(_) | config::Config::Balance(_) => None,
    }
}

/// Removes the keys of joins that were interrupted and never went on: this machine has another key now.
fn remove_pending(key: &Path) {
    let (Some(directory), Some(name)) = (key.parent(), key.file_name()) else {
        return;
    };
    let mut prefix = name.to_os_string();
    prefix.push(PENDING);
    let directory = if directory.as_os_str().is_empty() {
        Path::new(".")
    } else {
        directory
    };
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let is_pending = entry.file_name().as_bytes().starts_with(prefix.as_bytes());
        if is_pending && let Err(error) = files::remove(&entry.path()) {
            let file = entry.path();
            output::note(&format!("cannot remove {}: {error}", file.display()));
        }
    }
}

/// Whether a configuration names the hub and the site of a token.
fn is_of(config: &Path, token: &Token) -> bool {
    let text = std::fs::read_to_string(config).unwrap_or_default();
    let Ok(table) = text.parse::<toml::Table>() else {
        return false;
    };
    let is = |value: Option<&toml::Value>, wanted: &str| {
        value.and_then(toml::Value::as_str) == Some(wanted)
    };
    let hub = table.get("hub").and_then(|hub| hub.get("key"));
    let mut places = token.places().into_iter();
    is(table.get("name"), &token.name) && places.any(|place| is(hub, &place.key.to_string()))
}

/// Behind the name of a key file: the key of a join that has not ended. An interrupted join leaves the key, for the
/// hub may have recorded it already.
const PENDING: &str = ".joining-";

/// Where the key waits that joins by this invitation.
fn pending_file(key: &Path, invitation: &[u8; 32]) -> PathBuf {
    let [a, b, c, d, ..] = invitation;
    let mut name = key.as_os_str().to_owned();
    name.push(format!("{PENDING}{a:02x}{b:02x}{c:02x}{d:02x}"));
    name.into()
}

fn pending_key(path: &Path) -> anyhow::Result<Identity> {
    let (identity, new) = key_file::load_or_create(path)?;
    if !new {
        output::note("going on with the key of the join that was interrupted");
    }
    Ok(identity)
}

/// Moves a file that is to be replaced out of the way, over no other. Returns its new name.
fn keep_former(path: &Path) -> anyhow::Result<PathBuf> {
    let named = |number: u32| {
        let mut name = path.as_os_str().to_owned();
        name.push(".bak");
        if number > 1 {
            name.push(number.to_string());
        }
        PathBuf::from(name)
    };
    let free = (1..=FORMER_MAX).map(named).find(|name| !name.exists());
    let free = free.with_context(|| {
        let path = path.display();
        format!("{FORMER_MAX} former files are kept as {path}.bak and so on; remove some")
    })?;
    files::rename(path, &free).with_context(|| format!("cannot move {} away", path.display()))?;
    Ok(free)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, CliCommand};
    use clap::Parser;

    /// A token with a secret, and where the key waits that joins by it.
    fn token(key: &Path) -> (Token, PathBuf) {
        let hub_key = Identity::from_seed([7; 32]).unwrap().public_key();
        let secret = Secret::generate().unwrap();
        let invitation = secret.identity(&hub_key).unwrap().public_key();
        let token = Token {
            hub_key,
            secret: Some(secret),
            tcp_port: 443,
            name: "boat".to_owned(),
            endpoints: vec!["192.0.2.7:4443".parse().unwrap()],
            networks: Vec::new(),
            fleet: None,
        };
        (token, pending_file(key, invitation.as_bytes()))
    }

    #[test]
    fn a_join_forgets_hub_keys_that_would_count_for_it_and_none_of_another_site() {
        // The key that a configuration before the join pins, that from which the file began, and whether the token has a
        // secret.
        let cases = [
            (None, Some(7), true, false),
            (Some(8), Some(7), true, false),
            (Some(7), Some(7), false, false),
            // Another site has the same state_dir.
            (None, Some(8), true, true),
            (Some(8), Some(8), true, true),
            (None, Some(7), false, true),
            // Damaged.
            (None, None, true, true),
            (Some(8), None, true, false),
        ];
        for (before, began, secret, stays) in cases {
            let directory = tempfile::tempdir().unwrap();
            let (path, state) = ["site.toml", "state"]
                .map(|name| directory.path().join(name))
                .into();
            let key_path = common::key_file(&path, "site.key");
            files::create_parent(&key_path).unwrap();
            let (mut token, pending) = token(&key_path);
            if secret {
                std::fs::write(&pending, "key").unwrap();
            } else {
                token.secret = None;
                key_file::load_or_create(&key_path).unwrap();
            }
            let key = |seed| Identity::from_seed([seed; 32]).unwrap().public_key();
            let text = |seed| {
                let text = template::site(&SiteTemplate {
                    name: token.name.clone(),
                    hub_key: key(seed),
                    endpoints: token.endpoints.clone(),
                    tcp_port: 443,
                    spares: Vec::new(),
                });
                format!("state_dir = \"{}\"\n{text}", state.display())
            };
            if let Some(seed) = before {
                std::fs::write(&path, text(seed)).unwrap();
            }
            std::fs::create_dir(&state).unwrap();
            let file = state.join("hub-keys.json");
            let known = began.map_or("{}".to_owned(), |seed| {
                format!("{{\"pinned\": \"{}\", \"key\": \"{}\"}}", key(seed), key(9))
            });
            std::fs::write(&file, known).unwrap();
            let entry = Entry::begin(&token, &path, "site.key", "site", true).unwrap();
            entry.finish(&text(7)).unwrap();
            let case = (before, began, secret);
            assert_eq!(file.exists(), stays, "{case:?}");
        }
    }

    #[test]
    fn a_join_forgets_hub_keys_in_the_former_place_that_may_come_back() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("site.toml");
        let key_path = common::key_file(&path, "site.key");
        files::create_parent(&key_path).unwrap();
        let (token, pending) = token(&key_path);
        std::fs::write(&pending, "key").unwrap();
        let text = |state: &str| {
            let text = template::site(&SiteTemplate {
                name: token.name.clone(),
                hub_key: token.hub_key,
                endpoints: token.endpoints.clone(),
                tcp_port: 443,
                spares: Vec::new(),
            });
            let state = directory.path().join(state);
            std::fs::create_dir_all(&state).unwrap();
            format!("state_dir = \"{}\"\n{text}", state.display())
        };
        std::fs::write(&path, text("own")).unwrap();
        let new = text("new");
        let file = directory.path().join("own/hub-keys.json");
        let known = format!("{{\"pinned\": \"{0}\", \"key\": \"{0}\"}}", token.hub_key);
        std::fs::write(&file, known).unwrap();
        let entry = Entry::begin(&token, &path, "site.key", "site", true).unwrap();
        entry.finish(&new).unwrap();
        assert!(!file.exists());
    }

    #[test]
    fn a_join_over_a_former_configuration_says_what_the_new_one_has_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("site.toml");
        let (mut token, _) = token(&path);
        token.secret = None;
        let text = |tcp_port| {
            let text = template::site(&SiteTemplate {
                name: token.name.clone(),
                hub_key: token.hub_key,
                endpoints: token.endpoints.clone(),
                tcp_port,
                spares: Vec::new(),
            });
            format!("state_dir = \"{}\"\n{text}", directory.path().display())
        };
        std::fs::write(&path, text(80)).unwrap();
        let new = text(443);
        let join = || {
            key_file::load_or_create(&path.with_file_name("site.key")).unwrap();
            let entry = Entry::begin(&token, &path, "site.key", "site", true).unwrap();
            let former = entry.finish(&new).unwrap()?;
            Some(replaced(&former, &new).replace(directory.path().to_str().unwrap(), "DIR"))
        };
        assert_eq!(
            join().unwrap(),
            "the former configuration is DIR/site.toml.bak"
        );
        assert_eq!(join(), None, "nothing is replaced");
        let own = text(443).replace("[uplinks]\n", "[uplinks]\ninclude = [\"eth*\"]\n");
        let quota = "[[uplink]]\nmatch = \"sat0\"\nquota_gb = 1\n";
        std::fs::write(&path, format!("workers = 2\n{own}\n{quota}")).unwrap();
        let text = join().unwrap();
        let lost = "site.toml.bak2; the new one does not have its [[uplink]], `include` in [uplinks], `workers`: ";
        assert!(text.contains(lost), "{text}");
    }

    #[test]
    fn keys_of_joins_that_never_ended_go_when_another_join_has() {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str| directory.path().join(name);
        let names = ["site.key.joining-01020304", "site.key.joining-05060708"];
        let others = ["site.key", "site.key.bak", "van.key.joining-01020304"];
        for name in names.iter().chain(&others) {
            std::fs::write(file(name), "key").unwrap();
        }
        remove_pending(&file("site.key"));
        assert!(names.iter().all(|name| !file(name).exists()));
        assert!(others.iter().all(|name| file(name).exists()));
    }

    #[test]
    fn an_interrupted_join_goes_on_over_its_own_configuration_and_no_key() {
        let directory = tempfile::tempdir().unwrap();
        let (config, key) = ["site.toml", "keys/site.key"]
            .map(|name| directory.path().join(name))
            .into();
        files::create_parent(&key).unwrap();
        let (token, pending) = token(&key);
        let begins = |force| Entry::begin(&token, &config, "site.key", "site", force).is_ok();
        assert!(begins(false), "a new machine");
        let own = |name: &str| {
            template::site(&SiteTemplate {
                name: name.to_owned(),
                hub_key: token.hub_key,
                endpoints: token.endpoints.clone(),
                tcp_port: 443,
                spares: Vec::new(),
            })
        };
        std::fs::write(&config, own("boat")).unwrap();
        assert!(!begins(false), "nothing was interrupted");
        std::fs::write(&pending, "key").unwrap();
        assert!(begins(false), "the key was not yet in its place");
        for other in [own("van"), "name = \"boat\"\n".to_owned()] {
            std::fs::write(&config, other).unwrap();
            assert!(!begins(false), "the configuration of another site");
        }
        std::fs::write(&config, own("boat")).unwrap();
        std::fs::write(&key, "key").unwrap();
        assert!(!begins(false), "the key of a working site");
        assert!(begins(true));
        std::fs::remove_file(&config).unwrap();
        assert!(!begins(false), "a key that somebody made by hand");
    }

    #[test]
    fn only_a_site_that_had_the_replaced_key_runs_on_with_its_former_key() {
        let key = |number| Identity::from_seed([number; 32]).unwrap().public_key();
        let (own, other) = (key(1), key(2));
        let (own_text, other_text) = (own.to_string(), other.to_string());
        for (former, runs, expected) in [
            (Some(own), Some(&own_text), Running::Same),
            (Some(own), None, Running::Same),
            (Some(own), Some(&other_text), Running::Other),
            (None, Some(&other_text), Running::Other),
        ] {
            assert_eq!(same_or_other(former, runs.map(String::as_str)), expected);
        }
        let text = next(Running::Other, " --config other.toml", false);
        assert!(
            !text.contains("former key") && text.contains("state_dir"),
            "{text}"
        );
        assert_eq!(next(Running::None, "", false), "`ropewalk up`");
    }

    #[test]
    fn former_files_are_all_kept() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("site.key");
        for number in ["first", "second", "third"] {
            std::fs::write(&path, number).unwrap();
            keep_former(&path).unwrap();
        }
        let text = |name: &str| std::fs::read_to_string(directory.path().join(name)).unwrap();
        let kept = ["site.key.bak", "site.key.bak2", "site.key.bak3"].map(text);
        assert_eq!(kept, ["first", "second", "third"]);
    }

    #[test]
    fn who_gives_nothing_is_told_that_nothing_was_read() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("token");
        for text in ["", " \n"] {
            std::fs::write(&file, text).unwrap();
            let error = read_token(file.to_str()).unwrap_err();
            assert!(error.is::<WrongUsage>() && error.to_string().contains("nothing was read"));
        }
    }

    #[test]
    fn what_is_no_token_at_all_is_named_with_what_to_do() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("token");
        std::fs::write(&file, [0xff, 0x00, 0x9f, 0x92]).unwrap();
        let file = shown(file.to_str().unwrap());
        let error = read_token(Some(&file)).unwrap_err();
        let words = error.to_string();
        assert!(error.is::<WrongUsage>(), "{words}");
        for part in [&*file, "holds no token", "`ropewalk invite`"] {
            assert!(words.contains(part), "{words}");
        }
        for empty in ["", " "] {
            let error = read_token(Some(empty)).unwrap_err();
            assert!(error.is::<WrongUsage>(), "{error}");
            assert!(error.to_string().contains("is empty"), "{error}");
        }
        let words = format!("{:#}", read_token(Some(&"x".repeat(100_000))).unwrap_err());
        let echoed = format!("no token, and no file: {}...:", "x".repeat(SHOWN_MAX));
        assert!(words.starts_with(&echoed), "{words}");
        assert!(words.len() < 200, "{words}");
    }

    #[test]
    fn a_token_on_the_command_line_is_in_no_debug_output() {
        let token = "ropewalk2.AQFdbW9RGUlQpQknmUKQ1";
        for words in [["join", token].as_slice(), &["relay", "--join", token]] {
            let line = std::iter::once(&"ropewalk").chain(words);
            let command = Cli::try_parse_from(line).unwrap().command;
            let shown = if let CliCommand::Join(join) = command {
                format!("{join:?}")
            } else if let CliCommand::Relay(relay) = command {
                format!("{relay:?}")
            } else {
                panic!("{words:?} is another command");
            };
            assert!(!shown.contains("AQFdbW9R"), "{shown}");
        }
    }
}
