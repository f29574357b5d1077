//! What is drawn and what keys do, without a terminal and without a gateway.

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::style::Color;
use ropewalk_api::words::{About, Weight, Words};
use ropewalk_api::{
    Happened, History, PathStatus, SchedulerAbout, Status, TunnelStatus, UplinkHistory,
};
use ropewalk_dashboard::view;
use ropewalk_types::SchedulerKind;
use serde_json::json;

use crate::Look;
use crate::app::{App, Mode, News, Order, Range, Step};
use crate::draw::draw;
use crate::terminal::text;

const COLOURS: Look = Look {
    colours: true,
    unicode: true,
};
const PLAIN: Look = Look {
    colours: false,
    unicode: false,
};
/// As a name that wants to command a terminal: clear it, and set its title.
const HOSTILE: &str = "\x1b[2J\x1b]0;owned\x07\u{9b}31mü";
const NOW_S: u64 = 1_800_000_000;

fn said(about: About, weight: Weight, text: &str) -> Words {
    Words {
        about,
        weight,
        text: text.to_owned(),
    }
}

fn path(name: &str, words: Vec<Words>) -> PathStatus {
    PathStatus {
        uplink: name.to_owned(),
        state: "up".to_owned(),
        transport: "quic".to_owned(),
        remote: Some("203.0.113.2:4443".parse().unwrap()),
        rtt_ms: 23.4,
        loss: 0.081,
        full_mbit: Some(20.0),
        peer_full_mbit: Some(55.5),
        tx_bytes: 1_000_000,
        rx_bytes: 2_500_000,
        words,
        ..PathStatus::default()
    }
}

fn tunnel(peer: &str, paths: Vec<PathStatus>) -> TunnelStatus {
    TunnelStatus {
        peer: peer.to_owned(),
        up: true,
        peer_addresses: vec!["10.9.0.7".to_owned()],
        wire_version: 3,
        reason: "both carry what they can".to_owned(),
        paths,
        ..TunnelStatus::default()
    }
}

fn history(names: &[&str], sent: f32, asked: f32, points: usize) -> History {
    let list = |value: f32| vec![Some(value); points];
    let uplinks = names.iter().map(|name| UplinkHistory {
        name: (*name).to_owned(),
        sent: list(sent),
        received: list(2.0 * sent),
        rtt_ms: list(20.0),
        loss: list(0.0),
    });
    History {
        step_s: 1,
        end_s: NOW_S,
        offered: list(asked),
        up: list(1.0),
        uplinks: uplinks.collect(),
    }
}

fn looked(role: &str, tunnels: Vec<TunnelStatus>, at_s: u64) -> News {
    let names: Vec<String> = match role {
        "site" => tunnels
            .iter()
            .flat_map(|t| &t.paths)
            .map(|p| p.uplink.clone())
            .collect(),
        _ => vec!["all sites".to_owned()],
    };
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let point = history(&names, 3e6, 8e6, 1);
    let status = Status {
        role: role.to_owned(),
        version: "1.2.3".to_owned(),
        interface: "ropewalk0".to_owned(),
        addresses: vec!["10.9.0.2/24".to_owned()],
        uptime_s: 4_000.0,
        tunnels,
        ..Status::default()
    };
    News::Looked(at_s * 1_000, Ok(Box::new(view::of(status, point, at_s))))
}

/// A site with two uplinks, of which one is lossy.
fn site(look: Look) -> App {
    let mut app = App::new(look, Range::Minute);
    let good = said(About::Fine, Weight::Good, "works; carries 70 %");
    let lossy = said(
        About::Lossy,
        Weight::Worse,
        "lost 8 % for 20 s: repaired; carries 30 %",
    );
    let paths = vec![path("eth0", vec![good]), path("wlan0", vec![lossy])];
    app.news(looked("site", vec![tunnel("hub", paths)], NOW_S));
    app.news(News::History(
        Range::Minute,
        history(&["eth0", "wlan0"], 3e6, 8e6, 60),
    ));
    app.news(News::Happened(vec![
        Happened {
            site: None,
            at_s: NOW_S - 300,
            what: "the gateway started".to_owned(),
        },
        Happened {
            site: None,
            at_s: NOW_S - 12,
            what: "wlan0: lost 8 %".to_owned(),
        },
    ]));
    app.news(News::Schedulers(
        SchedulerKind::ALL
            .map(|kind| SchedulerAbout {
                description: kind.describe().to_owned(),
                name: kind,
            })
            .into(),
    ));
    app
}

