use super::*;

const WIFI: &str = "/org/freedesktop/NetworkManager/Devices/3";
const POINT: &str = "/org/freedesktop/NetworkManager/AccessPoint/7";
const LTE: &str = "/org/freedesktop/NetworkManager/Devices/4";
const AT: &str = "/org/freedesktop/ModemManager1/Modem/0";

fn text(text: &str) -> Value {
    Value::Text(text.to_owned())
}

fn port(name: &str, kind: i64) -> Value {
    Value::List(vec![text(name), Value::Number(kind)])
}

/// A laptop: Wi-Fi by NetworkManager, a modem by both.
fn laptop() -> Machine {
    let mut machine = Machine::default();
    machine.handle_objects(
        Manager::Network,
        [
            (WIFI, DEVICE, "Interface", text("wlan0")),
            (WIFI, DEVICE, "IpInterface", text("wlan0")),
            (WIFI, DEVICE, "Metered", Value::Number(4)),
            (WIFI, DEVICE, "State", Value::Number(100)),
            (WIFI, WIRELESS, "ActiveAccessPoint", text(POINT)),
            (POINT, ACCESS_POINT, "Strength", Value::Number(71)),
            (LTE, DEVICE, "Interface", text("cdc-wdm0")),
            (LTE, DEVICE, "IpInterface", text("ppp0")),
            (LTE, DEVICE, "Udi", text(AT)),
            (LTE, DEVICE, "Metered", Value::Number(3)),
            (LTE, DEVICE, "State", Value::Number(100)),
        ],
    );
    let ports = Value::List(vec![port("cdc-wdm0", 6), port("wwan0", 2)]);
    let quality = Value::List(vec![Value::Number(62), Value::Flag(true)]);
    machine.handle_objects(
        Manager::Modem,
        [
            (AT, MODEM, "Ports", ports),
            (AT, MODEM, "AccessTechnologies", Value::Number(1 << 14)),
            (AT, MODEM, "SignalQuality", quality),
            (AT, MODEM, "State", Value::Number(11)),
        ],
    );
    machine
}

fn radio(technology: &'static str, percent: u8) -> Option<Radio> {
    Some(Radio {
        technology,
        signal_percent: Some(percent),
    })
}

#[test]
fn what_both_services_say_meets_at_the_interface_that_carries_packets() {
    let machine = laptop();
    let said = machine.said();
    let names: Vec<_> = said.keys().map(String::as_str).collect();
    assert_eq!(names, ["ppp0", "wlan0", "wwan0"]);
    assert_eq!(said["wlan0"].radio, radio("Wi-Fi", 71));
    assert_eq!(said["wlan0"].metered, Some(false));
    for name in ["ppp0", "wwan0"] {
        assert_eq!(said[name].radio, radio("LTE", 62), "{name}");
        assert_eq!(said[name].modem, Link::Active, "{name}");
    }
    assert_eq!(said["ppp0"].metered, Some(true));
    assert_eq!(machine.ignored(), 0);
}

#[test]
fn only_the_end_of_what_was_connected_is_a_sign() {
    let states = |steps: &[i64]| {
        let mut machine = laptop();
        let mut all = Vec::new();
        for state in steps {
            let before = machine.said();
            machine.handle_property(WIFI, DEVICE, "State", Value::Number(*state));
            all.extend(
                signs(&before, &machine.said())
                    .into_iter()
                    .map(|(_, sign)| sign),
            );
        }
        all
    };
    assert_eq!(states(&[110, 30]), [Sign::Ends]);
    assert_eq!(states(&[110, 30, 40, 70, 100]), [Sign::Ends, Sign::Back]);
    // Not managed any more: the interface stays as it is.
    assert_eq!(states(&[10, 30]), []);
    assert_eq!(states(&[100]), []);
    let mut machine = laptop();
    let before = machine.said();
    machine.handle_property(AT, MODEM, "State", Value::Number(9));
    let expected = ["ppp0", "wwan0"].map(|name| (name.to_owned(), Sign::Ends));
    assert_eq!(signs(&before, &machine.said()), expected);
    // An interface that is gone needs no sign.
    machine.handle_removed(LTE, DEVICE);
    assert_eq!(signs(&before, &machine.said()).len(), 1);
}

#[test]
fn values_of_other_types_are_counted_and_change_nothing() {
    let wrong = [
        Value::Number(i64::MIN),
        Value::Number(i64::MAX),
        Value::Flag(true),
        text("wlan0"),
        text("/"),
        text(&"x".repeat(100_000)),
        Value::List(Vec::new()),
        Value::List(vec![Value::Number(300), text("")]),
        Value::List(vec![Value::List(vec![Value::Other; 3])]),
        Value::Other,
    ];
    let all = [
        (WIFI, DEVICE, "Interface"),
        (WIFI, DEVICE, "IpInterface"),
        (WIFI, DEVICE, "Udi"),
        (WIFI, WIRELESS, "ActiveAccessPoint"),
        (POINT, ACCESS_POINT, "Strength"),
        (AT, MODEM, "Ports"),
        (AT, MODEM, "SignalQuality"),
    ];
    for (path, interface, property) in all {
        for value in &wrong {
            let mut machine = laptop();
            let before = machine.said();
            machine.handle_property(path, interface, property, value.clone());
            let after = machine.said();
            let names = |said: &BTreeMap<String, Said>| said.keys().all(|name| name.len() <= 15);
            assert!(names(&after));
            if machine.ignored() > 0 {
                assert_eq!(before, after, "{property}: {value:?}");
            }
        }
    }
    // Numbers without a meaning say nothing.
    for (path, interface, property) in [
        (WIFI, DEVICE, "Metered"),
        (WIFI, DEVICE, "State"),
        (AT, MODEM, "AccessTechnologies"),
        (AT, MODEM, "State"),
    ] {
        for number in [i64::MIN, -2, 1 << 40, i64::MAX] {
            let mut machine = laptop();
            machine.handle_property(path, interface, property, Value::Number(number));
            let said = machine.said();
            assert!(
                signs(&laptop().said(), &said).is_empty(),
                "{property} {number}"
            );
        }
        let mut machine = laptop();
        machine.handle_property(path, interface, property, text("high"));
        assert_eq!((machine.ignored(), machine.said()), (1, laptop().said()));
    }
}

