//! What properties of D-Bus objects say of interfaces.
//!
//! Invariant: what is kept is bounded, whatever comes. A value of another type than documented is
//! counted and ignored; what was known before stays.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How long that which a service said counts after the service has gone: a restart is over by then.
/// Longer: slow restarts are covered, a service that was removed counts for longer.
pub const GRACE: Duration = Duration::from_secs(30);
/// Most objects of each kind that are kept. NetworkManager has an access point for each radio in
/// reach, and a device for each virtual interface. More: memory.
const OBJECTS_MAX: usize = 1_024;
/// Most modems that are kept: each looks for its interfaces among all devices. More: memory and work.
const MODEMS_MAX: usize = 32;
/// Longest object path that is kept, bytes.
const PATH_MAX: usize = 255;
/// Longest name of an interface, bytes (`IFNAMSIZ` less its end).
const NAME_MAX: usize = 15;
/// Most ports of a modem that are kept.
const PORTS_MAX: usize = 16;

const DEVICE: &str = "org.freedesktop.NetworkManager.Device";
const WIRELESS: &str = "org.freedesktop.NetworkManager.Device.Wireless";
const ACCESS_POINT: &str = "org.freedesktop.NetworkManager.AccessPoint";
const MODEM: &str = "org.freedesktop.ModemManager1.Modem";

/// `MM_MODEM_PORT_TYPE_NET`.
const PORT_TYPE_NET: i64 = 2;

/// A service that knows about interfaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manager {
    /// NetworkManager.
    Network,
    /// ModemManager.
    Modem,
}

impl Manager {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Network, Self::Modem];
}

/// A value of D-Bus, as far as it can matter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Any integer that fits.
    Number(i64),
    /// A boolean.
    Flag(bool),
    /// A string or an object path.
    Text(String),
    /// A structure or an array.
    List(Vec<Value>),
    /// Anything else.
    Other,
}

/// The radio of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Radio {
    /// `Wi-Fi`, `LTE` and so on.
    pub technology: &'static str,
    /// Strength of the signal, 0 to 100 %.
    pub signal_percent: Option<u8>,
}

/// Whether a service has an interface connected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Link {
    /// It does not say, or prepares it.
    #[default]
    Unknown,
    /// It is connected.
    Active,
    /// It is about to end, or has ended.
    Ending,
}

/// What is said of an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Said {
    /// Whether it costs money by the byte, if NetworkManager knows or guesses.
    pub metered: Option<bool>,
    /// Its radio, if it has one.
    pub radio: Option<Radio>,
    /// What NetworkManager does with it.
    pub network: Link,
    /// What ModemManager does with it.
    pub modem: Link,
}

/// What is told of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    /// It is about to end.
    Ends,
    /// It is connected.
    Back,
}

/// The signs between two states of what is said, by interface. An interface whose service forgets it gives
/// no sign: the kernel tells what becomes of it.
#[must_use]
pub fn signs(
    before: &BTreeMap<String, Said>,
    after: &BTreeMap<String, Said>,
) -> Vec<(String, Sign)> {
    let sign = |(name, said): (&String, &Said)| {
        let known = before.get(name).copied().unwrap_or_default();
        let changes = [(known.network, said.network), (known.modem, said.modem)];
        let ends = |(old, new)| old == Link::Active && new == Link::Ending;
        let back = |(old, new)| old != Link::Active && new == Link::Active;
        if changes.into_iter().any(ends) {
            Some((name.clone(), Sign::Ends))
        } else if changes.into_iter().any(back) {
            Some((name.clone(), Sign::Back))
        } else {
            None
        }
    };
    after.iter().filter_map(sign).collect()
}

/// What both services have told.
#[derive(Debug, Default)]
pub struct Machine {
    devices: BTreeMap<String, Device>,
    access_points: BTreeMap<String, u8>,
    modems: BTreeMap<String, Modem>,
    /// What NetworkManager said of costs before it started again, by interface.
    former: BTreeMap<String, i64>,
    /// When a service went, until it is back or forgotten.
    gone: [Option<Instant>; 2],
    ignored: u64,
}

