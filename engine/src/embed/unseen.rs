//! Requests on their way to the driver.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use lazybatch_sla::Time;

/// Arrivals of requests that were handed in and that the driver has not taken in.
#[derive(Default)]
pub(crate) struct Unseen(Mutex<VecDeque<Time>>);

impl Unseen {
    fn arrivals(&self) -> MutexGuard<'_, VecDeque<Time>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One is handed in.
    pub fn add(&self, arrival: Time) {
        self.arrivals().push_back(arrival);
    }

    /// One that was handed in is taken in.
    pub fn take(&self, arrival: Time) {
        let mut arrivals = self.arrivals();
        // They come about in the order in which they were handed in: it is one of the first.
        if let Some(at) = arrivals.iter().position(|&a| a == arrival) {
            arrivals.remove(at);
        }
    }

    /// The earliest of them.
    pub fn oldest(&self) -> Option<Time> {
        self.arrivals().iter().min().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_unseen_is_told_until_it_is_taken_in() {
        let unseen = Unseen::default();
        assert_eq!(unseen.oldest(), None);
        for at in [3, 1, 2, 1] {
            unseen.add(Time(at));
        }
        assert_eq!(unseen.oldest(), Some(Time(1)));
        unseen.take(Time(1));
        unseen.take(Time(3));
        assert_eq!(unseen.oldest(), Some(Time(1)), "there were two");
        unseen.take(Time(1));
        assert_eq!(unseen.oldest(), Some(Time(2)));
        // What is handed in behind those that are being taken in is not lost with them.
        unseen.add(Time(4));
        unseen.take(Time(2));
        assert_eq!(unseen.oldest(), Some(Time(4)));
        unseen.take(Time(4));
        assert_eq!(unseen.oldest(), None);
    }
}
