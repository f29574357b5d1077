//! Finds programs, and says which package to install when one is missing.

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

/// A program of the system and the package that has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Requirement {
    /// Program name.
    pub program: &'static str,
    /// Debian package.
    pub package: &'static str,
}

/// `ip`, for namespaces and addresses.
pub const IP: Requirement = Requirement {
    program: "ip",
    package: "iproute2",
};
/// `ping`.
pub const PING: Requirement = Requirement {
    program: "ping",
    package: "iputils-ping",
};
/// `nft`, for firewalls and the hub's address translation.
pub const NFT: Requirement = Requirement {
    program: "nft",
    package: "nftables",
};
/// `ethtool`, for offloads.
pub const ETHTOOL: Requirement = Requirement {
    program: "ethtool",
    package: "ethtool",
};
/// `iperf3`.
pub const IPERF3: Requirement = Requirement {
    program: "iperf3",
    package: "iperf3",
};
/// `curl`, for pages.
pub const CURL: Requirement = Requirement {
    program: "curl",
    package: "curl",
};
/// `wg`, to set up the WireGuard peer of a benchmark.
pub const WG: Requirement = Requirement {
    program: "wg",
    package: "wireguard-tools",
};

/// Checks privilege and programs before anything is made.
///
/// # Errors
/// If not root, or a program is missing: the message names the packages to install.
pub fn require(requirements: &[Requirement]) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!("root is needed to make network namespaces: run it again with sudo");
    }
    let missing: Vec<&Requirement> = requirements
        .iter()
        .filter(|r| in_path(r.program).is_none())
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let list = |pick: fn(&Requirement) -> &'static str| {
        missing
            .iter()
            .map(|r| pick(r))
            .collect::<Vec<_>>()
            .join(" ")
    };
    bail!(
        "missing programs: {}; install them, on Debian and Ubuntu with: apt-get install {}",
        list(|r| r.program),
        list(|r| r.package),
    );
}

/// The first executable of this name in PATH, or where administration programs are kept.
#[must_use]
pub fn in_path(program: &str) -> Option<PathBuf> {
    first_in(searched(), program)
}

/// The PATH for programs that are run: they are searched where [`in_path`] found them.
#[must_use]
pub fn search_path() -> OsString {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::join_paths(searched()).unwrap_or(path)
}

fn searched() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let fixed = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(fixed).collect()
}

fn first_in(directories: Vec<PathBuf>, program: &str) -> Option<PathBuf> {
    let executable = |file: &PathBuf| {
        let found = file.metadata();
        found.is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    let files = directories.into_iter().map(|d| d.join(program));
    files.into_iter().find(executable)
}

/// One of this project's programs: next to the running program, one folder up (tests run from
/// `target/release/deps`), then in PATH.
///
/// # Errors
/// If it is nowhere: the message says how to build it.
pub fn own(program: &str) -> Result<PathBuf> {
    let exe = std::env::current_exe()?;
    let near = exe
        .ancestors()
        .skip(1)
        .take(2)
        .map(|d: &Path| d.join(program));
    match near
        .into_iter()
        .find(|path| path.is_file())
        .or_else(|| in_path(program))
    {
        Some(path) => Ok(path),
        None => bail!(
            "program {program} is neither beside {} nor in PATH; build it with: \
             cargo build --release",
            exe.display()
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_names_its_package() {
        let strange = Requirement {
            program: "no-such-program",
            package: "strange-tools",
        };
        let error = require(&[strange]).unwrap_err().to_string();
        let expected = if rustix::process::geteuid().is_root() {
            "strange-tools"
        } else {
            "sudo"
        };
        assert!(error.contains(expected), "{error}");
    }

    #[test]
    fn only_what_can_be_run_is_found() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("tool");
        let found = || first_in(vec![directory.path().to_owned()], "tool");
        assert_eq!(found(), None);
        std::fs::write(&file, "").unwrap();
        assert_eq!(found(), None);
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o755)).unwrap();
        assert_eq!(found(), Some(file.clone()));
    }

    #[test]
    fn own_programs_that_were_not_built_are_named() {
        let error = own("ropewalk-nothing").unwrap_err().to_string();
        assert!(
            error.contains("ropewalk-nothing") && error.contains("cargo build"),
            "{error}"
        );
    }
}