/// `org.freedesktop.NetworkManager.Device`.
#[derive(Debug, Default)]
struct Device {
    interface: Option<String>,
    /// What carries packets, where that is not `interface`: of a modem.
    ip_interface: Option<String>,
    /// Of a modem, its object path at ModemManager.
    udi: Option<String>,
    /// `NMMetered`.
    metered: i64,
    /// `NMDeviceState`.
    state: i64,
    wireless: bool,
    access_point: Option<String>,
}

/// `org.freedesktop.ModemManager1.Modem`.
#[derive(Debug, Default)]
struct Modem {
    /// Network interfaces.
    interfaces: Vec<String>,
    /// `MMModemAccessTechnology`, bits.
    technologies: i64,
    quality: Option<u8>,
    /// `MMModemState`; `None` before it is told.
    state: Option<i64>,
}

impl Machine {
    /// A service is there, with these objects: path, interface, property.
    pub fn handle_objects<'a>(
        &mut self,
        manager: Manager,
        properties: impl IntoIterator<Item = (&'a str, &'a str, &'a str, Value)>,
    ) {
        let known = self.devices.values().filter(|device| device.metered != 0);
        let costs = known.filter_map(|device| Some((device.name()?.to_owned(), device.metered)));
        let former = costs.collect();
        self.forget(manager);
        if manager == Manager::Network {
            self.former = former;
        }
        for (path, interface, property, value) in properties {
            self.handle_property(path, interface, property, value);
        }
    }

    /// A property is told.
    pub fn handle_property(&mut self, path: &str, interface: &str, property: &str, value: Value) {
        if self.take(path, interface, property, value).is_none() {
            self.handle_unknown();
        }
    }

    /// A message of a service was not understood.
    pub const fn handle_unknown(&mut self) {
        self.ignored = self.ignored.saturating_add(1);
    }

    /// Interfaces of an object are gone.
    pub fn handle_removed(&mut self, path: &str, interface: &str) {
        match interface {
            DEVICE => drop(self.devices.remove(path)),
            ACCESS_POINT => drop(self.access_points.remove(path)),
            MODEM => drop(self.modems.remove(path)),
            _ => {}
        }
    }

    /// A service has gone. What it does with interfaces is not known any more; the rest counts for
    /// `GRACE`.
    pub fn handle_gone(&mut self, manager: Manager, now: Instant) {
        match manager {
            Manager::Network => self
                .devices
                .values_mut()
                .for_each(|device| device.state = 0),
            Manager::Modem => self
                .modems
                .values_mut()
                .for_each(|modem| modem.state = None),
        }
        self.gone[manager as usize].get_or_insert(now);
    }

    /// Forgets services that do not come back.
    pub fn handle_timeout(&mut self, now: Instant) {
        for manager in Manager::ALL {
            if self.gone[manager as usize].is_some_and(|gone| now >= gone + GRACE) {
                self.forget(manager);
            }
        }
    }

