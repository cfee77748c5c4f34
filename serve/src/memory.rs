//! Memory that requests and their answers hold, and the bounds on it.
//!
//! Every call has a [`Tab`], on which bytes are put before they are taken: those of its message as it
//! is read, those of its tensors as they are made of it. All tabs together stay within one budget; a
//! call that finds no room is refused, and what was on its tab is free again.
//!
//! Behind its request an answer is on the tab until the client has taken it. What was computed is not
//! refused, so answers may lead beyond the budget: by those of the requests that run, since no other
//! request is taken before enough of them have gone.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use crate::error::{Error, Result};

/// The budget of all calls, and the bound on one tensor.
#[derive(Debug)]
pub struct Memory {
    most: usize,
    max_tensor: usize,
    held: AtomicUsize,
    /// Tabs for which there was no room.
    refused: AtomicU64,
}

impl Memory {
    /// At most `most` bytes of all requests together, `max_tensor` of one tensor.
    pub fn new(most: usize, max_tensor: usize) -> Self {
        Self {
            most,
            max_tensor,
            held: AtomicUsize::new(0),
            refused: AtomicU64::new(0),
        }
    }

    /// Calls that found no room.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Bytes that requests and answers hold now.
    pub fn held(&self) -> usize {
        self.held.load(Ordering::SeqCst)
    }

    /// An empty tab.
    pub fn tab(self: &Arc<Self>) -> Tab {
        Tab {
            memory: self.clone(),
            held: AtomicUsize::new(0),
            is_packed: false,
            kept: Default::default(),
            is_refused: AtomicBool::new(false),
        }
    }
}

/// What one call holds; free again when it is dropped.
#[derive(Debug)]
pub struct Tab {
    memory: Arc<Memory>,
    held: AtomicUsize,
    is_packed: bool,
    /// Bytes that stay on it whatever is taken of it: of the longest message as it came, and unpacked.
    kept: [AtomicUsize; 2],
    /// Whether it found no room once.
    is_refused: AtomicBool,
}

impl Tab {
    /// The same, of a call whose messages may come packed: their bytes are counted as they came, and
    /// unpacked they are others.
    #[must_use]
    pub fn packed(mut self, is_packed: bool) -> Self {
        self.is_packed = is_packed;
        self
    }

    /// Whether the call's messages may come packed.
    pub fn is_packed(&self) -> bool {
        self.is_packed
    }

    /// Puts bytes on it.
    ///
    /// # Errors
    /// [`Error::Unavailable`] where all requests together would hold more than they may.
    pub fn add(&self, bytes: usize) -> Result<()> {
        let most = self.memory.most;
        let fits = |held: usize| held.checked_add(bytes).filter(|&all| all <= most);
        let order = Ordering::SeqCst;
        match self.memory.held.fetch_update(order, order, fits) {
            Ok(_) => {
                self.held.fetch_add(bytes, order);
                Ok(())
            }
            Err(held) => {
                // What else is tried with it is of the same call.
                if !self.is_refused.swap(true, Ordering::Relaxed) {
                    self.memory.refused.fetch_add(1, Ordering::Relaxed);
                }
                Err(Error::Unavailable(format!(
                    "the server has no memory for this request now: all requests may hold {most} \
                     bytes together and hold {held}, this one needs {bytes} more"
                )))
            }
        }
    }

    /// Puts the `bytes` of an answer on it, in the place of all that was there. There is room for an
    /// answer.
    pub fn settle(&self, bytes: usize) {
        let before = self.held.swap(bytes, Ordering::SeqCst);
        let held = &self.memory.held;
        if bytes >= before {
            held.fetch_add(bytes - before, Ordering::SeqCst);
        } else {
            held.fetch_sub(before - bytes, Ordering::SeqCst);
        }
    }

    /// A message of so many bytes, and so many unpacked, is read into buffers that live as long as the call.
    pub fn keep(&self, came: usize, unpacked: usize) {
        for (kept, own) in self.kept.iter().zip([came, unpacked]) {
            kept.fetch_max(own, Ordering::SeqCst);
        }
    }

