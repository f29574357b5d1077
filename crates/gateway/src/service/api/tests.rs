//! The API over a real socket, with an engine that answers from a script.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use ropewalk_api::{Direction, PathUse, TunnelStatus};
use ropewalk_core::schedule::SchedulerKind;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;
use crate::client::Client;
use crate::exit;

struct Gateway {
    socket: PathBuf,
    tcp: SocketAddr,
    /// Another program at that address.
    taken: Option<std::net::TcpListener>,
    _directory: TempDir,
    _stop: tokio::sync::oneshot::Sender<()>,
}

impl Gateway {
    fn start(is_hub: bool, engine: impl FnOnce(Receiver<Command>) + Send + 'static) -> Self {
        Self::with_reload(Duration::ZERO, is_hub, engine)
    }

    /// A gateway at whose loopback address another program is.
    fn with_taken_address() -> Self {
        Self::open(Duration::ZERO, false, true, answering)
    }

    /// A gateway whose reloads take so long.
    fn with_reload(
        reload: Duration,
        is_hub: bool,
        engine: impl FnOnce(Receiver<Command>) + Send + 'static,
    ) -> Self {
        Self::open(reload, is_hub, false, engine)
    }

    fn open(
        reload: Duration,
        is_hub: bool,
        keeps_taken: bool,
        engine: impl FnOnce(Receiver<Command>) + Send + 'static,
    ) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("api.sock");
        let (sender, receiver) = channel();
        // Has turns for as long as it does not hang: until the engine has ended.
        let (pulse, stand) = Pulse::detached(0);
        let ended = Arc::new(AtomicBool::new(false));
        let end = Arc::clone(&ended);
        std::thread::spawn(move || {
            engine(receiver);
            end.store(true, Ordering::Relaxed);
        });
        std::thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                stand.turn_if_woken();
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let api = Api {
            pulses: vec![pulse],
            commands: Arc::new(move |command| {
                sender
                    .send(command)
                    .map_err(|_| anyhow::anyhow!("the engine has stopped"))
            }),
            reload: Arc::new(move || {
                Box::pin(async move {
                    tokio::time::sleep(reload).await;
                    anyhow::ensure!(is_hub, "site.toml:3: broken");
                    Ok("2 sites".to_owned())
                })
            }),
            change_key: Arc::new(|request: KeyRequest| {
                anyhow::ensure!(!request.switch || request.force, "there is no next key");
                Ok(KeyChange {
                    key: "k".to_owned(),
                    uninvited: Vec::new(),
                })
            }),
            memory: Memory::none(),
            mark: Arc::new(|uplink, marks| match (uplink, marks.metered) {
                ("eth0", Some(true)) => Ok(()),
                _ => Err("there is no uplink eth9".to_owned()),
            }),
            unoffered: Unoffered::default(),
            fleet: None,
            is_hub,
        };
        let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let tcp = other.local_addr().unwrap();
        let taken = keeps_taken.then_some(other);
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let (ready, is_ready) = channel();
        let path = socket.clone();
        std::thread::spawn(move || {
            let mut builder = tokio::runtime::Builder::new_current_thread();
            builder.enable_all().build().unwrap().block_on(async {
                serve_unix(api.clone(), &path, None).unwrap();
                serve_tcp_after(api, tcp, Duration::from_millis(50)).await;
                ready.send(()).unwrap();
                let _ = stopped.await;
            });
        });
        is_ready.recv().unwrap();
        Self {
            socket,
            tcp,
            taken,
            _directory: directory,
            _stop: stop,
        }
    }

    fn client(&self) -> Client {
        Client::new(&self.socket)
    }

    /// Sends bytes over TCP as they are and returns the answer's head.
    fn raw(&self, request: &str) -> String {
        use std::io::{Read, Write};
        let mut stream = std::net::TcpStream::connect(self.tcp).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        answer
    }
}

