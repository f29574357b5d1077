//! How a hub reaches the state that it shares with the other hubs of its fleet: `[fleet]`.
//!
//! Invariants: every endpoint is reached with certificates, or none is. A password is never in this file, only the path
//! of the file that holds it.

use std::path::PathBuf;

use ropewalk_transport::PublicKey;

use super::reader::Section;
use super::site::KEY;
use super::values::parse_name;
use super::values::parse_path;
use super::values::patterns::{NAME, PATH};

/// Most endpoints of etcd: clusters have seven members at most.
pub const ENDPOINTS_MAX: usize = 8;

/// What every endpoint matches, for schemas.
const ENDPOINT: &str = r"^https?://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+):\+?0*[1-9][0-9]*$";

/// The fleet of a hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FleetConfig {
    /// Name of the fleet: part of each key in etcd.
    pub name: String,
    /// Public key of the fleet.
    pub key: PublicKey,
    /// URLs of the members of etcd, at least one.
    pub endpoints: Vec<String>,
    /// Certificates; without them etcd is reached in the clear.
    pub tls: Option<Certificates>,
    /// User of etcd, and the file with the password.
    pub login: Option<(String, PathBuf)>,
    /// Where this hub is, in the operator's words; may be empty.
    pub region: String,
}

/// Files of certificates, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificates {
    /// The authority that has signed those of etcd.
    pub authority: PathBuf,
    /// Certificate of this hub and its private key, if etcd asks for one.
    pub own: Option<(PathBuf, PathBuf)>,
}

/// Reads the section.
pub(super) fn read(fleet: &mut Section<'_>) -> Option<FleetConfig> {
    let name = fleet.like(NAME).text("name", "\"north\"", parse_name);
    let name = fleet.require(
        "name",
        name,
        "write the name that `ropewalk fleet init` was given",
    );
    let example = "the 44 characters that `ropewalk fleet init` shows";
    let key = fleet.like(KEY).text("key", example, str::parse);
    let key = fleet.require(
        "key",
        key,
        "write the public key that `ropewalk fleet init` shows",
    );
    let shown = "[\"https://10.0.0.1:2379\"]";
    let endpoints = fleet
        .like(ENDPOINT)
        .list("endpoints", shown, ENDPOINTS_MAX, parse_endpoint);
    let endpoints = fleet.require(
        "endpoints",
        endpoints,
        "write the addresses of etcd, such as [\"https://10.0.0.1:2379\"]",
    );
    fleet.reject_empty(
        "endpoints",
        endpoints.as_ref(),
        "a fleet needs an endpoint of etcd",
        "write [\"https://10.0.0.1:2379\"]",
    );
    fleet.reject_twice("endpoints", endpoints.as_ref());
    let mut path = |key: &'static str, shown: &str| fleet.like(PATH).text(key, shown, parse_path);
    let authority = path("ca", "\"/etc/ropewalk/etcd/ca.pem\"");
    let certificate = path("certificate", "\"/etc/ropewalk/etcd/hub.pem\"");
    let certificate_key = path("certificate_key", "\"/etc/ropewalk/etcd/hub.key\"");
    let password_file = path("password_file", "\"/etc/ropewalk/etcd/password\"");
    let user = fleet.like(NAME).text("user", "\"hub\"", parse_name);
    let region = fleet.like(NAME).text("region", "\"eu-north\"", parse_name);
    reject_half(fleet, ("certificate", "certificate_key"));
    reject_half(fleet, ("user", "password_file"));
    reject_mixture(fleet, endpoints.as_deref().unwrap_or_default());
    Some(FleetConfig {
        name: name?,
        key: key?,
        endpoints: endpoints?,
        tls: authority.map(|authority| Certificates {
            authority,
            own: certificate.zip(certificate_key),
        }),
        login: user.zip(password_file),
        region: region.unwrap_or_default(),
    })
}

/// Reports one key of a pair without the other.
fn reject_half(fleet: &mut Section<'_>, (one, other): (&'static str, &'static str)) {
    for (there, missing) in [(one, other), (other, one)] {
        if fleet.has(there) && !fleet.has(missing) {
            let what = format!("there is no {missing} beside it");
            fleet.reject(there, &what, &format!("write {missing}, or remove {there}"));
        }
    }
}

