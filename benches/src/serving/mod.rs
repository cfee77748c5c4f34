//! What measurements of the serving front end share: servers in processes of their own, bare ones
//! to compare with, models to serve, and clients.

pub mod call;
pub mod child;
pub mod cores;
pub mod drive;
pub mod echo;
pub mod models;

/// What messages travel over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// HTTP/1.1, tensors as bytes behind the JSON text.
    Http,
    /// gRPC, tensors as raw contents.
    Grpc,
}

impl Way {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Http, Self::Grpc];

    /// Its name in results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Grpc => "grpc",
        }
    }
}