fn sites(count: usize, bytes: u64) -> Vec<TunnelStatus> {
    let one = |index: usize| {
        let words = if index % 10 == 3 {
            said(
                About::Silent,
                Weight::Bad,
                "no answer for 12 s: trying again",
            )
        } else {
            said(About::Fine, Weight::Good, "works; idle")
        };
        TunnelStatus {
            up: index % 100 != 5,
            tx_bytes: bytes * index as u64,
            wire_version: if index == 7 { 2 } else { 3 },
            peer_addresses: vec![format!("10.9.{}.{}", index / 250, index % 250)],
            ..tunnel(&format!("site-{index:04}"), vec![path("eth0", vec![words])])
        }
    };
    (0..count).map(one).collect()
}

fn hub(look: Look, count: usize) -> App {
    let mut app = App::new(look, Range::Minute);
    app.news(looked("hub", sites(count, 0), NOW_S - 5));
    app.news(looked("hub", sites(count, 1_000), NOW_S));
    app.news(News::History(
        Range::Minute,
        history(&["all sites"], 3e6, 3e6, 12),
    ));
    app
}

fn drawn(app: &App, width: u16, height: u16) -> Terminal<TestBackend> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, app)).unwrap();
    terminal
}

fn lines(app: &App, width: u16, height: u16) -> String {
    text(drawn(app, width, height).backend().buffer())
}

fn press(app: &mut App, keys: &str) -> Vec<Step> {
    let code = |key: char| match key {
        '\n' => KeyCode::Enter,
        '\x1b' => KeyCode::Esc,
        '\x08' => KeyCode::Backspace,
        '>' => KeyCode::Down,
        other => KeyCode::Char(other),
    };
    let keys = keys
        .chars()
        .map(|key| KeyEvent::new(code(key), KeyModifiers::NONE));
    keys.map(|key| app.key(key)).collect()
}

fn orders(steps: Vec<Step>) -> Vec<Order> {
    let order = |step| {
        if let Step::Do(order) = step {
            Some(order)
        } else {
            None
        }
    };
    steps.into_iter().filter_map(order).collect()
}

#[test]
fn a_site_shows_its_uplinks_in_the_words_of_the_gateway() {
    let shown = lines(&site(COLOURS), 110, 32);
    for part in [
        "site: tunnel up, 2 of 2 uplinks work",
        "✓ works; carries 70 %",
        "! lost 8 % for 20 s: repaired; carries 30 %",
        "■ eth0",
        "3.0 Mbit/s",
        "23 ms",
        "8.1 %",
        "3.5 MB",
        "last minute, sent: 6.0 Mbit/s; asked for (─): 8.0 Mbit/s; height 10.0 Mbit/s",
        "scheduler auto; sending: both carry what they can",
        "UDP (QUIC) to 203.0.113.2:4443",
        "12 s ago  wlan0: lost 8 %",
        "? keys   q quit   u use",
    ] {
        assert!(shown.contains(part), "{part} in\n{shown}");
    }
    let newest = shown.find("wlan0: lost 8 %").unwrap();
    assert!(
        newest < shown.find("the gateway started").unwrap(),
        "newest first"
    );
}

#[test]
fn the_graph_stacks_uplinks_to_scale_and_marks_what_was_asked_for() {
    let app = site(COLOURS);
    let terminal = drawn(&app, 110, 32);
    let buffer = terminal.backend().buffer();
    // The last column of the graph, from below: 3 + 3 of 10 Mbit/s in 9 lines of 8 steps each.
    let column: Vec<_> = (1..10).rev().map(|y| &buffer[(109, y)]).collect();
    let shown: Vec<_> = column.iter().map(|cell| (cell.symbol(), cell.fg)).collect();
    let (eth0, wlan0) = (Color::Cyan, Color::Yellow);
    assert_eq!(shown[0], ("█", eth0), "{shown:?}");
    assert_eq!(shown[1], ("█", eth0));
    // 3 Mbit/s are 21.6 of 72 steps: the border of both is in the third line.
    assert_eq!((shown[2], column[2].bg), (("▆", eth0), wlan0));
    assert_eq!(shown[4], ("█", wlan0));
    assert_eq!((shown[5], column[5].bg), (("▃", wlan0), Color::Reset));
    assert_eq!(shown[6].0, " ");
    assert_eq!(shown[7].0, "─", "asked for: 8 of 10: {shown:?}");
    assert_eq!(shown[8].0, " ");
}

