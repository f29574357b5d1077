//! Bulk TCP by `iperf3`: the receiving end says every tenth of a second what came.
//!
//! An iperf3 program connects one stream after the other before it sends. So the start of its clock
//! is taken from the receiving process, which begins to read bulk data then.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use ropewalk_plan::{Congestion, Direction, FlowReport};
use rustix::process::Signal;
use serde_json::Value;

use super::{Outcome, Source, Stage, sleep_until};
use crate::process::{Process, Program};
use crate::traffic::iperf;

use super::super::Window;
use super::super::series::{AllSeries, Series};

/// One `[[traffic]]` section of kind `tcp`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub(super) flows: u32,
    pub(super) congestion: Congestion,
    pub(super) direction: Direction,
    pub(super) start: Duration,
    /// Bytes of data in a segment at most.
    pub(super) segment: Option<u32>,
    /// Bytes of the receiver's window at most.
    pub(super) window: Option<u32>,
    /// When it stops.
    pub(super) until: Duration,
}

impl Load {
    /// The time in which it goes on.
    pub(super) const fn active(&self) -> Window {
        Window {
            from: self.start,
            to: self.until,
        }
    }
}

/// Servers that listen, and clients that will connect to them.
#[derive(Debug)]
pub(super) struct Iperf {
    stage: Stage,
    load: Load,
    pairs: Vec<Pair>,
}

/// One server and its client to be.
#[derive(Debug)]
struct Pair {
    name: String,
    server: Process,
    client: Program,
    flows: u32,
    port: u16,
}

impl Iperf {
    /// Starts the servers.
    pub(super) fn prepare(stage: &Stage, index: usize, load: Load) -> Result<Self> {
        let mut pairs = Vec::new();
        let mut left = load.flows;
        while left > 0 {
            let flows = left.min(FLOWS_PER_PROGRAM);
            left -= flows;
            let port = FIRST_PORT + u16::try_from(index * GROUPS_MAX + pairs.len())?;
            let name = format!("iperf3-{index}-{}", pairs.len());
            pairs.push(Pair::prepare(stage, load, flows, port, &name)?);
        }
        for pair in &pairs {
            iperf::await_listener(&stage.ends, pair.port)?;
        }
        Ok(Self {
            stage: stage.clone(),
            load,
            pairs,
        })
    }
}

impl Pair {
    fn prepare(stage: &Stage, load: Load, flows: u32, port: u16, name: &str) -> Result<Self> {
        let (ends, port_text) = (&stage.ends, port.to_string());
        let address = ends.server_address.to_string();
        let server = ends
            .server
            .program("iperf3")
            .args(["-s", "-1", "-J", "-i", "0.1", "-p", &port_text])
            .args(["-B", &address])
            .start(&stage.directory, &format!("{name}-server"))?;
        // iperf3 takes whole seconds; what is beyond the plan's end is not counted.
        let time = load.until.saturating_sub(load.start);
        let seconds = time.as_secs() + u64::from(time.subsec_nanos() > 0);
        let mut client = ends
            .client
            .program("iperf3")
            .args(["-c", &address, "-p", &port_text, "-J", "-i", "0.1"])
            .args(["-t", &seconds.to_string(), "-P", &flows.to_string()])
            .args(["-C", kernel_name(load.congestion)])
            // Otherwise it reads noise for its payload, which looks like data that came.
            .arg("--repeating-payload");
        if let Some(bytes) = load.segment {
            // What the socket option names includes the timestamps.
            let bytes = bytes + TIMESTAMP_BYTES;
            client = client.args(["-M", &bytes.to_string()]);
        }
        if let Some(device) = &ends.device {
            client = client.args(["--bind-dev", device]);
        }
        if load.direction == Direction::Down {
            client = client.arg("-R");
        }
        Ok(Self {
            name: name.into(),
            server,
            client,
            flows,
            port,
        })
    }

