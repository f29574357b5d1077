//! `ropewalk invite`: makes, lists and revokes the sites of a hub.

use std::io::{self, IsTerminal};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, ValueHint};
use qrcode::render::unicode::Dense1x2;
use qrcode::{EcLevel, QrCode};
use ropewalk_api::Reloaded;
use ropewalk_session::WEIGHT_MAX;
use ropewalk_transport::PublicKey;
use zeroize::Zeroizing;

use super::output::{self, Colour, Style, Table};
use super::{Global, status};
use crate::client::Client;
use crate::fleet::desk::Desk;
use crate::sites::{Credential, Invitation, Joined, RATE_MAX, Site, Sites, Terms, Time};
use crate::token::{FleetPlaces, Place, Secret, Token};
use crate::{endpoints, key_file};
use ropewalk_config::WrongUsage;
use ropewalk_config::egress::{ALLOW_MAX, Allowed};
use ropewalk_config::hub::ENDPOINTS_MAX;
use ropewalk_config::values::{HostPort, parse_name};
use ropewalk_config::{self as config, HubConfig};
use ropewalk_host::files;

const EXAMPLES: &str = "Examples:
  ropewalk invite boat                          new site, token on standard output
  ropewalk invite boat --valid 15m              the token is good for 15 minutes, not 24 hours
  ropewalk invite boat --qr                     also as a QR code
  ropewalk invite boat --output boat.token      into a file that only its owner can read
  ropewalk invite boat --endpoint vpn.example.org:4443
  ropewalk invite boat --replace                new key for a site; the old one stops working
  ropewalk invite boat --public-key KEY         the site made its key with `ropewalk key generate`
  ropewalk invite harbour --relay               a relay: other sites reach this hub through it
  ropewalk invite farm --rate 20                at most 20 Mbit/s to the site and 20 from it
  ropewalk invite office --allow 10.1.0.0/16 --allow site:farm
                                                reaches this network and this site beside the internet
  ropewalk invite --list
  ropewalk invite --list --json | jq -r '.site[] | select(.key == null) | .name'
                                                names of the sites that have not joined yet
  ropewalk invite --revoke boat

The token holds a secret that is good for one site, once, until its end by the clock of the hub:
whoever joins with the token first is that site. Hand it over as you would a password, and revoke
it if it got lost. The site makes its own key. With --public-key the token holds no secret. A
running hub takes the change over at once; the hub must run when the site joins.";

/// How long a token is good for unless --valid says otherwise.
const VALID: &str = "24h";
/// Longest time that a token may be good for: 366 days.
const VALID_MAX: Duration = Duration::from_secs(366 * 24 * 3_600);

/// Options that only make sense with a name.
const INVITING: [&str; 11] = [
    "allow",
    "name",
    "valid",
    "qr",
    "output",
    "endpoint",
    "relay",
    "replace",
    "public_key",
    "rate",
    "weight",
];

/// Invite a site: print the token that `ropewalk join` takes
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Invite {
    /// Name for the site: letters, digits, '-', '_' and '.'
    #[arg(required_unless_present_any = ["list", "revoke", "reload"], value_parser = parse_name)]
    name: Option<String>,
    /// Where this hub is reached, instead of `public` in `[listen]`; may be given several times
    #[arg(long, value_name = "HOST:PORT")]
    endpoint: Vec<HostPort>,
    /// It is a relay: it also gets networks of the pools for sites of its own
    #[arg(long)]
    relay: bool,
    /// Give an existing site a new key; it keeps its addresses
    #[arg(long)]
    replace: bool,
    /// Public key that the site made itself: the token then holds no secret and has no end
    #[arg(long, value_name = "KEY", conflicts_with = "valid")]
    public_key: Option<PublicKey>,
    /// How long the token is good for, such as 15m, 24h or 7d
    #[arg(long, value_name = "TIME", default_value = VALID, value_parser = parse_valid)]
    valid: Duration,
    /// Show the token as a QR code on standard error too; usual at a terminal
    #[arg(long)]
    qr: bool,
    /// Write the token to a new file of mode 0600 instead of standard output
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Most that the site may send and receive, Mbit/s each, 1 to 100,000
    #[arg(long, value_name = "MBIT", value_parser = clap::value_parser!(u32).range(1..=i64::from(RATE_MAX)))]
    rate: Option<u32>,
    /// Turns of the site while the hub has too much to do, beside 1 of each other site, 1 to 100
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(WEIGHT_MAX)))]
    weight: Option<u32>,
    /// What the site may reach beside the internet and the hub: a network, an address or site:NAME;
    /// may be given several times, in place of `allow` in the configuration of the hub
    #[arg(long, value_name = "WHAT")]
    allow: Vec<Allowed>,
    /// List the sites
    #[arg(long, conflicts_with_all = INVITING)]
    list: bool,
    /// With --list: one JSON object with the keys of sites.toml
    #[arg(long, requires = "list", conflicts_with_all = INVITING)]
    json: bool,
    /// Remove a site; it is disconnected at once
    #[arg(long, value_name = "NAME", value_hint = ValueHint::Other, conflicts_with_all = INVITING, conflicts_with = "list")]
    revoke: Option<String>,
    /// Let the running hub read the sites file after an edit by hand
    #[arg(long, conflicts_with_all = INVITING, conflicts_with_all = ["list", "revoke"])]
    reload: bool,
}

