//! Who the sites are: keys that follow from one secret, and the list for the hub.

use std::net::Ipv4Addr;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, bail};
use ropewalk_host::files;
use ropewalk_transport::Identity;

use crate::args::Sites;

/// Name of a site.
pub(crate) fn name(number: u32) -> String {
    format!("swarm-{number:05}")
}

/// The secret in this file.
///
/// # Errors
/// The file is missing, readable by others, or holds no secret.
pub(crate) fn secret(path: &Path) -> anyhow::Result<Identity> {
    let text = files::read_secret(path, "the secret of a swarm").with_context(|| {
        format!(
            "no secret in {}: `ropewalk-swarm sites` makes one, and --secret names it",
            path.display()
        )
    })?;
    Identity::from_seed_base64(&text)
        .with_context(|| format!("{} holds no secret of a swarm", path.display()))
}

/// A number that differs from start to start: a hub tells the starts of a site by such numbers, and a
/// new start counts its packets anew.
///
/// # Errors
/// The system gives no random numbers.
pub(crate) fn start_number() -> anyhow::Result<u64> {
    let key = Identity::generate()?.public_key();
    let bytes = key.as_bytes().first_chunk().copied().unwrap_or_default();
    Ok(u64::from_ne_bytes(bytes))
}

/// Prints the list of sites for the hub.
///
/// # Errors
/// The secret cannot be made or read, or the pool is too small.
pub(crate) fn print(args: &Sites) -> anyhow::Result<ExitCode> {
    let path = &args.common.secret;
    if !path.exists() {
        let secret = Identity::generate()?.to_seed_base64();
        files::write_atomically(path, secret.as_bytes(), files::SECRET, false)
            .with_context(|| format!("cannot write {}", path.display()))?;
        eprintln!("wrote {}", path.display());
    }
    let secret = secret(path)?;
    // The hub takes the first address.
    let mut addresses = args.pool.hosts().skip(1);
    let mut text = String::from("# Sites of a load test, written by `ropewalk-swarm sites`.\n");
    for number in 0..args.common.count {
        let Some(address) = addresses.next() else {
            bail!(
                "{} has too few addresses for {} sites",
                args.pool,
                args.common.count
            );
        };
        text += &entry(&secret, number, address)?;
    }
    print!("{text}");
    Ok(ExitCode::SUCCESS)
}

fn entry(secret: &Identity, number: u32, address: Ipv4Addr) -> anyhow::Result<String> {
    let key = secret.derived(number)?.public_key();
    Ok(format!(
        "\n[[site]]\nname = \"{}\"\nkey = \"{key}\"\nipv4 = \"{address}\"\nenabled = true\n",
        name(number)
    ))
}