#[test]
fn without_colours_letters_tell_uplinks_apart() {
    let app = site(PLAIN);
    let terminal = drawn(&app, 110, 32);
    let buffer = terminal.backend().buffer();
    let coloured = buffer
        .content()
        .iter()
        .filter(|c| (c.fg, c.bg) != (Color::Reset, Color::Reset));
    assert_eq!(coloured.count(), 0);
    let shown = text(buffer);
    assert!(shown.is_ascii(), "{shown}");
    let column: String = (1..10)
        .rev()
        .map(|y| buffer[(109, y)].symbol().to_owned())
        .collect();
    assert_eq!(column, "aaabb -  ");
    assert!(
        shown.contains("a eth0") && shown.contains("b wlan0"),
        "{shown}"
    );
}

#[test]
fn received_shows_what_came_and_never_what_was_asked_for() {
    let mut app = site(COLOURS);
    press(&mut app, "v");
    let shown = lines(&app, 110, 32);
    assert!(
        shown.contains("last minute, received: 12.0 Mbit/s; height"),
        "{shown}"
    );
    assert!(!shown.contains('─'), "{shown}");
}

#[test]
fn a_hundred_uplinks_can_all_be_reached() {
    let mut app = App::new(COLOURS, Range::Minute);
    let good = || said(About::Fine, Weight::Good, "works; carries 1 %");
    let names: Vec<_> = (0..100).map(|index| format!("up{index:02}")).collect();
    let paths = names.iter().map(|name| path(name, vec![good()])).collect();
    app.news(looked("site", vec![tunnel("hub", paths)], NOW_S));
    let of_history: Vec<_> = names.iter().take(20).map(String::as_str).collect();
    app.news(News::History(
        Range::Minute,
        history(&of_history, 1e6, 2e7, 60),
    ));
    assert!(lines(&app, 80, 24).contains("100 of 100 uplinks work"));
    for name in &names {
        let shown = lines(&app, 80, 24);
        assert!(
            shown.contains(&format!("{name}: works; carries 1 %")),
            "{name} in\n{shown}"
        );
        press(&mut app, ">");
    }
    app.still = true;
    let all = lines(&app, 100, 134);
    assert!(names.iter().all(|name| all.contains(name)), "{all}");
}

#[test]
fn a_thousand_sites_are_sorted_and_found() {
    let mut app = hub(COLOURS, 1_000);
    let first = |app: &App| {
        let shown = lines(app, 120, 30);
        let title = shown
            .lines()
            .position(|line| line.starts_with("SITE"))
            .expect(&shown);
        shown.lines().nth(title + 1).unwrap().to_owned()
    };
    let shown = lines(&app, 120, 30);
    assert!(
        shown.contains("hub: 990 of 1,000 sites are connected"),
        "{shown}"
    );
    assert!(first(&app).starts_with("site-0000") && first(&app).contains("✓ well"));
    press(&mut app, "o");
    assert!(first(&app).starts_with("site-0005") && first(&app).contains("✗ not connected"));
    press(&mut app, "oo");
    // 1,000 bytes for each number within 5 s.
    let busiest = first(&app);
    assert!(
        busiest.starts_with("site-0999") && busiest.contains("1.6 Mbit/s"),
        "{busiest}"
    );
    press(&mut app, "O");
    assert!(first(&app).starts_with("site-0000"), "the other way round");
    press(&mut app, "o");
    let oldest = first(&app);
    assert!(
        oldest.starts_with("site-0007") && oldest.contains(" 2 "),
        "{oldest}"
    );
    press(&mut app, "/0313\n");
    let found = lines(&app, 120, 30);
    assert!(found.contains("1 of 1,000 match \"0313\""), "{found}");
    assert!(
        found.contains("eth0: no answer for 12 s: trying again"),
        "{found}"
    );
    press(&mut app, "/10.9.3.249\n");
    assert!(
        first(&app).starts_with("site-0999"),
        "by address: {}",
        first(&app)
    );
    press(&mut app, "\x1b");
    assert!(lines(&app, 120, 30).contains("ordered by version"));
}

