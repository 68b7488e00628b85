//! The other side of the wire: bookies of this process for clients that come over TCP.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes};
use tokio::net::{TcpListener, TcpStream, ToSocketAddrs};
use tokio::task::{JoinHandle, JoinSet};

use super::AUTH_DISABLED;
use super::connection::link::{Link, Reading, Turn};
use super::message::{
    AuthMessage, Operation, Request, RequestFrame, ResponseBody as Body, ResponseFrame,
};
use super::status::Protocol;
use super::tls::TlsServer;
use super::words::lac_body;
use crate::entry::Entry;
use crate::id::{BookieId, EntryId, LedgerId};
use crate::mailbox::Mailbox;
use crate::time::{Clock, Time};
use crate::transport::{
    self, BookieError, BookieTransport, CompletionSink, RequestBody, RequestId, Response,
    ResponseBody,
};

/// How many requests of one connection are carried out at a time; the next are read when there is room.
const PENDING_MAX: usize = 10_000;

/// How many bytes of answers may wait for a client that does not read them, before no more of it is read either.
const UNSENT_BYTES_MAX: usize = 4 << 20;

/// One bookie, served over TCP in both protocols of Apache BookKeeper, for tests and benches.
///
/// It knows what [`BookieTransport`] can ask: adds, reads, fences, LACs. Everything else, a batch read or a list of entries
/// among them, is refused as a bad request. It wants no proof of its clients, and tells a LAC in the header of an entry
/// without payload instead of the last one's. It ends with the value.
#[derive(Debug)]
pub struct BookieServer {
    address: SocketAddr,
    accepting: JoinHandle<()>,
}

/// What all connections share.
struct Shared {
    bookie: BookieId,
    bookies: Arc<dyn BookieTransport>,
    tls: Option<TlsServer>,
}

impl BookieServer {
    /// Listens at an address and serves `bookie` of `bookies` there; with `tls`, to clients that ask for it by START_TLS
    /// only.
    ///
    /// # Errors
    /// Those of listening.
    pub async fn bind(
        address: impl ToSocketAddrs + Send,
        bookie: BookieId,
        bookies: Arc<dyn BookieTransport>,
        tls: Option<TlsServer>,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared { bookie, bookies, tls });
        Ok(Self { address, accepting: tokio::spawn(accept(listener, shared)) })
    }

    /// Where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops listening, closes all connections and returns when that is done. Requests that are being carried out may
    /// still be. Not cancel-safe: dropped, it goes on by itself.
    pub async fn stop(mut self) {
        self.accepting.abort();
        // It ends as cancelled, which is what is waited for.
        let _ = (&mut self.accepting).await;
    }
}

impl Drop for BookieServer {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    // Dropped with this task, and the connections with it.
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(serve(stream, shared.clone()));
                }
                // Of a client that has gone, or for want of files: the next may do better, but not at once.
                Err(error) => {
                    tracing::warn!("cannot accept a connection: {error}");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

/// A connection, as far as it has come.
struct Connection {
    shared: Arc<Shared>,
    answers: Arc<Mailbox<Response>>,
    sink: Arc<dyn CompletionSink>,
    owed: BTreeMap<u64, Owed>,
    next: u64,
    /// When waits for the LAC have to be answered, whatever it is then.
    waits: VecDeque<(Time, u64)>,
    clock: Clock,
    door: Door,
}

/// What may be said.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Door {
    /// START_TLS and nothing else.
    BeforeTls,
    Open,
}

/// An answer that is owed, and how it is to be put.
#[derive(Clone, Copy)]
struct Owed {
    protocol: Protocol,
    transaction: u64,
    operation: Operation,
    form: Form,
    ledger: LedgerId,
    entry: Option<EntryId>,
}

#[derive(Clone, Copy)]
enum Form {
    Plain,
    ReadLac,
    WaitLac,
}

/// What becomes of a connection after a frame.
enum Next {
    GoOn,
    Secure,
    /// The client sends what is no message.
    HangUp,
}

async fn serve(stream: TcpStream, shared: Arc<Shared>) {
    if let Err(error) = serve_until_closed(stream, shared).await {
        tracing::debug!("connection of a client lost: {error}");
    }
}

