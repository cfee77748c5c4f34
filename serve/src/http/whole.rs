//! Bodies of requests as they are read, bounded, each and all together; and those of answers until they
//! are taken.

use std::fmt::Display;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;

use axum::RequestExt;
use axum::extract::{FromRequest, Request};
use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, LengthLimitError};
use hyper::body::{Body, Frame};

use crate::error::{Error, Result};
use crate::memory::Tab;
use crate::state::State;
use crate::wakes::taking;

/// Most bytes of a body of a call that says a few things and has no tensors.
const FEW: usize = 1 << 20;

/// The body of a call, and the tab that it is on.
pub struct Whole {
    pub body: Bytes,
    pub tab: Tab,
}

/// Most bytes of a body, as the router's layer tells its calls.
#[derive(Clone, Copy)]
pub struct MaxBody(pub usize);

/// A body of few bytes.
pub struct Few(pub Bytes);

/// What is said of a body that could not be read.
pub fn unread(why: impl Display) -> Error {
    Error::Invalid(format!("Failed to buffer the request body: {why}"))
}

/// What is said of one that is too long.
const TOO_LONG: &str = "length limit exceeded";

/// Reads a body of at most `most` bytes, which go on `tab` as they come.
///
/// # Errors
/// A body that is longer or breaks off, or no memory for it.
pub async fn read<B>(body: B, most: usize, tab: &Tab) -> Result<Bytes>
where
    B: Body<Data = Bytes>,
    B::Error: Into<axum::BoxError>,
{
    let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    let mut body = pin!(body);
    if announced > most {
        discard(body, most.saturating_mul(2)).await;
        return Err(unread(TOO_LONG));
    }
    let mut first = Bytes::new();
    let mut all = BytesMut::new();
    let mut len = 0_usize;
    let mut pieces = Pieces::default();
    while let Some(frame) = pieces.next(body.as_mut()).await {
        let frame = frame.map_err(|e| {
            let error: axum::BoxError = e.into();
            let is_long = innermost(&*error).is::<LengthLimitError>();
            if is_long {
                unread(TOO_LONG)
            } else {
                unread(error)
            }
        })?;
        let Ok(data) = frame.into_data() else {
            continue;
        };
        len += data.len();
        if len > most {
            drop((first, all, tab.take()));
            pieces.leave().await;
            discard(body, most.saturating_mul(2)).await;
            return Err(unread(TOO_LONG));
        }
        if let Err(full) = tab.add(data.len()) {
            drop((data, first, all, tab.take()));
            pieces.leave().await;
            discard(body, most.saturating_mul(2)).await;
            return Err(full);
        }
        if first.is_empty() && all.is_empty() {
            first = data;
            continue;
        }
        if all.is_empty() {
            all.reserve(announced.max(len));
            all.extend_from_slice(&std::mem::take(&mut first));
        }
        all.extend_from_slice(&data);
    }
    Ok(if all.is_empty() { first } else { all.freeze() })
}

/// Takes the pieces of a body one by one.
#[derive(Default)]
struct Pieces {
    /// The connection was to read more, but its task was not woken for that.
    owes_wake: bool,
}

impl Pieces {
    /// The next piece; `None` behind the last one, where there is no more to read.
    async fn next<B: Body>(
        &mut self,
        mut body: Pin<&mut B>,
    ) -> Option<std::result::Result<Frame<B::Data>, B::Error>> {
        poll_fn(|context| {
            let (piece, wakes) = taking(|| body.as_mut().poll_frame(context));
            self.owes_wake |= wakes;
            if piece.is_pending() && std::mem::take(&mut self.owes_wake) {
                context.waker().wake_by_ref();
            }
            piece
        })
        .await
    }

    /// Wakes it where more may come.
    async fn leave(self) {
        poll_fn(|context| {
            if self.owes_wake {
                context.waker().wake_by_ref();
            }
            Poll::Ready(())
        })
        .await;
    }
}

/// Takes what comes of a body and keeps none of it, up to `most` bytes: clients send all before they
/// read an answer, and many never see one that comes earlier.
pub async fn discard<B: Body<Data = Bytes>>(body: B, most: usize) {
    let mut body = pin!(body);
    let mut left = most;
    while let Some(Ok(frame)) = body.frame().await {
        let came = frame.data_ref().map_or(0, Bytes::len);
        match left.checked_sub(came) {
            Some(less) => left = less,
            None => return,
        }
    }
}