    /// Runs to the end; what each stream delivered, and why it broke off if it did.
    fn run(self, stage: &Stage, load: Load, begin: Instant) -> Result<Streams> {
        let Self {
            name,
            mut server,
            client,
            flows,
            ..
        } = self;
        sleep_until(begin, load.start);
        let mut client = client.start(&stage.directory, &format!("{name}-client"))?;
        let (receiver, end) = match load.direction {
            Direction::Down => (client.pid(), begin + load.until),
            Direction::Up => (server.pid(), begin + load.until),
        };
        let first_read = await_bulk_read(receiver, flows, end);
        let data_begin = first_read.saturating_duration_since(begin);
        // Others go on after a section that stops early, so it does not get time to say farewell.
        let limit = if load.until < stage.window.to {
            end
        } else {
            end + (data_begin.saturating_sub(load.start)) + END_GRACE
        };
        let mut ended = client.wait(limit.saturating_duration_since(Instant::now()))?;
        if ended.is_none() {
            client.signal(Signal::INT);
            ended = client.wait(INTERRUPT_LIMIT)?;
        }
        if server.wait(INTERRUPT_LIMIT)?.is_none() {
            server.signal(Signal::INT);
            server.wait(INTERRUPT_LIMIT)?;
        }
        let parse = |process: &Process| -> Result<Value> {
            serde_json::from_str(&process.output())
                .with_context(|| format!("{} gave no JSON: {}", process.name(), process.log_tail()))
        };
        let answer = ended.map_or(Ok(Value::Null), |_| parse(&client))?;
        let other = parse(&server).unwrap_or_default();
        let error = answer["error"].as_str().map(str::to_owned);
        if let Some(error) = &error
            && error.contains("TCP_CONGESTION")
        {
            bail!("iperf3: {error}");
        }
        let (received, sent) = match load.direction {
            Direction::Down => (&answer, &other),
            Direction::Up => (&other, &answer),
        };
        let mut streams = Streams::read(received, sent, flows);
        streams.error = error.or_else(|| ended.is_none().then(|| "did not end".to_owned()));
        streams.begin_at(data_begin);
        Ok(streams)
    }
}

impl Source for Iperf {
    fn run(self: Box<Self>, begin: Instant) -> Result<Outcome> {
        let Self { stage, load, pairs } = *self;
        let results: Vec<Result<Streams>> = std::thread::scope(|scope| {
            let threads: Vec<_> = pairs
                .into_iter()
                .map(|pair| scope.spawn(|| pair.run(&stage, load, begin)))
                .collect();
            let join = |thread: std::thread::ScopedJoinHandle<'_, _>| match thread.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            };
            threads.into_iter().map(join).collect()
        });
        let results = results.into_iter().collect::<Result<Vec<_>>>()?;
        Ok(outcome(results, load, &stage))
    }
}

/// What the streams of one iperf3 did.
#[derive(Debug, Default)]
struct Streams {
    series: Vec<Series>,
    retransmits: Vec<u64>,
    error: Option<String>,
}

impl Streams {
    /// Reads the series of the receiver, and what the sender sent again.
    fn read(received: &Value, sent: &Value, count: u32) -> Self {
        let count = count as usize;
        let (mut series, mut retransmits) = (vec![Series::default(); count], vec![0; count]);
        let number = |interval: &Value, index: usize, key: &str| {
            let value = interval["streams"][index][key].as_u64();
            value.unwrap_or(0)
        };
        for interval in received["intervals"].as_array().into_iter().flatten() {
            for (index, one) in series.iter_mut().enumerate() {
                one.bytes.push(number(interval, index, "bytes"));
            }
        }
        for interval in sent["intervals"].as_array().into_iter().flatten() {
            for (index, sum) in retransmits.iter_mut().enumerate() {
                *sum += number(interval, index, "retransmits");
            }
        }
        Self {
            series,
            retransmits,
            error: None,
        }
    }

    /// Sets the time of all series by when the first bytes came.
    fn begin_at(&mut self, first_bytes: Duration) {
        let quiet = self.series.iter();
        let quiet = quiet.filter_map(|one| one.bytes.iter().position(|&bytes| bytes > 0));
        let steps = u32::try_from(quiet.min().unwrap_or(0)).unwrap_or(0);
        for one in &mut self.series {
            one.begin = first_bytes.saturating_sub(STEP * steps);
            one.step = STEP;
        }
    }
}