impl Invite {
    /// Changes the sites file and tells the running hub.
    ///
    /// # Errors
    /// The name is taken or unknown, no endpoint is known, or a file cannot be written.
    pub fn run(self, global: &Global) -> anyhow::Result<()> {
        let path = global
            .config
            .as_deref()
            .unwrap_or_else(|| config::inviting_path());
        if !path.exists() {
            bail!(WrongUsage(format!(
                "{} is missing: this machine is no hub yet; run `ropewalk hub --init` first, or \
                 `ropewalk relay --join` for a relay",
                path.display()
            )));
        }
        let hub = config::load_inviting(path).context("the configuration is not usable")?;
        let socket = global.socket.as_deref().unwrap_or(&hub.common.socket);
        if let Some(fleet) = hub.fleet.as_deref() {
            let desk = Desk::open(&hub, fleet, socket)?;
            return self.run_in_fleet(&hub, &desk);
        }
        if self.list {
            let sites = Sites::load(&hub)?;
            return self.show(&sites);
        }
        if let Some(name) = &self.revoke {
            Sites::edit(&hub, |sites| sites.revoke(name))?;
            output::note(&format!("site {name} is revoked"));
            return tell_running_hub(global, &hub);
        }
        if self.reload {
            Sites::load(&hub)?;
            return tell_running_hub(global, &hub);
        }
        self.invite(global, &hub)
    }

    fn show(&self, sites: &Sites) -> anyhow::Result<()> {
        if self.json {
            let text = serde_json::to_string_pretty(sites)?;
            return Ok(output::print(&format!("{text}\n"))?);
        }
        list(sites)
    }

    /// The same in a fleet: nothing is written on this machine.
    fn run_in_fleet(self, hub: &HubConfig, desk: &Desk<'_>) -> anyhow::Result<()> {
        if self.list {
            desk.look();
            note_age(desk);
            let sites = desk.sites()?;
            return self.show(&sites);
        }
        if let Some(name) = &self.revoke {
            desk.revoke(name)?;
            output::note(&format!(
                "site {name} is revoked; every hub that etcd reaches shuts it out within seconds"
            ));
            return Ok(());
        }
        if self.reload {
            return Err(WrongUsage(
                "a hub of a fleet has no sites file: its sites come from etcd by themselves"
                    .to_owned(),
            )
            .into());
        }
        if self.relay {
            return Err(WrongUsage(
                "a fleet has no networks for relays yet: let the relay join a hub without a fleet"
                    .to_owned(),
            )
            .into());
        }
        let fleet_key = desk.key();
        let wanted = self.prepare(hub, &fleet_key)?;
        let site = desk.add(&wanted.name, wanted.credential, wanted.terms)?;
        let own = Place {
            key: wanted.hub_key,
            tcp_port: hub.tcp_port(),
            region: 0,
            endpoints: wanted.endpoints,
        };
        let mut places = desk.places(own);
        describe_addresses(hub, &site);
        for place in &places {
            let endpoints: Vec<_> = place.endpoints.iter().map(ToString::to_string).collect();
            output::note(&format!(
                "it will look for a hub at {}",
                endpoints.join(", ")
            ));
        }
        // The secret is nowhere else by now: nothing may fail before it is handed out.
        let unknown = desk.sites().map(|all| unknown_sites(&site, &all));
        warn_of_unknown(hub, &wanted.name, unknown.unwrap_or_default());
        let home = places.remove(0);
        let token = Token {
            hub_key: home.key,
            secret: wanted.secret,
            tcp_port: home.tcp_port,
            name: wanted.name,
            endpoints: home.endpoints,
            networks: Vec::new(),
            fleet: Some(FleetPlaces {
                key: fleet_key,
                region: home.region,
                others: places,
            }),
        };
        hand_out(&token, wanted.ends, wanted.output.as_deref(), wanted.qr)
    }