/// The bytes of an answer and the tab that they are on.
struct Kept {
    bytes: Vec<u8>,
    _tab: Tab,
}

impl AsRef<[u8]> for Kept {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// The bytes of an answer, which stay on `tab` until the client has taken them.
pub fn kept(bytes: Vec<u8>, tab: Tab) -> Bytes {
    tab.settle(bytes.len());
    Bytes::from_owner(Kept { bytes, _tab: tab })
}

fn innermost<'a>(
    error: &'a (dyn std::error::Error + 'static),
) -> &'a (dyn std::error::Error + 'static) {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error
}

impl FromRequest<Arc<State>> for Whole {
    type Rejection = Error;

    async fn from_request(request: Request, state: &Arc<State>) -> Result<Self> {
        let tab = state.memory.tab();
        let most = request.extensions().get::<MaxBody>().map_or(0, |m| m.0);
        let body = read(request.into_body(), most, &tab).await?;
        Ok(Self { body, tab })
    }
}

impl FromRequest<Arc<State>> for Few {
    type Rejection = Error;

    async fn from_request(request: Request, state: &Arc<State>) -> Result<Self> {
        let tab = state.memory.tab();
        let body = read(request.into_limited_body(), FEW, &tab).await?;
        Ok(Self(body))
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Wake, Waker};

    use hyper::service::service_fn;
    use hyper_util::rt::TokioIo;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::sync::Semaphore;

    use super::*;
    use crate::closing::Closing;
    use crate::memory::Memory;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[tokio::test]
    async fn a_whole_body_wakes_nobody_and_one_in_pieces_comes() {
        let memory = Arc::new(Memory::new(1 << 20, 1 << 20));
        let may_answer = Arc::new(Semaphore::new(0));
        let service = service_fn(|request: hyper::Request<hyper::body::Incoming>| {
            let (tab, may_answer) = (memory.tab(), may_answer.clone());
            async move {
                let body = read(request.into_body(), 1000, &tab).await;
                may_answer.acquire().await.unwrap().forget();
                let told = body.map_or_else(|e| e.told(), |b| format!("{} bytes", b.len()));
                Ok::<_, Infallible>(hyper::Response::new(told))
            }
        });
        let (server, mut client) = tokio::io::duplex(1 << 16);
        let builder = hyper::server::conn::http1::Builder::new();
        let connection = builder.serve_connection(TokioIo::new(server), service);
        let mut connection = pin!(Closing::default().watch(connection));
        let count = Arc::new(Count::default());
        let waker = Waker::from(count.clone());
        let mut turns = || {
            // As often as it is woken, its first turn with what came aside.
            let mut num = 0;
            while count.0.swap(0, Ordering::Relaxed) > 0 {
                let mut context = Context::from_waker(&waker);
                assert!(connection.as_mut().poll(&mut context).is_pending());
                num += 1;
            }
            num
        };
        count.0.store(1, Ordering::Relaxed);
        assert_eq!(turns(), 1, "it waits");
        for (pieces, told) in [
            (vec![10], "10 bytes"),
            (vec![10, 20, 30], "60 bytes"),
            (vec![500, 400, 300], "Failed to buffer"),
        ] {
            let len: usize = pieces.iter().sum();
            let head = format!("POST / HTTP/1.1\r\nhost: h\r\ncontent-length: {len}\r\n\r\n");
            let mut piece = [head.as_bytes(), &vec![7; pieces[0]]].concat();
            for next in pieces.iter().skip(1).chain([&0]) {
                client.write_all(&piece).await.unwrap();
                let is_whole = pieces.len() == 1;
                assert!(turns() == 1 || !is_whole, "one for what came");
                piece = vec![7; *next];
            }
            may_answer.add_permits(1);
            turns();
            let mut answer = vec![0; 1000];
            let num = client.read(&mut answer).await.unwrap();
            let answer = String::from_utf8_lossy(&answer[..num]).into_owned();
            assert!(answer.contains(told), "{answer}");
            turns();
        }
    }
}
