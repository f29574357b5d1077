//! The thread that asks the gateway once a second, and carries orders out.
//!
//! Orders that take long run in a thread of their own, one at a time, so that looks go on. A gateway that is
//! not there is asked again, for ever.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant, SystemTime};

use ropewalk_api::words::Weight;
use ropewalk_api::{Happened, History, Route, Schedulers, Status};
use ropewalk_dashboard::report;
use ropewalk_dashboard::view::{self, View};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::Gateway;
use crate::app::{News, Order, Range};

/// Time between looks. Longer: less work, later news.
const INTERVAL: Duration = Duration::from_secs(1);
/// The same of a gateway with more sites than [`FEW`].
const INTERVAL_MANY: Duration = Duration::from_secs(5);
const FEW: usize = 50;
/// Longest time between requests for the points of a range. Longer: less work, an older graph.
const POINTS_S_MAX: u32 = 30;

/// Takes news; false ends the thread.
pub type Tell = Arc<dyn Fn(News) -> bool + Send + Sync>;

/// What the gateway answers, read.
fn get<T: DeserializeOwned>(gateway: &Gateway, path: &str) -> Result<T, String> {
    let value = (gateway.ask)(path, None)?;
    serde_json::from_value(value).map_err(|error| {
        format!(
            "the gateway that runs is of another version: restart it after an upgrade ({error})"
        )
    })
}

/// Milliseconds since 1970.
fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    u64::try_from(now.unwrap_or_default().as_millis()).unwrap_or(u64::MAX)
}

/// One look at the gateway.
fn look(gateway: &Gateway) -> Result<View, String> {
    let status: Status = get(gateway, Route::STATUS_IN_SHORT)?;
    if status.role == "balance" {
        let text = "`ropewalk balance` runs here: it has no tunnel; see `ropewalk status --watch`";
        return Err(text.to_owned());
    }
    let newest: History = get(gateway, "/v1/history?range=minutes&last=1")?;
    Ok(view::of(status, newest, now_ms() / 1_000))
}

/// One look as news.
pub fn look_once(gateway: &Gateway) -> News {
    News::Looked(now_ms(), look(gateway).map(Box::new))
}

/// All news of one look, for one frame.
///
/// # Errors
/// The gateway does not answer.
pub fn all(gateway: &Gateway, range: Range) -> Result<Vec<News>, String> {
    let view = look(gateway)?;
    let history = get(gateway, range.request())?;
    let happened: Vec<Happened> = get(gateway, "/v1/happened")?;
    let schedulers: Schedulers = get(gateway, "/v1/scheduler")?;
    Ok(vec![
        News::Looked(now_ms(), Ok(Box::new(view))),
        News::History(range, history),
        News::Happened(happened),
        News::Schedulers(schedulers.available),
    ])
}