/// Reports endpoints with TLS without the authority that has signed their certificates, and the reverse.
fn reject_mixture(fleet: &mut Section<'_>, endpoints: &[String]) {
    let secure = |endpoint: &&String| endpoint.starts_with("https:");
    let count = endpoints.iter().filter(secure).count();
    if count > 0 && count < endpoints.len() {
        fleet.reject(
            "endpoints",
            "some are reached with certificates and some in the clear",
            "write https:// for all",
        );
    } else if count > 0 && !fleet.has("ca") {
        fleet.reject(
            "endpoints",
            "there is no `ca` beside https://",
            "write ca = \"/etc/ropewalk/etcd/ca.pem\", the authority that has signed the certificates of etcd",
        );
    }
    for key in ["ca", "certificate"] {
        if fleet.has(key) && count == 0 && !endpoints.is_empty() {
            fleet.reject(
                key,
                "certificates have no effect on endpoints with http://",
                "write https:// in endpoints",
            );
        }
    }
}

/// Parses the URL of a member of etcd, such as `https://10.0.0.1:2379`.
///
/// # Errors
/// What is wrong with it.
pub fn parse_endpoint(text: &str) -> Result<String, String> {
    let wrong = || format!("{text:?} is no URL of etcd");
    let rest = text
        .strip_prefix("https://")
        .or_else(|| text.strip_prefix("http://"))
        .ok_or_else(wrong)?;
    if rest.contains('@') {
        return Err("a URL of etcd holds no password: use user and password_file".to_owned());
    }
    rest.parse::<super::values::HostPort>()
        .map_err(|_| wrong())?;
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::cases::hub;

    const KEY: &str = "Gb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=";

    fn text(fleet: &str) -> String {
        format!("name = \"a\"\n[pool]\nipv4 = \"10.9.0.0/16\"\n[fleet]\n{fleet}\n")
    }

    fn whole(more: &str) -> String {
        text(&format!(
            "name = \"north\"\nkey = \"{KEY}\"\nendpoints = [\"https://10.0.0.1:2379\"]\n{more}"
        ))
    }

    #[test]
    fn a_fleet_is_read_as_written_and_a_hub_without_one_has_none() {
        let parse = |text: &str| hub::parse(Path::new("hub.toml"), text).unwrap().fleet;
        let fleet = parse(&whole(
            "ca = \"/c\"\ncertificate = \"/h\"\ncertificate_key = \"/k\"\nuser = \"hub\"\npassword_file = \"/p\"\nregion = \"eu\"",
        ));
        let fleet = fleet.unwrap();
        assert_eq!(
            (fleet.name.as_str(), fleet.region.as_str()),
            ("north", "eu")
        );
        assert_eq!(fleet.key.to_string(), KEY);
        assert_eq!(fleet.endpoints, ["https://10.0.0.1:2379"]);
        let tls = fleet.tls.unwrap();
        assert_eq!(tls.own, Some(("/h".into(), "/k".into())));
        assert_eq!(fleet.login, Some(("hub".to_owned(), "/p".into())));
        assert!(parse("[pool]\nipv4 = \"10.9.0.0/16\"\n").is_none());
    }

    #[test]
    fn half_a_fleet_is_refused_with_line_key_and_remedy() {
        for (text, parts) in [
            (text(""), ["fleet.name: missing", "fleet init"]),
            (
                whole(""),
                ["hub.toml:7: fleet.endpoints: there is no `ca`", "write ca"],
            ),
            (
                whole("ca = \"/c\"\ncertificate = \"/h\""),
                [
                    "hub.toml:9: fleet.certificate:",
                    "no certificate_key beside it",
                ],
            ),
            (
                whole("ca = \"/c\"\npassword_file = \"/p\""),
                ["hub.toml:9: fleet.password_file:", "no user beside it"],
            ),
            (
                whole("ca = \"/c\"").replace("[\"https", "[\"http://10.0.0.2:2379\", \"https"),
                ["fleet.endpoints: some are", "write https:// for all"],
            ),
            (
                whole("ca = \"/c\"").replace("https:", "http:"),
                [
                    "hub.toml:8: fleet.ca: certificates have no effect",
                    "https://",
                ],
            ),
            (
                whole("ca = \"/c\"").replace("10.0.0.1:2379", "hub:secret@10.0.0.1:2379"),
                [
                    "fleet.endpoints: a URL of etcd holds no password",
                    "write it like",
                ],
            ),
            (
                whole("ca = \"/c\"").replace("name = \"a\"\n", ""),
                ["hub.toml:1: name: missing", "each hub of a fleet"],
            ),
        ] {
            let problems = hub::parse(Path::new("hub.toml"), &text).expect_err(&text);
            let message = problems.to_string();
            for part in parts {
                assert!(
                    message.contains(part),
                    "{text}\ngave: {message}\nwithout: {part}"
                );
            }
        }
    }
}
