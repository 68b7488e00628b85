//! Sessions of other clusters' topics over the socket: both ends.
//!
//! | direction | frame | what it is |
//! |---|---|---|
//! | to the remote | data | one send: previous position, position, checksum, head, payload |
//! | from the remote | word | [`Opened`], first; then lists of [`Answer`] |
//!
//! A connection that breaks is a session that is lost. A session that its source drops is closed by the end of what it
//! sends, and what was sent before may still land.

use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use futures::FutureExt;
use georepl::cursor::Position;
use georepl::replicator::{
    EmbeddedRemote, EventSink, Incarnation, OpenError, OpenedSession, Opening, Outgoing, Prepared,
    Receipt, Refusal, RemoteProducer, RemoteSession, Revision, SessionEvent, SessionEvents,
    SessionId, Source, Watermark,
};
use georepl::storage::Mailbox;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::net::UnixStream;
use tokio::sync::mpsc;

use super::host::Host;
use super::line::{self, Broken, Frame, Inbox, Outbox};
use super::words::{Command, Reply, Request, VERSION, position};
use crate::exit::{Exit, Failure};

/// How the opening of a session was answered.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Opened {
    Open { watermark: Option<Held> },
    Unreachable { message: String },
    LaterOwner { owner: u64, counter: u64 },
    LaterIncarnation { newest: u64 },
    LaterRevision { newest: u64, holds: Option<(u64, u64)> },
}

/// What the remote holds.
#[derive(Debug, Serialize, Deserialize)]
struct Held {
    ledger: u64,
    entry: u64,
    checksum: u32,
}

/// What a remote says in a session.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Said {
    Answers(Vec<Answer>),
    NotWritable(String),
}

/// The answer to one send, by its position.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Answer {
    Published(u64, u64),
    Duplicate(u64, u64),
    Gap(u64, u64),
    Refused(u64, u64, String),
}

pub(super) fn opening(
    cluster: String,
    topic: String,
    owner: u64,
    counter: u64,
    incarnation: u64,
    revision: u64,
) -> Opening {
    Opening {
        source: Source { cluster: cluster.into(), topic: topic.into() },
        session: SessionId { owner, counter },
        incarnation: Incarnation(incarnation),
        revision: Revision(revision),
    }
}

/// Serves a session until its source ends it or it is lost.
pub(super) async fn run(
    host: &Arc<Host>,
    opening: Opening,
    inbox: &mut Inbox,
    outbox: &mut Outbox,
) -> Result<Value, Failure> {
    let gone = |error: Broken| Failure::new(Exit::Unreachable, error);
    let (sink, mut events) = mpsc::unbounded_channel();
    let heard = SessionEvents::new(opening.session, Arc::new(Events(sink)));
    let remote = EmbeddedRemote::new(host.region.clone());
    let mut session = match remote.open(opening, heard).await {
        Ok(OpenedSession { watermark, session }) => {
            let watermark = watermark.map(|Watermark { position, checksum }| Held {
                ledger: position.ledger.get(),
                entry: position.entry.get(),
                checksum,
            });
            outbox.word(&Opened::Open { watermark }).await.map_err(gone)?;
            session
        }
        Err(error) => {
            outbox.word(&refused(error)).await.map_err(gone)?;
            return Ok(Value::Null);
        }
    };
    loop {
        tokio::select! {
            sent = sends(inbox) => match sent.map_err(gone)? {
                Some(batch) => {
                    host.in_place()?;
                    session.submit(batch);
                }
                None => return Ok(Value::Null),
            },
            event = events.recv() => match event {
                Some(SessionEvent::Receipts(receipts)) => {
                    let answers = receipts.into_iter().map(Answer::from).collect();
                    outbox.word(&Said::Answers(answers)).await.map_err(gone)?;
                }
                Some(SessionEvent::NotWritable(message)) => {
                    let said = Said::NotWritable(message.to_string());
                    outbox.word(&said).await.map_err(gone)?;
                }
                Some(SessionEvent::Lost(message)) => return Err(Failure::failed(message)),
                None => return Err(Failure::failed("the session ended")),
            },
            () = host.closing() => return Err(host.ending("open the session again")),
        }
    }
}

/// What was sent and is there, at least one; none when the source has ended the session. Cancel-safe: it waits only
/// while it has nothing.
async fn sends(inbox: &mut Inbox) -> Result<Option<Vec<Outgoing<Prepared>>>, Broken> {
    let Some(first) = inbox.data().await? else { return Ok(None) };
    let mut batch = vec![decode(first)?];
    let mut bytes = batch[0].entry.frame_bytes();
    while bytes < BATCH_BYTES {
        // An end that is seen here is seen again by the next call.
        let Some(Some(data)) = inbox.data().now_or_never().transpose()? else { break };
        batch.push(decode(data)?);
        bytes += batch[batch.len() - 1].entry.frame_bytes();
    }
    Ok(Some(batch))
}