    /// When [`Machine::handle_timeout`] is due.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.gone.iter().flatten().map(|gone| *gone + GRACE).min()
    }

    /// Values that were not understood, and objects beyond the bound.
    #[must_use]
    pub const fn ignored(&self) -> u64 {
        self.ignored
    }

    /// What is said of each interface, by name.
    #[must_use]
    pub fn said(&self) -> BTreeMap<String, Said> {
        let mut all: BTreeMap<String, Said> = BTreeMap::new();
        for device in self.devices.values() {
            let Some(name) = device.name() else { continue };
            let radio = device.wireless.then(|| Radio {
                technology: "Wi-Fi",
                signal_percent: self.strength(device),
            });
            let said = Said {
                metered: is_metered(self.metered(device, name)),
                radio,
                network: device.link(),
                modem: Link::Unknown,
            };
            all.insert(name.to_owned(), said);
        }
        // A modem has its interface once it is connected.
        for (name, metered) in &self.former {
            let said = Said {
                metered: is_metered(*metered),
                ..Said::default()
            };
            all.entry(name.clone()).or_insert(said);
        }
        for (path, modem) in &self.modems {
            // A link of PPP, or one of several over one modem, is known to NetworkManager alone.
            let of_modem = |device: &&Device| device.udi.as_deref() == Some(path);
            let links = self.devices.values().filter(of_modem);
            let names = links.filter_map(Device::name);
            let ports = modem.interfaces.iter().map(String::as_str);
            let names: Vec<&str> = names.chain(ports).collect();
            for name in names {
                let said = all.entry(name.to_owned()).or_default();
                said.radio = modem.radio().or(said.radio);
                said.modem = modem.link();
            }
        }
        all
    }

    /// `NMMetered`. NetworkManager finds it out as it connects an interface. Until then what it said before its restart
    /// counts: an uplink that costs money must not pass for a free one.
    fn metered(&self, device: &Device, name: &str) -> i64 {
        match (device.metered, device.link()) {
            (0, Link::Unknown | Link::Ending) => self.former.get(name).copied().unwrap_or(0),
            (metered, _) => metered,
        }
    }

    fn strength(&self, device: &Device) -> Option<u8> {
        let path = device.access_point.as_deref()?;
        self.access_points.get(path).copied()
    }

    fn forget(&mut self, manager: Manager) {
        self.gone[manager as usize] = None;
        match manager {
            Manager::Network => {
                self.devices.clear();
                self.access_points.clear();
                self.former.clear();
            }
            Manager::Modem => self.modems.clear(),
        }
    }

    /// `None` where the value or the object is ignored.
    fn take(&mut self, path: &str, interface: &str, property: &str, value: Value) -> Option<()> {
        let device = &mut self.devices;
        match (interface, property) {
            (DEVICE, "Interface") => {
                object(device, path, OBJECTS_MAX)?.interface = Some(name(value)?)
            }
            // Empty while there is none.
            (DEVICE, "IpInterface") => {
                object(device, path, OBJECTS_MAX)?.ip_interface = optional(value, NAME_MAX)?
            }
            (DEVICE, "Udi") => object(device, path, OBJECTS_MAX)?.udi = optional(value, PATH_MAX)?,
            (DEVICE, "Metered") => object(device, path, OBJECTS_MAX)?.metered = number(&value)?,
            (DEVICE, "State") => object(device, path, OBJECTS_MAX)?.state = number(&value)?,
            (WIRELESS, "ActiveAccessPoint") => {
                let device = object(device, path, OBJECTS_MAX)?;
                device.wireless = true;
                device.access_point = optional(value, PATH_MAX)?;
            }
            // Any property: an interface of this type is wireless.
            (WIRELESS, _) => object(device, path, OBJECTS_MAX)?.wireless = true,
            (ACCESS_POINT, "Strength") => {
                let strength = percent(&value)?;
                *object(&mut self.access_points, path, OBJECTS_MAX)? = strength;
            }
            (MODEM, "Ports") => {
                object(&mut self.modems, path, MODEMS_MAX)?.interfaces = net_ports(value)?
            }
            (MODEM, "AccessTechnologies") => {
                object(&mut self.modems, path, MODEMS_MAX)?.technologies = number(&value)?;
            }
            (MODEM, "State") => {
                object(&mut self.modems, path, MODEMS_MAX)?.state = Some(number(&value)?)
            }
            (MODEM, "SignalQuality") => {
                let Value::List(fields) = value else {
                    return None;
                };
                object(&mut self.modems, path, MODEMS_MAX)?.quality =
                    Some(percent(fields.first()?)?);
            }
            _ => {}
        }
        Some(())
    }
}

impl Device {
    fn name(&self) -> Option<&str> {
        self.ip_interface.as_deref().or(self.interface.as_deref())
    }

