//! The thread pool of the cpu device.
//!
//! [`Pool::run`] hands numbered tasks to the calling thread and the workers; which thread takes
//! which task is a race, so tasks must not depend on it. Behind a job workers spin for some hundreds of
//! microseconds, for the next node, launch or request, and then park: an idle device uses no processor
//! time.
//!
//! Invariants:
//! 1. A claimed task's job stays in place until all of its tasks are done.
//! 2. A panic in a task is raised again on the calling thread, after all tasks have ended.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;

/// Polls before a worker parks; some hundreds of microseconds. That is longer than what a thread waits
/// for the last task of another, and than what lies between two requests of a client that waits for
/// answers: to wake a worker costs the caller tens of microseconds on a virtual machine, and the worker
/// comes late. It does not yield in between: on a processor that it shares with the calling thread it
/// would give way to that one for whole time slices, where the system may find a free processor for a
/// thread that wakes.
const SPINS: u32 = if cfg!(miri) { 100 } else { 10_000 };

/// Most tasks of one job: task numbers have 16 bits of the job word. Of more, each takes several.
const MAX_TASKS: usize = u16::MAX as usize;

/// A fixed set of threads, the calling one included.
#[derive(Debug)]
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    epoch: u32,
}

#[derive(Debug, Default)]
struct Shared {
    /// Epoch (32 bits), number of tasks (16), next task (16).
    word: AtomicU64,
    data: AtomicPtr<()>,
    /// A [`Call`]; a pointer and not a number, which could not be turned back into one.
    call: AtomicPtr<()>,
    done: AtomicUsize,
    panicked: AtomicBool,
    stop: AtomicBool,
    sleepers: AtomicUsize,
    lock: Mutex<()>,
    wake: Condvar,
}

type Call = unsafe fn(*const (), usize);

impl Pool {
    /// A pool of `threads` threads, of which the calling one is the first.
    pub fn new(threads: usize) -> Self {
        let shared = Arc::new(Shared::default());
        let workers = (1..threads.max(1))
            .map(|i| {
                let shared = Arc::clone(&shared);
                std::thread::Builder::new()
                    .name(format!("lazybatch-cpu-{i}"))
                    .spawn(move || shared.work())
                    .expect("the system can start a thread")
            })
            .collect();
        Self {
            shared,
            workers,
            epoch: 0,
        }
    }

    /// Number of threads, the calling one included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `task(0)` to `task(num - 1)` and returns when all are done.
    ///
    /// # Panics
    /// If a task panics.
    pub fn run<F: Fn(usize) + Sync>(&mut self, num: usize, task: F) {
        if num <= 1 || self.workers.is_empty() {
            (0..num).for_each(task);
        } else if num <= MAX_TASKS {
            self.run_job(num, task);
        } else {
            let each = num.div_ceil(MAX_TASKS);
            self.run_job(num.div_ceil(each), |job| {
                (job * each..num.min((job + 1) * each)).for_each(&task);
            });
        }
    }

    /// The same for 2 to [`MAX_TASKS`] tasks, where there are workers.
    fn run_job<F: Fn(usize) + Sync>(&mut self, num: usize, task: F) {
        /// Calls the closure behind `data`.
        ///
        /// # Safety
        /// `data` must point to a live `F`.
        unsafe fn call<F: Fn(usize)>(data: *const (), i: usize) {
            // SAFETY: the caller vouches for the pointer.
            let task = unsafe { &*data.cast::<F>() };
            task(i);
        }
        let shared = &*self.shared;
        self.epoch = self.epoch.wrapping_add(1);
        shared.done.store(0, Ordering::Relaxed);
        shared
            .data
            .store((&raw const task).cast_mut().cast(), Ordering::Relaxed);
        shared
            .call
            .store(call::<F> as Call as *mut (), Ordering::Relaxed);
        let word = u64::from(self.epoch) << 32 | (num as u64) << 16;
        shared.word.store(word, Ordering::SeqCst);
        if shared.sleepers.load(Ordering::SeqCst) > 0 {
            let _guard = shared.lock.lock().expect("no panic under the lock");
            shared.wake.notify_all();
        }
        while shared.try_task() {}
        let mut polls = 0u32;
        while shared.done.load(Ordering::Acquire) < num {
            polls += 1;
            if polls < 2000 {
                std::hint::spin_loop()
            } else {
                std::thread::yield_now()
            }
        }
        if shared.panicked.swap(false, Ordering::Relaxed) {
            panic!("a kernel task panicked");
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        {
            let _guard = self.shared.lock.lock().expect("no panic under the lock");
            self.shared.wake.notify_all();
        }
        for worker in self.workers.drain(..) {
            worker.join().expect("workers catch panics");
        }
    }
}

impl Shared {
    fn has_task(word: u64) -> bool {
        (word & 0xffff) < (word >> 16 & 0xffff)
    }

