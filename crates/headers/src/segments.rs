//! The size of TCP's segments: a handshake that passes by asks for segments that fit paths whole.

use crate::layout::{IPV4, IPV6, TCP, be16, put16};
use crate::tuning::COMPRESSED_TCP;
use bytes::{Bytes, BytesMut};
use ropewalk_types::checksum;

const TCP_FIXED: usize = 20;
const SYN: u8 = 2;
/// Kinds of options (RFC 9293 §3.2, RFC 7323 §3.2).
const END: u8 = 0;
const NO_OPERATION: u8 = 1;
const MAXIMUM_SEGMENT_SIZE: u8 = 2;
const TIMESTAMPS: u8 = 8;
/// RFC 2385, RFC 5925 and RFC 8684.
const MD5: u8 = 19;
const AUTHENTICATION: u8 = 29;
const MPTCP: u8 = 30;
/// Bytes of timestamps and the padding before them in a segment.
const TIMESTAMP_OPTIONS: usize = 12;
/// What every host takes (RFC 9293 §3.7.1), bytes: no handshake is told less.
const SEGMENT_MIN: usize = 536;

/// Sizes of inner packets, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketSizes {
    /// What a datagram takes, besides the tunnel's header.
    pub whole: usize,
    /// The largest packet there may be.
    pub most: usize,
    /// Whether the headers of full segments are compressed.
    pub compressed: bool,
}

impl PacketSizes {
    /// Maximum segment size of a connection: payload and options.
    fn segment(self, found: &Handshake) -> u16 {
        let headers = found.tcp + TCP_FIXED;
        let whole = if self.compressed && !found.has_long_options {
            // Options are compressed away, but count as part of a segment.
            let options = if found.timestamps {
                TIMESTAMP_OPTIONS
            } else {
                0
            };
            self.whole
                .saturating_add(options)
                .saturating_sub(COMPRESSED_TCP)
        } else {
            self.whole.saturating_sub(headers)
        };
        let size = whole.min(self.most.saturating_sub(headers));
        u16::try_from(size.max(SEGMENT_MIN)).unwrap_or(u16::MAX)
    }
}

/// A TCP handshake with a smaller maximum segment size (option MSS, RFC 9293 §3.7.1), so that full
/// segments of its receiver fit `sizes`. `None` when the size fits, and for every packet that is no
/// handshake or says no size. `partial` says that the kernel completes the checksum later.
///
/// Handshakes with TCP-AO (RFC 5925) stay: their options are authenticated.
#[must_use]
pub fn limit_segments(packet: &[u8], sizes: PacketSizes, partial: bool) -> Option<Bytes> {
    let found = Handshake::of(packet)?;
    let size = sizes.segment(&found);
    let old = be16(packet, found.size_at);
    if size >= old {
        return None;
    }
    // Words of the checksum begin at even offsets from TCP's header.
    let odd = (found.size_at - found.tcp) % 2;
    let words = found.size_at - odd..found.size_at + 2 + odd;
    let mut limited = BytesMut::from(packet);
    put16(&mut limited, found.size_at, size);
    if !partial {
        let field = found.tcp + 16..found.tcp + 18;
        let ends = [words.start, words.end - 2];
        for &at in &ends[..=odd] {
            let (before, after) = (be16(packet, at), be16(&limited, at));
            checksum::update(&mut limited[field.clone()], before, after);
        }
    }
    Some(limited.freeze())
}

/// Where a handshake says what.
struct Handshake {
    /// Offset of TCP's header.
    tcp: usize,
    /// Offset of the size.
    size_at: usize,
    /// Whether it offers timestamps.
    timestamps: bool,
    /// Whether segments will have options that are not compressed away.
    has_long_options: bool,
}