#[test]
fn a_thousand_sites_are_drawn_within_a_moment() {
    let app = hub(COLOURS, 1_000);
    // Of the processor: others use the machine, too.
    let spent = || {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        time.tv_sec as f64 * 1e3 + time.tv_nsec as f64 / 1e6
    };
    let begin = spent();
    for _ in 0..20 {
        drawn(&app, 200, 60);
    }
    let each_ms = (spent() - begin) / 20.0;
    // Debug code; a person notices 100 ms.
    assert!(each_ms < 100.0, "{each_ms} ms");
}

#[test]
fn a_revocation_asks_first_and_means_the_site_that_was_shown() {
    let mut app = hub(COLOURS, 12);
    assert_eq!(orders(press(&mut app, ">>x")), []);
    let shown = lines(&app, 60, 24);
    assert!(
        shown.contains("Revoke site-0002?") && shown.contains("… [y/n]"),
        "{shown}"
    );
    // Other sites than before when the answer comes.
    app.news(looked("hub", sites(1, 0), NOW_S + 1));
    assert_eq!(orders(press(&mut app, "j")), []);
    assert_eq!(
        orders(press(&mut app, "y")),
        [Order::Revoke("site-0002".to_owned())]
    );
    let mut app = hub(COLOURS, 12);
    assert_eq!(orders(press(&mut app, "xny")), [], "no is no");
}

#[test]
fn keys_of_a_site_change_what_they_say() {
    let request = |steps: Vec<Step>| {
        let orders = orders(steps);
        let [Order::Change(path, body, done)] = &orders[..] else {
            panic!("{orders:?}");
        };
        (*path, body.clone(), done.clone())
    };
    let mut app = site(COLOURS);
    let (path, body, done) = request(press(&mut app, "m"));
    assert_eq!(
        (path, body),
        ("/v1/paths", json!({"uplink": "eth0", "metered": true}))
    );
    assert_eq!(done, "eth0 is metered, until the next start");
    let (_, body, _) = request(press(&mut app, ">s"));
    assert_eq!(body, json!({"uplink": "wlan0", "standby": true}));
    let (_, body, _) = request(press(&mut app, "e"));
    assert_eq!(
        body,
        json!({"uplink": "wlan0", "leaving": true, "seconds": 600})
    );
    let (path, body, _) = request(press(&mut app, "c>\n"));
    let second = SchedulerKind::ALL[1].name();
    assert_eq!((path, &body["kind"]), ("/v1/scheduler", &json!(second)));
    assert_eq!(orders(press(&mut app, "t")), [Order::Range(Range::Hour)]);
    assert_eq!(orders(press(&mut app, "d")), [Order::Doctor]);
    let typed = orders(press(&mut app, "w\x08\x08\x08\x08.log\n"));
    let file = format!("ropewalk-report-{NOW_S}.log").into();
    assert_eq!(typed, [Order::Report(file)]);
    assert_eq!(press(&mut app, "q"), [Step::Quit]);
}

#[test]
fn taking_an_uplink_out_asks_first_and_warns_of_the_last() {
    let mut app = site(COLOURS);
    assert_eq!(orders(press(&mut app, "u")), []);
    assert!(lines(&app, 100, 20).contains("Take eth0 out of use? Its traffic moves"));
    assert_eq!(orders(press(&mut app, "\x1bu\n")), []);
    assert!(lines(&app, 100, 20).contains("nothing was changed"));
    let out = orders(press(&mut app, "uy"));
    let body = json!({"uplink": "eth0", "enabled": false});
    assert!(
        matches!(&out[..], [Order::Change("/v1/paths", sent, _)] if *sent == body),
        "{out:?}"
    );

    let mut last = path("wlan0", Vec::new());
    last.state = "disabled".to_owned();
    let paths = vec![path("eth0", Vec::new()), last];
    app.news(looked("site", vec![tunnel("hub", paths)], NOW_S + 1));
    press(&mut app, "u");
    assert!(lines(&app, 120, 20).contains("Take eth0 out? It is the last that works"));
    assert_eq!(orders(press(&mut app, "ne")), []);
    assert!(lines(&app, 120, 20).contains("Announce the end of eth0? It is the last that works"));
    // What is out comes in without a question.
    let back = orders(press(&mut app, "n>u"));
    let body = json!({"uplink": "wlan0", "enabled": true});
    assert!(
        matches!(&back[..], [Order::Change(_, sent, _)] if *sent == body),
        "{back:?}"
    );
}