/// All programs together.
fn outcome(results: Vec<Streams>, load: Load, stage: &Stage) -> Outcome {
    let (mut all, mut flows, mut notes) = (Vec::new(), Vec::new(), Vec::new());
    let mut began = Duration::ZERO;
    for streams in results {
        // Interrupted means only that the two programs could not say farewell in time.
        let broken = streams
            .error
            .as_ref()
            .is_some_and(|e| !e.contains("interrupt"));
        flows.extend(streams.retransmits.iter().map(|&retransmits| FlowReport {
            retransmits,
            broken,
            ..FlowReport::default()
        }));
        began = began.max(
            streams
                .series
                .first()
                .map_or(Duration::ZERO, |one| one.begin),
        );
        all.extend(streams.series);
        let error = streams
            .error
            .filter(|error| is_news(error, load, stage.window));
        notes.extend(error.map(|error| format!("iperf3: {error}")));
    }
    let retransmits: u64 = flows.iter().map(|flow| flow.retransmits).sum();
    notes.dedup();
    notes.push(format!(
        "tcp: {}, {retransmits} segments sent again, data from {:.2} s after its start on",
        kernel_name(load.congestion),
        began.saturating_sub(load.start).as_secs_f64()
    ));
    let report = AllSeries(all).report("tcp", load.active(), stage.window, flows);
    Outcome { report, notes }
}

/// Whether a reader should know of an error: a section with an `until` is always interrupted.
fn is_news(error: &str, load: Load, window: Window) -> bool {
    load.until >= window.to || !error.contains("interrupt")
}

/// When a process has begun to read bulk data, at the latest `end`.
fn await_bulk_read(pid: u32, flows: u32, end: Instant) -> Instant {
    let chatter = CHATTER_BYTES + CHATTER_BYTES_PER_FLOW * u64::from(flows);
    let read = || {
        let text = std::fs::read_to_string(format!("/proc/{pid}/io")).ok()?;
        text.lines()
            .next()?
            .strip_prefix("rchar: ")?
            .parse::<u64>()
            .ok()
    };
    // Loading the program reads its libraries; then there is a round trip of silence.
    std::thread::sleep(LOADING);
    let Some(base) = read() else {
        return Instant::now();
    };
    loop {
        let now = Instant::now();
        if now >= end || read().is_none_or(|count| count > base + chatter) {
            return now;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The congestion control as Linux names it.
pub(super) const fn kernel_name(congestion: Congestion) -> &'static str {
    match congestion {
        Congestion::NewReno => "reno",
        Congestion::Cubic => "cubic",
        Congestion::Bbr => "bbr",
    }
}

/// What iperf3 is asked to report in.
const STEP: Duration = Duration::from_millis(100);
/// Streams of one iperf3 program: each costs a round trip before any data.
const FLOWS_PER_PROGRAM: u32 = 10;
/// Ports that one section may use.
const GROUPS_MAX: usize = 100;
const FIRST_PORT: u16 = 5_201;
/// The option of RFC 7323 with its padding.
const TIMESTAMP_BYTES: u32 = 12;
/// What iperf3 may still read after its libraries and before data.
const CHATTER_BYTES: u64 = 4_096;
/// A cookie and some JSON.
const CHATTER_BYTES_PER_FLOW: u64 = 512;
/// How long iperf3 takes to be loaded.
const LOADING: Duration = Duration::from_millis(25);
/// How long the two iperf3 may take to say farewell.
const END_GRACE: Duration = Duration::from_millis(2_500);
const INTERRUPT_LIMIT: Duration = Duration::from_millis(1_500);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_until_is_no_news() {
        let window = Window {
            from: Duration::ZERO,
            to: Duration::from_secs(9),
        };
        let news = |error: &str, until: u64| {
            let load = Load {
                flows: 1,
                congestion: Congestion::Cubic,
                direction: Direction::Down,
                start: Duration::ZERO,
                segment: None,
                window: None,
                until: Duration::from_secs(until),
            };
            is_news(error, load, window)
        };
        let interrupted = "interrupt - the client has terminated";
        assert!(!news(interrupted, 5));
        assert!(news(interrupted, 9));
        assert!(news("unable to connect", 5));
    }

    #[test]
    fn series_come_from_the_receiver_and_begin_with_the_first_bytes() {
        let interval = |a: u64, b: u64| {
            let stream = |n: u64| serde_json::json!({"bytes": n, "retransmits": n / 100});
            serde_json::json!({"streams": [stream(a), stream(b)]})
        };
        let received = serde_json::json!({
            "intervals": [interval(0, 0), interval(0, 500), interval(700, 0)]
        });
        let sent = serde_json::json!({"intervals": [interval(300, 100), interval(400, 0)]});
        let mut streams = Streams::read(&received, &sent, 2);
        streams.begin_at(Duration::from_millis(350));
        assert_eq!(streams.retransmits, [7, 1]);
        assert_eq!(streams.series[0].bytes, [0, 0, 700]);
        assert_eq!(streams.series[1].begin, Duration::from_millis(250));
    }
}
