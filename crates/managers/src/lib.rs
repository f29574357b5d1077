//! What NetworkManager and ModemManager say of network interfaces: metered or not, technology and
//! signal, and that an interface is about to end.
//!
//! [`Machine`] decides, and is sans-IO: properties of D-Bus objects go in, [`Said`] of each interface
//! comes out. [`Watcher`] follows both services on the system bus, and asks them for nothing but their
//! properties. Services that are not there are not started.
//!
//! Sources: the D-Bus interfaces of NetworkManager 1.2 and later, and of ModemManager 1.0 and later.
#![forbid(unsafe_code)]

mod machine;
mod watcher;

pub use machine::{Link, Machine, Manager, Radio, Said, Sign, Value, signs};
pub use watcher::{Everything, Watcher};
