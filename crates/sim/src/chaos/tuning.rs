//! Every constant of chaos. Each comment says what the constant is, its unit, and what a larger value buys and
//! costs. None of them was measured by itself.

use ropewalk_types::Duration;

// Stories. More of each: more is tried, and a seed takes longer.

/// Most sites.
pub(super) const SITES_MAX: usize = 6;
/// Most paths of a site.
pub(super) const UPLINKS_MAX: usize = 4;
/// Least and most events.
pub(super) const EVENTS: (usize, usize) = (5, 20);
/// Least and most time in which events begin, seconds.
pub(super) const SPAN: (f64, f64) = (5.0, 60.0);
/// Nothing happens before: tunnels come up for the first time.
pub(super) const START: Duration = Duration::from_secs(3);
/// Longest outage after which all TCP segments still come, seconds. It is shorter than the hold of 60 s
/// ([`ropewalk_core::hold::Limits`]), because two outages may meet.
pub(super) const HOLD_MAX: f64 = 25.0;
/// Longest outage and longest pause of a machine, seconds: longer than the hold.
pub(super) const LONG_MAX: f64 = 100.0;
/// Share of stories in which the hub has little memory for packets, and packets are large. More: the bound of the
/// hub's memory is tried more often, and all else less often with the memory that most hubs have.
pub(super) const SCARCE_SHARE: f64 = 0.2;
/// Memory of such a hub, bytes: that of a worker where `memory_mb` is the least that it may be and `workers` the most,
/// 16 MB and 64. More: only longer outages fill the memory.
pub(super) const SCARCE_MEMORY: u64 = 250_000;
/// Bytes of a numbered packet in such a story. More: an outage fills the memory sooner.
pub(super) const SCARCE_BYTES: u32 = MTU;
/// Packets that wait at a link at most.
pub(super) const QUEUE_PACKETS: u64 = 200;

/// Share of stories with a second hub. More: moves are tried more often, all else less often with one hub.
pub(super) const SPARE_SHARE: f64 = 1.0 / 3.0;
/// Share of those in which the hubs learn from each other what sites have signed. The others have no common state.
pub(super) const TOLD_SHARE: f64 = 0.5;
/// Least and most events of hubs in such a story, beside all others.
pub(super) const HUB_EVENTS: (usize, usize) = (2, 7);
/// Share of these events that meet the home, at which all sites begin; the others meet the spare.
pub(super) const HOME_SHARE: f64 = 0.6;

// Traffic of each site.

/// Time between two numbered packets of a flow. Shorter: more is checked, and a seed takes longer.
pub(super) const NUMBERED_INTERVAL: Duration = Duration::from_millis(50);
/// Bytes of a numbered packet, unless memory is scarce.
pub(super) const NUMBERED_BYTES: u32 = 300;
/// Time between two times that a TCP sender gets something to send, and how much, segments.
pub(super) const OFFER_INTERVAL: Duration = Duration::from_millis(500);
pub(super) const OFFER_SEGMENTS: u32 = 15;
/// Largest packets of TCP, bytes.
pub(super) const MTU: u32 = 1_300;
/// Time between two packets with the source of another site.
pub(super) const SPOOF_INTERVAL: Duration = Duration::from_millis(700);

// The hostile site.

/// Time between two attacks: 50 packets and up to 150 datagrams in a second.
pub(super) const HOSTILE_INTERVAL: Duration = Duration::from_millis(20);
/// Datagrams, and packets, of another site that it keeps.
pub(super) const HOSTILE_KEPT: usize = 64;
/// Most bytes of what it makes longer.
pub(super) const HOSTILE_BYTES: usize = 1_100;

// Bounds: `docs/chaos.md` derives them.

/// A tunnel works again after so many round trips and this time.
pub(super) const RETURN_ROUND_TRIPS: u32 = 8;
pub(super) const RETURN_TIME: Duration = Duration::from_millis(4_000);
/// More on links that lose packets: an attempt may be lost, and the next one too.
pub(super) const RETURN_TIME_LOSSY: Duration = Duration::from_secs(6);
/// Every path works again after so much more: an idle one is asked every 10 s.
pub(super) const PATHS_TIME: Duration = Duration::from_millis(12_500);
/// More for all of that where a site has two hubs: a connection to the spare that owes an answer is given up after 4 s
/// (`WARM_PATIENCE`), an attempt at one as well (`ATTEMPT_LIFETIME`), and the next one begins up to 6.25 s after it
/// (`WARM_RETRY`, a quarter longer by chance).
pub(super) const MOVE_TIME: Duration = Duration::from_millis(14_250);
/// A hub that does not serve a site any more keeps the tunnel for so long: `WITHDRAWN_DRAIN`, and a look.
pub(super) const WITHDRAWN_TIME: Duration = Duration::from_millis(2_200);
/// Withdrawals of a site that a hub has open at most: the claims that it checks within `WITHDRAWN_DRAIN`, 16 in a row
/// and one each 200 ms.
pub(super) const WITHDRAWALS_MAX: usize = 26;
/// Packets of a site that come twice at most for each time that an end began anew or the site moved.
pub(super) const COPIES_MAX: u32 = 200;
/// What a hub has learned of sites reaches the other one after this time, where they learn from each other.
pub(super) const TOLD_AFTER: Duration = Duration::from_millis(400);
/// Numbered packets are counted for so long after that.
pub(super) const PROBATION: Duration = Duration::from_secs(3);
/// Share of numbered packets that come on links that lose packets.
pub(super) const PROBATION_SHARE: f64 = 0.8;
/// TCP of hosts is done so long after that: its timer may have doubled up to 120 s.
pub(super) const STREAMS_TIME: Duration = Duration::from_secs(125);
/// What is under way when a gateway ends is gone. Packets sent so long before do not count.
pub(super) const LOST_BEFORE: Duration = Duration::from_secs(62);
/// And so long after both ends are up again: the hub's welcome may be lost, and packets overtake it.
pub(super) const SETTLE: Duration = Duration::from_secs(2);
/// Connections that are not needed any more are gone after this time: the idle timeout, 90 s, three probe timeouts of a
/// closed connection, and what drains.
pub(super) const LINKS_TIME: Duration = Duration::from_secs(110);
/// And at some time within this one after that each path has one connection: an attempt that was not needed ends, and
/// the state of its connection with it.
pub(super) const LINKS_MOMENT: Duration = Duration::from_secs(15);
/// Turns of all gateways in [`LOOK`] that need no reason.
pub(super) const TURNS_FREE: u64 = 400;
/// Turns for each packet that is sent or offered.
pub(super) const TURNS_EACH: u64 = 6;
/// Bytes by which the hub may exceed its memory: what a turn takes in before it is counted, and what each site may
/// always have (32 KiB: `ROOM_MIN` of `core/queue/tuning.rs`).
pub(super) const MEMORY_SLACK: u64 = 64 * 1_024;
pub(super) const MEMORY_EACH: u64 = 32 * 1_024;
/// Bytes that may stay taken after all has ended: what libraries keep for the thread.
pub(super) const LEAK_MAX: i64 = 256 * 1_024;
/// How often all is looked at.
pub(super) const LOOK: Duration = Duration::from_millis(100);
/// Looks at the world without time passing, after which it counts as spinning.
pub(super) const STEPS_MAX: u32 = 50_000;