impl Handshake {
    fn of(packet: &[u8]) -> Option<Self> {
        let tcp = match packet.first()? >> 4 {
            // No fragment; options of IP may be there.
            4 if packet.len() >= IPV4 && packet[9] == TCP && be16(packet, 6) & 0x3fff == 0 => {
                usize::from(packet[0] & 0xf) * 4
            }
            6 if packet.len() >= IPV6 && packet[6] == TCP => IPV6,
            _ => return None,
        };
        let header = packet.get(tcp..)?;
        if tcp < IPV4 || header.len() < TCP_FIXED || header[13] & SYN == 0 {
            return None;
        }
        let length = usize::from(header[12] >> 4) * 4;
        let options = header.get(TCP_FIXED..length)?;
        let (mut at, mut size) = (0, None);
        let (mut timestamps, mut has_long_options) = (false, false);
        while let Some(&kind) = options.get(at) {
            let length = match kind {
                END => break,
                NO_OPERATION => 1,
                _ => usize::from(*options.get(at + 1)?).max(2),
            };
            match (kind, length) {
                (MAXIMUM_SEGMENT_SIZE, 4) if at + 4 <= options.len() => size = Some(at + 2),
                (TIMESTAMPS, 10) => timestamps = true,
                (MD5 | MPTCP, _) => has_long_options = true,
                (AUTHENTICATION, _) => return None,
                _ => {}
            }
            at += length;
        }
        Some(Self {
            tcp,
            size_at: tcp + TCP_FIXED + size?,
            timestamps,
            has_long_options,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MSS_1460: [u8; 4] = [2, 4, 5, 0xb4];
    const OFFER: [u8; 10] = [8, 10, 1, 2, 3, 4, 0, 0, 0, 0];

    fn sizes(whole: usize, compressed: bool) -> PacketSizes {
        PacketSizes {
            whole,
            most: 1_500,
            compressed,
        }
    }

    /// What comes out of [`limit_segments`], changed or not.
    fn limit(packet: &mut Vec<u8>, sizes: PacketSizes, partial: bool) {
        if let Some(limited) = limit_segments(packet, sizes, partial) {
            assert_eq!(limited.len(), packet.len());
            *packet = limited.into();
        }
    }

    /// A handshake with these options, padded, and a right checksum.
    fn handshake(v6: bool, flags: u8, options: &[u8]) -> Vec<u8> {
        let tcp = if v6 { IPV6 } else { IPV4 };
        let padded = options.len().next_multiple_of(4);
        let mut packet = vec![0_u8; tcp + TCP_FIXED + padded];
        if v6 {
            (packet[0], packet[6]) = (0x60, TCP);
        } else {
            (packet[0], packet[9]) = (0x45, TCP);
        }
        let words = u8::try_from((TCP_FIXED + padded) / 4).expect("short");
        (packet[tcp + 12], packet[tcp + 13]) = (words << 4, flags);
        packet[tcp + TCP_FIXED..tcp + TCP_FIXED + options.len()].copy_from_slice(options);
        let sum = !checksum::fold(checksum::add(0, &packet[tcp..]));
        put16(&mut packet, tcp + 16, sum);
        packet
    }

    /// Offset of the size behind these bytes of options.
    fn size(packet: &[u8], v6: bool, before: usize) -> u16 {
        be16(
            packet,
            if v6 { IPV6 } else { IPV4 } + TCP_FIXED + before + 2,
        )
    }

    fn is_right(packet: &[u8], v6: bool) -> bool {
        let tcp = if v6 { IPV6 } else { IPV4 };
        checksum::fold(checksum::add(0, &packet[tcp..])) == 0xffff
    }

    #[test]
    fn segments_fit_whole_with_full_and_with_compressed_headers() {
        let with = |v6, offer: &[u8], compressed| {
            let options = [&MSS_1460[..], offer].concat();
            let mut packet = handshake(v6, SYN, &options);
            limit(&mut packet, sizes(1_400, compressed), false);
            assert!(is_right(&packet, v6));
            usize::from(size(&packet, v6, 0))
        };
        assert_eq!(with(false, &[], false), 1_400 - 40);
        assert_eq!(with(true, &[], false), 1_400 - 60);
        assert_eq!(with(false, &OFFER, false), 1_400 - 40, "options count");
        // The payload and the compressed headers fill a datagram.
        assert_eq!(with(false, &[], true), 1_400 - COMPRESSED_TCP);
        assert_eq!(with(true, &[], true), 1_400 - COMPRESSED_TCP);
        assert_eq!(with(false, &OFFER, true) - 12, 1_400 - COMPRESSED_TCP);
    }

    #[test]
    fn options_that_stay_long_have_room_and_authenticated_ones_stay() {
        let mptcp = [&MSS_1460[..], &OFFER, &[30, 4, 0, 0]].concat();
        let mut packet = handshake(false, SYN, &mptcp);
        limit(&mut packet, sizes(1_400, true), false);
        assert_eq!(size(&packet, false, 0), 1_360);
        let authenticated = [&MSS_1460[..], &[29, 4, 1, 1]].concat();
        let packet = handshake(false, SYN, &authenticated);
        assert_eq!(limit_segments(&packet, sizes(1_000, true), false), None);
    }

    #[test]
    fn packets_are_never_larger_than_the_mtu() {
        let options = [&MSS_1460[..], &OFFER].concat();
        for (compressed, expected) in [(false, 1_260), (true, 1_260)] {
            let mut packet = handshake(false, SYN, &options);
            let sizes = PacketSizes {
                most: 1_300,
                ..sizes(1_400, compressed)
            };
            limit(&mut packet, sizes, false);
            assert_eq!(size(&packet, false, 0), expected);
        }
    }

    #[test]
    fn what_is_smaller_or_no_handshake_stays() {
        let untouched = |packet: Vec<u8>, whole| {
            let mut after = packet.clone();
            limit(&mut after, sizes(whole, false), false);
            packet == after
        };
        assert!(untouched(handshake(false, SYN, &MSS_1460), 1_500));
        assert!(untouched(handshake(false, 0x10, &MSS_1460), 1_000));
        assert!(untouched(handshake(false, SYN, &OFFER), 1_000));
        let mut fragment = handshake(false, SYN, &MSS_1460);
        fragment[7] = 1;
        assert!(untouched(fragment, 1_000));
        let mut udp = handshake(true, SYN, &MSS_1460);
        udp[6] = 17;
        assert!(untouched(udp, 1_000));
        let mut tiny = handshake(false, SYN, &MSS_1460);
        limit(&mut tiny, sizes(100, false), false);
        assert_eq!(usize::from(size(&tiny, false, 0)), SEGMENT_MIN);
    }

    #[test]
    fn a_checksum_that_the_kernel_completes_stays() {
        let mut packet = handshake(true, SYN | 0x10, &MSS_1460);
        let sum = be16(&packet, IPV6 + 16);
        limit(&mut packet, sizes(1_000, false), true);
        assert_eq!(be16(&packet, IPV6 + 16), sum);
        assert_eq!(size(&packet, true, 0), 940);
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(
            mut packet in prop::collection::vec(any::<u8>(), 0..120),
            first in prop::sample::select(vec![0x45_u8, 0x4f, 0x60]),
            whole in 0_usize..70_000,
            compressed: bool,
        ) {
            let length = packet.len();
            if let [version, ..] = &mut packet[..] {
                *version = first;
            }
            if packet.len() > 9 {
                packet[9] = TCP;
                packet[6] = if first == 0x60 { TCP } else { 0 };
            }
            limit(&mut packet, sizes(whole, compressed), false);
            prop_assert_eq!(packet.len(), length);
        }

        #[test]
        fn the_checksum_stays_right_wherever_the_option_is(
            v6: bool, before in 0_usize..6, whole in 600_usize..1_400, compressed: bool,
        ) {
            let options = [&vec![NO_OPERATION; before][..], &MSS_1460, &OFFER].concat();
            let mut packet = handshake(v6, SYN, &options);
            limit(&mut packet, sizes(whole, compressed), false);
            prop_assert!(is_right(&packet, v6));
            prop_assert!(size(&packet, v6, before) < 1_460);
        }
    }
}
