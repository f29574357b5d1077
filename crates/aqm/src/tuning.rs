//! The parameters that the RFCs recommend, with what a larger value buys and costs.
//!
//! They are the defaults of links. The tunnel's ingress derives its own target and interval from
//! its paths. Nothing here was measured in this project.

use ropewalk_types::Duration;

/// CoDel: standing delay that is accepted (RFC 8289 §4.4). Longer: fuller links under loss-based
/// senders, longer waits.
pub const CODEL_TARGET: Duration = Duration::from_millis(5);
/// CoDel: how long the delay must exceed the target before the first drop, about the longest round
/// trip of the flows (RFC 8289 §4.3). Longer: more bursts survive, later answers.
pub const CODEL_INTERVAL: Duration = Duration::from_millis(100);
/// CoDel: a backlog up to one packet is never congestion, bytes (RFC 8289 §5.4).
pub const BACKLOG_MIN: u64 = 1_514;

/// FQ-CoDel: buckets that flows are hashed into (RFC 8290 §5.2.6). More: fewer flows share one.
pub const FLOW_BUCKETS: usize = 1_024;
/// FQ-CoDel: bytes that a flow may send in a turn (RFC 8290 §5.2.4: one packet with its Ethernet
/// header). More: fewer turns, longer waits for sparse flows.
pub const QUANTUM: i64 = 1_514;

/// PIE: delay that is aimed at (RFC 8033 §5, `QDELAY_REF`). Longer: fuller links, longer waits.
pub const PIE_TARGET: Duration = Duration::from_millis(15);
/// PIE: time between two updates of the drop probability (`T_UPDATE`). Longer: slower answers.
pub const PIE_UPDATE: Duration = Duration::from_millis(15);
/// PIE: how long a burst after a quiet time is spared (`MAX_BURST`). Longer: longer bursts survive.
pub const PIE_BURST: Duration = Duration::from_millis(150);
/// PIE: what the deviation from the target adds to the probability, 1/s (RFC 8033 §5.1). More:
/// quicker, less stable.
pub const PIE_ALPHA: f64 = 0.125;
/// PIE: the same for the growth of the delay since the last update, 1/s.
pub const PIE_BETA: f64 = 1.25;
/// PIE: most that one update adds while the probability is a tenth or more.
pub const PIE_STEP_MAX: f64 = 0.02;
/// PIE: what is left of the probability at each update without any delay (RFC 8033 §4.2).
pub const PIE_DECAY: f64 = 0.98;
/// PIE: above this probability packets are dropped also where they could be marked (`mark_ecnth`).
pub const PIE_MARK_MAX: f64 = 0.1;
/// PIE: up to this probability a delay below half the target lets every packet pass.
pub const PIE_CALM_MAX: f64 = 0.2;
/// PIE: up to so many waiting bytes every packet passes: two packets.
pub const PIE_BACKLOG_MIN: u64 = 3_000;
/// PIE: bounds of what the probabilities since the last drop may add up to. Below the first no
/// packet is dropped, from the second on one certainly is (RFC 8033 §5.4).
pub const PIE_EVEN: [f64; 2] = [0.85, 8.5];
/// PIE: by what the change of a small probability is divided: below the first value by the second
/// (RFC 8033 §4.2).
pub const PIE_SCALES: [(f64, f64); 6] = [
    (0.000_001, 2_048.0),
    (0.000_01, 512.0),
    (0.000_1, 128.0),
    (0.001, 32.0),
    (0.01, 8.0),
    (0.1, 2.0),
];
