//! The event queue: which component is to be looked at next.
//!
//! Every component (a link, a gateway, a flow) has one deadline. Invariant: deadlines come out in
//! order of time, and equal ones in the order in which they were set. So a run follows from its
//! plan and seed alone.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Bits of a key that name the component.
const COMPONENT_BITS: u32 = 20;
/// Bits of a key that count what was set; enough for a trillion.
const SEQUENCE_BITS: u32 = 44;
/// Most components of a run.
pub const COMPONENTS_MAX: usize = 1 << COMPONENT_BITS;
/// No deadline.
pub const NEVER: u64 = u64::MAX;

/// Deadlines of components, in nanoseconds of virtual time.
#[derive(Debug, Default)]
pub struct EventQueue {
    /// Time, sequence number and component in one comparable word.
    heap: BinaryHeap<Reverse<u128>>,
    /// The deadline in force of each component.
    due_ns: Vec<u64>,
    sequence: u64,
}

impl EventQueue {
    /// A queue of so many components, none of which has a deadline.
    #[must_use]
    pub fn new(components: usize) -> Self {
        debug_assert!(components <= COMPONENTS_MAX, "too many components");
        Self {
            heap: BinaryHeap::new(),
            due_ns: vec![NEVER; components],
            sequence: 0,
        }
    }

    /// Looks at `component` at `at_ns` or earlier; a later time than the one in force is ignored,
    /// since a component asked too early sets its next deadline itself.
    pub fn set(&mut self, component: usize, at_ns: u64) {
        let due = &mut self.due_ns[component];
        if at_ns >= *due {
            return;
        }
        *due = at_ns;
        self.sequence += 1;
        let key = (u128::from(at_ns) << (SEQUENCE_BITS + COMPONENT_BITS))
            | (u128::from(self.sequence) << COMPONENT_BITS)
            | component as u128;
        self.heap.push(Reverse(key));
    }

    /// The next component and its time; its deadline is used up.
    pub fn pop(&mut self) -> Option<(u64, usize)> {
        while let Some(Reverse(key)) = self.heap.pop() {
            let (at_ns, component) = (
                (key >> (SEQUENCE_BITS + COMPONENT_BITS)) as u64,
                (key as usize) & (COMPONENTS_MAX - 1),
            );
            if self.due_ns[component] == at_ns {
                self.due_ns[component] = NEVER;
                return Some((at_ns, component));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_come_in_order_and_an_earlier_one_replaces_a_later_one() {
        let mut queue = EventQueue::new(4);
        queue.set(3, 50);
        queue.set(1, 70);
        queue.set(2, 50);
        queue.set(1, 20);
        queue.set(2, 60);
        let order: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(order, [(20, 1), (50, 3), (50, 2)]);
    }
}
