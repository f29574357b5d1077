//! Reads and writes `/proc/sys`.

use std::io;

use crate::helper::{self, Order};

/// A setting that was changed; [`Changed::restore`] puts the former value back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changed {
    /// Key with dots or slashes, such as `net.ipv4.ip_forward`.
    pub key: String,
    /// Value before; `None` when it was already as wanted.
    pub former: Option<String>,
}

impl Changed {
    /// Puts the former value back, if there was another.
    ///
    /// # Errors
    /// The setting is gone or may not be written.
    pub fn restore(&self) -> io::Result<()> {
        match &self.former {
            Some(value) => write(&self.key, value),
            None => Ok(()),
        }
    }
}

/// Value of a setting without trailing white space.
///
/// # Errors
/// No such setting, or it may not be read.
pub fn read(key: &str) -> io::Result<String> {
    Ok(std::fs::read_to_string(path(key)?)?.trim_end().to_owned())
}

/// Writes a setting.
///
/// # Errors
/// No such setting, or it may not be written.
pub fn write(key: &str, value: &str) -> io::Result<()> {
    helper::order(
        || Order::Setting {
            key: key.to_owned(),
            value: value.to_owned(),
        },
        || write_here(key, value),
    )
}

pub(crate) fn write_here(key: &str, value: &str) -> io::Result<()> {
    std::fs::write(path(key)?, value)
}

/// Writes a setting unless it has the value already; the result puts it back.
///
/// # Errors
/// No such setting, or it may not be written.
pub fn set(key: &str, value: &str) -> io::Result<Changed> {
    let former = read(key)?;
    if former == value {
        return Ok(Changed {
            key: key.to_owned(),
            former: None,
        });
    }
    write(key, value)?;
    Ok(Changed {
        key: key.to_owned(),
        former: Some(former),
    })
}

/// Whether interfaces that are made from now on can have IPv6 addresses: the kernel has IPv6, and
/// `disable_ipv6` is off.
#[must_use]
pub fn has_ipv6() -> bool {
    interface_has_ipv6("default")
}

/// Whether an interface can have IPv6 addresses.
#[must_use]
pub fn interface_has_ipv6(interface: &str) -> bool {
    read(&format!("net/ipv6/conf/{interface}/disable_ipv6")).is_ok_and(|value| value == "0")
}

/// File of a key. As with sysctl(8), the first separator decides: with a dot first, dots separate
/// and slashes stand for dots (interface names such as `eth0.5`).
fn path(key: &str) -> io::Result<std::path::PathBuf> {
    let first = key.find(['.', '/']).map(|at| key.as_bytes()[at]);
    let relative: String = if first == Some(b'.') {
        key.chars()
            .map(|c| match c {
                '.' => '/',
                '/' => '.',
                other => other,
            })
            .collect()
    } else {
        key.to_owned()
    };
    let sound = !relative.is_empty()
        && relative
            .split('/')
            .all(|part| !part.is_empty() && part != "." && part != "..");
    if !sound {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{key:?} is no sysctl key"),
        ));
    }
    Ok(std::path::Path::new("/proc/sys").join(relative))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_separator_decides_how_a_key_is_read() {
        let text = |key| path(key).map(|p| p.to_string_lossy().into_owned()).ok();
        assert_eq!(
            text("net.ipv4.ip_forward").as_deref(),
            Some("/proc/sys/net/ipv4/ip_forward")
        );
        assert_eq!(
            text("net/ipv4/ip_forward").as_deref(),
            Some("/proc/sys/net/ipv4/ip_forward")
        );
        assert_eq!(
            text("net.ipv4.conf.eth0/5.rp_filter").as_deref(),
            Some("/proc/sys/net/ipv4/conf/eth0.5/rp_filter")
        );
    }

    #[test]
    fn keys_cannot_leave_proc_sys() {
        for key in ["", "/etc/passwd", "net/../../etc", "net//ipv4", "net."] {
            assert!(path(key).is_err(), "{key}");
        }
    }

    #[test]
    fn missing_setting_is_an_error() {
        assert_eq!(
            read("net.ipv4.no_such_setting").map_err(|e| e.kind()),
            Err(io::ErrorKind::NotFound)
        );
    }
}