/// The events of a session on their way to its connection. Bounded by the source's window.
struct Events(mpsc::UnboundedSender<SessionEvent>);

impl EventSink for Events {
    fn session_event(&self, _: SessionId, event: SessionEvent) {
        // A connection that is gone wants no answers.
        let _ = self.0.send(event);
    }
}

/// Opens a session with the process at the other end.
pub(super) async fn open(
    stream: UnixStream,
    opening: Opening,
    events: SessionEvents,
) -> Result<OpenedSession, OpenError> {
    let unreachable = |message: String| OpenError::Unreachable(message.into());
    let (opened, inbox, outbox) = asked(stream, &opening).await.map_err(unreachable)?;
    let watermark = match opened {
        Opened::Open { watermark } => watermark,
        Opened::Unreachable { message } => return Err(unreachable(message)),
        Opened::LaterOwner { owner, counter } => {
            let newest = SessionId { owner, counter };
            return Err(OpenError::LaterOwner { asked: opening.session, newest });
        }
        Opened::LaterIncarnation { newest } => {
            let newest = Incarnation(newest);
            return Err(OpenError::LaterIncarnation { asked: opening.incarnation, newest });
        }
        Opened::LaterRevision { newest, holds } => {
            let (asked, newest) = (opening.revision, Revision(newest));
            let watermark = holds.map(|(ledger, entry)| position(ledger, entry));
            return Err(OpenError::LaterRevision { asked, newest, watermark });
        }
    };
    let watermark = watermark.map(|Held { ledger, entry, checksum }| Watermark {
        position: position(ledger, entry),
        checksum,
    });
    let unsent = Arc::new(Mailbox::new());
    tokio::spawn(carry(inbox, outbox, unsent.clone(), events));
    Ok(OpenedSession { watermark, session: Box::new(SocketSession { unsent }) })
}

async fn asked(stream: UnixStream, opening: &Opening) -> Result<(Opened, Inbox, Outbox), String> {
    let words = |error: Broken| error.to_string();
    let Opening { source, session, incarnation, revision } = opening;
    let command = Command::Receive {
        cluster: source.cluster.to_string(),
        topic: source.topic.to_string(),
        owner: session.owner,
        counter: session.counter,
        incarnation: incarnation.0,
        revision: revision.0,
    };
    let request = Request { georepl: VERSION, command };
    let (mut inbox, outbox) = line::ask(Box::new(stream), &request).await.map_err(words)?;
    match word(&mut inbox).await.map_err(words)? {
        Reply::Taken => {}
        Reply::Failed(failure) => return Err(failure.to_string()),
        Reply::Progress(_) | Reply::Done(_) => return Err("an answer out of turn".into()),
    }
    Ok((word(&mut inbox).await.map_err(words)?, inbox, outbox))
}

/// A session's sends on their way to its connection.
struct SocketSession {
    /// Bounded by the replicator's window.
    unsent: Arc<Mailbox<Outgoing<Prepared>>>,
}

impl RemoteSession for SocketSession {
    fn submit(&mut self, batch: Vec<Outgoing<Prepared>>) {
        self.unsent.extend(batch);
    }
}

impl Drop for SocketSession {
    fn drop(&mut self) {
        self.unsent.close();
    }
}

/// Carries sends and receipts until the session is dropped or the connection breaks.
async fn carry(
    mut inbox: Inbox,
    mut outbox: Outbox,
    unsent: Arc<Mailbox<Outgoing<Prepared>>>,
    events: SessionEvents,
) {
    let send = async {
        let mut batch = Vec::new();
        while unsent.recv_into(&mut batch).await.is_ok() {
            for sent in batch.drain(..) {
                outbox.feed(Frame::Data(encode(&sent))).await?;
            }
            outbox.flush().await?;
        }
        // The session was dropped. What is under way may land, and nobody wants to know.
        Ok::<_, Broken>(())
    };
    let receive = async {
        loop {
            match inbox.next().await {
                Ok(Some(Frame::Word(word))) => match line::parse(&word) {
                    Ok(Said::Answers(answers)) => {
                        events.receipts(answers.into_iter().map(Receipt::from).collect());
                    }
                    Ok(Said::NotWritable(message)) => events.not_writable(message),
                    Err(_) => return last_words(&word),
                },
                Ok(_) => return "the remote's process ended".to_owned(),
                Err(error) => return error.to_string(),
            }
        }
    };
    tokio::select! {
        sent = send => if let Err(error) = sent { events.lost(error.to_string()) },
        lost = receive => events.lost(lost),
    }
    unsent.close();
}

