//! The command line.
//!
//! One table gives every setting of a direction as `--KEY`, `--KEY-up` and `--KEY-down`. So the
//! command line, plan files and the control socket know the same keys.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use clap::{Arg, ArgMatches, Command, FromArgMatches, Parser, Subcommand};
use ropewalk_netem::{DirectionPlan, units};

/// Joins two network namespaces with an emulated link.
///
/// Makes an Ethernet interface in each namespace and carries frames between them: queue (tail
/// drop or managed), per-packet serialiser without burst allowance, loss, delay and jitter, per direction.
/// "Up" is from end A to end B, "down" from B to A. Rates count IP packets without the Ethernet
/// header. ARP and IPv6 neighbour discovery pass through the link like everything else, loss
/// included. When both interfaces are up, one line of JSON appears on standard output; SIGINT or
/// SIGTERM ends the program, which then prints its counters as one line of JSON. The interfaces
/// vanish with the program.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = EXAMPLES,
    max_term_width = 100,
    subcommand_negates_reqs = true,
    args_conflicts_with_subcommands = true
)]
pub(crate) struct Args {
    /// Something else than joining two namespaces.
    #[command(subcommand)]
    pub(crate) task: Option<Task>,
    /// End A: NAMESPACE:INTERFACE. The namespace is a name of `ip netns`, `pid:1234`, or `self`.
    #[arg(long, value_name = "NETNS:IFNAME", required = true)]
    pub(crate) a: Option<EndName>,
    /// End B, likewise.
    #[arg(long, value_name = "NETNS:IFNAME", required = true)]
    pub(crate) b: Option<EndName>,
    /// Plan file (TOML); settings given on the command line override it.
    #[arg(long, value_name = "FILE")]
    pub(crate) plan: Option<PathBuf>,
    /// Seed of all randomness; overrides the plan's.
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// MTU of both interfaces in bytes, 68 to 65521. (For a hop that drops silently: --hop-mtu.)
    #[arg(long, value_name = "BYTES", default_value_t = 1_500)]
    pub(crate) mtu: u32,
    /// Address of the interface at end A, with prefix length; may be repeated.
    #[arg(long, value_name = "ADDRESS/PREFIX")]
    pub(crate) address_a: Vec<Address>,
    /// Address of the interface at end B, with prefix length; may be repeated.
    #[arg(long, value_name = "ADDRESS/PREFIX")]
    pub(crate) address_b: Vec<Address>,
    /// Unix socket for changes while running: one command a line, one JSON answer a line.
    #[arg(long, value_name = "SOCKET")]
    pub(crate) control: Option<PathBuf>,
    /// Carry out no timed change until the command `restart`.
    #[arg(long, requires = "control")]
    pub(crate) wait: bool,
    /// Also write the final counters to this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) stats: Option<PathBuf>,
    /// End after this time.
    #[arg(long = "for", value_name = "TIME", value_parser = parse_duration)]
    pub(crate) run_for: Option<Duration>,
    /// End when the process that started this one ends, however it ends.
    #[arg(long)]
    pub(crate) exit_with_parent: bool,
    /// Settings of the two directions.
    #[command(flatten)]
    pub(crate) settings: Settings,
}

/// What the program can do besides joining two namespaces.
#[derive(Debug, Subcommand)]
pub(crate) enum Task {
    /// Measures links with known settings between namespaces of its own, and prints set against
    /// measured. Ends with an error when something is beyond its tolerance.
    Validate {
        /// Fewer and shorter measurements.
        #[arg(long)]
        quick: bool,
        /// One JSON object instead of a table.
        #[arg(long)]
        json: bool,
    },
}

const EXAMPLES: &str = "\
Examples:
  Two namespaces, 16 Mbit/s and 25 ms each way, 64 KiB of queue:
    ip netns add left; ip netns add right
    ropewalk-linkem --a left:wan0 --b right:wan0 --rate 16Mbit --delay 25ms --queue 64KiB \\
        --address-a 10.0.0.1/24 --address-b 10.0.0.2/24 --address-a fd00::1/64 \\
        --address-b fd00::2/64
    ip netns exec left ping 10.0.0.2

  An asymmetric line with bursty loss towards A only:
    ropewalk-linkem --a left:wan0 --b right:wan0 --rate-up 5Mbit --rate-down 40Mbit \\
        --delay 15ms --jitter 3ms --loss-down 2% --loss-burst-down 4

  A recorded link, and a control socket to cut it:
    ropewalk-linkem --a left:wan0 --b right:wan0 --trace-down walk.csv --rate-up 10Mbit \\
        --delay 20ms --control /tmp/wan0.sock
    echo 'set both blackhole on' | nc -UN /tmp/wan0.sock