#[test]
fn a_gateway_whose_address_is_taken_starts_says_so_and_tries_again() {
    let mut gateway = Gateway::with_taken_address();
    let words = gateway.client().status().unwrap().words;
    let address = gateway.tcp.to_string();
    assert!(
        words.iter().any(|words| words.text.contains(&address)),
        "{words:?}"
    );
    drop(gateway.taken.take());
    let end = Instant::now() + Duration::from_secs(10);
    while !gateway.client().status().unwrap().words.is_empty() {
        assert!(Instant::now() < end, "the free address is not taken");
        std::thread::sleep(Duration::from_millis(20));
    }
    let answer =
        gateway.raw("GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

fn answering(commands: Receiver<Command>) {
    for command in commands {
        match command {
            Command::Status(reply) => {
                let tunnel = TunnelStatus {
                    peer: "hub".to_owned(),
                    ..TunnelStatus::default()
                };
                let _ = reply.send(Status {
                    role: "site".to_owned(),
                    tunnels: vec![tunnel],
                    ..Status::default()
                });
            }
            Command::SetScheduler {
                direction,
                kind,
                peer,
                reply,
            } => {
                let right = direction == Direction::Send && kind == SchedulerKind::Ecf;
                let _ = reply.send(match peer.as_deref() {
                    None if right => Ok(3),
                    _ => Err("there is no site nobody".to_owned()),
                });
            }
            Command::SetPath {
                uplink,
                wanted,
                reply,
            } => {
                let known = uplink == "eth0" && wanted != PathUse::Enabled;
                let _ = reply.send(
                    known
                        .then_some(())
                        .ok_or("there is no uplink eth9".to_owned()),
                );
            }
            Command::Uplinks(_)
            | Command::MtuFloor(_)
            | Command::ReloadSites
            | Command::Enrolled { .. }
            | Command::Claimed(_)
            | Command::Drained(_)
            | Command::Key(_)
            | Command::Shutdown => {}
        }
    }
}

#[test]
fn who_waits_for_reloads_keeps_nobody_from_the_state() {
    let gateway = Gateway::with_reload(Duration::from_secs(2), true, answering);
    let began = Instant::now();
    let reloading: Vec<_> = (0..8)
        .map(|_| {
            let client = gateway.client();
            std::thread::spawn(move || client.post::<Value>("/v1/sites/reload", &json!({})))
        })
        .collect();
    std::thread::sleep(Duration::from_millis(200));
    for path in ["/v1/status", "/healthz"] {
        gateway.client().get::<Value>(path).unwrap();
    }
    let took = began.elapsed();
    assert!(took < Duration::from_secs(1), "{took:?}");
    for reload in reloading {
        assert_eq!(reload.join().unwrap().unwrap()["reloaded"], "2 sites");
    }
}

#[test]
fn requests_reach_the_engine_and_answers_the_client() {
    let gateway = Gateway::start(true, answering);
    let client = gateway.client();
    assert_eq!(client.status().unwrap().tunnels[0].peer, "hub");
    let body = json!({ "kind": "ecf", "direction": "send" });
    let post = |path, body: &Value| client.post::<Value>(path, body);
    assert_eq!(post("/v1/scheduler", &body).unwrap()["changed"], 3);
    client
        .post::<Value>("/v1/paths", &json!({ "uplink": "eth0", "enabled": false }))
        .unwrap();
    post("/v1/paths", &json!({ "uplink": "eth0", "metered": true })).unwrap();
    let day: Value = client.get("/v1/history?range=day&last=3").unwrap();
    assert!(day["uplinks"].is_array());
    assert!(client.get::<Value>("/v1/happened").unwrap().is_array());
    let short: Status = client.get(Route::STATUS_IN_SHORT).unwrap();
    assert_eq!(short.tunnels[0].peer, "hub", "a site keeps its tunnel");
    for wrong in [
        "history?range=week",
        "history?range=day&colour=1",
        "history?range=day&last=-1",
        "status?brief=perhaps",
        "status?colour=1",
    ] {
        let path = format!("/v1/{wrong}");
        assert!(client.get::<Value>(&path).is_err(), "{wrong}");
    }
    assert_eq!(
        post("/v1/sites/reload", &json!({})).unwrap()["reloaded"],
        "2 sites"
    );
    assert_eq!(post("/v1/key", &json!({})).unwrap()["key"], "k");
    let list: Value = client.get("/v1/scheduler").unwrap();
    assert_eq!(
        list["available"].as_array().unwrap().len(),
        SchedulerKind::ALL.len()
    );
    assert_eq!(list["tunnels"][0]["send"], "auto");
    assert!(client.get::<Value>("/v1/paths").unwrap()["tunnels"].is_array());
    assert_eq!(client.get::<Value>("/healthz").unwrap()["ok"], true);
}

/// A gateway whose answer to everything is this.
fn one_answer(status: &'static str) -> (TempDir, Client) {
    use std::io::{Read, Write};
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("api.sock");
    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut request = [0; 4_096];
            assert!(stream.read(&mut request).unwrap() > 0);
            let length = status.len();
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n");
            stream.write_all((head + status).as_bytes()).unwrap();
        }
    });
    let client = Client::new(&socket);
    (directory, client)
}

