//! Clients: closed loops, whose connections each send again once they are answered, and open ones,
//! whose requests are sent at their time, whatever has become of those before.
//!
//! Clients run on one thread. Where requests have a time, the thread waits for it without sleeping,
//! because timers and wake-ups are coarser than what is measured.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::Context;
use rand::Rng;
use rand_chacha::ChaCha8Rng;
use tokio::task::LocalSet;

use super::Way;
use super::call::{Caller, Message, Status};
use crate::clock;

/// Part of a closed loop that is not counted.
const WARMING: f64 = 0.15;
/// Turns without anything due after which the thread lets others have the core.
const EAGER: Duration = Duration::from_micros(1500);

/// Runs clients on this thread.
///
/// # Errors
/// Those of `clients`.
pub fn run<T>(clients: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(LocalSet::new().run_until(clients))
}

/// What became of a closed loop.
#[derive(Clone, Debug)]
pub struct Closed {
    /// Answers a second.
    pub rate: f64,
    /// How many were counted.
    pub answers: u64,
    /// Microseconds from sending to answer.
    pub latencies_us: Vec<f64>,
}

/// `num` connections that send `message` for `span`, one call on each at a time. `started` is called
/// when counting begins.
///
/// # Errors
/// A connection that breaks, or an answer that is none.
pub async fn closed(
    (way, at): (Way, SocketAddr),
    message: &Message,
    num: usize,
    span: Duration,
    started: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<Closed> {
    let ends = Arc::new(AtomicBool::new(false));
    let counts = Arc::new(AtomicBool::new(false));
    let mut loops = Vec::new();
    for _ in 0..num {
        let mut caller = Caller::connect(way, at).await?;
        let (ends, counts, message) = (ends.clone(), counts.clone(), message.clone());
        loops.push(tokio::task::spawn_local(async move {
            let mut latencies = Vec::new();
            while !ends.load(Relaxed) {
                let sent = clock::now();
                let answer = caller.call(&message).await?;
                if answer.status != Status::Done {
                    anyhow::bail!("expected an answer, got {answer:?}");
                }
                if counts.load(Relaxed) {
                    latencies.push(sent.elapsed().as_secs_f64() * 1e6);
                }
            }
            anyhow::Ok(latencies)
        }));
    }
    tokio::time::sleep(span.mul_f64(WARMING)).await;
    started()?;
    counts.store(true, Relaxed);
    let start = clock::now();
    tokio::time::sleep(span).await;
    counts.store(false, Relaxed);
    let took = start.elapsed().as_secs_f64();
    ends.store(true, Relaxed);
    let mut latencies_us = Vec::new();
    for one in loops {
        latencies_us.extend(one.await.context("a client's task")??);
    }
    let answers = latencies_us.len() as u64;
    Ok(Closed {
        rate: answers as f64 / took,
        answers,
        latencies_us,
    })
}

/// One request of an open loop.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    /// When it was to be sent, from the start.
    pub due: Duration,
    /// Microseconds from then to its answer.
    pub latency_us: f64,
    /// How it ended.
    pub status: Status,
}

/// Times of Poisson arrivals at `rate` a second, over `span`.
pub fn poisson(rate: f64, span: Duration, rng: &mut ChaCha8Rng) -> Vec<Duration> {
    let mut at = 0.0;
    let mut times = Vec::new();
    loop {
        at -= (1.0 - rng.random::<f64>()).ln() / rate;
        if at >= span.as_secs_f64() {
            return times;
        }
        times.push(Duration::from_secs_f64(at));
    }
}

/// Waits until `due` without leaving the thread idle for long.
async fn until(start: Instant, due: Duration) {
    loop {
        let left = due.saturating_sub(start.elapsed());
        if left.is_zero() {
            return;
        }
        if left > EAGER * 2 {
            tokio::time::sleep(left - EAGER * 2).await;
        } else {
            tokio::task::yield_now().await;
        }
    }
}

/// Idle connections. When there is none, another call runs on `shared`, or on a new one where
/// connections carry one call at a time.
struct Pool {
    idle: RefCell<Vec<Caller>>,
    shared: Option<Caller>,
    way: Way,
    at: SocketAddr,
}

/// Sends the request `i` of `messages` (again from the first behind the last) at `times[i]`, each on
/// a connection of its own for the time; `ready` connections are made before the first.
///
/// # Errors
/// A server that cannot be reached at the start. A call that breaks later is [`Status::Broken`].
pub async fn open(
    (way, at): (Way, SocketAddr),
    messages: &[Message],
    times: &[Duration],
    ready: usize,
) -> anyhow::Result<Vec<Sent>> {
    let mut idle = Vec::with_capacity(ready);
    for _ in 0..ready {
        idle.push(Caller::connect(way, at).await?);
    }
    let pool = Rc::new(Pool {
        idle: RefCell::new(idle),
        shared: match way {
            Way::Http => None,
            Way::Grpc => Some(Caller::connect(way, at).await?),
        },
        way,
        at,
    });
    let start = clock::now();
    let mut calls = Vec::with_capacity(times.len());
    for (i, &due) in times.iter().enumerate() {
        until(start, due).await;
        let (pool, message) = (pool.clone(), messages[i % messages.len()].clone());
        calls.push(tokio::task::spawn_local(async move {
            let idle = pool.idle.borrow_mut().pop();
            let called = async {
                let mut caller = match idle.or_else(|| pool.shared.as_ref()?.share()) {
                    Some(caller) => caller,
                    None => Caller::connect(pool.way, pool.at).await?,
                };
                let answer = caller.call(&message).await?;
                anyhow::Ok((caller, answer.status))
            };
            let called = called.await;
            let latency = start.elapsed().saturating_sub(due);
            let status = match called {
                Ok((caller, status)) => {
                    pool.idle.borrow_mut().push(caller);
                    status
                }
                Err(_) => Status::Broken,
            };
            Sent {
                due,
                latency_us: latency.as_secs_f64() * 1e6,
                status,
            }
        }));
    }
    let mut sent = Vec::with_capacity(calls.len());
    for call in calls {
        sent.push(call.await.context("a client's task")?);
    }
    Ok(sent)
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn poisson_arrivals_come_at_their_rate() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let times = poisson(1000.0, Duration::from_secs(10), &mut rng);
        assert!((9_500..10_500).contains(&times.len()), "{}", times.len());
        assert!(times.is_sorted());
    }
}
