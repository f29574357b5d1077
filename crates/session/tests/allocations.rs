//! What a hub asks of the allocator for packets that it passes on to another hub.

use bytes::BytesMut;
use ropewalk_testkit::packet::udp;
use ropewalk_testkit::{Spec, World};
use ropewalk_types::Duration;
use ropewalk_wire::HEADROOM;

#[global_allocator]
static ALLOCATOR: dhat::Alloc = dhat::Alloc;

/// Packets that a hub passes on.
const PACKETS: u32 = 2_000;
/// Bytes of each.
const BYTES: usize = 1_000;

fn requests() -> u64 {
    dhat::HeapStats::get().total_blocks
}

/// Packets to a port of the site, cut from one block as the driver does.
fn packets() -> Vec<BytesMut> {
    let port = World::block(0).first;
    let mut block = BytesMut::with_capacity(PACKETS as usize * (HEADROOM + BYTES));
    let packet = |number| {
        let mut data = udp(number, 443, BYTES);
        let ip = &mut data[HEADROOM..];
        ip[12..16].copy_from_slice(&[192, 0, 2, 1]);
        ip[16..20].copy_from_slice(&World::block(0).address.octets());
        ip[22..24].copy_from_slice(&port.to_be_bytes());
        block.extend_from_slice(&data);
        block.split()
    };
    (0..PACKETS).map(packet).collect()
}

// One test, since the allocator counts for the whole process.
#[test]
fn packets_are_passed_on_almost_without_the_allocator() {
    let _profiler = dhat::Profiler::builder().testing().build();
    let mut world = World::new(&Spec {
        shared: true,
        rests: true,
        ..Spec::default()
    });
    world.run(Duration::from_secs(1));
    let now = world.now();
    let mut pass = |packets: Vec<BytesMut>| {
        let session = &mut world.hub_mut().session;
        let (before, mut passed) = (requests(), 0);
        for packet in packets {
            session.handle_inner(now, packet, false);
            while let Some(inner) = session.poll_inner() {
                passed += 1;
                assert_eq!(inner.bytes(), 20 + BYTES);
            }
        }
        assert_eq!(passed, PACKETS);
        requests() - before
    };
    let all = [(); 2].map(|()| pass(packets()));
    eprintln!("{all:?} requests for {PACKETS} packets");
    assert!(all[1] <= u64::from(PACKETS) / 50, "{all:?}");
}
