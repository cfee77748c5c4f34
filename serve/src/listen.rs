//! Connections of a port, plain or encrypted, of which there are only so many.
//!
//! One of HTTP/2 is asked to write an answer's head, its message and its trailers one by one; each
//! write would wake the client for a part. What is small is gathered instead, and goes together when
//! the task that serves the connection has had its turn.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::{Sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::grpc::Pace;
use crate::heads::{Calls, Heads};
use crate::security::{Guard, Port};

/// Connections that wait to be served.
const WAITING: usize = 16;
/// Most bytes that are gathered.
const GATHERED: usize = 8 << 10;
/// Most bytes of head and body that are put together first, for one piece is written faster than two.
const SMALL: usize = 4 << 10;
/// How long a port waits where it cannot accept a connection, at first and at most.
const FIRST_WAIT: Duration = Duration::from_millis(5);
const LAST_WAIT: Duration = Duration::from_millis(200);
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
    /// How long a client may take to agree on keys, then to begin with HTTP/2 if that is spoken, and to
    /// send a head of HTTP/1.1.
    pub handshake_timeout: Duration,
    /// How long a client that speaks HTTP/2 may have no call before its first one that not everybody may
    /// make.
    pub idle_timeout: Duration,
    /// How long a client that speaks HTTP/1.1 may send nothing behind an answer.
    pub keep_alive: Duration,
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
        // Before the port is looked at again, where there are no descriptors.
        let mut wait = Duration::ZERO;
        loop {
            let connected = tokio::select! {
                connected = listener.accept() => connected,
                _ = stopped.wait_for(|&s| s) => return,
            };
            let stream = match connected {
                Ok((stream, _)) => stream,
                // Others may be accepted at once.
                Err(error) if is_gone(&error) => continue,
                Err(error) => {
                    if wait.is_zero() {
                        let error = error.to_string();
                        tracing::warn!(port = ?self.port, error, "no connection is accepted for now");
                    }
                    wait = (2 * wait).clamp(FIRST_WAIT, LAST_WAIT);
                    tokio::time::sleep(wait).await;
                    continue;
                }
            };
            wait = Duration::ZERO;
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
        let heads = || Heads::new(self.handshake_timeout, self.keep_alive);
        Connection {
            io,
            preface: (self.port == Port::Grpc).then(preface),
            pace: (self.port == Port::Grpc).then(pace),
            heads: (self.port != Port::Grpc).then(heads),
            look: None,
            idle: None,
            blocked: None,
            gathered: BytesMut::new(),
            idle_timeout: self.idle_timeout,
            stall_timeout: self.stall_timeout,
            _room: room,
        }
    }
}

/// Whether a connection is broken that nobody has accepted yet.
fn is_gone(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset
    )
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
    /// How one that speaks HTTP/1.1 sends its heads.
    heads: Option<Heads>,
    /// When to look after that.
    look: Option<Pin<Box<Sleep>>>,
    /// When to look whether one that speaks HTTP/2 calls at all, until it was admitted.
    idle: Option<Pin<Box<Sleep>>>,
    /// Until when something has to be written, if nothing can be now.
    blocked: Option<Pin<Box<Sleep>>>,
    /// What one of HTTP/2 was given to write and has not; one of HTTP/1.1 puts small answers together
    /// here.
    gathered: BytesMut,
    idle_timeout: Duration,
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

impl Io {
    fn write(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self {
            Self::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(stream) => Pin::new(stream).poll_flush(context),
            Self::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }
}

impl Connection {
    /// Counts the calls of one that speaks HTTP/1.1: whoever serves it does.
    pub fn calls(&self) -> Arc<Calls> {
        let heads = self.heads.as_ref();
        heads.map_or_else(Arc::default, Heads::calls)
    }