/// Looks and carries orders out until nobody listens.
pub fn run(gateway: &Gateway, mut range: Range, orders: &Receiver<Order>, tell: &Tell) {
    let busy = Arc::new(AtomicBool::new(false));
    let mut points_due = Instant::now();
    loop {
        let looked = look(gateway);
        let many = looked.as_ref().is_ok_and(|view| view.sites.len() > FEW);
        let gone = looked.is_err();
        if !tell(News::Looked(now_ms(), looked.map(Box::new))) {
            return;
        }
        if gone {
            points_due = Instant::now();
        } else {
            if let Ok(happened) = get(gateway, "/v1/happened")
                && !tell(News::Happened(happened))
            {
                return;
            }
            if Instant::now() >= points_due
                && let Ok(history) = get::<History>(gateway, range.request())
            {
                let step = history.step_s.clamp(1, POINTS_S_MAX);
                // A little early: otherwise every second look would come too soon for it.
                points_due = Instant::now() + Duration::from_secs(step.into()) - INTERVAL / 2;
                tell(News::History(range, history));
            }
        }
        match orders.recv_timeout(if many { INTERVAL_MANY } else { INTERVAL }) {
            Ok(Order::Range(wanted)) => {
                range = wanted;
                points_due = Instant::now();
            }
            Ok(Order::Change(path, body, done)) => {
                let said = match (gateway.ask)(path, Some(&body)) {
                    Ok(_) => News::Said(Weight::Good, done),
                    Err(why) => failed(&why),
                };
                tell(said);
            }
            Ok(order) => begin(gateway, order, &busy, tell),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

fn failed(why: &str) -> News {
    News::Said(Weight::Bad, format!("that did not work: {why}"))
}

/// Starts what takes long.
fn begin(gateway: &Gateway, order: Order, busy: &Arc<AtomicBool>, tell: &Tell) {
    if busy.swap(true, Ordering::SeqCst) {
        let text = "still busy with what was asked before; ask again in a moment";
        tell(News::Said(Weight::Worse, text.to_owned()));
        return;
    }
    let (gateway, busy, tell) = (gateway.clone(), Arc::clone(busy), Arc::clone(tell));
    std::thread::spawn(move || {
        let news = carry_out(&gateway, order);
        busy.store(false, Ordering::SeqCst);
        tell(news.unwrap_or_else(|why| failed(&why)));
    });
}

fn carry_out(gateway: &Gateway, order: Order) -> Result<News, String> {
    match order {
        Order::Doctor => Ok(News::Text("Doctor", doctor(gateway)?)),
        Order::Report(path) => {
            let doctor = doctor(gateway);
            let happened = get(gateway, "/v1/happened");
            let status = get::<Value>(gateway, "/v1/status");
            write_new(&path, &report::of(doctor, happened, status))?;
            let text = format!(
                "the report is in {}; keys and tokens are left out, names and addresses are not",
                path.display()
            );
            Ok(News::Said(Weight::Good, text))
        }
        Order::Revoke(name) => {
            // A name that begins with '-' is no option this way.
            let ran = (gateway.command)(vec!["invite".to_owned(), format!("--revoke={name}")])?;
            if ran.ok {
                Ok(News::Said(Weight::Good, format!("site {name} is revoked")))
            } else {
                let said = report::without_secrets(ran.notes.trim());
                Err(said.strip_prefix("ropewalk: ").unwrap_or(&said).to_owned())
            }
        }
        Order::Range(_) | Order::Change(..) => Err("this takes no thread of its own".to_owned()),
    }
}

/// What the doctor prints. It ends with 1 when a check failed: that is an answer.
fn doctor(gateway: &Gateway) -> Result<String, String> {
    let ran = (gateway.command)(vec!["doctor".to_owned()])?;
    Ok(ran.out + &ran.notes)
}

/// Writes a file that was not there, for its owner only.
fn write_new(path: &Path, text: &str) -> Result<(), String> {
    let mut options = OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(path);
    let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|error| format!("cannot write {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_never_replaces_a_file_or_follows_a_link() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("report.txt");
        write_new(&path, "first").unwrap();
        let again = write_new(&path, "second").unwrap_err();
        assert!(again.contains("report.txt: File exists"), "{again}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "first");
        let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(&path).unwrap());
        assert_eq!(mode & 0o777, 0o600);
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(directory.path().join("elsewhere"), &link).unwrap();
        write_new(&link, "third").unwrap_err();
        assert!(!directory.path().join("elsewhere").exists());
    }

    /// Runs the worker against a gateway whose status comes from `status`; its news.
    fn news_of(
        orders: Vec<Order>,
        count: usize,
        ask: impl Fn(&str, Option<&Value>) -> Result<Value, String> + Send + Sync + 'static,
    ) -> Vec<News> {
        let (sender, taken) = std::sync::mpsc::channel();
        for order in orders {
            sender.send(order).unwrap();
        }
        let (told, news) = std::sync::mpsc::channel();
        let left = std::sync::Mutex::new(count);
        let tell: Tell = Arc::new(move |news| {
            let mut left = left.lock().unwrap();
            *left = left.saturating_sub(1);
            told.send(news).unwrap();
            *left > 0
        });
        let gateway = Gateway {
            ask: Arc::new(ask),
            command: Arc::new(|_| Err("no commands here".to_owned())),
        };
        run(&gateway, Range::Minute, &taken, &tell);
        drop(sender);
        drop(tell);
        news.into_iter().collect()
    }

    fn answer(path: &str) -> Result<Value, String> {
        let status = Status {
            role: "site".to_owned(),
            ..Status::default()
        };
        match path {
            Route::STATUS_IN_SHORT => Ok(serde_json::to_value(status).unwrap()),
            "/v1/happened" => Ok(serde_json::json!([])),
            _ => Ok(serde_json::to_value(History::default()).unwrap()),
        }
    }

    #[test]
    fn a_gateway_that_does_not_answer_is_asked_again() {
        let asked = std::sync::atomic::AtomicUsize::new(0);
        let range = || Order::Range(Range::Hour);
        let news = news_of(vec![range(), range()], 4, move |path, _| {
            if path == Route::STATUS_IN_SHORT && asked.fetch_add(1, Ordering::SeqCst) < 2 {
                return Err("no gateway answers".to_owned());
            }
            answer(path)
        });
        let gone =
            |news: &News| matches!(news, News::Looked(_, Err(why)) if why == "no gateway answers");
        assert!(news[..2].iter().all(gone), "{news:?}");
        assert!(matches!(news[2], News::Looked(_, Ok(_))), "{news:?}");
    }

    #[test]
    fn a_change_is_sent_once_and_what_came_of_it_is_told() {
        let order = |path| Order::Change(path, serde_json::json!({"a": 1}), "done".to_owned());
        let news = news_of(
            vec![order("/good"), order("/bad")],
            8,
            |path, body| match (path, body) {
                ("/good", Some(_)) => Ok(Value::Null),
                ("/bad", Some(_)) => Err("there is no such uplink".to_owned()),
                (_, Some(_)) => panic!("{path}"),
                (_, None) => answer(path),
            },
        );
        let mut said = Vec::new();
        for one in news {
            if let News::Said(weight, text) = one {
                said.push((weight, text));
            }
        }
        let bad = "that did not work: there is no such uplink".to_owned();
        assert_eq!(
            said,
            [(Weight::Good, "done".to_owned()), (Weight::Bad, bad)]
        );
    }

    #[test]
    fn what_runs_here_without_a_tunnel_is_told() {
        let status = Status {
            role: "balance".to_owned(),
            ..Status::default()
        };
        let status = serde_json::to_value(status).unwrap();
        let gateway = Gateway {
            ask: Arc::new(move |_, _| Ok(status.clone())),
            command: Arc::new(|_| Err("no commands here".to_owned())),
        };
        let why = all(&gateway, Range::Day).unwrap_err();
        assert!(why.contains("`ropewalk balance` runs here"), "{why}");
    }
}
