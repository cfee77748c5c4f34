//! Connections that end behind their calls once the server stops.
//!
//! A channel of which each connection waits for a message would be asked at every turn, several times for
//! each call. Here a turn looks at a flag; the end wakes all tasks once.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use hyper_util::server::graceful::GracefulConnection;
use slab::Slab;
use tokio::sync::Notify;

use crate::wakes;

/// Tells connections to end.
#[derive(Default)]
pub struct Closing(Arc<Shared>);

#[derive(Default)]
struct Shared {
    is_closing: AtomicBool,
    /// Those of connections that are served.
    tasks: Mutex<Slab<Waker>>,
    /// The last one has ended.
    over: Notify,
}

impl Shared {
    fn tasks(&self) -> MutexGuard<'_, Slab<Waker>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Closing {
    /// Serves a connection until it ends, or with the call that runs once they are told to end.
    pub fn watch<C: GracefulConnection>(&self, connection: C) -> Watched<C> {
        let key = self.0.tasks().insert(Waker::noop().clone());
        Watched {
            connection: Box::pin(connection),
            place: Place {
                shared: self.0.clone(),
                key,
            },
            wakers: None,
            is_told: false,
        }
    }

    /// Tells all to end, and waits until they have.
    pub async fn close(self) {
        self.0.is_closing.store(true, Ordering::SeqCst);
        let tasks: Vec<Waker> = self.0.tasks().iter().map(|(_, w)| w.clone()).collect();
        tasks.into_iter().for_each(Waker::wake);
        loop {
            let over = self.0.over.notified();
            if self.0.tasks().is_empty() {
                return;
            }
            over.await;
        }
    }
}

/// A connection that ends once it is told to.
pub struct Watched<C> {
    connection: Pin<Box<C>>,
    /// Given back behind the connection.
    place: Place,
    /// What stands there, from its first turn on, and what the connection has of it.
    wakers: Option<[Waker; 2]>,
    is_told: bool,
}

/// A connection's place among the tasks.
struct Place {
    shared: Arc<Shared>,
    key: usize,
}

impl<C: GracefulConnection> Future for Watched<C> {
    type Output = C::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<C::Output> {
        let this = self.get_mut();
        let shared = &this.place.shared;
        let task = context.waker();
        let known = this.wakers.take().filter(|[own, _]| own.will_wake(task));
        let [_, noting] = this.wakers.insert(known.unwrap_or_else(|| {
            shared.tasks()[this.place.key].clone_from(task);
            [task.clone(), wakes::noting(task)]
        }));
        // Behind the waker: who tells wakes it, or this sees that it was told.
        if !this.is_told && shared.is_closing.load(Ordering::SeqCst) {
            this.is_told = true;
            this.connection.as_mut().graceful_shutdown();
        }
        this.connection
            .as_mut()
            .poll(&mut Context::from_waker(noting))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut tasks = self.shared.tasks();
        tasks.remove(self.key);
        if tasks.is_empty() {
            self.shared.over.notify_one();
        }
    }
}