    fn invite(self, global: &Global, hub: &HubConfig) -> anyhow::Result<()> {
        let hub_key = key_file::load(&hub.common.key_file)?.public_key();
        let relay = self.relay;
        let wanted = self.prepare(hub, &hub_key)?;
        let name = wanted.name;
        let (site, unknown, disabled) = Sites::edit(hub, |sites| {
            let disabled = sites
                .all()
                .iter()
                .any(|site| site.name == name && !site.enabled);
            let terms = Terms {
                relay,
                ..wanted.terms
            };
            let site = sites.add(hub, &name, wanted.credential, terms)?;
            let unknown = unknown_sites(&site, sites);
            Ok((site, unknown, disabled))
        })?;
        if disabled {
            output::note(&format!("site {name} was disabled, and is not any more"));
        }
        describe(hub, &site, &wanted.endpoints);
        warn_of_unknown(hub, &name, unknown);
        let told = tell_running_hub(global, hub);
        let token = Token {
            hub_key,
            secret: wanted.secret,
            tcp_port: hub.tcp_port(),
            name,
            endpoints: wanted.endpoints,
            networks: site.networks,
            fleet: None,
        };
        // Also when the running hub did not take the change over: the secret is nowhere else.
        hand_out(&token, wanted.ends, wanted.output.as_deref(), wanted.qr)?;
        told
    }

    /// Checks what is asked for, and makes the secret. The key of the invitation follows from that and `inviting`.
    fn prepare(self, hub: &HubConfig, inviting: &PublicKey) -> anyhow::Result<Wanted> {
        let name = self
            .name
            .ok_or_else(|| WrongUsage("give the site a name".to_owned()))?;
        let hub_key = key_file::load(&hub.common.key_file)?.public_key();
        let endpoints = endpoints_of(hub, self.endpoint)?;
        if hub.is_relay() && name == config::relay::NEXT_HUB {
            bail!(WrongUsage(format!(
                "{name} is what a relay calls its next hub; choose another name for the site"
            )));
        }
        if self.public_key == Some(hub_key) {
            let wrong =
                "this is the hub's own key; make one on the site with `ropewalk key generate`";
            bail!(WrongUsage(wrong.to_owned()));
        }
        if let Some(file) = self.output.as_deref().filter(|file| file.exists()) {
            bail!(WrongUsage(format!(
                "{} exists and is not overwritten; name another file, or remove it",
                file.display()
            )));
        }
        if !self.allow.is_empty() && !hub.forward {
            return Err(WrongUsage(
                "--allow has no effect here: without forward = true in [network] of the configuration \
                 this hub has no rules of what sites reach"
                    .to_owned(),
            )
            .into());
        }
        if self.allow.len() > ALLOW_MAX {
            return Err(WrongUsage(format!("--allow comes {ALLOW_MAX} times at most")).into());
        }
        let ends = Time::now().after(self.valid);
        let ends = ends.context("the end of the token is beyond the calendar")?;
        let (secret, credential) = if let Some(key) = self.public_key {
            (None, Credential::Key(key))
        } else {
            let secret = Secret::generate()?;
            let invitation = Invitation::new(secret.identity(inviting)?.public_key(), ends);
            (Some(secret), Credential::Invitation(invitation))
        };
        let terms = Terms {
            replace: self.replace,
            relay: false,
            weight: self.weight,
            rate_mbit: self.rate,
            allow: (!self.allow.is_empty()).then_some(self.allow),
        };
        Ok(Wanted {
            name,
            hub_key,
            endpoints,
            credential,
            secret,
            ends,
            terms,
            output: self.output,
            qr: self.qr,
        })
    }
}

