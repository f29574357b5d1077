//! Every constant of a hub.
//!
//! Each comment says what the constant is, its unit, and what a larger value buys and costs. None
//! of them was measured by itself.

use ropewalk_types::Duration;

/// How long a connection may stay without a `Hello`. Longer: slower paths are introduced, mute
/// connections hold memory for longer.
pub(super) const HELLO_WAIT: Duration = Duration::from_secs(5);
/// How often connections without `Hello` are looked for. Longer: less work, later ends by as much.
pub(super) const TICK: Duration = Duration::from_secs(1);
/// The timers of a site that waits for its turn to send are looked at once in this time. Longer: less work of a hub
/// with many such sites, later packets from them to hosts.
pub(super) const DUE_AGAIN: Duration = Duration::from_millis(20);
/// Most sites of a hub. More: larger hubs, more memory.
pub const SITES_MAX: usize = 10_000;
/// Most connections of one key: two for each of the most paths a site can have. More: a site that roams
/// often waits less for old ones to end, one key takes more memory.
pub(super) const LINKS_PER_KEY: usize = 32;
/// Starts of one site are answered once in this time on average. Longer: a site that restarts again and
/// again waits, one that pretends to costs less.
pub(super) const RESTART_INTERVAL: Duration = Duration::from_secs(1);
/// And this often in a row.
pub(super) const RESTARTS: u32 = 4;
/// The scheduler towards a site changes on its wish once in this time on average, as each change costs tables. Longer:
/// a user who tries schedulers waits, a site that changes again and again costs less.
pub(super) const SCHEDULER_INTERVAL: Duration = Duration::from_millis(100);
/// And this often in a row.
pub(super) const SCHEDULERS: u32 = 10;
/// A path of one site moves to another connection once in this time on average. Longer: sites whose paths
/// flap wait, one that pretends to costs less.
pub(super) const MOVE_INTERVAL: Duration = Duration::from_millis(100);
/// And this often in a row: twice for each path a site can have.
pub(super) const MOVES: u32 = 32;
/// Enrolments of all invitations at a worker reach the control side once in this time on average: each costs a
/// look into the sites file. Longer: many sites that join at once wait, holders of invitations cost less.
pub(super) const ENROL_INTERVAL: Duration = Duration::from_millis(50);
/// And this often in a row.
pub(super) const ENROLS: u32 = 16;
/// Those of one invitation do once in this time on average. Longer: machines that join by one token at once
/// wait, the holder of a dead token takes less of what is for all.
pub(super) const INVITATION_INTERVAL: Duration = Duration::from_secs(1);
/// And this often in a row.
pub(super) const INVITATION_ENROLS: u32 = 4;
/// A next key of one site is noted once in this time on average: each costs two writes of the sites file and a look at
/// the firewall rules. Longer: a user who tries waits, a site that changes its key again and again costs less.
pub(super) const ROTATION_INTERVAL: Duration = Duration::from_secs(60);
/// And this often in a row: a key that was stolen, and a few slips.
pub(super) const ROTATIONS: u32 = 4;
/// Sites that have not said that they know the hub's next key are told again after this time. Longer: fewer
/// datagrams to sites whose program is too old to answer, later answers where one was lost.
pub(super) const ANNOUNCE_INTERVAL: Duration = Duration::from_secs(10);
/// Connections with the former key of a site live on for this time after the site has connected with the next
/// one. Longer: paths that are slow to reconnect go on, a thief of the former key is connected for longer.
pub(super) const OLD_KEY_GRACE: Duration = Duration::from_secs(30);
/// Claims of one site are checked once in this time on average: each costs a signature check, 50 µs. Longer: a site
/// that moves again and again waits, one that pretends to costs less.
pub(super) const CLAIM_INTERVAL: Duration = Duration::from_millis(200);
/// And this often in a row.
pub(super) const CLAIMS: u32 = 16;
/// How long a hub that does not serve a site any more delivers what comes over the old connections. Longer: more late
/// packets arrive beside those that the site has sent again, the tunnel holds memory for longer.
pub(super) const WITHDRAWN_DRAIN: Duration = Duration::from_secs(2);

// Sites that shall leave: `docs/decisions/fleet.md`.

/// How often some sites are told to leave, while a hub is drained. With [`TOLD`] this is 100 sites a second for each
/// worker. Longer: hubs that take the sites, routers and etcd have less to do at once, the hub is empty later.
pub(super) const TELL_INTERVAL: Duration = Duration::from_millis(100);
/// Sites told at once. More: the reverse.
pub(super) const TOLD: usize = 10;
/// After this time at the earliest a site that stays is told again. A site with a spare has left by then. Longer: fewer
/// datagrams to sites without a spare that works, later moves where the word was lost.
pub(super) const TELL_AGAIN: Duration = Duration::from_secs(2);
/// A site that has left on the word of this hub is served as before for so long at least: packets to it come here until
/// routers have heard of the move. Longer: slower routers lose nothing, two hubs have memory for the site for longer.
pub(super) const LINGER_MIN: Duration = Duration::from_secs(3);
/// After that the service ends once nothing has come for the site for this long. Longer: sparse flows whose route has
/// not changed lose nothing, the same memory. Not measured.
pub(super) const LINGER_IDLE: Duration = Duration::from_secs(1);
/// And after this time in any case. Longer: the same.
pub(super) const LINGER_MAX: Duration = Duration::from_secs(10);
/// How often it is looked whether the service of such a site may end. Longer: less work, packets to a site that no path
/// reaches any more are held here for longer.
pub(super) const LINGER_LOOK: Duration = Duration::from_millis(200);
/// Time after which a question counts as lost, and another one of the same connection gets through. Longer:
/// later joins where the control side had no answer, fewer repetitions while it takes its time.
pub(super) const ENROL_PATIENCE: Duration = Duration::from_secs(1);
/// Refusals of one invitation cause a line in the log once in this time on average. Longer: a shorter log.
pub(super) const REFUSAL_INTERVAL: Duration = Duration::from_secs(60);
/// And this often in a row.
pub(super) const REFUSALS: u32 = 4;

/// Packets in fragments that are remembered while they are under way, for each block of ports and direction. More: more of
/// them may be under way at once, each later fragment is compared with more, and each takes some 100 bytes. Not measured.
pub(super) const FRAGMENTS: usize = 64;
/// And for so long, as receivers wait for the rest of a packet (RFC 791 §3.2). Longer: slower senders are heard, and a number
/// that is used again may lead to another site.
pub(super) const FRAGMENT_AGE: Duration = Duration::from_secs(15);

/// Packets that wait to be passed on to other hubs, between two looks of the driver. More: longer bursts are passed on
/// whole, they take more memory. Not measured.
pub(super) const PASSED_MAX: usize = 4_096;
/// Memory that is asked for at once for headers of packets that are passed on, bytes. More: fewer requests, each packet
/// that waits in the kernel's queue keeps more.
pub(super) const WRAP_CHUNK: usize = 4_000;
