//! The command line: what it accepts, and how it ends when something is wrong.

use clap::{CommandFactory, Parser};

use super::Cli;
use crate::exit::{self, NotRunning, WrongUsage};

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
        "invite",
        "join",
        "status",
        "path",
        "scheduler",
        "key",
        "doctor",
        "demo",
        "completions",
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
        help.contains("Exit codes:") && help.contains("ropewalk join TOKEN"),
        "{help}"
    );
}

#[test]
fn wrong_usage_is_refused_and_right_usage_taken() {
    for line in [
        "",
        "frobnicate",
        "invite",
        "invite a/b",
        "invite boat --endpoint nowhere",
        "invite boat --public-key short",
        "invite boat --list",
        "invite --list --revoke boat",
        "invite boat --revoke boat",
        "join",
        "path enable",
        "scheduler fastest",
        "scheduler htmt --direction up",
        "status --interval 3",
        "hub --public example.org",
        "relay --public relay.example.org:4443",
        "relay --force",
        "invite --list --relay",
    ] {
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
        "join - --force",
        "status --watch --interval 3",
        "scheduler htmt --direction send --site boat",
        "key rotate --key-file /tmp/k",
        "doctor --json",
        "relay --config ./relay.toml",
        "relay --join - --public relay.example.org:4443 --force",
        "invite harbour --relay",
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
    let path = std::path::Path::new("hub.toml");
    let problems = crate::config::hub::parse(path, "x = 1").unwrap_err();
    assert_eq!(coded(problems.into()), exit::USAGE);
}
