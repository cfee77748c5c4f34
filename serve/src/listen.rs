//! Connections of a port, plain or encrypted, of which there are only so many.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::{Sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::grpc::Pace;
use crate::security::{Guard, Port};

/// Connections that wait to be served.
const WAITING: usize = 16;
/// Bytes that every connection of HTTP/2 begins with.
const PREFACE: usize = 24;

/// What a port takes.
#[derive(Clone)]
pub struct Listen {
    /// What is served there.
    pub port: Port,
    /// How it is encrypted.
    pub guard: Arc<Guard>,
    /// Most connections; more are closed at once.
    pub max_connections: usize,
    /// How long a client may take to agree on keys, and then to begin with HTTP/2 if that is spoken.
    pub handshake_timeout: Duration,
    /// How long a client may take nothing of what there is for it.
    pub stall_timeout: Duration,
}

impl Listen {
    /// Accepts connections until told to stop; then the port is closed, and those that have not
    /// agreed on keys yet with it. To be polled beside the one who takes them.
    pub fn start(
        self,
        listener: TcpListener,
        stopped: watch::Receiver<bool>,
    ) -> (
        impl Future<Output = ()> + Send + 'static,
        mpsc::Receiver<Connection>,
    ) {
        let (accepted, taken) = mpsc::channel(WAITING);
        (self.accept(listener, accepted, stopped), taken)
    }

    async fn accept(
        self,
        listener: TcpListener,
        accepted: mpsc::Sender<Connection>,
        mut stopped: watch::Receiver<bool>,
    ) {
        let room = Arc::new(Semaphore::new(self.max_connections));
        loop {
            let connected = tokio::select! {
                connected = listener.accept() => connected,
                _ = stopped.wait_for(|&s| s) => return,
            };
            let Ok((stream, _)) = connected else {
                // Out of descriptors, or a client that has gone: others may be accepted.
                tokio::time::sleep(Duration::from_millis(5)).await;
                continue;
            };
            // One connection too many is closed at once.
            let Ok(room) = room.clone().try_acquire_owned() else {
                continue;
            };
            drop(stream.set_nodelay(true));
            match self.guard.acceptor(self.port) {
                None => {
                    let connection = self.connection(Io::Plain(stream), room);
                    // Nobody takes them any more at the end alone.
                    drop(accepted.send(connection).await);
                }
                // Each beside the others: one that is slow holds up nobody.
                Some(acceptor) => {
                    let (accepted, mut stopped) = (accepted.clone(), stopped.clone());
                    let this = self.clone();
                    tokio::spawn(async move {
                        let io = tokio::select! {
                            io = encrypt(acceptor, stream, this.handshake_timeout) => io,
                            _ = stopped.wait_for(|&s| s) => None,
                        };
                        if let Some(io) = io {
                            drop(accepted.send(this.connection(io, room)).await);
                        }
                    });
                }
            }
        }
    }

    fn connection(&self, io: Io, room: OwnedSemaphorePermit) -> Connection {
        let preface = || Preface {
            missing: PREFACE,
            until: Box::pin(tokio::time::sleep(self.handshake_timeout)),
        };
        let pace = || Arc::new(Pace::new(self.stall_timeout));
        Connection {
            io,
            preface: (self.port == Port::Grpc).then(preface),
            pace: (self.port == Port::Grpc).then(pace),
            look: None,
            blocked: None,
            stall_timeout: self.stall_timeout,
            _room: room,
        }
    }
}

/// Agrees on keys. A client that does not is no error of the server.
async fn encrypt(acceptor: TlsAcceptor, stream: TcpStream, within: Duration) -> Option<Io> {
    let stream = timeout(within, acceptor.accept(stream)).await.ok()?.ok()?;
    Some(Io::Tls(Box::new(stream)))
}

/// A connection that may be served, and the room that it takes.
pub struct Connection {
    io: Io,
    /// What a client that speaks HTTP/2 still owes.
    preface: Option<Preface>,
    /// How one that speaks HTTP/2 takes its answers.
    pace: Option<Arc<Pace>>,
    /// When to look after that.
    look: Option<Pin<Box<Sleep>>>,
    /// Until when something has to be written, if nothing can be now.
    blocked: Option<Pin<Box<Sleep>>>,
    stall_timeout: Duration,
    _room: OwnedSemaphorePermit,
}

/// The first bytes of HTTP/2. Behind them, those who serve it look after clients that say nothing.
struct Preface {
    missing: usize,
    until: Pin<Box<Sleep>>,
}

enum Io {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl tonic::transport::server::Connected for Connection {
    type ConnectInfo = Arc<Pace>;

    fn connect_info(&self) -> Arc<Pace> {
        let none = || Arc::new(Pace::new(self.stall_timeout));
        self.pace.clone().unwrap_or_else(none)
    }
}

impl Connection {
    /// Whether a client that speaks HTTP/2 has left all answers lying for too long.
    fn is_stalled(&mut self, context: &mut Context<'_>) -> bool {
        let Some(pace) = self.pace.as_ref().filter(|pace| pace.has_calls()) else {
            self.look = None;
            return false;
        };
        let again = || Box::pin(tokio::time::sleep(pace.every()));
        while self
            .look
            .get_or_insert_with(again)
            .as_mut()
            .poll(context)
            .is_ready()
        {
            if pace.look() {
                return true;
            }
            self.look = None;
        }
        false
    }

    /// What a write came to; an error where nothing could be written for too long.
    fn written<T>(
        &mut self,
        context: &mut Context<'_>,
        write: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if write.is_ready() {
            self.blocked = None;
            return write;
        }
        let until = || Box::pin(tokio::time::sleep(self.stall_timeout));
        let blocked = self.blocked.get_or_insert_with(until);
        match blocked.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        let read = match &mut this.io {
            Io::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Io::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        };
        if let Some(preface) = &mut this.preface {
            let came = buffer.filled().len() - before;
            preface.missing = preface.missing.saturating_sub(came);
            if preface.missing == 0 {
                this.preface = None;
            } else if read.is_pending() && preface.until.as_mut().poll(context).is_ready() {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
        }
        if read.is_pending() && this.is_stalled(context) {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let write = match &mut this.io {
            Io::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Io::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        };
        this.written(context, write)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let write = match &mut this.io {
            Io::Plain(stream) => Pin::new(stream).poll_write_vectored(context, parts),
            Io::Tls(stream) => Pin::new(stream).poll_write_vectored(context, parts),
        };
        this.written(context, write)
    }

    fn is_write_vectored(&self) -> bool {
        match &self.io {
            Io::Plain(stream) => stream.is_write_vectored(),
            Io::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let write = match &mut this.io {
            Io::Plain(stream) => Pin::new(stream).poll_flush(context),
            Io::Tls(stream) => Pin::new(stream).poll_flush(context),
        };
        this.written(context, write)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let write = match &mut this.io {
            Io::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Io::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        };
        this.written(context, write)
    }
}