    /// Claims and runs one task; false if none is left.
    fn try_task(&self) -> bool {
        loop {
            let word = self.word.load(Ordering::Acquire);
            if !Self::has_task(word) {
                return false;
            }
            let data = self.data.load(Ordering::Relaxed);
            let call = self.call.load(Ordering::Relaxed);
            if self
                .word
                .compare_exchange(word, word + 1, Ordering::AcqRel, Ordering::Relaxed)
                .is_err()
            {
                continue;
            }
            // SAFETY: `call` was stored from a `Call` by `run` before the word that was claimed.
            let call = unsafe { std::mem::transmute::<*mut (), Call>(call) };
            let i = (word & 0xffff) as usize;
            // SAFETY: the claim succeeded, so this job has an unfinished task (this one), and
            // `run` keeps the closure alive until all are done.
            let result = catch_unwind(AssertUnwindSafe(|| unsafe { call(data, i) }));
            if result.is_err() {
                self.panicked.store(true, Ordering::Relaxed);
            }
            self.done.fetch_add(1, Ordering::Release);
            return true;
        }
    }

    fn work(&self) {
        loop {
            let mut idle = 0;
            while idle < SPINS {
                if self.stop.load(Ordering::Relaxed) {
                    return;
                }
                if self.try_task() {
                    idle = 0;
                } else {
                    idle += 1;
                    std::hint::spin_loop();
                }
            }
            let mut guard = self.lock.lock().expect("no panic under the lock");
            self.sleepers.fetch_add(1, Ordering::SeqCst);
            while !Self::has_task(self.word.load(Ordering::SeqCst))
                && !self.stop.load(Ordering::SeqCst)
            {
                guard = self.wake.wait(guard).expect("no panic under the lock");
            }
            self.sleepers.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// A mutable slice that several tasks write in disjoint ranges.
#[derive(Clone, Copy, Debug)]
pub struct Shards {
    ptr: *mut f32,
    len: usize,
}

// SAFETY: access goes through `slice`, whose callers keep ranges disjoint.
unsafe impl Send for Shards {}
// SAFETY: as above.
unsafe impl Sync for Shards {}

impl Shards {
    /// Shares `slice` for as long as the caller keeps it borrowed.
    pub fn new(slice: &mut [f32]) -> Self {
        Self {
            ptr: slice.as_mut_ptr(),
            len: slice.len(),
        }
    }

    /// The elements `start..start + len`.
    ///
    /// # Safety
    /// No two live results may overlap, and the slice given to [`Shards::new`] must be borrowed.
    ///
    /// # Panics
    /// If the range is out of bounds.
    #[allow(
        clippy::mut_from_ref,
        reason = "disjoint ranges of one allocation, by contract"
    )]
    pub unsafe fn slice(&self, start: usize, len: usize) -> &mut [f32] {
        assert!(
            start + len <= self.len,
            "shard {start}+{len} of {}",
            self.len
        );
        // SAFETY: in bounds by the assertion; exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.add(start), len) }
    }

    /// The elements from `start` on.
    ///
    /// # Panics
    /// If `start` is out of bounds.
    pub fn offset(&self, start: usize) -> Self {
        assert!(start <= self.len, "shard {start} of {}", self.len);
        Self {
            ptr: self.ptr.wrapping_add(start),
            len: self.len - start,
        }
    }

    /// Number of elements.
    pub fn elems(&self) -> usize {
        self.len
    }

    /// The first element, for kernels that take a stride.
    pub fn as_ptr(&self) -> *mut f32 {
        self.ptr
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once() {
        for threads in [1, 2, 3] {
            let mut pool = Pool::new(threads);
            for round in 0..200 {
                let hits: Vec<AtomicUsize> = (0..round % 37).map(|_| AtomicUsize::new(0)).collect();
                pool.run(hits.len(), |i| {
                    hits[i].fetch_add(1, Ordering::Relaxed);
                });
                assert!(hits.iter().all(|h| h.load(Ordering::Relaxed) == 1));
            }
        }
    }

    #[test]
    fn more_tasks_than_a_job_holds_run_once_each() {
        let mut pool = Pool::new(2);
        let num = if cfg!(miri) {
            MAX_TASKS + 1
        } else {
            3 * MAX_TASKS + 7
        };
        let hits: Vec<AtomicUsize> = (0..num).map(|_| AtomicUsize::new(0)).collect();
        pool.run(num, |i| {
            hits[i].fetch_add(1, Ordering::Relaxed);
        });
        assert!(hits.iter().all(|h| h.load(Ordering::Relaxed) == 1));
    }

    /// Who is parked waits to be told, and takes no processor time.
    #[test]
    fn workers_of_an_idle_pool_park_and_wake_for_the_next_job() {
        let mut pool = Pool::new(3);
        for round in 0..3 {
            let hits = AtomicUsize::new(0);
            pool.run(6, |_| {
                hits.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(hits.into_inner(), 6);
            let parked = (0..100_000).any(|_| {
                std::thread::yield_now();
                pool.shared.sleepers.load(Ordering::SeqCst) == 2
            });
            assert!(parked, "round {round}: a worker still looks for tasks");
        }
    }

    #[test]
    fn a_panic_is_raised_on_the_caller_and_the_pool_lives() {
        let mut pool = Pool::new(2);
        let result = catch_unwind(AssertUnwindSafe(|| {
            pool.run(8, |i| assert!(i != 5, "task {i}"));
        }));
        assert!(result.is_err());
        let sum = AtomicUsize::new(0);
        pool.run(10, |i| {
            sum.fetch_add(i, Ordering::Relaxed);
        });
        assert_eq!(sum.load(Ordering::Relaxed), 45);
    }
}