#[test]
fn a_gateway_that_is_gone_is_told_and_takes_no_changes() {
    let mut app = site(COLOURS);
    app.news(News::Looked(
        1_000 * (NOW_S + 7),
        Err("no gateway answers at /run/x".to_owned()),
    ));
    let shown = lines(&app, 110, 32);
    assert!(shown.contains("site: no answer  ropewalk0"), "{shown}");
    let text = "trying again; what is below is 7 s old: no gateway answers at /run/x";
    assert!(shown.contains(text), "{shown}");
    assert!(
        shown.contains("works; carries 70 %"),
        "what was known stays"
    );
    assert_eq!(orders(press(&mut app, "muy")), []);
    assert!(lines(&app, 110, 32).contains("nothing was changed"));
    // Ranges go on, for when it is back.
    assert_eq!(orders(press(&mut app, "t")).len(), 1);
    app.news(looked("site", vec![tunnel("hub", Vec::new())], NOW_S + 9));
    let shown = lines(&app, 110, 32);
    assert!(
        !shown.contains("no answer") && shown.contains("no uplinks"),
        "{shown}"
    );
}

#[test]
fn rates_of_sites_begin_anew_with_a_gateway() {
    let mut app = hub(COLOURS, 3);
    assert_eq!(app.rates["site-0002"].0, 3_200.0);
    app.news(News::Looked(1_000 * (NOW_S + 1), Err("gone".to_owned())));
    app.news(looked("hub", sites(3, 1_000), NOW_S + 60));
    assert!(app.rates.is_empty());
    // Counters that fell say nothing.
    app.news(looked("hub", sites(3, 1), NOW_S + 61));
    assert!(!app.rates.contains_key("site-0002"), "{:?}", app.rates);
}

#[test]
fn a_small_terminal_shows_rows_and_the_state_in_words() {
    let shown = lines(&site(COLOURS), 40, 10);
    assert_eq!(shown.lines().count(), 10, "{shown}");
    for part in [
        "tunnel up, 2 of 2",
        "eth0",
        "wlan0",
        "✓ works; carries 70 %",
        "? keys   q quit",
    ] {
        assert!(shown.contains(part), "{part} in\n{shown}");
    }
    let shown = lines(&hub(COLOURS, 1_000), 40, 10);
    for part in [
        "990 of 1,000 sites",
        "site-0000",
        "✓ well",
        "? keys   q quit",
    ] {
        assert!(shown.contains(part), "{part} in\n{shown}");
    }
}

#[test]
fn every_size_and_every_picture_is_drawn() {
    let mut all = Vec::new();
    let empty = App::new(COLOURS, Range::Day);
    let mut gone = empty.clone();
    gone.news(News::Looked(1_000 * NOW_S, Err("gone".to_owned())));
    let mut starting = empty.clone();
    starting.news(looked("site", Vec::new(), NOW_S));
    let mut none = empty.clone();
    none.news(looked("hub", Vec::new(), NOW_S));
    all.extend([empty, gone, starting, none]);
    for look in [COLOURS, PLAIN] {
        for keys in ["", "?", "c", "w", "u", "?>>", "v"] {
            let mut app = site(look);
            press(&mut app, keys);
            all.push(app);
        }
        for keys in ["", "/zzz", "x", "oO"] {
            let mut app = hub(look, 40);
            press(&mut app, keys);
            all.push(app);
        }
        let mut app = site(look);
        app.news(News::Text("Doctor", "ok    kernel\n".repeat(50)));
        all.push(app);
    }
    for app in &all {
        for width in (0..14).chain([40, 49, 50, 59, 60, 79, 200]) {
            for height in (0..14).chain([20, 24, 60]) {
                drawn(app, width, height);
            }
        }
    }
}

