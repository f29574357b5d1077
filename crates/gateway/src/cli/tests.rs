//! The command line: what it accepts, and how it ends when something is wrong.

use clap::{CommandFactory, Parser};

use std::path::Path;

use ropewalk_transport::Identity;

use super::{Cli, CliCommand};
use crate::exit::{self, NotRunning};
use crate::key_file;
use crate::token::Token;
use ropewalk_config::WrongUsage;
use ropewalk_host::files;

#[test]
fn definition_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn every_command_teaches_with_examples() {
    let mut command = Cli::command();
    command.build();
    let names: Vec<_> = command
        .get_subcommands()
        .map(|sub| sub.get_name().to_owned())
        .collect();
    for expected in [
        "hub",
        "up",
        "relay",
        "fleet",
        "invite",
        "join",
        "status",
        "top",
        "path",
        "scheduler",
        "reload",
        "key",
        "doctor",
        "demo",
        "completions",
        "schema",
    ] {
        assert!(
            names.iter().any(|name| name == expected),
            "{expected} is missing"
        );
    }
    for sub in command
        .get_subcommands_mut()
        .filter(|sub| !["help", "demo"].contains(&sub.get_name()))
    {
        let name = sub.get_name().to_owned();
        let help = sub.render_long_help().to_string();
        assert!(help.contains("Examples:"), "{name} has no examples");
        assert!(
            help.contains(&format!("ropewalk {name}")),
            "{name} shows no use"
        );
    }
    let help = command.render_long_help().to_string();
    assert!(
        help.contains("Exit codes:") && help.contains("ropewalk join"),
        "{help}"
    );
}

#[test]
fn every_command_and_every_configuration_has_a_page() {
    let directory = tempfile::tempdir().unwrap();
    super::pages::write(Cli::command(), directory.path()).unwrap();
    let page = |name: &str| std::fs::read_to_string(directory.path().join(name)).expect(name);
    let mut command = Cli::command();
    command.build();
    for sub in command
        .get_subcommands()
        .filter(|sub| sub.get_name() != "help")
    {
        let name = format!("ropewalk-{}", sub.get_name());
        let text = page(&format!("man1/{name}.1"));
        assert!(text.contains(".SH DESCRIPTION"), "{name}");
        // Examples keep their lines.
        assert!(
            name == "ropewalk-demo" || text.contains(".SH EXAMPLES\n.nf"),
            "{name}"
        );
    }
    for (role, key) in [
        ("hub", "udp"),
        ("site", "kill_switch"),
        ("relay", "redundancy_percent"),
        ("balance", "targets"),
    ] {
        let text = page(&format!("man5/ropewalk-{role}.toml.5"));
        assert!(text.contains(&format!("\\fB{key}\\fR (")), "{role}: {text}");
    }
}

const WRONG: [&str; 33] = [
    "",
    "frobnicate",
    "invite",
    "invite a/b",
    "invite boat --endpoint nowhere",
    "invite boat --public-key short",
    "invite boat --list",
    "invite --list --revoke boat",
    "invite boat --revoke boat",
    "path enable",
    "scheduler fastest",
    "scheduler htmt --direction up",
    "status --interval 3",
    "top --range year",
    "top --size 80x24",
    "top --once --size 80",
    "hub --public example.org",
    "relay --public relay.example.org:4443",
    "relay --force",
    "invite --list --relay",
    "invite --list --qr",
    "fleet",
    "fleet init north",
    "fleet init --endpoint http://10.0.0.1:2379",
    "fleet drain",
    "fleet drain b --end --wait",
    "fleet backup",
    "fleet restore",
    "invite boat --valid soon",
    "invite boat --valid 400d",
    "schema",
    "schema everything",
    "invite boat --valid 1h --public-key 11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=",
];

#[test]
fn wrong_usage_is_refused_and_right_usage_taken() {
    for line in WRONG {
        let words = std::iter::once("ropewalk").chain(line.split_whitespace());
        let error = Cli::try_parse_from(words).expect_err(line);
        assert!(error.exit_code() == i32::from(exit::USAGE), "{line}");
    }
    for line in [
        "up --config ./x.toml -vv --log-format json",
        "hub --init --public hub.example.org:4443",
        "invite boat --endpoint [2001:db8::1]:4443 --replace",
        "invite --list --config ./hub.toml",
        "invite --revoke boat -c ./hub.toml",
        "join",
        "join - --force",
        "join boat.token",
        "invite boat --valid 15m --qr --output boat.token",
        "relay --join --public relay.example.org:4443",
        "status --watch --interval 3",
        "top --range hour -c ./hub.toml",
        "top --once --size 40x10",
        "scheduler htmt --direction send --site boat",
        "reload -c ./site.toml",
        "key rotate --key-file /tmp/k",
        "doctor --json",
        "relay --config ./relay.toml",
        "relay --join - --public relay.example.org:4443 --force",
        "invite harbour --relay",
        "fleet init north --endpoint http://10.0.0.1:2379",
        "fleet init",
        "fleet status --json -c ./hub.toml",
        "fleet drain b --end --json",
        "fleet drain b --wait",
        "fleet drain b --wait=30 --json",
        "fleet drain --wait b",
        "fleet forget b",
        "fleet backup fleet.backup --json",
        "fleet restore fleet.backup --force",
    ] {
        let words = std::iter::once("ropewalk").chain(line.split_whitespace());
        Cli::try_parse_from(words).expect(line);
    }
}