    /// Source: `NMDeviceState`. An interface that NetworkManager gives up managing (10) stays as it is.
    const fn link(&self) -> Link {
        match self.state {
            100 => Link::Active,
            // Unavailable, disconnected, deactivating, failed.
            20 | 30 | 110 | 120 => Link::Ending,
            _ => Link::Unknown,
        }
    }
}

impl Modem {
    /// Source: `MMModemState`.
    const fn link(&self) -> Link {
        match self.state {
            Some(11) => Link::Active,
            // From failed over registered to disconnecting, but for states before a connection.
            Some(-1 | 2..=4 | 6..=9) => Link::Ending,
            _ => Link::Unknown,
        }
    }

    fn radio(&self) -> Option<Radio> {
        technology(self.technologies).map(|technology| Radio {
            technology,
            signal_percent: self.quality,
        })
    }
}

/// Source: `NMMetered`. A guess counts like what somebody set: NetworkManager guesses from what the network or
/// the phone says.
const fn is_metered(value: i64) -> Option<bool> {
    match value {
        1 | 3 => Some(true),
        2 | 4 => Some(false),
        _ => None,
    }
}

/// The newest of the technologies in use; `None` if none is known. Source: `MMModemAccessTechnology`.
fn technology(bits: i64) -> Option<&'static str> {
    const NAMES: [(i64, &str); 13] = [
        (1 << 15, "5G"),
        (1 << 16, "LTE-M"),
        (1 << 17, "NB-IoT"),
        (1 << 14, "LTE"),
        (1 << 9, "HSPA+"),
        (1 << 8, "HSPA"),
        ((1 << 6) | (1 << 7), "HSPA"),
        (1 << 5, "UMTS"),
        ((1 << 11) | (1 << 12) | (1 << 13), "EV-DO"),
        (1 << 10, "1xRTT"),
        (1 << 4, "EDGE"),
        (1 << 3, "GPRS"),
        ((1 << 1) | (1 << 2), "GSM"),
    ];
    let known = NAMES.iter().find(|(mask, _)| bits & mask != 0);
    known.map(|(_, name)| *name)
}

/// The object at a path, a new one if there is room.
fn object<'a, T: Default>(
    objects: &'a mut BTreeMap<String, T>,
    path: &str,
    most: usize,
) -> Option<&'a mut T> {
    if !objects.contains_key(path) {
        if objects.len() >= most || path.len() > PATH_MAX {
            return None;
        }
        objects.insert(path.to_owned(), T::default());
    }
    objects.get_mut(path)
}

const fn number(value: &Value) -> Option<i64> {
    match value {
        Value::Number(number) => Some(*number),
        Value::Flag(_) | Value::Text(_) | Value::List(_) | Value::Other => None,
    }
}

fn percent(value: &Value) -> Option<u8> {
    let number = u8::try_from(number(value)?).ok()?;
    (number <= 100).then_some(number)
}

/// Text of at most so many bytes; the inner is `None` for what D-Bus has for nothing.
fn optional(value: Value, longest: usize) -> Option<Option<String>> {
    match value {
        Value::Text(text) if text.is_empty() || text == "/" => Some(None),
        Value::Text(text) if text.len() <= longest => Some(Some(text)),
        Value::Text(_) | Value::Number(_) | Value::Flag(_) | Value::List(_) | Value::Other => None,
    }
}

fn name(value: Value) -> Option<String> {
    optional(value, NAME_MAX)?
}

/// The network interfaces among the ports of a modem: pairs of name and type.
fn net_ports(value: Value) -> Option<Vec<String>> {
    let Value::List(ports) = value else {
        return None;
    };
    let mut interfaces = Vec::new();
    for port in ports.into_iter().take(PORTS_MAX) {
        let Value::List(fields) = port else {
            return None;
        };
        let [port, kind] = <[Value; 2]>::try_from(fields).ok()?;
        if number(&kind)? == PORT_TYPE_NET {
            interfaces.push(name(port)?);
        }
    }
    Some(interfaces)
}

#[cfg(test)]
mod tests;
