//! Every constant of a site.
//!
//! Each comment says what the constant is, its unit, and what a larger value buys and costs.
//! "Measured" names the document with the figures. A constant without that word was not measured
//! by itself.

use ropewalk_types::Duration;

// Connection attempts: see `docs/decisions/path-liveness.md`.

/// A path silent for this long gets a new connection beside the old one. Longer: fewer handshakes
/// for short silences, later returns after a restart of the hub.
pub(super) const RECONNECT_AFTER: Duration = Duration::from_millis(400);
/// Time between the first connection attempts of a silent path. Longer: fewer bytes on a dead path, later
/// returns. Measured: `docs/decisions/path-liveness.md`.
pub(super) const ATTEMPT_INTERVAL: Duration = Duration::from_millis(250);
/// Attempts at that interval. The interval then doubles with each one. More: sooner back after
/// longer outages; a hub that starts again meets more attempts at once.
pub(super) const ATTEMPTS_QUICK: u32 = 8;
/// Longest interval. Longer: a hub that starts again meets fewer attempts, links that return after a
/// long time are found later.
pub(super) const ATTEMPT_INTERVAL_MAX: Duration = Duration::from_secs(1);
/// By how much an interval may be longer or shorter by chance, share: sites that lost the hub
/// together do not come back together. More: the same.
pub(super) const ATTEMPT_JITTER: f64 = 0.25;
/// An attempt that has not succeeded by then is given up. The time begins anew when the hub first answers, and when the
/// connection is up. Longer than any round trip with a repetition.
pub(super) const ATTEMPT_LIFETIME: Duration = Duration::from_secs(4);
/// QUIC attempts of one path under way at once. More: the same bytes, more state.
pub(super) const ATTEMPTS_MAX: usize = 4;
/// After [`ATTEMPTS_QUICK`] of them. More: a hub that starts again meets as many first packets more, of which one for each
/// path is of use. Measured: `docs/decisions/hub.md`.
pub(super) const ATTEMPTS_SLOW_MAX: usize = 2;
/// The round trip that these assume, so that they repeat their first packet after 1 s, which is when the next attempt
/// begins. Longer: a hub that starts again meets fewer first packets, later returns where one is lost.
pub(super) const ASSUMED_RTT_SLOW: std::time::Duration = std::time::Duration::from_millis(333);
/// While the hub answers an attempt, no younger one is begun. The next answer is late after this many
/// times the time of the first one. More: fewer handshakes that nobody needs, later new attempts on
/// links that lose packets. Measured: `docs/decisions/hub.md`.
pub(super) const ANSWERS_LATE: f64 = 2.0;
/// Added to the time of the first answer: what the handshake costs the hub under load, and that a site
/// looks every [`TICK`]. Longer: the same.
pub(super) const ANSWER_SLACK: Duration = Duration::from_millis(50);
/// How long QUIC may fail before TLS over TCP is tried. Longer: fewer paths on TCP for a passing
/// fault, later tunnels where UDP is blocked.
pub(super) const FALLBACK_AFTER: Duration = Duration::from_millis(1_000);
/// While TLS carries a path: how often QUIC is tried.
pub(super) const RETURN_INTERVAL: Duration = Duration::from_secs(10);

/// After a hub that speaks no version of the site: how long a path waits before it tries again. A spare is left alone for
/// as long. Longer: less for nothing at a hub that stays as it is, a later return after its upgrade.
pub(super) const VERSION_RETRY: Duration = Duration::from_secs(60);

// Several hubs: `docs/decisions/fleet.md`.

