//! The dashboard over real sockets, with a gateway that answers from a script.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::Mutex;
use std::time::Duration;

use ropewalk_api::{PathStatus, Route, Status, TunnelStatus};

use tokio::net::TcpListener;

use super::*;

/// What came to the gateway and to the commands.
type Asked = Arc<Mutex<Vec<String>>>;

struct Running {
    proof: Mutex<String>,
    address: SocketAddr,
    token: String,
    asked: Asked,
}

const SECRET: &str = "ropewalk2.AwG9fJH_iaYIw7b0cf8wP3XoXDNKZ5fXIhH0pTTkPcAQ0WlmnYq5Krubd2qgTA";

fn answer(path: &str) -> Value {
    let tunnel = TunnelStatus {
        peer: "</script>".to_owned(),
        peer_key: "M/xwKMrMzYDOzDQErY2eCKNGmcN4hDpZxFygAVEVhTA=".to_owned(),
        paths: vec![PathStatus::default()],
        ..TunnelStatus::default()
    };
    let status = Status {
        role: "site".to_owned(),
        tunnels: vec![tunnel],
        ..Status::default()
    };
    match path {
        "/v1/status" | Route::STATUS_IN_SHORT => serde_json::to_value(status).unwrap(),
        "/v1/happened" => json!([{ "at_s": 1, "what": format!("token {SECRET} was used") }]),
        path if path.starts_with("/v1/history") => {
            serde_json::to_value(ropewalk_api::History::default()).unwrap()
        }
        _ => json!({ "ok": true }),
    }
}

fn start(role: Role) -> Running {
    let access = Access::new(role).unwrap();
    let link = access.link("x");
    let token = link.split('#').nth(1).unwrap().to_owned();
    let asked = Asked::default();
    let (asks, commands) = (Arc::clone(&asked), Arc::clone(&asked));
    let gateway = Gateway {
        ask: Arc::new(move |method, path, body| {
            let body = body.map_or_else(String::new, |body| format!(" {body}"));
            asks.lock().unwrap().push(format!("{method} {path}{body}"));
            Box::pin(async move { Ok((StatusCode::OK, Bytes::from(answer(&path).to_string()))) })
        }),
        command: Arc::new(move |arguments| {
            commands.lock().unwrap().push(arguments.join(" "));
            Ok(match arguments[0].as_str() {
                "doctor" if arguments.len() > 1 => Ran {
                    out: "{\"ok\":false,\"checks\":[]}".to_owned(),
                    ..Ran::default()
                },
                "doctor" => Ran {
                    out: format!("key: {SECRET}"),
                    ..Ran::default()
                },
                _ if arguments.iter().any(|argument| argument.contains("taken")) => Ran {
                    notes: "error: site taken exists\n".to_owned(),
                    ..Ran::default()
                },
                _ => Ran {
                    ok: true,
                    out: format!("{SECRET}\n"),
                    notes: "done".to_owned(),
                },
            })
        }),
    };
    let (ready, is_ready) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().build().unwrap().block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            ready.send(listener.local_addr().unwrap()).unwrap();
            axum::serve(listener, router(access, gateway))
                .await
                .unwrap();
        });
    });
    Running {
        address: is_ready.recv().unwrap(),
        token,
        proof: Mutex::default(),
        asked,
    }
}

