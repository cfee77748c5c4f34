//! Wake-ups of a connection of HTTP/1.1 that nothing comes of.
//!
//! Whoever takes a piece of a body wakes the task of its connection, for there may be more of it to read.
//! That task is the one that takes it, and behind the last piece there is not: it would have one more turn
//! for each call, a twentieth of what a quick one takes. So the task has a waker of its own that notes who
//! is woken by taking, and [`Pieces`] drops what was noted where the body is over, and else passes it on.

use std::cell::Cell;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use hyper::body::{Body, Frame, Incoming, SizeHint};

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
fn taking<T>(take: impl FnOnce() -> T) -> (T, bool) {
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

/// The body of a call, of which no piece wakes the task that takes it unless there may be more.
pub struct Pieces {
    body: Incoming,
    /// Who was to be woken: the connection asks for no more before.
    owed: Option<Waker>,
}

impl Pieces {
    /// Of a body that nothing was taken of.
    pub fn new(body: Incoming) -> Self {
        Self { body, owed: None }
    }

    fn wake(&mut self) {
        if let Some(task) = self.owed.take() {
            task.wake();
        }
    }
}

impl Body for Pieces {
    type Data = <Incoming as Body>::Data;
    type Error = <Incoming as Body>::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let (piece, wakes) = taking(|| Pin::new(&mut self.body).poll_frame(context));
        if wakes {
            self.owed = Some(context.waker().clone());
        }
        match piece {
            // Nothing comes behind it, and nobody waits to send it.
            Poll::Ready(None) => self.owed = None,
            Poll::Ready(Some(Ok(_))) => {}
            Poll::Ready(Some(Err(_))) | Poll::Pending => self.wake(),
        }
        piece
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Pieces {
    /// The connection drops what nobody takes.
    fn drop(&mut self) {
        self.wake();
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::pin::pin;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http_body_util::BodyExt;
    use hyper::service::service_fn;
    use hyper_util::rt::TokioIo;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::sync::Semaphore;

    use super::*;
    use crate::closing::Closing;

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

    /// Takes up to `most` bytes, and leaves the rest.
    async fn taken(body: Incoming, most: usize) -> usize {
        let mut pieces = Pieces::new(body);
        let mut num = 0;
        while num < most
            && let Some(piece) = pieces.frame().await
        {
            num += piece.unwrap().into_data().map_or(0, |data| data.len());
        }
        num
    }

    #[tokio::test]
    async fn a_whole_body_wakes_nobody_and_one_in_pieces_comes_or_is_left() {
        let may_answer = Arc::new(Semaphore::new(0));
        let service = service_fn(|request: hyper::Request<Incoming>| {
            let may_answer = may_answer.clone();
            async move {
                let num = taken(request.into_body(), 500).await;
                may_answer.acquire().await.unwrap().forget();
                Ok::<_, Infallible>(hyper::Response::new(format!("{num} bytes")))
            }
        });
        let (server, mut client) = tokio::io::duplex(1 << 16);
        let builder = hyper::server::conn::http1::Builder::new();
        let connection = builder.serve_connection(TokioIo::new(server), service);
        let mut connection = pin!(Closing::default().watch(connection));
        let count = Arc::new(Count::default());
        let waker = Waker::from(count.clone());
        let mut is_over = false;
        let mut turns = || {
            let mut num = 0;
            while count.0.swap(0, Ordering::Relaxed) > 0 && !is_over {
                let mut context = Context::from_waker(&waker);
                is_over = connection.as_mut().poll(&mut context).is_ready();
                num += 1;
            }
            num
        };
        count.0.store(1, Ordering::Relaxed);
        assert_eq!(turns(), 1, "it waits");
        for (pieces, taken) in [(vec![10], 10), (vec![10, 20, 30], 60), (vec![20], 20)] {
            let len: usize = pieces.iter().sum();
            let head = format!("POST / HTTP/1.1\r\nhost: h\r\ncontent-length: {len}\r\n\r\n");
            let mut piece = [head.as_bytes(), &vec![7; pieces[0]]].concat();
            for next in pieces.iter().skip(1).chain([&0]) {
                client.write_all(&piece).await.unwrap();
                let num = turns();
                assert!(num == 1 || pieces.len() > 1, "{num} for what came");
                piece = vec![7; *next];
            }
            may_answer.add_permits(1);
            turns();
            let mut answer = vec![0; 1000];
            let num = client.read(&mut answer).await.unwrap();
            let answer = String::from_utf8_lossy(&answer[..num]).into_owned();
            assert!(answer.contains(&format!("{taken} bytes")), "{answer}");
            turns();
        }
        // Of one that is answered at once most is left: the connection looks what becomes of it, and ends.
        may_answer.add_permits(1);
        let head = "POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 40000\r\n\r\n";
        let all = [head.as_bytes(), &vec![7; 40_000]].concat();
        client.write_all(&all).await.unwrap();
        turns();
        client.shutdown().await.unwrap();
        turns();
        assert!(is_over, "it waits for nobody");
    }
}