#[test]
fn objects_are_bounded() {
    let mut machine = laptop();
    for number in 0..3 * OBJECTS_MAX {
        let path = format!("/o/{number}");
        machine.handle_property(&path, DEVICE, "Interface", text(&format!("veth{number}")));
        machine.handle_property(&path, ACCESS_POINT, "Strength", Value::Number(1));
        machine.handle_property(&path, MODEM, "State", Value::Number(11));
    }
    assert_eq!(machine.devices.len(), OBJECTS_MAX);
    assert_eq!(machine.access_points.len(), OBJECTS_MAX);
    assert_eq!(machine.modems.len(), MODEMS_MAX);
    assert!(machine.ignored() > 0);
    assert_eq!(machine.said()["wlan0"].radio, radio("Wi-Fi", 71));
}

#[test]
fn a_restart_changes_nothing_and_a_service_that_stays_away_is_forgotten() {
    let now = Instant::now();
    let mut machine = laptop();
    machine.handle_gone(Manager::Network, now);
    machine.handle_gone(Manager::Network, now + Duration::from_secs(1));
    let away = machine.said();
    assert_eq!(away["ppp0"].metered, Some(true));
    assert_eq!(away["wlan0"].network, Link::Unknown);
    machine.handle_timeout(now + GRACE / 2);
    assert_eq!(machine.said(), away);
    // What starts says first that nothing is connected: that ends nothing.
    let mut back = laptop();
    back.handle_gone(Manager::Network, now);
    back.handle_objects(
        Manager::Network,
        [
            (WIFI, DEVICE, "Interface", text("wlan0")),
            (WIFI, DEVICE, "State", Value::Number(20)),
        ],
    );
    assert!(signs(&away, &back.said()).is_empty());
    assert_eq!(back.poll_timeout(), None);
    assert_eq!(machine.poll_timeout(), Some(now + GRACE));
    machine.handle_timeout(now + GRACE);
    let names: Vec<_> = machine.said().into_keys().collect();
    assert_eq!(names, ["wwan0"], "ModemManager is still there");
    assert_eq!(machine.poll_timeout(), None);
}

#[test]
fn the_newest_technology_is_named() {
    for (bits, name) in [
        (0, None),
        ((1 << 14) | (1 << 15), Some("5G")),
        ((1 << 14) | (1 << 5), Some("LTE")),
        (1 << 6, Some("HSPA")),
        (1 << 12, Some("EV-DO")),
        (1 << 1, Some("GSM")),
        (1, None),
    ] {
        assert_eq!(technology(bits), name, "{bits:#x}");
    }
}

#[test]
fn an_uplink_that_costs_money_does_so_while_networkmanager_starts_again() {
    let mut machine = laptop();
    machine.handle_gone(Manager::Network, Instant::now());
    // Nothing is connected yet, and the modem has no interface that carries packets.
    machine.handle_objects(
        Manager::Network,
        [
            (WIFI, DEVICE, "Interface", text("wlan0")),
            (WIFI, DEVICE, "Metered", Value::Number(0)),
            (WIFI, DEVICE, "State", Value::Number(30)),
            (LTE, DEVICE, "Interface", text("cdc-wdm0")),
            (LTE, DEVICE, "IpInterface", text("")),
            (LTE, DEVICE, "Metered", Value::Number(0)),
            (LTE, DEVICE, "State", Value::Number(40)),
        ],
    );
    let metered =
        |machine: &Machine, name: &str| machine.said().get(name).and_then(|said| said.metered);
    assert_eq!(metered(&machine, "wlan0"), Some(false));
    assert_eq!(metered(&machine, "ppp0"), Some(true));
    // Now NetworkManager knows: the Wi-Fi of a phone, and a modem without a bound.
    for (path, cost) in [(WIFI, 3), (LTE, 2)] {
        machine.handle_property(path, DEVICE, "Metered", Value::Number(cost));
        machine.handle_property(path, DEVICE, "State", Value::Number(100));
    }
    machine.handle_property(LTE, DEVICE, "IpInterface", text("ppp0"));
    assert_eq!(metered(&machine, "wlan0"), Some(true));
    assert_eq!(metered(&machine, "ppp0"), Some(false));
    // What is connected and not said is not known.
    machine.handle_property(WIFI, DEVICE, "Metered", Value::Number(0));
    assert_eq!(metered(&machine, "wlan0"), None);
}
