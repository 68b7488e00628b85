//! Reading a topic without leaving a trace.

use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use georepl::cursor::{Entry, ManagedCursor, Position, ReadEntriesError, ReadLimits};
use georepl::replicator::message::Frame as Message;

use super::Host;
use super::line::{Broken, Frame, Inbox, Outbox};
use super::links::offset_of;
use super::words::{Consumed, Reply, Start, Until, position};
use crate::exit::{Exit, Failure};

/// What to read.
pub(super) struct What {
    pub(super) topic: String,
    pub(super) from: Start,
    pub(super) count: Option<u64>,
    pub(super) until: Until,
}

/// An entry as it is sent.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Consumable {
    pub(crate) position: Position,
    pub(crate) payload: Bytes,
}

/// Sends entries until there are no more, there are enough, or the other side has had enough.
pub(super) async fn run(
    host: &Arc<Host>,
    what: What,
    inbox: &mut Inbox,
    outbox: &mut Outbox,
) -> Result<Consumed, Failure> {
    let topic = host.topic(&what.topic).await?;
    let ledger = topic.ledger();
    let end = ledger.end();
    // What was seen before may be deleted; what is named now must be there.
    if let Start::Position { ledger: id, entry } = what.from {
        offset_of(ledger, position(id, entry))?;
    }
    let cursor = ManagedCursor::reader(ledger, what.from.at()).map_err(Failure::failed)?;
    let mut consumed = Consumed { topic: what.topic, entries: 0, last: None, left: 0 };
    let gone = |error: Broken| Failure::new(Exit::Unreachable, error);
    if what.until == Until::End {
        // So that whoever goes on elsewhere knows the end of today.
        let wanted = end.since(cursor.read_position()).min(what.count.unwrap_or(u64::MAX));
        let how_far = serde_json::json!({ "wanted": wanted });
        outbox.word(&Reply::Progress(how_far)).await.map_err(gone)?;
    }
    let ending = || host.ending("run the command again");
    loop {
        let left = what.count.map_or(u64::MAX, |count| count - consumed.entries);
        let behind = end.since(cursor.read_position());
        let wanted = match what.until {
            Until::End => left.min(behind),
            Until::Told => left,
        };
        if wanted == 0 {
            return Ok(consumed);
        }
        let entries = u32::try_from(wanted).unwrap_or(u32::MAX).min(READ_ENTRIES);
        let limits = ReadLimits { entries, bytes: READ_BYTES };
        let read = tokio::select! {
            biased;
            // What was sent is not sent again by whoever goes on.
            () = host.closing() => return Err(ending()),
            () = inbox.end() => {
                // Whoever follows has no end to miss.
                consumed.left = if what.until == Until::End { wanted } else { 0 };
                return Ok(consumed);
            }
            read = cursor.read_entries_or_wait(limits) => read,
        };
        let entries = match read {
            Ok(entries) => entries,
            Err(ReadEntriesError::Terminated) => return Ok(consumed),
            Err(error) => return Err(Failure::failed(error)),
        };
        for entry in entries {
            consumed.entries += 1;
            consumed.last = Some(entry.position.to_string());
            outbox.feed(Frame::Data(encode(&entry))).await.map_err(gone)?;
        }
        outbox.flush().await.map_err(gone)?;
    }
}

/// Position, then payload. What is no message is sent as it is stored.
pub(super) fn encode(entry: &Entry) -> Bytes {
    let message = Message::parse(entry.payload.clone());
    let payload = message.map_or_else(|_| entry.payload.clone(), |message| message.payload());
    encode_at(entry.position, &payload)
}

/// Position, then payload.
pub(super) fn encode_at(position: Position, payload: &[u8]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(16 + payload.len());
    bytes.put_u64(position.ledger.get());
    bytes.put_u64(position.entry.get());
    bytes.put_slice(payload);
    bytes.freeze()
}

pub(crate) fn decode(mut data: Bytes) -> Result<Consumable, Broken> {
    if data.len() < 16 {
        return Err(Broken::Garbage("an entry without a position".into()));
    }
    let (ledger, entry) = (data.get_u64(), data.get_u64());
    Ok(Consumable { position: position(ledger, entry), payload: data })
}

/// Entries read at once.
const READ_ENTRIES: u32 = 500;
/// Bytes read at once.
const READ_BYTES: u64 = 1 << 20;