#[test]
fn misspelt_scheduler_is_corrected() {
    let error = Cli::try_parse_from(["ropewalk", "scheduler", "htmmt"])
        .unwrap_err()
        .to_string();
    assert!(error.contains("did you mean htmt?"), "{error}");
}

#[test]
fn errors_have_their_exit_codes_under_any_context() {
    let coded = |error: anyhow::Error| exit::code(&error.context("somewhere"));
    assert_eq!(coded(anyhow::anyhow!("broken")), exit::FAILURE);
    assert_eq!(coded(NotRunning("no".to_owned()).into()), exit::NOT_RUNNING);
    assert_eq!(coded(WrongUsage("no".to_owned()).into()), exit::USAGE);
    let missing = ropewalk_config::load_site(std::path::Path::new("/nowhere/site.toml"));
    assert_eq!(coded(missing.unwrap_err()), exit::USAGE);
    // The kernel answers with an input/output error, as a disk would.
    let failing = ropewalk_config::load_site(std::path::Path::new("/proc/self/mem"));
    assert_eq!(coded(failing.unwrap_err()), exit::FAILURE);
    let path = std::path::Path::new("hub.toml");
    let problems = ropewalk_config::hub::parse(path, "x = 1").unwrap_err();
    assert_eq!(coded(problems.into()), exit::USAGE);
}

/// A token without a key, with networks for a relay.
fn keyless_token(relay: bool) -> String {
    let networks = ["10.9.0.192/26"].map(|net| net.parse().unwrap());
    let token = Token {
        hub_key: Identity::from_seed([7; 32]).unwrap().public_key(),
        secret: None,
        tcp_port: 443,
        name: "boat".to_owned(),
        endpoints: vec!["192.0.2.7:4443".parse().unwrap()],
        networks: networks.into_iter().filter(|_| relay).collect(),
        fleet: None,
    };
    token.encode().to_string()
}

/// What a command that writes a configuration at `path` over an existing one comes to.
fn forced(words: &[&str], path: &Path) -> anyhow::Result<()> {
    let config = path.to_str().unwrap();
    let line = ["ropewalk", "--config", config];
    let cli = Cli::try_parse_from(line.iter().chain(words).chain(&["--force"])).unwrap();
    if let CliCommand::Join(join) = cli.command {
        join.run(&cli.global)
    } else if let CliCommand::Relay(relay) = cli.command {
        relay.run(&cli.global)
    } else {
        panic!("{words:?} writes no configuration");
    }
}

#[test]
fn without_a_usable_key_force_moves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let (site, relay) = (keyless_token(false), keyless_token(true));
    for (words, file) in [
        (["join", &site].as_slice(), "site.toml"),
        (&["relay", "--join", &relay], "relay.toml"),
    ] {
        let path = directory.path().join(file);
        std::fs::write(&path, "former").unwrap();
        let error = forced(words, &path).unwrap_err().to_string();
        assert!(error.contains("this machine has no key"), "{error}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "former");
    }
    let sites_key = directory.path().join("keys/relay.key");
    files::create_parent(&sites_key).unwrap();
    files::write_atomically(&sites_key, b"broken", files::SECRET, false).unwrap();
    let hub_key = directory.path().join("keys/relay-hub.key");
    key_file::create(&hub_key, &Identity::generate().unwrap()).unwrap();
    let path = directory.path().join("relay.toml");
    let words = ["relay", "--join", &relay];
    let error = forced(&words, &path).unwrap_err().to_string();
    assert!(error.contains("key for sites"), "{error}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "former");
    std::fs::remove_file(&sites_key).unwrap();
    forced(&words, &path).unwrap();
    let former = path.with_file_name("relay.toml.bak");
    assert_eq!(std::fs::read_to_string(former).unwrap(), "former");
    assert!(hub_key.exists() && sites_key.exists());
}

#[test]
fn a_token_is_handed_out_though_the_running_hub_does_not_take_the_change_over() {
    use std::io::{Read as _, Write as _};
    let directory = tempfile::tempdir().unwrap();
    let place = |name: &str| directory.path().join(name);
    let config = place("hub.toml");
    let text = format!(
        "key_file = {:?}\nsites_file = {:?}\n[listen]\npublic = [\"192.0.2.7:4443\"]\n\
         [pool]\nipv4 = \"10.9.0.0/16\"\n",
        place("hub.key"),
        place("sites.toml")
    );
    std::fs::write(&config, text).unwrap();
    key_file::create(&place("hub.key"), &Identity::generate().unwrap()).unwrap();
    // A hub that cannot reload.
    let socket = place("hub.sock");
    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let hub = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.read(&mut [0; 4_096]).unwrap();
        let answer = "HTTP/1.1 500 Internal Server Error\r\ncontent-length: 2\r\n\r\n{}";
        stream.write_all(answer.as_bytes()).unwrap();
    });
    let (token, config) = (place("boat.token"), config.to_str().unwrap().to_owned());
    let words = [
        "ropewalk",
        "--config",
        &config,
        "--socket",
        socket.to_str().unwrap(),
        "invite",
        "boat",
        "--output",
        token.to_str().unwrap(),
    ];
    let cli = Cli::try_parse_from(words).unwrap();
    let CliCommand::Invite(invite) = cli.command else {
        panic!("another command");
    };
    let error = invite.run(&cli.global).unwrap_err();
    hub.join().unwrap();
    let error = format!("{error:#}");
    assert!(error.contains("did not take it over"), "{error}");
    let token = std::fs::read_to_string(token).expect("the token was handed out");
    assert_eq!(Token::decode(&token).unwrap().name, "boat");
}