impl Running {
    /// Sends a request with these lines in its head; the head and the body of the answer.
    fn send(&self, first: &str, lines: &[String], body: &str) -> (String, String) {
        let mut stream = std::net::TcpStream::connect(self.address).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        let lines: String = lines.iter().map(|line| format!("{line}\r\n")).collect();
        let length = body.len();
        let text = format!(
            "{first} HTTP/1.1\r\n{lines}connection: close\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        stream.write_all(text.as_bytes()).unwrap();
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        (head.to_owned(), body.to_owned())
    }

    fn host(&self) -> String {
        format!("host: {}", self.address)
    }

    fn own(&self) -> Vec<String> {
        vec![
            self.host(),
            format!("origin: http://{}", self.address),
            "content-type: application/json".to_owned(),
        ]
    }

    /// The cookie for whoever follows the link.
    fn cookie(&self) -> String {
        let body = json!({ "token": self.token }).to_string();
        let (head, answer) = self.send("POST /session", &self.own(), &body);
        assert!(code(&head) == 200, "{head}");
        let answer: Value = serde_json::from_str(&answer).unwrap();
        *self.proof.lock().unwrap() = answer["proof"].as_str().unwrap().to_owned();
        let set = head
            .lines()
            .find_map(|line| line.strip_prefix("set-cookie: "))
            .unwrap();
        assert!(
            set.contains("; HttpOnly") && set.contains("; SameSite=Strict"),
            "{set}"
        );
        assert!(!set.contains(&self.token), "the cookie is not the token");
        format!("cookie: {}", set.split(';').next().unwrap())
    }

    /// The header for changes of the cookie that was given out last.
    fn proof(&self) -> String {
        format!("x-ropewalk: {}", self.proof.lock().unwrap())
    }

    /// A change as the page makes it.
    fn change(&self, path: &str, cookie: &str, body: &str) -> (u16, Value) {
        let mut lines = self.own();
        lines.extend([cookie.to_owned(), self.proof()]);
        let (head, body) = self.send(&format!("POST {path}"), &lines, body);
        (code(&head), serde_json::from_str(&body).unwrap_or_default())
    }
}

fn code(head: &str) -> u16 {
    head.split(' ')
        .nth(1)
        .and_then(|text| text.parse().ok())
        .unwrap_or(0)
}

#[test]
fn a_name_that_leads_here_by_dns_rebinding_reaches_nothing() {
    let running = start(Role::Admin);
    let cookie = running.cookie();
    for page in ["/", "/assets/app.js", "/api/about", "/events"] {
        let lines = ["host: evil.example".to_owned(), cookie.clone()];
        let (head, body) = running.send(&format!("GET {page}"), &lines, "");
        assert_eq!(code(&head), 403, "{page}");
        assert!(body.contains("127.0.0.1"), "{body}");
    }
    // Through `ssh -L` the port is another one.
    let lines = ["host: localhost:8737".to_owned(), cookie];
    assert_eq!(code(&running.send("GET /api/about", &lines, "").0), 200);
}

#[test]
fn pages_of_other_origins_and_sites_are_refused() {
    let running = start(Role::Admin);
    let cookie = running.cookie();
    let body = json!({ "uplink": "eth0", "enabled": false }).to_string();
    let proof = || [running.proof(), "content-type: application/json".to_owned()];
    for lines in [
        vec![format!("origin: http://evil.example")],
        vec!["origin: null".to_owned()],
        vec![format!("origin: https://{}", running.address)],
        vec!["origin: http://127.0.0.1:1".to_owned()],
        vec![],
        vec![
            format!("origin: http://{}", running.address),
            "sec-fetch-site: cross-site".to_owned(),
        ],
        vec![
            format!("origin: http://{}", running.address),
            "sec-fetch-site: same-site".to_owned(),
        ],
    ] {
        let mut all = vec![running.host(), cookie.clone()];
        all.extend(proof());
        all.extend(lines.clone());
        let (head, _) = running.send("POST /api/path", &all, &body);
        assert_eq!(code(&head), 403, "{lines:?}");
    }
    assert!(
        running.asked.lock().unwrap().is_empty(),
        "nothing was asked of the gateway"
    );
}

#[test]
fn without_the_link_only_the_empty_pages_are_there() {
    let running = start(Role::Admin);
    let own = [running.host()];
    for page in [
        "/",
        "/assets/app.js",
        "/assets/uplot/uPlot.min.css",
        "/assets/uplot/LICENSE",
    ] {
        assert_eq!(
            code(&running.send(&format!("GET {page}"), &own, "").0),
            200,
            "{page}"
        );
    }
    for page in [
        "/api/about",
        "/api/history?range=hour",
        "/api/happened",
        "/api/schedulers",
        "/events",
    ] {
        assert_eq!(
            code(&running.send(&format!("GET {page}"), &own, "").0),
            401,
            "{page}"
        );
    }
    for cookie in ["cookie: ropewalk_00000000=x", "cookie: x=y"] {
        let lines = [running.host(), cookie.to_owned()];
        assert_eq!(
            code(&running.send("GET /api/about", &lines, "").0),
            401,
            "{cookie}"
        );
    }
    for wrong in ["{\"token\":\"\"}", "{\"token\":\"0\"}", "{}", "", "[]"] {
        let (head, _) = running.send("POST /session", &running.own(), wrong);
        assert!(matches!(code(&head), 401 | 422), "{wrong}");
    }
    assert_eq!(running.change("/api/doctor", "cookie: x=y", "").0, 401);
    assert!(running.asked.lock().unwrap().is_empty());
}

#[test]
fn every_answer_tells_the_browser_what_pages_may_do() {
    let running = start(Role::Admin);
    let good = [running.host()];
    let bad = ["host: evil.example".to_owned()];
    for (page, lines) in [
        ("/", &good[..]),
        ("/assets/app.js", &good),
        ("/nothing", &good),
        ("/", &bad),
    ] {
        let (head, _) = running.send(&format!("GET {page}"), lines, "");
        for rule in [
            "content-security-policy: default-src 'none'; script-src 'self' 'sha256-",
            "; style-src 'self'; connect-src 'self'; img-src 'self' data:; frame-ancestors",
            "frame-ancestors 'none'",
            "x-content-type-options: nosniff",
            "referrer-policy: no-referrer",
            "cache-control: no-store",
        ] {
            assert!(head.contains(rule), "{page}: {rule} is not in {head}");
        }
        assert!(
            !head.contains("unsafe") && !head.contains("access-control"),
            "{head}"
        );
    }
    let (head, _) = running.send("GET /assets/../src/lib.rs", &good, "");
    assert_eq!(code(&head), 404);
}

#[test]
fn a_link_for_looking_changes_nothing() {
    let running = start(Role::ReadOnly);
    let cookie = running.cookie();
    let look = [running.host(), cookie.clone()];
    let (head, body) = running.send("GET /api/about", &look, "");
    assert!(code(&head) == 200 && body == "{\"admin\":false}", "{body}");
    assert_eq!(
        code(&running.send("GET /api/history?range=day", &look, "").0),
        200
    );
    running.asked.lock().unwrap().clear();
    for path in ["path", "scheduler", "doctor", "report", "invite", "revoke"] {
        let (code, body) = running.change(&format!("/api/{path}"), &cookie, "{\"name\":\"a\"}");
        assert_eq!(code, 403, "{path}");
        assert!(
            body["error"].as_str().unwrap().contains("for looking only"),
            "{body}"
        );
    }
    assert!(running.asked.lock().unwrap().is_empty());
}

#[test]
fn a_change_needs_the_secret_that_servers_at_other_ports_do_not_get() {
    let running = start(Role::Admin);
    running.cookie();
    let of_another_window = running.proof();
    let mut lines = running.own();
    lines.push(running.cookie());
    let refused = |more: &[String]| {
        let lines = [&lines, more].concat();
        code(&running.send("POST /api/doctor", &lines, "").0) == 403
    };
    assert!(refused(&[]));
    for wrong in ["x-ropewalk: 1", "x-ropewalk:", &of_another_window] {
        assert!(refused(&[wrong.to_owned()]), "{wrong}");
    }
    assert!(running.asked.lock().unwrap().is_empty());
    lines.push(running.proof());
    assert_eq!(code(&running.send("POST /api/doctor", &lines, "").0), 200);
}

#[test]
fn actions_are_the_requests_and_commands_of_a_terminal() {
    let running = start(Role::Admin);
    let cookie = running.cookie();
    let change = |path: &str, body: Value| running.change(path, &cookie, &body.to_string());
    assert_eq!(
        change("/api/path", json!({ "uplink": "a", "enabled": false })).0,
        200
    );
    assert_eq!(
        change("/api/path", json!({ "uplink": "a", "metered": true })).0,
        200
    );
    assert_eq!(
        change(
            "/api/path",
            json!({ "uplink": "a", "leaving": true, "seconds": 60 })
        )
        .0,
        200
    );
    assert_eq!(change("/api/scheduler", json!({ "kind": "htmt" })).0, 200);
    assert_eq!(change("/api/doctor", json!({})).1["ok"], false);
    let (_, invited) = change("/api/invite", json!({ "name": "--list" }));
    assert_eq!(invited["token"], SECRET);
    let width = usize::try_from(invited["qr"]["width"].as_u64().unwrap()).unwrap();
    assert_eq!(invited["qr"]["bits"].as_str().unwrap().len(), width * width);
    assert_eq!(change("/api/revoke", json!({ "name": "--list" })).0, 200);
    let asked = running.asked.lock().unwrap().clone();
    let expected = [
        "POST /v1/paths {\"enabled\":false,\"uplink\":\"a\"}",
        "POST /v1/paths {\"metered\":true,\"uplink\":\"a\"}",
        "POST /v1/paths {\"leaving\":true,\"seconds\":60,\"uplink\":\"a\"}",
        "POST /v1/scheduler {\"direction\":\"both\",\"kind\":\"htmt\"}",
        "doctor --json",
        "invite -- --list",
        "invite --revoke=--list",
    ];
    assert_eq!(asked, expected);
    let (code, refusal) = change("/api/invite", json!({ "name": "taken" }));
    assert_eq!(
        (code, refusal["error"].as_str()),
        (422, Some("site taken exists"))
    );
    for (path, body) in [
        ("/api/path", json!({ "uplink": "a", "colour": 1 })),
        ("/api/scheduler", json!({ "kind": "fastest" })),
        ("/api/invite", json!({ "name": "a", "relay": true })),
        ("/api/revoke", json!({ "name": "a\0b" })),
    ] {
        assert_eq!(change(path, body.clone()).0, 422, "{path} {body}");
    }
    assert_eq!(running.asked.lock().unwrap().len(), expected.len() + 1);
}

#[test]
fn a_report_has_neither_keys_nor_tokens() {
    let running = start(Role::Admin);
    let (code, body) = running.change("/api/report", &running.cookie(), "");
    let report = body["report"].as_str().unwrap();
    assert_eq!(code, 200);
    assert!(
        report.contains("== Doctor\nkey: ropewalk2.(left out)"),
        "{report}"
    );
    assert!(
        report.contains("1 token ropewalk2.(left out) was used"),
        "{report}"
    );
    for secret in ["AwG9fJH", "M/xwKMrMzYDO"] {
        assert!(!report.contains(secret), "{report}");
    }
}

#[test]
fn windows_share_one_poll_that_sleeps_while_none_is_open() {
    let running = start(Role::Admin);
    let look = [running.host(), running.cookie()];
    let count = || {
        running
            .asked
            .lock()
            .unwrap()
            .iter()
            .filter(|asked| asked.contains("/v1/status"))
            .count()
    };
    std::thread::sleep(Duration::from_millis(1_500));
    assert_eq!(count(), 0);
    let open = || {
        let mut stream = std::net::TcpStream::connect(running.address).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(5)))
            .unwrap();
        let lines = look.join("\r\n");
        write!(stream, "GET /events HTTP/1.1\r\n{lines}\r\n\r\n").unwrap();
        let mut bytes = [0; 4_096];
        let mut text = String::new();
        while !text.contains("\"role\":\"site\"") {
            let read = stream.read(&mut bytes).unwrap();
            assert!(read > 0, "{text}");
            text.push_str(&String::from_utf8_lossy(&bytes[..read]));
        }
        assert!(text.contains("content-type: text/event-stream"), "{text}");
        assert!(!text.contains("M/xwKMrM"), "no keys: {text}");
        stream
    };
    let windows = [open(), open(), open()];
    std::thread::sleep(Duration::from_millis(2_200));
    let watched = count();
    assert!(
        (2..=5).contains(&watched),
        "{watched} polls for three windows"
    );
    drop(windows);
    std::thread::sleep(Duration::from_millis(2_500));
    let before = count();
    std::thread::sleep(Duration::from_millis(2_000));
    assert_eq!(count(), before, "nobody looks");
}
