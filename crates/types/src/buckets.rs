//! A table with a value for each flow bucket, in pages that come with use.

use core::ops::{Index, IndexMut};

/// Values of one page. More: fewer pages to look up, more memory for a flow that is alone.
const PAGE: usize = 16;

/// A value for each of a fixed number of buckets. A bucket that nobody has changed has the default
/// value and takes no memory.
///
/// Invariant: the value at an index is the last one that was put there, or the default.
#[derive(Clone, Debug)]
pub struct Buckets<T> {
    pages: Box<[Option<Box<[T; PAGE]>>]>,
    untouched: T,
}

impl<T: Default> Buckets<T> {
    /// So many buckets with the default value.
    #[must_use]
    pub fn new(buckets: usize) -> Self {
        let mut pages = Vec::new();
        pages.resize_with(buckets.div_ceil(PAGE), || None);
        Self {
            pages: pages.into_boxed_slice(),
            untouched: T::default(),
        }
    }

    /// The values that may differ from the default, in the order of their buckets.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.pages.iter().flatten().flat_map(|page| page.iter())
    }

    /// [`Self::iter`], to change them.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.pages
            .iter_mut()
            .flatten()
            .flat_map(|page| page.iter_mut())
    }

    /// Gives memory back of values that `idle` says may be the default from now on. A page goes
    /// when all its values are idle.
    pub fn forget(&mut self, idle: impl Fn(&T) -> bool) {
        for page in &mut self.pages {
            if page.as_ref().is_some_and(|page| page.iter().all(&idle)) {
                *page = None;
            }
        }
    }

    /// Number of buckets that there is memory for.
    #[must_use]
    pub fn allocated(&self) -> usize {
        self.pages.iter().flatten().count() * PAGE
    }

    /// The values that may differ from the default, by value.
    pub fn into_values(self) -> impl Iterator<Item = T> {
        let pages = self.pages.into_iter().flatten();
        pages.flat_map(|page| page.into_iter())
    }
}

impl<T> Index<u16> for Buckets<T> {
    type Output = T;

    /// # Panics
    /// The table has fewer buckets.
    #[inline]
    fn index(&self, bucket: u16) -> &T {
        let bucket = usize::from(bucket);
        match &self.pages[bucket / PAGE] {
            Some(page) => &page[bucket % PAGE],
            None => &self.untouched,
        }
    }
}

impl<T: Default> IndexMut<u16> for Buckets<T> {
    /// # Panics
    /// The table has fewer buckets.
    #[inline]
    fn index_mut(&mut self, bucket: u16) -> &mut T {
        let bucket = usize::from(bucket);
        let page = self.pages[bucket / PAGE].get_or_insert_with(new_page);
        &mut page[bucket % PAGE]
    }
}

/// Apart from the way that most accesses take.
#[cold]
#[inline(never)]
fn new_page<T: Default>() -> Box<[T; PAGE]> {
    Box::new(core::array::from_fn(|_| T::default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_comes_with_use_and_goes_when_idle() {
        let mut buckets = Buckets::<u32>::new(4_096);
        assert_eq!((buckets[0], buckets[4_095]), (0, 0));
        assert_eq!(buckets.allocated(), 0, "reading takes none");
        buckets[17] = 5;
        buckets[4_095] = 7;
        assert_eq!((buckets[16], buckets[17], buckets[4_095]), (0, 5, 7));
        assert_eq!(buckets.allocated(), 2 * PAGE);
        assert_eq!(buckets.iter_mut().map(|v| *v).sum::<u32>(), 12);
        buckets.forget(|value| *value < 6);
        assert_eq!((buckets[17], buckets[4_095]), (0, 7));
        assert_eq!(buckets.allocated(), PAGE);
        assert_eq!(buckets.into_values().max(), Some(7));
    }

    #[test]
    fn a_table_may_end_within_a_page() {
        let mut buckets = Buckets::<u8>::new(PAGE + 1);
        buckets[16] = 1;
        assert_eq!(buckets[16], 1);
    }
}