async fn serve_until_closed(stream: TcpStream, shared: Arc<Shared>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut link = Link::new(Box::new(stream));
    let answers = Arc::new(Mailbox::new());
    let door = if shared.tls.is_some() { Door::BeforeTls } else { Door::Open };
    let mut connection = Connection {
        shared,
        sink: answers.clone(),
        answers,
        owed: BTreeMap::new(),
        next: 0,
        waits: VecDeque::new(),
        clock: Clock::new(),
        door,
    };
    let mut arrived = Vec::new();
    loop {
        let answers = connection.answers.clone();
        let full =
            connection.owed.len() >= PENDING_MAX || link.outgoing.remaining() >= UNSENT_BYTES_MAX;
        let reading = if full { Reading::Later } else { Reading::Now };
        tokio::select! {
            turn = link.turn(reading) => match turn? {
                Turn::Flushed => {}
                Turn::Closed => return Ok(()),
                Turn::Received => match connection.read(&mut link)? {
                    Next::GoOn => {}
                    Next::Secure => link = connection.secure(link).await?,
                    Next::HangUp => return Ok(()),
                },
            },
            // The mailbox is never closed.
            _ = answers.recv_into(&mut arrived) => {
                for response in arrived.drain(..) {
                    if let Some(owed) = connection.owed.remove(&response.id.0) {
                        let frame = owed.answer(response.result);
                        owed.protocol.encode_response(&frame, &mut link.outgoing);
                    }
                }
            }
            () = connection.next_wait() => connection.end_wait(),
        }
    }
}

impl Connection {
    /// Takes the frames that have come and submits what they ask.
    fn read(&mut self, link: &mut Link) -> io::Result<Next> {
        let mut batch = Vec::new();
        let mut next = Next::GoOn;
        while let Some(frame) = link.incoming.next_frame().map_err(io::Error::other)? {
            // A message of v3 begins with the key of its first field, a packet of v2 with its version.
            let protocol = if frame.first() == Some(&0x0a) { Protocol::V3 } else { Protocol::V2 };
            next = match protocol.decode_request(frame) {
                Ok(frame) => self.take(protocol, frame, link, &mut batch),
                Err(error) => {
                    tracing::debug!("a client sent what is no request: {error}");
                    Next::HangUp
                }
            };
            if !matches!(next, Next::GoOn) {
                break;
            }
        }
        self.shared.bookies.submit(&self.shared.bookie, &mut batch, &self.sink);
        Ok(next)
    }

    fn take(
        &mut self,
        protocol: Protocol,
        frame: RequestFrame,
        link: &mut Link,
        batch: &mut Vec<transport::Request>,
    ) -> Next {
        let RequestFrame { transaction, request, .. } = frame;
        let operation = request.operation();
        let now = |status, body| ResponseFrame { transaction, operation, status, body };
        let mut say = |frame| protocol.encode_response(&frame, &mut link.outgoing);
        if operation == Operation::StartTls {
            if self.shared.tls.is_none() {
                say(now(Err(BookieError::BadRequest), Body::None));
                return Next::GoOn;
            }
            say(now(Ok(()), Body::StartTls));
            return Next::Secure;
        }
        if self.door == Door::BeforeTls {
            return Next::HangUp;
        }
        let owed =
            |form, ledger, entry| Owed { protocol, transaction, operation, form, ledger, entry };
        let (owed, body) = match request {
            Request::Auth(_) => {
                let message = AuthMessage { plugin: AUTH_DISABLED.into(), payload: Bytes::new() };
                say(now(Ok(()), Body::Auth(message)));
                return Next::GoOn;
            }
            Request::Add { entry, key, kind, .. } => {
                let owed = owed(Form::Plain, entry.ledger(), Some(entry.entry()));
                (owed, RequestBody::Add { entry, key, kind })
            }
            Request::Read { ledger, entry, fence } => {
                (owed(Form::Plain, ledger, Some(entry)), RequestBody::Read { entry, fence })
            }
            Request::ReadLast { ledger, fence } => {
                (owed(Form::Plain, ledger, None), RequestBody::ReadLac { fence })
            }
            Request::ReadLac { ledger } => {
                (owed(Form::ReadLac, ledger, None), RequestBody::ReadLac { fence: None })
            }
            Request::WaitLac { ledger, beyond, within } => {
                let at = self.clock.now() + within;
                let place = self.waits.partition_point(|(due, _)| *due <= at);
                self.waits.insert(place, (at, self.next));
                (owed(Form::WaitLac, ledger, None), RequestBody::WaitLac { beyond })
            }
            Request::WriteLac { ledger, lac, key, .. } => {
                (owed(Form::Plain, ledger, None), RequestBody::WriteLac { lac, key })
            }
            Request::BatchRead { ledger, first, .. } => {
                let body = Body::BatchRead { ledger, first, entries: Vec::new() };
                say(now(Err(BookieError::BadRequest), body));
                return Next::GoOn;
            }
            _ => {
                say(now(Err(BookieError::BadRequest), Body::None));
                return Next::GoOn;
            }
        };
        batch.push(self.owe(owed, body));
        Next::GoOn
    }

