//! A panic, of whichever thread, leaves a terminal as it was.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ropewalk_dashboard::Ran;
use ropewalk_top::{Gateway, Look, Range};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcgetattr, tcsetwinsize};
use serde_json::{Value, json};

/// Longest time for a panic to end a program. It takes a moment; other tests use the machine, too.
const PATIENCE: Duration = Duration::from_secs(30);
/// What the other test is to do: panic in the thread that asks, or in that of a command.
const WHERE: &str = "ROPEWALK_TEST_PANIC";

fn answer(path: &str) -> Value {
    if path.starts_with("/v1/history") {
        return json!({"step_s": 1, "end_s": 0, "offered": [], "up": [], "uplinks": []});
    }
    match path {
        ropewalk_api::Route::STATUS_IN_SHORT => {
            let status = ropewalk_api::Status {
                role: "site".to_owned(),
                ..ropewalk_api::Status::default()
            };
            serde_json::to_value(status).expect("a status is JSON")
        }
        "/v1/scheduler" => json!({"available": [], "tunnels": []}),
        _ => json!([]),
    }
}

/// Runs in the terminal that the other test makes.
#[test]
#[ignore = "run by `panics_leave_the_terminal_as_it_was`"]
fn inside() {
    let Ok(place) = std::env::var(WHERE) else {
        return;
    };
    let asked = AtomicUsize::new(0);
    let asks = place == "asking";
    let gateway = Gateway {
        ask: Arc::new(move |path, _| {
            let asked = asked.fetch_add(1, Ordering::SeqCst);
            assert!(!asks || asked < 10, "the worker panics");
            Ok(answer(path))
        }),
        command: Arc::new(|_| -> Result<Ran, String> { panic!("the command panics") }),
    };
    let look = Look {
        colours: true,
        unicode: true,
    };
    ropewalk_top::run(gateway, look, Range::Minute).unwrap();
}

/// The exit code of a program, which ends in time or is ended.
fn ended(child: &mut Child) -> Option<i32> {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = child.try_wait().expect("it is ours") {
            return status.code();
        }
        if Instant::now() > end {
            child.kill().expect("it is ours");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn panics_leave_the_terminal_as_it_was() {
    for (place, said) in [
        ("asking", "the worker panics"),
        ("command", "the command panics"),
    ] {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let slave = OpenOptions::new()
            .read(true)
            .write(true)
            .open(name.to_str().unwrap())
            .unwrap();
        let size = Winsize {
            ws_row: 24,
            ws_col: 80,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&master, size).unwrap();
        let before = tcgetattr(&slave).unwrap();
        let stream = || Stdio::from(slave.try_clone().unwrap());
        let mut child = Command::new("setsid")
            .arg("--ctty")
            .arg(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "inside", "--nocapture"])
            .env(WHERE, place)
            .env("TERM", "xterm")
            .stdin(stream())
            .stdout(stream())
            .stderr(stream())
            .spawn()
            .unwrap();
        let mut output = File::from(master.try_clone().unwrap());
        // Only there, because the doctor must not panic before the worker does.
        let types = place == "command";
        let reader = std::thread::spawn(move || {
            let mut all = Vec::new();
            let mut part = [0; 4_096];
            while let Ok(count @ 1..) = output.read(&mut part) {
                all.extend_from_slice(&part[..count]);
                let has = |said: &[u8]| all.windows(said.len()).any(|bytes| bytes == said);
                if types && has(b"q quit") && !has(b"\x1b[?1049l") {
                    // Now it draws. `d` runs the doctor. On the usual screen the terminal would show the letter
                    // amid the panic.
                    let _ = rustix::io::write(&master, b"d");
                }
            }
            String::from_utf8_lossy(&all).into_owned()
        });
        let code = ended(&mut child);
        let after = tcgetattr(&slave).unwrap();
        drop(slave);
        let text = reader.join().unwrap();
        assert_eq!(code, Some(101), "{text}");
        assert_eq!(format!("{before:?}"), format!("{after:?}"), "modes");
        let at = |part: &str| {
            text.rfind(part)
                .unwrap_or_else(|| panic!("{part:?} in {text:?}"))
        };
        assert!(at("\x1b[?1049h") < at("\x1b[?1049l"), "{text:?}");
        assert!(at("\x1b[?25l") < at("\x1b[?25h"), "{text:?}");
        assert!(
            at("\x1b[?1049l") < at(said),
            "told on the usual screen: {text:?}"
        );
        assert!(
            !text[at(said)..].contains("\x1b["),
            "nothing is drawn then: {text:?}"
        );
    }
}
