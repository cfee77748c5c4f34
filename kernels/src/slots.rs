//! Open requests by slot.

use lazybatch_sla::Slot;

/// Open requests by slot, as a device holds them.
#[derive(Debug)]
pub struct Slots<T>(Vec<Option<T>>);

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> Slots<T> {
    /// The open request at `slot`.
    pub fn get(&self, slot: Slot) -> Option<&T> {
        self.0.get(slot.index()).and_then(Option::as_ref)
    }

    /// The open request at `slot`, mutably.
    pub fn get_mut(&mut self, slot: Slot) -> Option<&mut T> {
        self.0.get_mut(slot.index()).and_then(Option::as_mut)
    }

    /// The open request at `slot` of a running launch.
    ///
    /// # Panics
    /// If it is not open; launches are checked before they run.
    pub fn open(&self, slot: Slot) -> &T {
        self.get(slot)
            .expect("members of a running launch are open")
    }

    /// As [`Slots::open`], mutably.
    ///
    /// # Panics
    /// As [`Slots::open`].
    pub fn open_mut(&mut self, slot: Slot) -> &mut T {
        self.get_mut(slot)
            .expect("members of a running launch are open")
    }

    /// Puts a request at `slot`.
    pub fn insert(&mut self, slot: Slot, open: T) {
        if self.0.len() <= slot.index() {
            self.0.resize_with(slot.index() + 1, || None);
        }
        self.0[slot.index()] = Some(open);
    }

    /// Takes the request at `slot` out.
    pub fn remove(&mut self, slot: Slot) -> Option<T> {
        self.0.get_mut(slot.index()).and_then(Option::take)
    }

    /// All open requests.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().flatten()
    }
}
