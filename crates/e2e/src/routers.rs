//! BIRD on hubs and on the server behind them: routes to sites by BGP, as docs/hubs.md has it.

use std::fmt::Display;
use std::path::Path;

use anyhow::Result;
use ropewalk_testbed::topology::SERVER;
use ropewalk_testbed::{Namespace, Process};

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

/// What BIRD on the server is told: `hubs` are pairs of its own address and that of a hub.
#[must_use]
pub fn of_server(hubs: &[(String, String)]) -> String {
    let peers = hubs.iter().enumerate().map(|(number, (own, hub))| {
        format!(
            "protocol bgp hub{number} {{ local {own} as 65000; neighbor {hub} as 65000; connect delay time 1; \
             ipv4 {{ import all; export none; }}; }}\n"
        )
    });
    format!(
        "router id {SERVER};\nprotocol direct {{ ipv4; }}\nprotocol kernel {{ ipv4 {{ import none; export all; }}; }}\n{}",
        peers.collect::<String>()
    )
}