fn last_words(word: &[u8]) -> String {
    match line::parse(word) {
        Ok(Reply::Failed(failure)) => failure.message,
        _ => "the remote ended the session".to_owned(),
    }
}

async fn word<T: serde::de::DeserializeOwned>(inbox: &mut Inbox) -> Result<T, Broken> {
    match inbox.next().await? {
        Some(Frame::Word(word)) => line::parse(&word),
        Some(_) => Err(Broken::Garbage("data where a word was due".into())),
        None => Err(Broken::Garbage("an early end".into())),
    }
}

fn refused(error: OpenError) -> Opened {
    match error {
        OpenError::Unreachable(message) => Opened::Unreachable { message: message.to_string() },
        OpenError::LaterOwner { newest: SessionId { owner, counter }, .. } => {
            Opened::LaterOwner { owner, counter }
        }
        OpenError::LaterIncarnation { newest, .. } => Opened::LaterIncarnation { newest: newest.0 },
        OpenError::LaterRevision { newest, watermark, .. } => Opened::LaterRevision {
            newest: newest.0,
            holds: watermark.map(|at| (at.ledger.get(), at.entry.get())),
        },
    }
}

impl From<Receipt> for Answer {
    fn from(receipt: Receipt) -> Self {
        let numbers = |position: Position| (position.ledger.get(), position.entry.get());
        match receipt {
            Receipt::Published(at) => Self::Published(numbers(at).0, numbers(at).1),
            Receipt::Duplicate(at) => Self::Duplicate(numbers(at).0, numbers(at).1),
            Receipt::Gap(at) => Self::Gap(numbers(at).0, numbers(at).1),
            Receipt::Refused(at, Refusal { message }) => {
                Self::Refused(numbers(at).0, numbers(at).1, message.to_string())
            }
        }
    }
}

impl From<Answer> for Receipt {
    fn from(answer: Answer) -> Self {
        match answer {
            Answer::Published(ledger, entry) => Self::Published(position(ledger, entry)),
            Answer::Duplicate(ledger, entry) => Self::Duplicate(position(ledger, entry)),
            Answer::Gap(ledger, entry) => Self::Gap(position(ledger, entry)),
            Answer::Refused(ledger, entry, message) => {
                Self::Refused(position(ledger, entry), Refusal { message: message.into() })
            }
        }
    }
}

fn encode(sent: &Outgoing<Prepared>) -> Bytes {
    let Outgoing { previous, position, entry } = sent;
    let mut bytes = BytesMut::with_capacity(SEND_BYTES + entry.frame_bytes());
    bytes.put_u8(previous.is_some().into());
    for at in [previous.unwrap_or(*position), *position] {
        bytes.put_u64(at.ledger.get());
        bytes.put_u64(at.entry.get());
    }
    bytes.put_u32(entry.checksum);
    let head = u32::try_from(entry.head.len()).expect("entries are far below 4 GiB");
    bytes.put_u32(head);
    bytes.put_slice(&entry.head);
    bytes.put_slice(&entry.payload);
    bytes.freeze()
}

fn decode(mut data: Bytes) -> Result<Outgoing<Prepared>, Broken> {
    let short = || Broken::Garbage("a send that is too short".into());
    if data.len() < SEND_BYTES {
        return Err(short());
    }
    let has_previous = data.get_u8() != 0;
    let previous = position(data.get_u64(), data.get_u64());
    let at = position(data.get_u64(), data.get_u64());
    let checksum = data.get_u32();
    let head = data.get_u32() as usize;
    if head > data.len() {
        return Err(short());
    }
    let entry = Prepared { head: data.split_to(head), payload: data, checksum };
    Ok(Outgoing { previous: has_previous.then_some(previous), position: at, entry })
}

/// Sends that are taken at once.
const BATCH_BYTES: usize = 1 << 20;
/// What a send has around its entry.
const SEND_BYTES: usize = 1 + 4 * 8 + 4 + 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sends_arrive_as_they_were_and_cut_ones_are_refused() {
        for previous in [None, Some(position(1, 2))] {
            let entry = Prepared { head: "head".into(), payload: "payload".into(), checksum: 7 };
            let sent = Outgoing { previous, position: position(3, 4), entry };
            let bytes = encode(&sent);
            assert_eq!(decode(bytes.clone()).unwrap(), sent);
            for end in 0..SEND_BYTES + 4 {
                assert!(decode(bytes.slice(..end)).is_err(), "{end}");
            }
        }
    }
}
