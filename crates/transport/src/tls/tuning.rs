//! Every constant of TLS over TCP that could be another.
//!
//! Each comment says what the constant is, its unit, and what a larger value buys and costs. The
//! reasons are in `docs/decisions/transport.md`. None of them was measured by itself.

use ropewalk_types::Duration;

/// Most bytes one call of [`super::TlsPath::poll_output`] appends. More: fewer calls, longer turns.
pub const OUTPUT_MAX: usize = 64 * 1024;
/// Bytes of frames that may wait to be encrypted. More: fewer refused datagrams, packets are bound
/// to the path earlier.
pub const OUTPUT_QUEUE_MAX: usize = 256 * 1024;
/// Bytes of datagrams that may wait for [`super::TlsPath::receive`]; beyond it they are dropped.
/// More: a slow reader loses less, more memory.
pub const INPUT_QUEUE_MAX: usize = 1024 * 1024;
/// Bytes encrypted at once: a few records (RFC 8446 §5.1), so that little waits in encrypted form.
/// More: fewer calls of the TLS library, packets are bound to the path earlier.
pub(super) const ENCRYPT_MAX: usize = 32 * 1024;
/// Data that may wait for TCP, in time at the measured rate. More than on a QUIC path, since
/// nobody is told when an acknowledgement opens TCP's window. Longer: fuller paths, packets are
/// bound to the path earlier.
pub(super) const QUEUE_TIME: Duration = Duration::from_millis(4);
/// Least and largest value of the data that may wait for TCP, in bytes.
pub(super) const QUEUE_BYTES: (u64, u64) = (8 * 1024, 256 * 1024);