/// The state that a gateway gave once.
const RECORDED: &str = include_str!("../../../../api/tests/golden/status.json");

#[test]
fn a_client_reads_what_an_older_gateway_and_a_newer_one_say() {
    let (_directory, client) = one_answer(RECORDED);
    let tunnel = client.status().unwrap().tunnels.remove(0);
    assert_eq!(tunnel.wire_version, 0, "gateways did not say so then");
    let mut newer: Value = serde_json::from_str(RECORDED).unwrap();
    newer["colour"] = json!("red");
    newer["tunnels"][0]["colour"] = json!({ "red": 1 });
    let (_directory, client) = one_answer(newer.to_string().leak());
    assert_eq!(client.status().unwrap().tunnels[0].peer, tunnel.peer);
    // An old client cannot show a scheduler that it does not know, and says why.
    newer["tunnels"][0]["scheduler_send"] = json!("of-tomorrow");
    let (_directory, client) = one_answer(newer.to_string().leak());
    let error = format!("{:#}", client.status().unwrap_err());
    assert!(
        error.contains("of another version") && error.contains("restart the gateway"),
        "{error}"
    );
    assert!(error.contains("of-tomorrow"), "{error}");
}

#[test]
fn bad_requests_are_refused_with_a_reason() {
    let gateway = Gateway::start(false, answering);
    let client = gateway.client();
    for (path, body, part) in [
        (
            "/v1/scheduler",
            json!({ "kind": "ecff" }),
            "unknown variant",
        ),
        (
            "/v1/scheduler",
            json!({ "kind": "ecf", "colour": 1 }),
            "unknown field",
        ),
        (
            "/v1/scheduler",
            json!({ "direction": "send" }),
            "missing field",
        ),
        (
            "/v1/scheduler",
            json!({ "kind": "ecf", "site": "nobody" }),
            "no site nobody",
        ),
        (
            "/v1/paths",
            json!("x".repeat(BODY_MAX)),
            "length limit exceeded",
        ),
        ("/v1/status", json!({}), "does not take this method"),
        ("/v1/nothing", json!({}), "upgrade: there is no such page"),
        ("/v1/sites/reload", json!({}), "only hubs have sites"),
        ("/v1/key", json!({ "switch": true }), "there is no next key"),
        (
            "/v1/reload",
            json!({}),
            "nothing was changed: site.toml:3: broken",
        ),
    ] {
        let error = client.post::<Value>(path, &body).expect_err(path);
        let text = format!("{error:#}");
        assert!(text.contains(part), "{path} gave {text}");
        assert_eq!(exit::code(&error), exit::FAILURE, "{text}");
        let is_unknown = path == "/v1/nothing";
        assert_eq!(
            text.contains("does not know this request"),
            is_unknown,
            "{path} gave {text}"
        );
    }
}

#[test]
fn bad_requests_for_paths_are_refused_with_a_reason() {
    let gateway = Gateway::start(false, answering);
    let client = gateway.client();
    for (path, body, part) in [
        (
            "/v1/paths",
            json!({ "uplink": "eth9", "enabled": false }),
            "no uplink eth9",
        ),
        (
            "/v1/paths",
            json!({ "uplink": "eth0", "enabled": true, "leaving": true }),
            "say one of",
        ),
        (
            "/v1/paths",
            json!({ "uplink": "eth0", "leaving": true, "seconds": 0 }),
            "must be 1 to 3600",
        ),
        (
            "/v1/paths",
            json!({ "uplink": "eth0", "leaving": false, "seconds": 5 }),
            "goes with",
        ),
        (
            "/v1/paths",
            json!({ "uplink": "eth9", "metered": true }),
            "no uplink eth9",
        ),
        (
            "/v1/paths",
            json!({ "uplink": "eth0", "metered": true, "enabled": true }),
            "go with nothing else",
        ),
        (
            "/v1/paths",
            json!({ "uplink": 5, "enabled": false }),
            "invalid type",
        ),
    ] {
        let text = format!("{:#}", client.post::<Value>(path, &body).expect_err(path));
        assert!(text.contains(part), "{body} gave {text}");
    }
}