/// How often the spare is told which hub serves, over each connection that waits. That keeps mappings of NATs alive:
/// RFC 4787 asks for two minutes, and many home routers take 30 s. Cost: 129 bit/s per uplink in both directions together,
/// with UDP and IPv4 headers. Measured: `docs/decisions/fleet.md`. Longer: fewer bytes, more connections that are dead
/// when they are needed.
pub(super) const WARM_INTERVAL: Duration = Duration::from_secs(25);
/// A spare that owes an answer for this long gets a new connection. Longer: fewer handshakes on bad links, longer
/// without a spare.
pub(super) const WARM_PATIENCE: Duration = Duration::from_secs(4);
/// How often a connection to the spare is tried while the serving hub works. Longer: fewer bytes for a spare that is
/// down, later readiness after its return.
pub(super) const WARM_RETRY: Duration = Duration::from_secs(5);
/// How often a spare is asked again that has not answered, at least a tick. Longer: fewer bytes in an outage, later
/// moves where a question was lost.
pub(super) const ASK_INTERVAL: Duration = Duration::from_millis(200);
/// That interval, and [`HELLO_INTERVAL`] while a spare is claimed, doubles so often. More: later moves where several in a
/// row were lost, a hub that a thousand sites ask at once has less to answer.
pub(super) const REPEATS_DOUBLED: u32 = 2;
/// How long the serving hub may still speak once the spare has answered, beside a round trip. Longer: later moves, fewer of
/// them when all uplinks come back at the same time. Measured: `docs/decisions/fleet.md`.
pub(super) const CLAIM_GRACE: Duration = Duration::from_millis(100);
/// A spare that is claimed, and has not taken this site by then, is given up where there is another one. Longer: a site is
/// without service for longer if the spare dies in that moment, or is full. Shorter: a busy spare loses sites that it would
/// have taken. A thousand sites that lost their hub were served within 5 s: `docs/decisions/fleet.md`.
pub(super) const CLAIM_PATIENCE: Duration = Duration::from_secs(10);
/// A spare that has owed an answer for this long over all paths, while the hub serves, is given up for another one: two or
/// three attempts over each path. In an outage of the hub [`WARM_PATIENCE`] is the time. Longer: a site whose spare has
/// died has none for longer. Shorter: bad links, and names that are not found yet, cost a site its first spare. Not
/// measured.
pub(super) const SPARE_PATIENCE: Duration = Duration::from_secs(15);
/// How long a hub that was silent is a spare only where there is no better one. Longer: fewer attempts at a hub that stays
/// away. Shorter: a hub that is back is a spare sooner where the present spare is drained. Not measured.
pub(super) const SILENT_LIFETIME: Duration = Duration::from_secs(600);
/// How long the word of a hub that this site shall leave counts, unless the hub repeats it: the hub does so every 2 s.
/// Longer: one lost repetition more, a site leaves so long after the word was taken back.
pub(super) const WORD_LIFETIME: Duration = Duration::from_secs(5);
/// How long a site that shall leave waits for answers of the spare over further paths once it has one. Longer: fewer
/// paths that need a new connection after the move, later moves where the spare is not reached over one of them.
pub(super) const GATHER: Duration = Duration::from_millis(1_000);
/// How long the spare has for its welcome, when the site moves because it shall leave. Shorter than the former hub goes on
/// for a site that has left, 3 s. Longer: surer on bad links, later another try.
pub(super) const WELCOME_PATIENCE: Duration = Duration::from_millis(1_500);
/// How long the connections to a hub that the site has left on its word are kept, unless the hub closes them. Longer than
/// the hub goes on, 12 s at most. Longer: the same, and memory of a hub that has vanished meanwhile.
pub(super) const FORMER_LIFETIME: Duration = Duration::from_secs(15);
/// So often in a row such a hub is told who serves when it says that it has not heard; then once in [`HELLO_INTERVAL`]. More:
/// it hears sooner where packets are lost, each costs this site a signature.
pub(super) const FORMER_TOLD: u32 = 4;
/// How long a hub that said to be drained is taken for a spare only where there is no other. It says so each time it is
/// asked, but a hub that is no spare is not asked. Longer: fewer connections to hubs that stay drained, later use of one
/// that is not any more, of sites with three hubs.
pub(super) const DRAINED_LIFETIME: Duration = Duration::from_secs(600);
/// How long a site that has just started waits for its home. Longer: fewer moves at starts on bad links, later
/// service where the home is down.
pub(super) const FIRST_PATIENCE: Duration = Duration::from_secs(2);
/// Claims that hubs tell this site are checked once in this time on average: each costs up to three signature checks
/// of 50 µs. Longer: a site that has started anew learns later where it was served, a hub that makes claims up costs
/// less.
pub(super) const TOLD_INTERVAL: Duration = Duration::from_millis(200);
/// And this often in a row.
pub(super) const TOLD: u32 = 16;

// Turns.

/// How often silence, attempts and unanswered messages are looked at. Longer: less work, later
/// reactions by as much.
pub(super) const TICK: Duration = Duration::from_millis(100);
/// Takes the place of [`TICK`] while every path is up and nothing is outstanding.
pub(super) const TICK_IDLE: Duration = Duration::from_secs(1);
/// How often the hub is asked again to take the next key of this site. Longer: fewer questions, later changes
/// where one was lost. The same for what the hub says of its own next key.
pub(super) const KEY_INTERVAL: Duration = Duration::from_secs(1);
/// And so often in a row its words are written down. More: a hub that changes its mind is followed sooner.
pub(super) const KEY_NOTES: u32 = 4;
/// How often an unanswered `Hello` is repeated.
pub(super) const HELLO_INTERVAL: Duration = Duration::from_millis(150);
/// Bytes waiting at the ingress beyond which no more inner packets are welcome: the queue of the
/// TUN interface then pushes back on local senders. Larger: longer queues beside local bulk.
pub(super) const INGRESS_FULL_BYTES: u64 = 4 * 1024 * 1024;