    fn owe(&mut self, owed: Owed, body: RequestBody) -> transport::Request {
        let id = self.next;
        self.next += 1;
        self.owed.insert(id, owed);
        transport::Request { id: RequestId(id), ledger: owed.ledger, body }
    }

    async fn secure(&mut self, mut link: Link) -> io::Result<Link> {
        // The answer to START_TLS is to leave; without reading, the only turn is that it has.
        link.turn(Reading::Later).await?;
        if !link.incoming.buffer().is_empty() {
            return Err(io::Error::other("the client went on in the clear"));
        }
        let Some(tls) = self.shared.tls.clone() else {
            return Err(io::Error::other("TLS is not configured"));
        };
        self.door = Door::Open;
        Ok(Link::new(tls.accept(link.stream).await?))
    }

    async fn next_wait(&self) {
        match self.waits.front() {
            Some((at, _)) => self.clock.sleep_until(*at).await,
            None => std::future::pending().await,
        }
    }

    /// Has the LAC told as it is to who has waited for it long enough.
    fn end_wait(&mut self) {
        let Some((_, id)) = self.waits.pop_front() else { return };
        // It may have been answered long since.
        if let Some(owed) = self.owed.remove(&id) {
            let request = self.owe(owed, RequestBody::ReadLac { fence: None });
            self.shared.bookies.submit(&self.shared.bookie, &mut vec![request], &self.sink);
        }
    }
}

impl Owed {
    fn answer(self, result: Result<ResponseBody, BookieError>) -> ResponseFrame {
        let Self { transaction, operation, ledger, entry, .. } = self;
        let lac = match &result {
            Ok(ResponseBody::LastAddConfirmed { lac }) => *lac,
            _ => None,
        };
        let mut status = result.as_ref().map(|_| ()).map_err(|error| *error);
        let read = |bytes, lac| Body::Read { ledger, entry, bytes, lac, lac_since_ms: None };
        let body = match (self.form, operation, result) {
            (Form::WaitLac, ..) => read(None, lac),
            (Form::ReadLac, ..) => {
                Body::ReadLac { ledger, explicit: lac.map(|lac| lac_body(ledger, lac)), last: None }
            }
            (Form::Plain, Operation::Add, _) => {
                let entry = entry.expect("an add names its entry");
                Body::Add { ledger, entry }
            }
            (Form::Plain, Operation::WriteLac, _) => Body::WriteLac { ledger },
            (Form::Plain, _, Ok(ResponseBody::Entry(entry))) => read(Some(entry.to_bytes()), None),
            (Form::Plain, ..) => {
                let stand_in = |lac: EntryId| {
                    Entry::seal(ledger, lac.next(), Some(lac), 0, Bytes::new()).to_bytes()
                };
                read(lac.map(stand_in), lac)
            }
        };
        // Without a LAC there is no entry either that could be sent.
        if status.is_ok() && lac.is_none() && entry.is_none() && operation != Operation::WriteLac {
            status = Err(BookieError::NoSuchEntry);
        }
        ResponseFrame { transaction, operation, status, body }
    }
}