/// An invitation before anybody knows of it.
struct Wanted {
    name: String,
    hub_key: PublicKey,
    /// Of this hub.
    endpoints: Vec<HostPort>,
    credential: Credential,
    secret: Option<Secret>,
    ends: Time,
    terms: Terms,
    output: Option<PathBuf>,
    qr: bool,
}

/// Says how old the list is, where etcd does not answer.
fn note_age(desk: &Desk<'_>) {
    let status = desk.status();
    if status.etcd.is_there() {
        return;
    }
    let age = status.age_s.map_or_else(
        || "this machine has none of the fleet yet".to_owned(),
        |age| format!("this is its state of {} ago", output::duration(age)),
    );
    output::note(&format!(
        "warning: etcd {} ({}); {age}",
        crate::fleet::matter(&status.etcd),
        status.etcd.why.unwrap_or_default()
    ));
}

fn warn_of_unknown(hub: &HubConfig, name: &str, unknown: Vec<String>) {
    for other in unknown {
        output::note(&format!(
            "warning: {name} may reach site {other}, which this {} does not know: correct the name with \
             --allow, or invite {other}",
            hub.common.role
        ));
    }
}

/// Sites that this one may reach and that nobody has invited.
fn unknown_sites(site: &Site, sites: &Sites) -> Vec<String> {
    let allowed = site.allow.iter().flatten();
    let unknown = allowed.filter_map(|allowed| match allowed {
        Allowed::Site(name) => sites.resolve(allowed).is_empty().then(|| name.clone()),
        Allowed::Net(_) => None,
    });
    unknown.collect()
}

/// Says where the site will be, and where it will look for the hub.
fn describe(hub: &HubConfig, site: &Site, endpoints: &[HostPort]) {
    describe_addresses(hub, site);
    let role = hub.common.role;
    for endpoint in endpoints {
        output::note(&format!("it will look for this {role} at {endpoint}"));
    }
}

fn describe_addresses(hub: &HubConfig, site: &Site) {
    let role = hub.common.role;
    let addresses: Vec<_> = site.addresses().map(|ip| ip.to_string()).collect();
    let addresses = addresses.join(" and ");
    output::note(&format!(
        "site {} has {addresses} behind this {role}",
        site.name
    ));
    if let Some(block) = site.block {
        output::note(&format!("it shares a public address: it has {block}"));
    } else if let Some(shared) = hub.shared.as_ref().filter(|_| site.networks.is_empty()) {
        output::note(&format!(
            "warning: it shares no public address: no address of `shared` in [pool] has {} ports left",
            shared.ports
        ));
    }
    if !site.networks.is_empty() {
        let networks: Vec<_> = site.networks.iter().map(ToString::to_string).collect();
        let networks = networks.join(" and ");
        output::note(&format!("its own sites get addresses of {networks}"));
    }
}

/// Prints the token, or writes it to a file, and says what to do with it.
fn hand_out(token: &Token, ends: Time, file: Option<&Path>, qr: bool) -> anyhow::Result<()> {
    let text = token.encode();
    let mut line = Zeroizing::new(String::with_capacity(text.len() + 1));
    line.push_str(&text);
    line.push('\n');
    if let Some(file) = file {
        let written = files::write_atomically(file, line.as_bytes(), files::SECRET, false);
        written.with_context(|| {
            format!(
                "the site is invited, but {} cannot be written; invite it again with --replace",
                file.display()
            )
        })?;
    }
    let (joining, command) = if token.networks.is_empty() {
        ("site", "ropewalk join")
    } else {
        ("relay", "ropewalk relay --join")
    };
    let what = file.map_or("the next line".to_owned(), |file| {
        file.display().to_string()
    });
    let command = file.map_or(command.to_owned(), |file| {
        format!("{command} {}", file.display())
    });
    if token.secret.is_some() {
        output::note(&format!(
            "{what} is a secret for one {joining}, once, until {ends}; on the {joining} run: {command}"
        ));
    } else {
        output::note(&format!(
            "{what} holds no secret; on the {joining} run: {command}"
        ));
    }
    // Where only one of them is a terminal, the token goes into a file or a pipe.
    let at_terminal = io::stdout().is_terminal() && io::stderr().is_terminal();
    if qr || (at_terminal && file.is_none()) {
        output::note(&qr_code(&text)?);
    }
    if file.is_none() {
        output::print(&line)?;
    }
    Ok(())
}

