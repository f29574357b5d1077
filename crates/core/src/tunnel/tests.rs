use super::*;
use bytes::Bytes;

#[test]
fn a_packet_with_three_copies_is_answered_for_when_the_last_is_missed() {
    for order in [
        [0, 1, 2],
        [0, 2, 1],
        [1, 0, 2],
        [1, 2, 0],
        [2, 0, 1],
        [2, 1, 0],
    ] {
        let now = Instant::from_millis(5);
        let mut paths = Paths::new(None, None);
        let id = PathId(1);
        paths.add(now, id, PathConfig::default());
        let copies = [7u8, 7, 7].map(|byte| {
            let path = paths.get_mut(id).unwrap();
            let number = path.stamp(now, 40).path_seq;
            path.remember_lost(now, &Bytes::from(vec![byte; 40]), 0, 3);
            number
        });
        paths.link_copy((id, copies[0]), (id, copies[1]));
        paths.link_copy((id, copies[1]), (id, copies[2]));
        let answered = order.map(|n| {
            let number = copies[n];
            let sent = paths.get_mut(id).unwrap().sent_log.take(number).unwrap();
            let arrives = |copy| paths.unlink_copy((id, number), copy);
            !sent.copy.is_some_and(arrives)
        });
        assert_eq!(answered, [false, false, true], "{order:?}");
    }
}