    /// Moves all that is on it to a new one, but for what is kept.
    #[must_use]
    pub fn take(&self) -> Self {
        let order = Ordering::SeqCst;
        let kept = self.kept.iter().map(|kept| kept.load(order));
        let kept = kept.fold(0, usize::saturating_add);
        let before = self.held.fetch_min(kept, order);
        Self {
            memory: self.memory.clone(),
            held: AtomicUsize::new(before.saturating_sub(kept)),
            is_packed: self.is_packed,
            kept: Default::default(),
            is_refused: AtomicBool::new(false),
        }
    }

    /// An empty one of the same budget.
    #[must_use]
    pub fn other(&self) -> Self {
        self.memory.tab()
    }

    /// Puts on it what is on another.
    pub fn join(&self, other: Self) {
        let bytes = other.held.swap(0, Ordering::SeqCst);
        self.held.fetch_add(bytes, Ordering::SeqCst);
    }

    /// Looks at the bytes of one tensor, `what`.
    ///
    /// # Errors
    /// [`Error::Invalid`] where they are more than a tensor may have.
    pub fn check_tensor(&self, what: impl std::fmt::Display, bytes: usize) -> Result<()> {
        let most = self.memory.max_tensor;
        if bytes > most {
            let expected = format!("at most {most} bytes, the server's limit for one tensor");
            return Err(Error::expected(what, expected, format!("{bytes} bytes")));
        }
        Ok(())
    }
}

impl Drop for Tab {
    fn drop(&mut self) {
        let held = *self.held.get_mut();
        self.memory.held.fetch_sub(held, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_tabs_together_stay_within_the_budget() {
        let memory = Arc::new(Memory::new(100, 10));
        let (one, two) = (memory.tab(), memory.tab());
        one.add(60).unwrap();
        two.add(40).unwrap();
        let told = two.add(1).unwrap_err();
        assert_eq!(told.http(), 503);
        assert!(told.to_string().contains("may hold 100 bytes"), "{told}");
        let moved = one.take();
        drop(one);
        assert_eq!(memory.held(), 100, "it was moved");
        drop(moved);
        assert_eq!(memory.held(), 40);
        assert!(two.add(usize::MAX).is_err());
        let other = two.other();
        other.add(60).unwrap();
        two.join(other);
        assert_eq!(memory.held(), 100);
        drop(two);
        assert_eq!(memory.held(), 0);
    }

    #[test]
    fn answers_are_held_whatever_there_is_and_leave_less_to_requests() {
        let memory = Arc::new(Memory::new(100, 10));
        let (one, two) = (memory.tab(), memory.tab());
        one.add(60).unwrap();
        one.settle(150);
        assert_eq!(memory.held(), 150);
        assert!(two.add(1).is_err());
        one.settle(90);
        two.add(10).unwrap();
        assert!(two.add(1).is_err());
        drop(one);
        assert_eq!(memory.held(), 10);
    }

    #[test]
    fn what_the_longest_message_takes_stays_on_a_tab() {
        let memory = Arc::new(Memory::new(100, 10));
        let tab = memory.tab();
        for (came, unpacked, moved) in [(10, 0, 5), (4, 0, 9), (10, 20, 15), (1, 1, 7)] {
            tab.keep(came, unpacked);
            tab.add(came + unpacked + 5).unwrap();
            let before = memory.held();
            drop(tab.take());
            assert_eq!(before - memory.held(), moved, "{came} {unpacked}");
        }
        assert_eq!(memory.held(), 30);
        drop(tab);
        assert_eq!(memory.held(), 0);
    }

    #[test]
    fn a_tensor_beyond_the_limit_is_named() {
        let memory = Arc::new(Memory::new(100, 10));
        memory.tab().check_tensor("input 'x'", 10).unwrap();
        let told = memory.tab().check_tensor("input 'x'", 11).unwrap_err();
        let text =
            "input 'x': expected at most 10 bytes, the server's limit for one tensor, got 11 bytes";
        assert_eq!(told, Error::Invalid(text.into()));
    }
}