#[test]
fn an_empty_hub_and_a_starting_site_say_so() {
    let mut app = App::new(COLOURS, Range::Minute);
    assert!(lines(&app, 80, 24).contains("waiting for the gateway"));
    app.news(looked("hub", Vec::new(), NOW_S));
    let shown = lines(&app, 80, 24);
    assert!(shown.contains("0 of 0 sites are connected"), "{shown}");
    assert!(
        shown.contains("no sites: invite one with `ropewalk invite NAME`"),
        "{shown}"
    );
    assert_eq!(orders(press(&mut app, "xyj")), []);
    let mut app = App::new(COLOURS, Range::Minute);
    app.news(looked("site", Vec::new(), NOW_S));
    let shown = lines(&app, 80, 24);
    assert!(
        shown.contains("the gateway starts") && shown.contains("no uplinks"),
        "{shown}"
    );
    assert_eq!(orders(press(&mut app, "umsecy\x1by")), []);
}

#[test]
fn texts_of_others_cannot_command_the_terminal() {
    let mut app = App::new(COLOURS, Range::Minute);
    let words = vec![said(About::Fine, Weight::Bad, HOSTILE)];
    app.news(looked(
        "site",
        vec![tunnel("hub", vec![path(HOSTILE, words)])],
        NOW_S,
    ));
    app.news(News::Happened(vec![Happened {
        site: None,
        at_s: NOW_S,
        what: HOSTILE.to_owned(),
    }]));
    app.news(News::History(
        Range::Minute,
        history(&[HOSTILE], 1.0, 1.0, 60),
    ));
    let mut all = vec![app.clone()];
    press(&mut app, "u");
    all.push(app.clone());
    press(&mut app, "n");
    app.news(News::Text("Doctor", HOSTILE.to_owned()));
    all.push(app.clone());
    app.news(News::Looked(1_000 * NOW_S, Err(HOSTILE.to_owned())));
    app.news(News::Said(Weight::Bad, HOSTILE.to_owned()));
    press(&mut app, "\x1b");
    all.push(app);
    let mut hub = App::new(COLOURS, Range::Minute);
    hub.news(looked(
        "hub",
        vec![tunnel(HOSTILE, vec![path(HOSTILE, Vec::new())])],
        NOW_S,
    ));
    press(&mut hub, "x");
    all.push(hub);
    for app in &all {
        let terminal = drawn(app, 120, 40);
        for cell in terminal.backend().buffer().content() {
            assert!(
                !cell.symbol().contains(char::is_control),
                "{:?}",
                cell.symbol()
            );
        }
        assert!(
            lines(app, 120, 40).contains("[2J"),
            "{}",
            lines(app, 120, 40)
        );
    }
}

#[test]
fn wide_names_keep_columns_in_their_places() {
    let mut app = App::new(COLOURS, Range::Minute);
    let words = || vec![said(About::Fine, Weight::Good, "works; idle")];
    let paths = vec![path("衛星回線衛星回線衛星", words()), path("eth0", words())];
    app.news(looked("site", vec![tunnel("hub", paths)], NOW_S));
    let terminal = drawn(&app, 100, 24);
    let buffer = terminal.backend().buffer();
    let shown = text(buffer);
    let at = |name: &str| {
        let y = shown
            .lines()
            .position(|line| line.contains(name))
            .expect(&shown);
        let y = u16::try_from(y).unwrap();
        (0..100)
            .find(|x| buffer[(*x, y)].symbol() == "✓")
            .expect(&shown)
    };
    assert_eq!(at("衛星"), at("eth0"), "{shown}");
}

#[test]
fn a_doctor_that_comes_while_a_question_is_open_waits() {
    let mut app = site(COLOURS);
    press(&mut app, "du");
    app.news(News::Text("Doctor", "ok".to_owned()));
    assert!(matches!(app.mode, Mode::Question(..)), "{:?}", app.mode);
    press(&mut app, "n");
    app.news(News::Text("Doctor", "FAIL  kernel: old".to_owned()));
    assert!(lines(&app, 80, 24).contains("FAIL  kernel: old"));
    press(&mut app, "\x1b");
    assert!(lines(&app, 80, 24).contains("eth0"));
}

#[test]
fn help_lists_every_key_that_does_something() {
    for (mut app, keys) in [
        (site(COLOURS), "uemsctvdw?q"),
        (hub(COLOURS, 3), "/oOxtvdw?q"),
    ] {
        press(&mut app, "?");
        let shown = lines(&app, 100, 40);
        for key in keys.chars() {
            let listed = shown.lines().any(|line| {
                let names = line.split("  ").next().unwrap_or_default();
                names.split(", ").any(|name| name == key.to_string())
            });
            assert!(listed, "{key} in\n{shown}");
        }
    }
}