#[test]
fn loopback_address_serves_metrics_but_no_foreign_names_and_no_forms() {
    let gateway = Gateway::start(false, answering);
    let get = |host: &str| {
        gateway.raw(&format!(
            "GET /metrics HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n"
        ))
    };
    for host in ["localhost:9490", "127.0.0.1", "[::1]:9490"] {
        let answer = get(host);
        assert!(
            answer.starts_with("HTTP/1.1 200") && answer.contains("ropewalk_info"),
            "{answer}"
        );
    }
    for host in ["evil.example", "192.0.2.1", "localhost.evil.example"] {
        assert!(get(host).starts_with("HTTP/1.1 403"), "{host}");
    }
    let form = gateway.raw(
        "POST /v1/paths HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
         content-type: text/plain\r\ncontent-length: 33\r\n\r\n{\"uplink\":\"eth0\",\"enabled\":false}",
    );
    assert!(form.starts_with("HTTP/1.1 415"), "{form}");
    assert!(gateway.raw("nonsense\r\n\r\n").starts_with("HTTP/1.1 400"));
}

#[test]
fn stopped_or_silent_engine_is_reported_as_not_running() {
    let stopped = Gateway::start(false, drop);
    let silent = Gateway::start(false, |commands| {
        let kept: Vec<Command> = commands.into_iter().collect();
        drop(kept);
    });
    for gateway in [stopped, silent] {
        let error = gateway.client().status().unwrap_err();
        assert_eq!(exit::code(&error), exit::NOT_RUNNING, "{error:#}");
    }
    let nobody = Client::new(Path::new("/nonexistent/api.sock"))
        .status()
        .unwrap_err();
    assert_eq!(exit::code(&nobody), exit::NOT_RUNNING, "{nobody:#}");
}

#[test]
fn a_question_for_health_asks_no_engine_for_its_state_and_notices_one_that_hangs() {
    let engine = |commands: Receiver<Command>| {
        // Nothing that is asked is ever answered.
        commands.into_iter().for_each(std::mem::forget);
    };
    let working = Gateway::start(true, engine);
    assert_eq!(
        working.client().get::<Value>("/healthz").unwrap()["ok"],
        true
    );
    let ended = Gateway::start(true, drop);
    std::thread::sleep(Duration::from_millis(100));
    let error = ended.client().get::<Value>("/healthz").unwrap_err();
    assert_eq!(exit::code(&error), exit::NOT_RUNNING, "{error:#}");
}

/// Whoever uses the API without the command is guarded, too.
#[test]
fn a_hub_takes_no_key_up_that_sites_do_not_know_unless_it_is_told_to() {
    let knows = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let known = std::sync::Arc::clone(&knows);
    let gateway = Gateway::start(true, move |commands| {
        for command in commands {
            if let Command::Status(reply) = command {
                let site = |name: &str, knows| TunnelStatus {
                    peer: name.to_owned(),
                    knows_next_key: Some(knows),
                    ..TunnelStatus::default()
                };
                let knows = known.load(std::sync::atomic::Ordering::SeqCst);
                let _ = reply.send(Status {
                    tunnels: vec![site("boat", true), site("van", knows)],
                    ..Status::default()
                });
            }
        }
    });
    let client = gateway.client();
    let switch = |body: Value| client.post::<Value>("/v1/key", &body);
    let refused = |body| format!("{:#}", switch(body).unwrap_err());
    let words = refused(json!({ "switch": true }));
    assert!(
        words.contains("know the next key") && words.contains(": van;"),
        "{words}"
    );
    assert_eq!(
        switch(json!({ "switch": true, "force": true })).unwrap()["key"],
        "k"
    );
    knows.store(true, std::sync::atomic::Ordering::SeqCst);
    let words = refused(json!({ "switch": true }));
    assert!(
        words.contains("there is no next key"),
        "it is the hub's turn: {words}"
    );
}
