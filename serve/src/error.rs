//! Why a call has no answer, and which code the protocol has for it.

use std::panic::AssertUnwindSafe;

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use lazybatch_engine::RequestError;
use serde_json::json;

use crate::explained::cut;

/// Error of a call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The call itself is wrong: 400, `INVALID_ARGUMENT`.
    #[error("{0}")]
    Invalid(String),
    /// What it would make is there: 400, `ALREADY_EXISTS`.
    #[error("{0}")]
    Exists(String),
    /// What it names is not there: 404, `NOT_FOUND`.
    #[error("{0}")]
    NotFound(String),
    /// Not now: 503, `UNAVAILABLE`.
    #[error("{0}")]
    Unavailable(String),
    /// Not by this server: 501, `UNIMPLEMENTED`.
    #[error("{0}")]
    Unsupported(String),
    /// Not the caller's fault: 500, `INTERNAL`.
    #[error("{0}")]
    Internal(String),
}

/// Result of a call.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// [`Error::Invalid`] in one form: what, what would be right, what came.
    pub fn expected(
        what: impl std::fmt::Display,
        expected: impl std::fmt::Display,
        got: impl std::fmt::Display,
    ) -> Self {
        Self::Invalid(format!("{what}: expected {expected}, got {got}"))
    }

    /// The same error in other words.
    #[must_use]
    pub fn map(self, words: impl FnOnce(String) -> String) -> Self {
        match self {
            Self::Invalid(text) => Self::Invalid(words(text)),
            Self::Exists(text) => Self::Exists(words(text)),
            Self::NotFound(text) => Self::NotFound(words(text)),
            Self::Unavailable(text) => Self::Unavailable(words(text)),
            Self::Unsupported(text) => Self::Unsupported(words(text)),
            Self::Internal(text) => Self::Internal(words(text)),
        }
    }

    /// The HTTP status.
    pub fn http(&self) -> StatusCode {
        match self {
            Self::Invalid(_) | Self::Exists(_) => StatusCode::BAD_REQUEST,
            Self::NotFound(_) => StatusCode::NOT_FOUND,
            Self::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
            Self::Unsupported(_) => StatusCode::NOT_IMPLEMENTED,
            Self::Internal(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}

/// Does what may fail by a bug, too, and take nobody else with it.
///
/// # Errors
/// Its own; [`Error::Internal`] if it panics, which the panic hook has told of.
pub fn caught<T>(what: impl FnOnce() -> Result<T>) -> Result<T> {
    std::panic::catch_unwind(AssertUnwindSafe(what)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        let text = text.unwrap_or_else(|| "no message".into());
        Err(Error::Internal(format!("the server has a bug: {text}")))
    })
}

/// Most bytes of what a client is told of an error: it may quote what the client sent.
const MOST_TOLD: usize = 4096;

impl Error {
    /// What the client is told.
    pub fn told(&self) -> String {
        cut(&self.to_string(), MOST_TOLD)
    }
}

impl IntoResponse for Error {
    fn into_response(self) -> Response {
        let body = axum::Json(json!({ "error": self.told() }));
        (self.http(), body).into_response()
    }
}

impl From<Error> for tonic::Status {
    fn from(error: Error) -> Self {
        let code = match &error {
            Error::Invalid(_) => tonic::Code::InvalidArgument,
            Error::Exists(_) => tonic::Code::AlreadyExists,
            Error::NotFound(_) => tonic::Code::NotFound,
            Error::Unavailable(_) => tonic::Code::Unavailable,
            Error::Unsupported(_) => tonic::Code::Unimplemented,
            Error::Internal(_) => tonic::Code::Internal,
        };
        Self::new(code, error.told())
    }
}

impl From<RequestError> for Error {
    fn from(error: RequestError) -> Self {
        let text = error.to_string();
        match error {
            RequestError::QueueFull { .. } | RequestError::LevelFull { .. } => {
                Self::Unavailable(format!("Exceeds maximum queue size: {text}"))
            }
            // It never has room: that is in whole units of 1 KiB.
            RequestError::Memory { got, limit, .. } if got.div_ceil(1024) > limit / 1024 => {
                Self::Invalid(text)
            }
            RequestError::Memory { .. }
            | RequestError::Shed(_)
            | RequestError::Closed
            | RequestError::Unloaded { .. }
            | RequestError::SequencesFull { .. }
            | RequestError::Cancelled => Self::Unavailable(text),
            RequestError::Failed(_) | RequestError::Crashed(_) => Self::Internal(text),
            RequestError::Data(_)
            | RequestError::Broken(_)
            | RequestError::UnknownModel { .. }
            | RequestError::UnknownClass { .. }
            | RequestError::Input(_)
            | RequestError::Samples { .. }
            | RequestError::Sequence { .. } => Self::Invalid(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_clients_cause_is_no_failure_of_the_server() {
        let why = || "node look_up: id 100 in a table of 30 rows".to_owned();
        for error in [RequestError::Data(why()), RequestError::Broken(why())] {
            assert_eq!(Error::from(error).http(), StatusCode::BAD_REQUEST);
        }
        // Whatever it says.
        let error = RequestError::Failed(why());
        assert_eq!(Error::from(error).http(), StatusCode::INTERNAL_SERVER_ERROR);
    }

    #[test]
    fn what_never_has_room_is_not_to_be_tried_again() {
        let memory = |got, left| {
            Error::from(RequestError::Memory {
                model: "m".into(),
                input_len: 1,
                samples: 1,
                got,
                left,
                limit: 4096,
            })
        };
        assert_eq!(memory(2048, 1024).http(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(memory(4097, 4096).http(), StatusCode::BAD_REQUEST);
    }

    #[test]
    fn a_client_is_told_so_much_and_no_more() {
        let short = Error::expected("x", "a number", "y");
        assert_eq!(short.told(), "x: expected a number, got y");
        let long = Error::Invalid("\u{e9}".repeat(MOST_TOLD)).told();
        assert!((MOST_TOLD - 1..=MOST_TOLD).contains(&long.len()));
        let status = tonic::Status::from(Error::Internal("n".repeat(1 << 20)));
        assert_eq!(status.message().len(), MOST_TOLD);
    }

    #[test]
    fn a_bug_is_told_and_takes_nobody_with_it() {
        let told = |what: fn() -> Result<u8>| caught(what).map_err(|e| (e.http(), e.to_string()));
        assert_eq!(told(|| Ok(1)), Ok(1));
        let own = told(|| Err(Error::NotFound("not there".into())));
        assert_eq!(own, Err((StatusCode::NOT_FOUND, "not there".into())));
        let bug = |text: &str| {
            let text = format!("the server has a bug: {text}");
            Err((StatusCode::INTERNAL_SERVER_ERROR, text))
        };
        assert_eq!(told(|| panic!("five")), bug("five"));
        assert_eq!(told(|| panic!("{}", 5)), bug("5"));
        assert_eq!(told(|| std::panic::panic_any(5)), bug("no message"));
    }
}