/// Text that a camera reads from a terminal, dark or light.
fn qr_code(text: &str) -> anyhow::Result<Zeroizing<String>> {
    let code = QrCode::with_error_correction_level(text, EcLevel::L);
    let code = code.context("the token does not fit a QR code")?;
    let picture = code
        .render::<Dense1x2>()
        .dark_color(Dense1x2::Light)
        .light_color(Dense1x2::Dark)
        .build();
    Ok(Zeroizing::new(picture))
}

fn parse_valid(text: &str) -> Result<Duration, String> {
    let valid = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if valid < Duration::from_secs(1) || valid > VALID_MAX {
        return Err(format!(
            "a token is good for 1s to 366d, and this is {} days",
            valid.as_secs() / 86_400
        ));
    }
    Ok(valid)
}

fn list(sites: &Sites) -> anyhow::Result<()> {
    if sites.all().is_empty() {
        output::note("no sites yet; `ropewalk invite NAME` makes one");
        return Ok(());
    }
    let now = Time::now();
    let mut table = Table::new(&[
        "SITE",
        "IPV4",
        "IPV6",
        "PORTS",
        "NETWORKS",
        "WEIGHT",
        "MBIT/S",
        "ALLOW",
        "ENABLED",
        "PUBLIC KEY",
        "INVITATION",
    ]);
    for site in sites.all() {
        let address = |ip: Option<IpAddr>| ip.map_or_else(|| "-".to_owned(), |ip| ip.to_string());
        let enabled = if site.enabled {
            ("yes", Colour::Green)
        } else {
            ("no", Colour::Yellow)
        };
        table.row(vec![
            (site.name.clone(), Some(Colour::Bold)),
            (address(site.ipv4), None),
            (address(site.ipv6), None),
            (ports(site), None),
            (networks(site), None),
            (site.weight.to_string(), None),
            (
                site.rate_mbit.map_or("-".to_owned(), |r| r.to_string()),
                None,
            ),
            (allow(site), None),
            (enabled.0.to_owned(), Some(enabled.1)),
            (site.key.map_or("-".to_owned(), |key| key.to_string()), None),
            invitation(site, now),
        ]);
    }
    output::print(&table.render(Style::of_stdout(), ""))?;
    Ok(())
}

/// Its ports of a shared address.
fn ports(site: &Site) -> String {
    site.block.map_or("-".to_owned(), |block| block.to_string())
}

/// What the site may reach; `-` is what the configuration of the hub says.
fn allow(site: &Site) -> String {
    let Some(allow) = &site.allow else {
        return "-".to_owned();
    };
    if allow.is_empty() {
        return "nothing".to_owned();
    }
    let list: Vec<_> = allow.iter().map(ToString::to_string).collect();
    list.join(" ")
}

/// Whether and until when a site may join, or when it has.
fn invitation(site: &Site, now: Time) -> (String, Option<Colour>) {
    let Some(invitation) = &site.invitation else {
        return ("-".to_owned(), None);
    };
    let waits = invitation.joined.is_none().then_some(Colour::Yellow);
    let mut state = invitation.state(now);
    let changed = |joined: &Joined| site.key.is_some_and(|key| key != joined.key);
    if invitation.joined.as_ref().is_some_and(changed) {
        state.push_str("; the site has changed its key since");
    }
    (state, waits)
}

/// The networks of a relay.
fn networks(site: &Site) -> String {
    if site.networks.is_empty() {
        return "-".to_owned();
    }
    let list: Vec<_> = site.networks.iter().map(ToString::to_string).collect();
    list.join(" ")
}

