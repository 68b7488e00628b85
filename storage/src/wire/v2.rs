//! Protocol 2: fixed headers.
//!
//! A frame starts with one byte of version, one of operation and two of flags. Requests go on with
//!
//! | operation | body |
//! |---|---|
//! | 1 add | key (20), entry |
//! | 2 read | ledger (8), entry id (8), and to fence: key (20) |
//! | 7 batch read | ledger (8), first entry id (8), request id (8), entries at most (4), bytes at most (8), and to fence: key (20) |
//! | 3 auth | protobuf message |
//!
//! and answers, but to auth, with an error code (4), ledger (8) and entry id (8); a read's then with the entry, a batch
//! read's with the request id (8) and for each entry its size (4) and bytes. All integers are big-endian. Only an answer
//! to a batch read says to which request it belongs.

use bytes::{Buf, Bytes};
use prost::Message;

use super::frame::Outgoing;
use super::message::{
    AuthMessage, DecodeError, Durability, Operation, Priority, Request, RequestFrame, ResponseBody,
    ResponseFrame, entry_id, ledger_id, master_key, sent, sent_or_none, some_entry_id, unsigned,
};
use super::status::Protocol;
use super::v3;
use crate::entry::{Entry, MasterKey};
use crate::id::{EntryId, LedgerId};
use crate::transport::AddKind;

const VERSION: u8 = 2;
/// Bookies take version 1 as well, and answer in it.
const VERSION_MIN: u8 = 1;

const ADD: u8 = 1;
const READ: u8 = 2;
const AUTH: u8 = 3;
const BATCH_READ: u8 = 7;

const FENCE: u16 = 1;
const RECOVERY: u16 = 2;
const HIGH_PRIORITY: u16 = 4;

const HEADER_BYTES: usize = 4;
const KEY_BYTES: usize = 20;
/// Ledger and entry id.
const PLACE_BYTES: usize = 16;
const BATCH_BYTES: usize = PLACE_BYTES + 20;
/// Code, ledger and entry id.
const ANSWER_BYTES: usize = 4 + PLACE_BYTES;

/// Whether a request has a form in this protocol. The others need a connection that speaks v3.
#[must_use]
pub const fn can_say(request: &Request) -> bool {
    match request {
        Request::Add { durability, .. } => matches!(durability, Durability::Synced),
        Request::Read { .. }
        | Request::ReadLast { .. }
        | Request::BatchRead { .. }
        | Request::Auth(_) => true,
        _ => false,
    }
}

/// Puts a request behind what is in `out`.
///
/// # Panics
/// If the request has no form in this protocol; see [`can_say`].
pub fn encode_request(frame: &RequestFrame, out: &mut Outgoing) {
    assert!(can_say(&frame.request), "{:?} has no form in v2", frame.request.operation());
    let priority = match frame.priority {
        Priority::Normal => 0,
        Priority::High => HIGH_PRIORITY,
    };
    match &frame.request {
        Request::Add { entry, key, kind, .. } => {
            let recovery = if *kind == AddKind::Recovery { RECOVERY } else { 0 };
            out.begin(HEADER_BYTES + KEY_BYTES + entry.size_bytes());
            header(ADD, priority | recovery, out);
            out.put(key.as_bytes());
            out.put(entry.head());
            out.put_shared(entry.payload());
        }
        Request::Read { ledger, entry, fence } => {
            read(*ledger, Some(*entry), fence.as_ref(), priority, out);
        }
        Request::ReadLast { ledger, fence } => read(*ledger, None, fence.as_ref(), priority, out),
        Request::BatchRead { ledger, first, entries_max, bytes_max, fence } => {
            out.begin(HEADER_BYTES + BATCH_BYTES + key_bytes(fence.as_ref()));
            header(BATCH_READ, priority | fencing(fence.as_ref()), out);
            place(*ledger, Some(*first), out);
            out.put(&frame.transaction.to_be_bytes());
            out.put(&i32::try_from(*entries_max).unwrap_or(i32::MAX).to_be_bytes());
            out.put(&i64::try_from(*bytes_max).unwrap_or(i64::MAX).to_be_bytes());
            put_key(fence.as_ref(), out);
        }
        Request::Auth(message) => auth(message, out),
        _ => unreachable!("checked by can_say"),
    }
}

