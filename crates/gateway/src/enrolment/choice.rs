//! Which hub of a fleet is the home of a new site, and which ones its spares.
//!
//! Decides from numbers only. Nobody draws lots: the same answers give the same choice.

use std::time::Duration;

/// How much later than the first hub another one may answer and count as equally near. Longer: the load of hubs
/// decides more often, and sites go to hubs that are farther away. Not measured.
const NEAR: Duration = Duration::from_millis(30);

/// What is known of a hub.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// Time until a connection was there. `None`: there was no answer.
    pub after: Option<Duration>,
    /// Hubs with the same number are in the same region; 0: the hub has none.
    pub region: u8,
}

/// The places of the hubs in `hubs`, best first: the home, then the spares. Earlier hubs have less load.
///
/// Hubs that answer come before those that do not. Among those that answer about as soon as the nearest one
/// the load decides, then the time. The first spare is the best one of another region, if one of them answers: a region may
/// be lost as a whole.
pub fn order(hubs: &[Seen]) -> Vec<usize> {
    let first = hubs.iter().filter_map(|hub| hub.after).min();
    let near = first.map_or(Duration::ZERO, |first| first + NEAR);
    let mut places: Vec<usize> = (0..hubs.len()).collect();
    places.sort_by_key(|place| {
        let after = hubs[*place].after;
        (after.is_none(), after.map(|after| after.max(near)))
    });
    let Some(home) = places.first().map(|home| hubs[*home].region) else {
        return places;
    };
    let elsewhere = places.iter().position(|place| {
        let hub = hubs[*place];
        hub.after.is_some() && hub.region != home && hub.region != 0 && home != 0
    });
    if let Some(elsewhere) = elsewhere {
        places[1..=elsewhere].rotate_right(1);
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ordered(hubs: &[(Option<u64>, u8)]) -> Vec<usize> {
        let seen = |&(after, region): &(Option<u64>, u8)| Seen {
            after: after.map(Duration::from_millis),
            region,
        };
        order(&hubs.iter().map(seen).collect::<Vec<_>>())
    }

    #[test]
    fn among_hubs_that_are_about_as_near_the_load_decides() {
        assert_eq!(ordered(&[(Some(40), 0), (Some(20), 0)]), [0, 1]);
        assert_eq!(
            ordered(&[(Some(90), 0), (Some(20), 0), (Some(45), 0)]),
            [1, 2, 0]
        );
        assert_eq!(
            ordered(&[(Some(90), 0), (Some(80), 0), (Some(20), 0)]),
            [2, 1, 0]
        );
    }

    #[test]
    fn hubs_that_do_not_answer_come_last_and_keep_their_order() {
        assert_eq!(ordered(&[(None, 0), (Some(900), 0), (None, 0)]), [1, 0, 2]);
        assert_eq!(ordered(&[(None, 1), (None, 2)]), [0, 1]);
        assert_eq!(ordered(&[]), [0; 0]);
    }

    #[test]
    fn the_spare_is_of_another_region_where_one_answers() {
        let of_three = |last| ordered(&[(Some(20), 1), (Some(21), 1), (last, 3)]);
        assert_eq!(of_three(Some(200)), [0, 2, 1]);
        assert_eq!(of_three(None), [0, 1, 2]);
        // Hubs without a region are neither in the same one nor in another.
        assert_eq!(
            ordered(&[(Some(20), 0), (Some(21), 0), (Some(99), 3)]),
            [0, 1, 2]
        );
        assert_eq!(
            ordered(&[(Some(20), 1), (Some(21), 1), (Some(99), 0)]),
            [0, 1, 2]
        );
    }
}
