//! Bodies of requests as they are read, bounded, each and all together; and those of answers until they
//! are taken.

use std::fmt::Display;
use std::pin::pin;
use std::sync::Arc;

use axum::RequestExt;
use axum::extract::{FromRequest, Request};
use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, LengthLimitError};
use hyper::body::Body;

use crate::error::{Error, Result};
use crate::memory::Tab;
use crate::state::State;

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

/// What is said of one of more than `most` bytes.
fn too_long(most: usize) -> Error {
    unread(format!(
        "length limit exceeded: expected at most {most} bytes"
    ))
}

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
        return Err(too_long(most));
    }
    let mut first = Bytes::new();
    let mut all = BytesMut::new();
    let mut len = 0_usize;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|e| {
            let error: axum::BoxError = e.into();
            let is_long = innermost(&*error).is::<LengthLimitError>();
            if is_long {
                too_long(most)
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
            discard(body, most.saturating_mul(2)).await;
            return Err(too_long(most));
        }
        if let Err(full) = tab.add(data.len()) {
            drop((data, first, all, tab.take()));
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