/// Puts an answer behind what is in `out`.
///
/// # Panics
/// If the answer is to a request that has no form in this protocol.
pub fn encode_response(frame: &ResponseFrame, out: &mut Outgoing) {
    let code = Protocol::V2.code(frame.status).to_be_bytes();
    match &frame.body {
        ResponseBody::Add { ledger, entry } => {
            out.begin(HEADER_BYTES + ANSWER_BYTES);
            header(ADD, 0, out);
            out.put(&code);
            place(*ledger, Some(*entry), out);
        }
        ResponseBody::Read { ledger, entry, bytes, .. } => {
            out.begin(HEADER_BYTES + ANSWER_BYTES + bytes.as_ref().map_or(0, Bytes::len));
            header(READ, 0, out);
            out.put(&code);
            place(*ledger, *entry, out);
            if let Some(bytes) = bytes {
                out.put_shared(bytes);
            }
        }
        ResponseBody::BatchRead { ledger, first, entries } => {
            let bytes: usize = entries.iter().map(|entry| 4 + entry.len()).sum();
            out.begin(HEADER_BYTES + ANSWER_BYTES + 8 + bytes);
            header(BATCH_READ, 0, out);
            out.put(&code);
            place(*ledger, Some(*first), out);
            out.put(&frame.transaction.to_be_bytes());
            for entry in entries {
                let size = u32::try_from(entry.len()).expect("an entry fits into a frame");
                out.put(&size.to_be_bytes());
                out.put_shared(entry);
            }
        }
        ResponseBody::Auth(message) => auth(message, out),
        _ => panic!("an answer to {:?} has no form in v2", frame.operation),
    }
}

fn read(
    ledger: LedgerId,
    entry: Option<EntryId>,
    fence: Option<&MasterKey>,
    priority: u16,
    out: &mut Outgoing,
) {
    out.begin(HEADER_BYTES + PLACE_BYTES + key_bytes(fence));
    header(READ, priority | fencing(fence), out);
    place(ledger, entry, out);
    put_key(fence, out);
}

fn auth(message: &AuthMessage, out: &mut Outgoing) {
    let bytes = v3::Auth::from(message).encode_to_vec();
    out.begin(HEADER_BYTES + bytes.len());
    header(AUTH, 0, out);
    out.put(&bytes);
}

fn header(operation: u8, flags: u16, out: &mut Outgoing) {
    let [high, low] = flags.to_be_bytes();
    out.put(&[VERSION, operation, high, low]);
}

fn place(ledger: LedgerId, entry: Option<EntryId>, out: &mut Outgoing) {
    out.put(&sent(ledger.get()).to_be_bytes());
    out.put(&sent_or_none(entry).to_be_bytes());
}

fn put_key(key: Option<&MasterKey>, out: &mut Outgoing) {
    if let Some(key) = key {
        out.put(key.as_bytes());
    }
}

const fn key_bytes(key: Option<&MasterKey>) -> usize {
    if key.is_some() { KEY_BYTES } else { 0 }
}

const fn fencing(key: Option<&MasterKey>) -> u16 {
    if key.is_some() { FENCE } else { 0 }
}

/// Takes a request apart.
///
/// # Errors
/// [`DecodeError`].
pub fn decode_request(mut frame: Bytes) -> Result<RequestFrame, DecodeError> {
    let (operation, flags) = take_header(&mut frame)?;
    let mut transaction = 0;
    let request = match operation {
        ADD => {
            need("add request", &frame, KEY_BYTES)?;
            let key = master_key(&frame.split_to(KEY_BYTES))?;
            let kind = if flags & RECOVERY == 0 { AddKind::Normal } else { AddKind::Recovery };
            let entry = Entry::from_bytes(frame)?;
            Request::Add { entry, key, kind, durability: Durability::Synced }
        }
        READ => {
            need("read request", &frame, PLACE_BYTES)?;
            let (ledger, entry) = take_place(&mut frame)?;
            let fence = take_key(flags, &frame)?;
            match entry {
                Some(entry) => Request::Read { ledger, entry, fence },
                None => Request::ReadLast { ledger, fence },
            }
        }
        BATCH_READ => {
            need("batch read request", &frame, BATCH_BYTES)?;
            let ledger = ledger_id(frame.get_i64())?;
            let first = some_entry_id(frame.get_i64())?;
            transaction = frame.get_u64();
            let entries_max = frame.get_i32();
            let entries_max = u32::try_from(entries_max).map_err(|_| DecodeError::OutOfRange {
                field: "number of entries",
                value: entries_max.into(),
            })?;
            let bytes_max = unsigned("number of bytes", frame.get_i64())?;
            let fence = take_key(flags, &frame)?;
            Request::BatchRead { ledger, first, entries_max, bytes_max, fence }
        }
        AUTH => Request::Auth(take_auth(frame)?),
        other => return Err(DecodeError::UnknownOperation(other)),
    };
    let priority = if flags & HIGH_PRIORITY == 0 { Priority::Normal } else { Priority::High };
    Ok(RequestFrame { transaction, priority, request })
}