/// A hub that does not run reads the file when it starts.
fn tell_running_hub(global: &Global, hub: &HubConfig) -> anyhow::Result<()> {
    let socket = global.socket.as_deref().unwrap_or(&hub.common.socket);
    let reloaded = Client::new(socket).post::<Reloaded>("/v1/sites/reload", &serde_json::json!({}));
    match reloaded {
        Ok(_) => output::note(&format!("the running {} knows", hub.common.role)),
        Err(error) if status::is_not_running(&error) => {
            let role = hub.common.role;
            output::note(&format!(
                "the {role} is not running; start it before the site joins"
            ));
        }
        Err(error) => {
            return Err(error.context(
                "the sites file is written, but the running hub did not take it over; restart it",
            ));
        }
    }
    Ok(())
}

/// What the token says of where the hub is: the command line, else the configuration, else the
/// interface with the default route.
fn endpoints_of(hub: &HubConfig, given: Vec<HostPort>) -> anyhow::Result<Vec<HostPort>> {
    if given.len() > ENDPOINTS_MAX {
        return Err(WrongUsage(format!("a token holds {ENDPOINTS_MAX} endpoints at most")).into());
    }
    if !given.is_empty() {
        return Ok(given);
    }
    let found = endpoints::of(hub)?;
    if found.are_private {
        output::note(&format!(
            "warning: the address found is private: sites elsewhere cannot reach it; {}",
            endpoints::REMEDY
        ));
    }
    Ok(found.endpoints)
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn a_site_that_has_changed_its_key_since_it_joined_is_told_from_others() {
        let key = |seed| {
            let identity = ropewalk_transport::Identity::from_seed([seed; 32]);
            identity.unwrap().public_key()
        };
        let hub = config::hub::parse(Path::new("hub.toml"), "[pool]\nipv4 = \"10.9.0.0/16\"\n");
        let mut sites = Sites::default();
        let mut site = sites
            .add(&hub.unwrap(), "boat", key(1), Terms::default())
            .unwrap();
        let now = Time::now();
        let mut invited = Invitation::new(key(9), now);
        invited.joined = Some(Joined {
            at: now,
            key: key(1),
        });
        site.invitation = Some(invited);
        assert!(!invitation(&site, now).0.contains("since"));
        site.key = Some(key(2));
        let text = invitation(&site, now).0;
        assert!(
            text.ends_with("; the site has changed its key since"),
            "{text}"
        );
    }

    #[test]
    fn a_token_is_good_for_a_time_with_a_unit() {
        assert_eq!(parse_valid("15m"), Ok(Duration::from_secs(900)));
        assert_eq!(parse_valid(VALID), Ok(Duration::from_secs(86_400)));
        for wrong in ["15", "0s", "2y", "soon", "-1h"] {
            assert!(parse_valid(wrong).is_err(), "{wrong}");
        }
        let long = parse_valid("5y").unwrap_err();
        assert!(long.contains("1s to 366d, and this is 1826 days"), "{long}");
    }

    #[test]
    fn a_site_that_may_reach_one_that_nobody_invited_is_warned_of() {
        let path = Path::new("hub.toml");
        let hub = config::hub::parse(path, "[pool]\nipv4 = \"10.9.0.0/16\"\n").unwrap();
        let mut sites = Sites::default();
        let mut add = |name: &str, seed, allow: &[&str]| {
            let key = ropewalk_transport::Identity::from_seed([seed; 32])
                .unwrap()
                .public_key();
            let allow = allow.iter().map(|allowed| allowed.parse().unwrap());
            let terms = Terms {
                allow: Some(allow.collect()),
                ..Terms::default()
            };
            let site = sites.add(&hub, name, key, terms).unwrap();
            unknown_sites(&site, &sites)
        };
        assert_eq!(add("farm", 1, &["10.1.0.0/16", "site:office"]), ["office"]);
        assert_eq!(add("office", 2, &["site:farm"]), Vec::<String>::new());
    }

    #[test]
    fn a_qr_code_is_square_and_has_its_quiet_zone() {
        let code = qr_code(&"x".repeat(150)).unwrap();
        let lines: Vec<_> = code.lines().collect();
        let width = lines[0].chars().count();
        assert!(lines.iter().all(|line| line.chars().count() == width));
        assert_eq!(lines.len(), width.div_ceil(2));
        assert!(width <= 80, "{width} columns");
    }
}
