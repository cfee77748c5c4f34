//! Wake-ups of a connection of HTTP/1.1 that nothing comes of.
//!
//! Whoever takes a piece of a body wakes the task of its connection, for there may be more of it to read.
//! That task is the one that takes it, and behind the last piece there is not: it would have one more turn
//! for each call, a twentieth of what a quick one takes. So the task has a waker of its own that notes who
//! is woken by [`taking`], for the taker to drop what was noted or to pass it on.

use std::cell::Cell;
use std::sync::Arc;
use std::task::{Wake, Waker};

thread_local! {
    /// Whether this thread takes a piece, and whether it has woken its task by that.
    static TAKES: Cell<bool> = const { Cell::new(false) };
    static HAS_WOKEN: Cell<bool> = const { Cell::new(false) };
}

/// The waker of a task, as its connection has it.
struct Noting(Waker);

impl Wake for Noting {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        match TAKES.get() {
            true => HAS_WOKEN.set(true),
            false => self.0.wake_by_ref(),
        }
    }
}

/// A waker of that task for the connection that it serves.
pub fn noting(task: &Waker) -> Waker {
    Arc::new(Noting(task.clone())).into()
}

/// What `take` gives, and whether the task would have been woken by it: it is not, if its waker is
/// [`noting`].
pub fn taking<T>(take: impl FnOnce() -> T) -> (T, bool) {
    /// Ends it behind a panic too.
    struct Over;
    impl Drop for Over {
        fn drop(&mut self) {
            TAKES.set(false);
        }
    }
    TAKES.set(true);
    let over = Over;
    let taken = take();
    drop(over);
    (taken, HAS_WOKEN.take())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn who_is_woken_by_a_taker_is_noted_and_others_wake() {
        let count = Arc::new(Count::default());
        let task = Waker::from(count.clone());
        let waker = noting(&task);
        let num_woken = || count.0.load(Ordering::Relaxed);
        assert_eq!(taking(|| waker.wake_by_ref()), ((), true));
        assert_eq!(taking(|| noting(&task).wake()), ((), true));
        assert_eq!(taking(|| 7), (7, false), "none is left");
        assert_eq!(num_woken(), 0);
        waker.wake_by_ref();
        assert_eq!(num_woken(), 1);
        // Of another thread, or by another waker.
        let ((), noted) = taking(|| {
            task.wake_by_ref();
            let waker = waker.clone();
            std::thread::spawn(move || waker.wake()).join().unwrap();
        });
        assert_eq!((num_woken(), noted), (3, false));
        let panics = std::panic::catch_unwind(|| taking(|| panic!("in a body")));
        assert!(panics.is_err());
        waker.wake();
        assert_eq!(num_woken(), 4);
    }
}