/// Takes an answer apart.
///
/// # Errors
/// [`DecodeError`]. A code that is not known is none.
pub fn decode_response(mut frame: Bytes) -> Result<ResponseFrame, DecodeError> {
    let (operation, _) = take_header(&mut frame)?;
    if operation == AUTH {
        let body = ResponseBody::Auth(take_auth(frame)?);
        let operation = Operation::Auth;
        return Ok(ResponseFrame { transaction: 0, operation, status: Ok(()), body });
    }
    if ![ADD, READ, BATCH_READ].contains(&operation) {
        return Err(DecodeError::UnknownOperation(operation));
    }
    need("answer", &frame, ANSWER_BYTES)?;
    let status = Protocol::V2.status(frame.get_i32());
    let (ledger, entry) = take_place(&mut frame)?;
    let some = entry.ok_or(DecodeError::OutOfRange { field: "entry id", value: -1 });
    let mut transaction = 0;
    let (operation, body) = match operation {
        ADD => (Operation::Add, ResponseBody::Add { ledger, entry: some? }),
        READ => {
            let bytes = status.is_ok().then_some(frame);
            let (lac, lac_since_ms) = (None, None);
            (Operation::Read, ResponseBody::Read { ledger, entry, bytes, lac, lac_since_ms })
        }
        _ => {
            need("answer to a batch read", &frame, 8)?;
            transaction = frame.get_u64();
            let entries = take_entries(frame)?;
            (Operation::BatchRead, ResponseBody::BatchRead { ledger, first: some?, entries })
        }
    };
    Ok(ResponseFrame { transaction, operation, status, body })
}

fn take_header(frame: &mut Bytes) -> Result<(u8, u16), DecodeError> {
    need("packet", frame, HEADER_BYTES)?;
    let version = frame.get_u8();
    if !(VERSION_MIN..=VERSION).contains(&version) {
        return Err(DecodeError::UnsupportedVersion(version));
    }
    Ok((frame.get_u8(), frame.get_u16()))
}

fn take_place(frame: &mut Bytes) -> Result<(LedgerId, Option<EntryId>), DecodeError> {
    Ok((ledger_id(frame.get_i64())?, entry_id(frame.get_i64())?))
}

fn take_key(flags: u16, frame: &Bytes) -> Result<Option<MasterKey>, DecodeError> {
    if flags & FENCE == 0 {
        return Ok(None);
    }
    need("fencing read", frame, KEY_BYTES)?;
    master_key(&frame[..KEY_BYTES]).map(Some)
}

fn take_entries(mut frame: Bytes) -> Result<Vec<Bytes>, DecodeError> {
    let mut entries = Vec::new();
    while frame.has_remaining() {
        need("size of an entry", &frame, 4)?;
        let size = frame.get_u32() as usize;
        need("entry of a batch", &frame, size)?;
        entries.push(frame.split_to(size));
    }
    Ok(entries)
}

fn take_auth(frame: Bytes) -> Result<AuthMessage, DecodeError> {
    let message = v3::Auth::decode(frame);
    message.map(AuthMessage::from).map_err(|error| DecodeError::Malformed(error.to_string()))
}

const fn need(what: &'static str, frame: &Bytes, needed: usize) -> Result<(), DecodeError> {
    let bytes = frame.len();
    if bytes < needed { Err(DecodeError::TooShort { what, needed, bytes }) } else { Ok(()) }
}