Commands of the control socket:
  set up|down|both KEY VALUE [KEY VALUE ...]   keys as in a plan: rate, trace, delay, jitter,
                                               reorder, loss, loss_burst, queue, queue_packets,
                                               mtu, blackhole, aqm, ecn, aqm_target,
                                               aqm_interval, ce_threshold
  stats                                        counters so far
  restart                                      begin anew: time, traces, timed changes, randomness
                                               and counters; packets inside the link are lost
  stop                                         end the program";

/// One end of the link as given on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EndName {
    pub(crate) namespace: String,
    pub(crate) interface: String,
}

impl FromStr for EndName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text
            .rsplit_once(':')
            .filter(|(n, i)| !n.is_empty() && !i.is_empty());
        let (namespace, interface) = parts.filter(|(n, _)| *n != "pid").ok_or(
            "write NAMESPACE:INTERFACE, for example `left:wan0`, `pid:1234:wan0` or `self:wan0`",
        )?;
        Ok(Self {
            namespace: namespace.into(),
            interface: interface.into(),
        })
    }
}

/// An interface address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Address(pub(crate) IpAddr, pub(crate) u8);

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parse = || {
            let (ip, prefix) = text.split_once('/')?;
            let (ip, prefix) = (ip.parse::<IpAddr>().ok()?, prefix.parse::<u8>().ok()?);
            let longest = if ip.is_ipv4() { 32 } else { 128 };
            (prefix <= longest).then_some(Self(ip, prefix))
        };
        parse().ok_or_else(|| {
            "write address and prefix length, for example `10.0.0.1/24` or `fd00::1/64`".into()
        })
    }
}

fn parse_duration(text: &str) -> Result<Duration, units::UnitError> {
    units::parse_duration(text)
}

/// Settings of both directions and of each.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings {
    pub(crate) both: DirectionPlan,
    pub(crate) up: DirectionPlan,
    pub(crate) down: DirectionPlan,
}

