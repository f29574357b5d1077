//! BIRD on hubs and on the server behind them: routes to sites by BGP, as docs/hubs.md has it.

use std::fmt::Display;
use std::path::Path;

use anyhow::Result;
use ropewalk_testbed::topology::SERVER;
use ropewalk_testbed::{Namespace, Process, veth};

/// Where a second hub is reached by sites.
pub const SECOND: &str = "192.0.2.2";
/// The server's and a second hub's address between the two.
pub const SERVER_SIDE: &str = "10.9.2.1";
/// As [`SERVER_SIDE`].
pub const SECOND_SIDE: &str = "10.9.2.2";

/// A namespace for a second hub, between the network of the first one, `net`, and the server. The interfaces to it are
/// `tosecond`.
///
/// # Errors
/// Without root.
pub fn second_place(purpose: &str, net: &Namespace, server: &Namespace) -> Result<Namespace> {
    let space = Namespace::create(purpose, "second")?;
    veth((net, "tosecond"), (&space, "wan"), 1_500)?;
    veth((server, "tosecond"), (&space, "lan"), 1_500)?;
    net.ip("addr add 192.0.2.1/30 dev tosecond")?;
    server.ip(&format!("addr add {SERVER_SIDE}/30 dev tosecond"))?;
    space.ip(&format!(
        "addr add {SECOND}/30 dev wan\naddr add {SECOND_SIDE}/30 dev lan\n\
         route add default via 192.0.2.1\nroute add {SERVER} via {SERVER_SIDE}"
    ))?;
    Ok(space)
}

/// Starts BIRD with the configuration `text` in a namespace. Its files in `directory` begin with `name`.
///
/// # Errors
/// A file cannot be written, or the program is missing.
pub fn bird(directory: &Path, name: &str, within: &Namespace, text: &str) -> Result<Process> {
    let path = |end: &str| directory.join(format!("{name}.{end}"));
    let head = "log stderr all;\nprotocol device { scan time 1; }\n";
    std::fs::write(path("conf"), format!("{head}{text}"))?;
    let program = within.program("bird").arg("-f").arg("-c").arg(path("conf"));
    let program = program.arg("-s").arg(path("ctl"));
    program.arg("-P").arg(path("pid")).start(directory, name)
}

/// What BIRD on a hub is told: routes to sites go to the server, the newest first. `own` and `server` are the addresses
/// of both between the two, and the filter `left_out` comes first.
#[must_use]
pub fn of_hub(own: impl Display, server: impl Display, left_out: &str) -> String {
    format!(
        "router id {own};\n\
         protocol kernel sites {{ kernel table 4443; learn; ipv4 {{ import all; export none; }}; }}\n\
         protocol bgp server {{\n  local {own} as 65000;\n  neighbor {server} as 65000;\n\
         \x20 connect delay time 1;\n  ipv4 {{\n    import none;\n    next hop self;\n\
         \x20   export filter {{ {left_out} bgp_med = krt_metric; accept; }};\n  }};\n}}\n"
    )
}

/// The same of a hub that passes packets for shared addresses on: it also takes routes to sites of other hubs in, of the
/// inner network `pool`.
#[must_use]
pub fn of_passing_hub(own: impl Display, server: impl Display, pool: &str) -> String {
    format!(
        "router id {own};\nipv4 table served;\n\
         protocol kernel sites {{ kernel table 4443; learn; ipv4 {{ table served; import all; export none; }}; }}\n\
         protocol pipe own {{\n  table served;\n  peer table master4;\n  import none;\n\
         \x20 export filter {{ preference = 200; accept; }};\n}}\n\
         protocol kernel {{ ipv4 {{ import none; export where source = RTS_BGP; }}; }}\n\
         protocol bgp server {{\n  local {own} as 65000;\n  neighbor {server} as 65000;\n  direct;\n\
         \x20 connect delay time 1;\n  ipv4 {{\n    import where net ~ {pool};\n    next hop self;\n\
         \x20   export filter {{ if source != RTS_INHERIT then reject; bgp_med = krt_metric; accept; }};\n  }};\n}}\n"
    )
}

/// What BIRD on the server is told: `hubs` are pairs of its own address and that of a hub.
#[must_use]
pub fn of_server(hubs: &[(String, String)]) -> String {
    server(hubs, "", "export none;")
}

/// The same of a server that tells each hub the routes of the others, and is on the way between them.
#[must_use]
pub fn of_reflecting_server(hubs: &[(String, String)]) -> String {
    let export = "next hop self; export where source = RTS_BGP;";
    server(hubs, "rr client; direct; ", export)
}

fn server(hubs: &[(String, String)], more: &str, export: &str) -> String {
    let peers = hubs.iter().enumerate().map(|(number, (own, hub))| {
        format!(
            "protocol bgp hub{number} {{ local {own} as 65000; neighbor {hub} as 65000; connect delay time 1; {more}\
             ipv4 {{ import all; {export} }}; }}\n"
        )
    });
    format!(
        "router id {SERVER};\nprotocol direct {{ ipv4; }}\nprotocol kernel {{ ipv4 {{ import none; export all; }}; }}\n{}",
        peers.collect::<String>()
    )
}