    /// Keeps what is to be written by one that speaks HTTP/2, if that is little; how much it is. The
    /// task is woken for another turn, which begins with a read and so sends it.
    fn gather(&mut self, context: &mut Context<'_>, parts: &[IoSlice<'_>]) -> Option<usize> {
        self.pace.as_ref()?;
        let len: usize = parts.iter().map(|p| p.len()).sum();
        if len > GATHERED - self.gathered.len() {
            return None;
        }
        if self.gathered.is_empty() {
            context.waker().wake_by_ref();
        }
        parts
            .iter()
            .for_each(|p| self.gathered.extend_from_slice(p));
        Some(len)
    }

    /// Writes all that was gathered.
    fn send(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let is_any = !self.gathered.is_empty();
        while !self.gathered.is_empty() {
            let write = self.io.write(context, &self.gathered);
            match ready!(self.written(context, write))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => self.gathered.advance(written),
            }
        }
        if !is_any {
            return Poll::Ready(Ok(()));
        }
        self.gathered.clear();
        let flush = self.io.flush(context);
        self.written(context, flush)
    }

    /// Whether a client that speaks HTTP/2 has left all answers lying for too long.
    ///
    /// The timer of a call outlives it and serves the next; without one it runs out once. To set and
    /// clear it for each call would be a part of what a quick one takes.
    fn is_stalled(&mut self, context: &mut Context<'_>) -> bool {
        let Some(pace) = &self.pace else {
            return false;
        };
        let again = || Box::pin(tokio::time::sleep(pace.every()));
        while self.look.is_some() || pace.has_calls() {
            let look = self.look.get_or_insert_with(again);
            if look.as_mut().poll(context).is_pending() {
                return false;
            }
            if pace.look() {
                return true;
            }
            self.look = None;
        }
        false
    }

    /// Whether a client that speaks HTTP/2, and has not shown that it may call, had no call for too long.
    fn is_idle(&mut self, context: &mut Context<'_>) -> bool {
        while let Some(pace) = self.pace.as_ref().filter(|pace| !pace.is_admitted()) {
            let again = || Box::pin(tokio::time::sleep(self.idle_timeout));
            let idle = self.idle.get_or_insert_with(again);
            if idle.as_mut().poll(context).is_pending() {
                return false;
            }
            if pace.was_idle() {
                return true;
            }
            self.idle = None;
        }
        self.idle = None;
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
        if let Poll::Ready(Err(error)) = this.send(context) {
            return Poll::Ready(Err(error));
        }
        let before = buffer.filled().len();
        if let Some(heads) = &mut this.heads {
            heads.look();
        }
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
        if let Some(heads) = &mut this.heads {
            if buffer.filled().len() > before {
                heads.came();
            } else if read.is_pending() && heads.is_late(context) {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
        }
        if read.is_pending() && (this.is_stalled(context) || this.is_idle(context)) {
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
        if let Some(heads) = &mut this.heads {
            heads.writes();
        }
        if let Some(len) = this.gather(context, &[IoSlice::new(bytes)]) {
            return Poll::Ready(Ok(len));
        }
        ready!(this.send(context))?;
        let write = this.io.write(context, bytes);
        this.written(context, write)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if let Some(heads) = &mut this.heads {
            heads.writes();
        }
        if let Some(len) = this.gather(context, parts) {
            return Poll::Ready(Ok(len));
        }
        ready!(this.send(context))?;
        let len: usize = parts.iter().map(|p| p.len()).sum();
        if parts.len() > 1 && len <= SMALL {
            parts
                .iter()
                .for_each(|p| this.gathered.extend_from_slice(p));
            let write = this.io.write(context, &this.gathered);
            this.gathered.clear();
            return this.written(context, write);
        }
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
        // It goes with the next turn, for which the task was woken.
        if !this.gathered.is_empty() {
            return Poll::Ready(Ok(()));
        }
        let flush = this.io.flush(context);
        this.written(context, flush)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.send(context))?;
        let write = match &mut this.io {
            Io::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Io::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        };
        this.written(context, write)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::grpc::Call;

    const KEEP_ALIVE: Duration = Duration::from_secs(2);
    const LONG: Duration = Duration::from_secs(60);

    /// Both ends; ours speaks HTTP/2 or not.
    async fn pair(is_http2: bool) -> (Connection, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let client = TcpStream::connect(at).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        let stall_timeout = Duration::from_secs(60);
        let room = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
        let connection = Connection {
            io: Io::Plain(stream),
            preface: None,
            pace: is_http2.then(|| Arc::new(Pace::new(stall_timeout))),
            heads: (!is_http2).then(|| Heads::new(Duration::from_millis(50), KEEP_ALIVE)),
            look: None,
            idle: None,
            blocked: None,
            gathered: BytesMut::new(),
            idle_timeout: Duration::from_secs(60),
            stall_timeout,
            _room: room,
        };
        (connection, client)
    }

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[tokio::test]
    async fn what_is_small_goes_together_behind_the_turn() {
        let (mut connection, mut client) = pair(true).await;
        let woken = Arc::new(Woken::default());
        let waker = woken.clone().into();
        let mut context = Context::from_waker(&waker);
        let mut ours = Pin::new(&mut connection);
        let parts = [IoSlice::new(b"head "), IoSlice::new(b"message ")];
        let written = ours.as_mut().poll_write_vectored(&mut context, &parts);
        assert!(matches!(written, Poll::Ready(Ok(13))));
        assert!(ours.as_mut().poll_flush(&mut context).is_ready());
        let written = ours.as_mut().poll_write(&mut context, b"trailers");
        assert!(matches!(written, Poll::Ready(Ok(8))));
        assert!(ours.as_mut().poll_flush(&mut context).is_ready());
        assert_eq!(woken.0.load(Ordering::SeqCst), 1, "for another turn");
        assert_eq!(ours.gathered.len(), 21);
        let mut read = [0; 9];
        let mut read = ReadBuf::new(&mut read);
        assert!(
            ours.as_mut()
                .poll_read(&mut context, &mut read)
                .is_pending()
        );
        assert!(ours.gathered.is_empty());
        let mut came = [0; 99];
        let num = client.read(&mut came).await.unwrap();
        assert_eq!(&came[..num], b"head message trailers");
    }

    #[tokio::test]
    async fn what_is_large_goes_at_once_behind_what_was_gathered() {
        let (mut connection, mut client) = pair(true).await;
        let large = vec![7; GATHERED - 2];
        connection.write_all(b"small").await.unwrap();
        let sent = connection.write_all(&large);
        let mut came = vec![0; 5 + large.len()];
        tokio::try_join!(sent, client.read_exact(&mut came)).unwrap();
        assert!(came[..5] == *b"small" && came[5..] == large);
        // The end does not lose what has had no turn.
        connection.write_all(b"last").await.unwrap();
        connection.shutdown().await.unwrap();
        let mut rest = Vec::new();
        client.read_to_end(&mut rest).await.unwrap();
        assert_eq!(rest, b"last");
    }

    #[tokio::test]
    async fn the_timer_of_a_call_serves_the_next_and_runs_out_once() {
        let (mut connection, _client) = pair(true).await;
        let reads = |connection: &mut Connection| {
            let mut buffer = [0; 9];
            let mut buffer = ReadBuf::new(&mut buffer);
            let mut context = Context::from_waker(std::task::Waker::noop());
            let read = Pin::new(connection).poll_read(&mut context, &mut buffer);
            assert!(read.is_pending());
        };
        reads(&mut connection);
        assert!(connection.look.is_none(), "there was no call");
        // It looks every millisecond.
        let pace = Arc::new(Pace::new(Duration::ZERO));
        connection.pace = Some(pace.clone());
        let call = Call::new(pace);
        reads(&mut connection);
        assert!(connection.look.is_some());
        drop(call);
        reads(&mut connection);
        assert!(connection.look.is_some(), "for the next call");
        while connection.look.is_some() {
            tokio::time::sleep(Duration::from_millis(1)).await;
            reads(&mut connection);
        }
    }

    /// What comes within a second; `None` for nothing.
    async fn next(connection: &mut Connection) -> Option<io::Result<usize>> {
        let mut buffer = [0; 9];
        let read = timeout(Duration::from_secs(1), connection.read(&mut buffer));
        read.await.ok()
    }

    #[tokio::test]
    async fn heads_have_to_be_whole_in_time_and_what_is_not_begun_may_wait() {
        let is_late = |read: Option<io::Result<usize>>| {
            read.is_some_and(|read| read.unwrap_err().kind() == io::ErrorKind::TimedOut)
        };
        let (mut connection, _client) = pair(false).await;
        assert!(is_late(next(&mut connection).await), "no head at all");
        let (mut connection, mut client) = pair(false).await;
        let calls = connection.calls();
        client.write_all(b"head").await.unwrap();
        assert_eq!(next(&mut connection).await.unwrap().unwrap(), 4);
        let call = calls.begin();
        // A body comes when it comes, also one that was asked for, and the next head likewise.
        connection
            .write_all(b"HTTP/1.1 100 Continue")
            .await
            .unwrap();
        client.write_all(b"body").await.unwrap();
        assert_eq!(next(&mut connection).await.unwrap().unwrap(), 4);
        assert!(next(&mut connection).await.is_none());
        connection.write_all(b"HTTP/1.1 200 OK").await.unwrap();
        client.write_all(b"more").await.unwrap();
        assert_eq!(next(&mut connection).await.unwrap().unwrap(), 4);
        assert!(next(&mut connection).await.is_none());
        drop(call);
        assert!(next(&mut connection).await.is_none());
        client.write_all(b"he").await.unwrap();
        assert_eq!(next(&mut connection).await.unwrap().unwrap(), 2);
        assert!(is_late(next(&mut connection).await), "the rest of a head");
    }

    #[tokio::test]
    async fn who_was_answered_and_says_nothing_more_is_let_go() {
        let (mut connection, mut client) = pair(false).await;
        let keep_alive = Duration::from_millis(200);
        connection.heads = Some(Heads::new(LONG, keep_alive));
        let calls = connection.calls();
        for _ in 0..4 {
            client.write_all(b"head").await.unwrap();
            assert_eq!(next(&mut connection).await.unwrap().unwrap(), 4);
            let call = calls.begin();
            // As long as it likes, a call runs, of whose answer there may be something.
            for part in [&b"HTTP/1.1 200 OK"[..], b"of the answer"] {
                let read = timeout(3 * keep_alive, next(&mut connection)).await;
                assert!(read.is_err());
                connection.write_all(part).await.unwrap();
            }
            let read = timeout(3 * keep_alive, next(&mut connection)).await;
            assert!(read.is_err());
            drop(call);
            // The last of it is still being written then.
            let read = timeout(keep_alive / 2, next(&mut connection)).await;
            assert!(read.is_err());
            connection.write_all(b" and its end").await.unwrap();
            let read = timeout(keep_alive / 2, next(&mut connection)).await;
            assert!(read.is_err(), "not yet");
        }
        let read = timeout(LONG, connection.read(&mut [0; 9])).await.unwrap();
        assert_eq!(read.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn head_and_body_of_http1_go_at_once() {
        let (mut connection, mut client) = pair(false).await;
        for len in [4, SMALL] {
            let body = vec![9; len];
            let parts = [IoSlice::new(b"head"), IoSlice::new(&body)];
            let num = connection.write_vectored(&parts).await.unwrap();
            assert!(num > 4 && connection.gathered.is_empty());
            let mut came = vec![0; num];
            client.read_exact(&mut came).await.unwrap();
            assert!(came[..4] == *b"head" && came[4..] == body[..num - 4]);
        }
    }
}