/// A setting as an option for both directions, for up and for down.
struct Key {
    options: [&'static str; 3],
    /// Key in a plan.
    key: &'static str,
    value: &'static str,
    help: &'static str,
}

/// `key!(option, key in a plan, value name, help)`.
macro_rules! key {
    ($option:literal, $key:literal, $value:literal, $help:literal) => {
        Key {
            options: [$option, concat!($option, "-up"), concat!($option, "-down")],
            key: $key,
            value: $value,
            help: $help,
        }
    };
}

const KEYS: [Key; 16] = [
    key!(
        "rate",
        "rate",
        "RATE",
        "Capacity in IP bits per second, as `16Mbit`, or `unlimited`"
    ),
    key!("trace", "trace", "FILE", "Capacity trace instead of a rate"),
    key!(
        "delay",
        "delay",
        "TIME",
        "Propagation delay, one way, as `25ms`"
    ),
    key!(
        "jitter",
        "jitter",
        "TIME",
        "Standard deviation of the delay (normal), as `3ms`"
    ),
    key!(
        "reorder",
        "reorder",
        "on|off",
        "Whether jitter may reorder packets [default: off]"
    ),
    key!("loss", "loss", "SHARE", "Mean random loss, as `1%`"),
    key!(
        "loss-burst",
        "loss_burst",
        "PACKETS",
        "Mean run of losses (Gilbert), with --loss"
    ),
    key!("queue", "queue", "SIZE", "Queue limit in bytes, as `64KiB`"),
    key!(
        "queue-packets",
        "queue_packets",
        "N",
        "Queue limit in packets [default: 1000 unless --queue is given]"
    ),
    key!("hop-mtu", "mtu", "BYTES", "Drop larger packets silently"),
    key!(
        "blackhole",
        "blackhole",
        "on|off",
        "Let everything vanish [default: off]"
    ),
    key!(
        "aqm",
        "aqm",
        "KIND",
        "Queue management: none, codel, fq-codel or pie [default: none]"
    ),
    key!(
        "ecn",
        "ecn",
        "on|off",
        "With --aqm: mark packets that can be marked instead of dropping them [default: off]"
    ),
    key!(
        "aqm-target",
        "aqm_target",
        "TIME",
        "Standing delay aimed at [default: 5ms, pie 15ms]"
    ),
    key!(
        "aqm-interval",
        "aqm_interval",
        "TIME",
        "Interval of codel and fq-codel [default: 100ms]"
    ),
    key!(
        "ce-threshold",
        "ce_threshold",
        "TIME",
        "Mark packets that waited longer and can be marked"
    ),
];

impl clap::Args for Settings {
    fn augment_args(mut command: Command) -> Command {
        for Key {
            options,
            value,
            help,
            ..
        } in KEYS
        {
            let helps = [
                help.to_owned(),
                "Only from A to B".into(),
                "Only from B to A".into(),
            ];
            for (option, help) in options.into_iter().zip(helps) {
                let arg = Arg::new(option).long(option).value_name(value).help(help);
                command = command.arg(arg.help_heading("Settings of the link"));
            }
        }
        command
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Settings {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut settings = Self::default();
        settings.update_from_arg_matches(matches)?;
        Ok(settings)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        for Key { options, key, .. } in KEYS {
            let plans = [&mut self.both, &mut self.up, &mut self.down];
            for (option, plan) in options.into_iter().zip(plans) {
                let Some(value) = matches.get_one::<String>(option) else {
                    continue;
                };
                plan.set(key, value).map_err(|error| {
                    let message = format!("--{option}: {error}\n");
                    clap::Error::raw(clap::error::ErrorKind::ValueValidation, message)
                })?;
            }
        }
        Ok(())
    }
}

/// Text of a trace file; a relative name counts from `directory`.
pub(crate) fn load_trace(directory: &Path, file: &str) -> Result<String, String> {
    ropewalk_plan::read_trace(&directory.join(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Args, clap::Error> {
        Args::try_parse_from(line.split_whitespace())
    }

    #[test]
    fn ends_name_a_namespace_and_an_interface() {
        let end = |text: &str| text.parse::<EndName>();
        let named = |namespace: &str| {
            Ok(EndName {
                namespace: namespace.into(),
                interface: "wan0".into(),
            })
        };
        assert_eq!(end("left:wan0"), named("left"));
        assert_eq!(end("pid:12:wan0"), named("pid:12"));
        for wrong in ["left", "left:", ":wan0", "pid:wan0"] {
            assert!(end(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn addresses_need_a_prefix_length_that_fits() {
        assert!("10.0.0.1/24".parse::<Address>().is_ok());
        assert!("fd00::1/64".parse::<Address>().is_ok());
        for wrong in ["10.0.0.1", "10.0.0.1/33", "ten/8", "fd00::1/129"] {
            assert!(wrong.parse::<Address>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn settings_go_to_their_direction() {
        let args = parse(
            "linkem --a l:x --b r:x --rate 16Mbit --rate-up 8Mbit --loss-down 2% \
             --loss-burst-down 4 --hop-mtu 1400 --for 10s",
        )
        .expect("valid");
        let rate = |bits| Some(Some(ropewalk_types::Rate::from_bits_per_sec(bits)));
        assert_eq!(args.settings.both.rate, rate(16_000_000));
        assert_eq!(args.settings.up.rate, rate(8_000_000));
        assert_eq!(args.settings.down.loss, Some(0.02));
        assert_eq!(args.settings.down.loss_burst, Some(4.0));
        assert_eq!(args.settings.both.mtu, Some(Some(1_400)));
        assert_eq!(args.run_for, Some(Duration::from_secs(10)));
    }

    #[test]
    fn a_bad_setting_names_its_option_and_a_remedy() {
        let error = parse("linkem --a l:x --b r:x --rate-up fast")
            .expect_err("bad")
            .to_string();
        assert!(
            error.contains("--rate-up") && error.contains("16Mbit"),
            "{error}"
        );
    }
}
