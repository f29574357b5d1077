//! Something for each path there is.
//!
//! Identifiers are few but spread: looking at every path happens several times per packet, and
//! must not cost a look at all identifiers. Invariant: entries ascend by identifier.

use ropewalk_types::PathId;

/// A map from path to `T`, as short as there are paths.
#[derive(Clone, Debug)]
pub(crate) struct PathMap<T> {
    entries: Vec<(PathId, T)>,
}

impl<T> Default for PathMap<T> {
    fn default() -> Self {
        Self {
            entries: Vec::new(),
        }
    }
}

impl<T> PathMap<T> {
    /// What is kept for `id`.
    #[must_use]
    pub fn get(&self, id: PathId) -> Option<&T> {
        let ingress = self.entries.iter().find(|ingress| ingress.0 == id);
        ingress.map(|(_, value)| value)
    }

    /// The same to change it.
    pub fn get_mut(&mut self, id: PathId) -> Option<&mut T> {
        let ingress = self.entries.iter_mut().find(|ingress| ingress.0 == id);
        ingress.map(|(_, value)| value)
    }

    /// Keeps `value` for `id`, in place of what was kept before.
    pub fn insert(&mut self, id: PathId, value: T) {
        match self.entries.binary_search_by_key(&id, |ingress| ingress.0) {
            Ok(at) => self.entries[at].1 = value,
            Err(at) => self.entries.insert(at, (id, value)),
        }
    }

    /// Takes out what is kept for `id`.
    pub fn remove(&mut self, id: PathId) -> Option<T> {
        let at = self.entries.iter().position(|ingress| ingress.0 == id)?;
        Some(self.entries.remove(at).1)
    }

    /// Paths and what is kept for them, ascending by identifier.
    pub fn iter(&self) -> impl Iterator<Item = (PathId, &T)> {
        self.entries.iter().map(|(id, value)| (*id, value))
    }

    /// The same to change it.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (PathId, &mut T)> {
        self.entries.iter_mut().map(|(id, value)| (*id, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_come_in_order_of_identifiers_whatever_the_order_of_insertion() {
        let mut map = PathMap::default();
        for (id, value) in [(9, 'a'), (0, 'b'), (15, 'c'), (9, 'd'), (3, 'e')] {
            map.insert(PathId(id), value);
        }
        assert_eq!(map.remove(PathId(3)), Some('e'));
        assert_eq!(map.remove(PathId(3)), None);
        *map.get_mut(PathId(15)).unwrap() = 'f';
        let all: Vec<_> = map.iter().map(|(id, value)| (id.0, *value)).collect();
        assert_eq!(all, [(0, 'b'), (9, 'd'), (15, 'f')]);
        assert_eq!(
            (map.get(PathId(9)), map.get(PathId(200))),
            (Some(&'d'), None)
        );
    }
}
