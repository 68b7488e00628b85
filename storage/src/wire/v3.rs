//! Protocol 3: a protobuf message per frame.
//!
//! Messages are taken apart by declaration and put together by hand: byte for byte as the Java client of release 4.18
//! does (which sends `flag`, field 100, first), and without a copy of a long payload.

mod fields;
mod messages;

use std::time::Duration;

use bytes::Bytes;
use prost::Message;

use self::fields::{Head, Nested};
use self::messages as proto;
pub(super) use self::messages::AuthMessage as Auth;
use super::frame::Outgoing;
use super::message::{
    AuthMessage, DecodeError, Durability, Operation, Priority, Request, RequestFrame, ResponseBody,
    ResponseFrame, entry_id, ledger_id, master_key, sent, sent_or_none, some_entry_id, unsigned,
};
use super::status::Protocol;
use crate::entry::{Entry, MasterKey};
use crate::id::LedgerId;
use crate::transport::AddKind;

const FENCE: i32 = 1;
const WAIT: i32 = 2;
const RECOVERY: i32 = 1;
const DEFERRED_SYNC: i32 = 1;
const PRIORITY_HIGH: u32 = 100;
/// The total and the free space.
const ALL_SPACE: u64 = 3;

/// Operations with their numbers and the fields of their messages.
const OPERATIONS: [(Operation, u32, u32); 9] = [
    (Operation::Read, 1, 100),
    (Operation::Add, 2, 101),
    (Operation::Auth, 5, 102),
    (Operation::WriteLac, 6, 103),
    (Operation::ReadLac, 7, 104),
    (Operation::BookieInfo, 8, 105),
    (Operation::StartTls, 9, 106),
    (Operation::Force, 10, 107),
    (Operation::ListEntries, 11, 108),
];
/// The number without a message: batch reads exist in v2 only.
const BATCH_READ: u32 = 12;

fn number_and_field(operation: Operation) -> (u32, Option<u32>) {
    match operation {
        Operation::BatchRead => (BATCH_READ, None),
        Operation::Other(number) => (number, None),
        known => {
            let row = OPERATIONS.iter().find(|row| row.0 == known);
            let (_, number, field) = row.expect("every operation with a message has its row");
            (*number, Some(*field))
        }
    }
}

fn operation(number: u32) -> Operation {
    let row = OPERATIONS.iter().find(|row| row.1 == number);
    match row {
        Some(row) => row.0,
        None if number == BATCH_READ => Operation::BatchRead,
        None => Operation::Other(number),
    }
}

/// Puts a request behind what is in `out`.
pub fn encode_request(frame: &RequestFrame, out: &mut Outgoing) {
    let mut nested = Nested::new(std::mem::take(&mut out.scratch));
    match &frame.request {
        Request::Add { entry, key, kind, durability } => {
            if *kind == AddKind::Recovery {
                nested.int(100, RECOVERY.into());
            }
            nested.int(1, sent(entry.ledger().get()));
            nested.int(2, sent(entry.entry().get()));
            nested.bytes(3, key.as_bytes());
            nested.body(4, entry.head(), entry.payload());
            if *durability == Durability::Deferred {
                nested.int(5, DEFERRED_SYNC.into());
            }
        }
        Request::Read { ledger, entry, fence } => {
            read(&mut nested, *ledger, sent(entry.get()), fence.as_ref());
        }
        Request::ReadLast { ledger, fence } => {
            read(&mut nested, *ledger, sent_or_none(None), fence.as_ref());
        }
        Request::WaitLac { ledger, beyond, within } => {
            nested.int(100, WAIT.into());
            nested.int(1, sent(ledger.get()));
            nested.int(2, sent_or_none(None));
            nested.int(4, sent_or_none(*beyond));
            nested.int(5, i64::try_from(within.as_millis()).unwrap_or(i64::MAX));
        }
        Request::ReadLac { ledger }
        | Request::Force { ledger }
        | Request::ListEntries { ledger } => nested.int(1, sent(ledger.get())),
        Request::WriteLac { ledger, lac, key, body } => {
            nested.int(1, sent(ledger.get()));
            nested.int(2, sent(lac.get()));
            nested.bytes(3, key.as_bytes());
            nested.bytes(4, body);
        }
        Request::BookieInfo => nested.uint(1, ALL_SPACE),
        Request::Auth(message) => auth(&mut nested, message),
        Request::StartTls | Request::BatchRead { .. } | Request::Other { .. } => {}
    }
    let (operation, field) = number_and_field(frame.request.operation());
    let priority = match frame.priority {
        Priority::Normal => None,
        Priority::High => Some(PRIORITY_HIGH),
    };
    let head = Head { operation, transaction: frame.transaction, priority, status: None };
    out.scratch = nested.finish(&head, field, out);
}

/// Puts an answer behind what is in `out`.
pub fn encode_response(frame: &ResponseFrame, out: &mut Outgoing) {
    let status = Protocol::V3.code(frame.status);
    let code = i64::from(status);
    let mut nested = Nested::new(std::mem::take(&mut out.scratch));
    match &frame.body {
        ResponseBody::None | ResponseBody::BatchRead { .. } | ResponseBody::StartTls => {}
        ResponseBody::Add { ledger, entry } => {
            nested.int(1, code);
            nested.int(2, sent(ledger.get()));
            nested.int(3, sent(entry.get()));
        }
        ResponseBody::Read { ledger, entry, bytes, lac, lac_since_ms } => {
            nested.int(1, code);
            nested.int(2, sent(ledger.get()));
            nested.int(3, sent_or_none(*entry));
            if let Some(bytes) = bytes {
                nested.body(4, &[], bytes);
            }
            if let Some(lac) = lac {
                nested.int(5, sent(lac.get()));
            }
            if let Some(since) = lac_since_ms {
                nested.int(6, *since);
            }
        }
        ResponseBody::ReadLac { ledger, explicit, last } => {
            nested.int(1, code);
            nested.int(2, sent(ledger.get()));
            if let Some(explicit) = explicit {
                nested.bytes(3, explicit);
            }
            if let Some(last) = last {
                nested.body(4, &[], last);
            }
        }
        ResponseBody::WriteLac { ledger } | ResponseBody::Force { ledger } => {
            nested.int(1, code);
            nested.int(2, sent(ledger.get()));
        }
        ResponseBody::BookieInfo { total_bytes, free_bytes } => {
            nested.int(1, code);
            if let Some(total) = total_bytes {
                nested.int(2, *total);
            }
            if let Some(free) = free_bytes {
                nested.int(3, *free);
            }
        }
        ResponseBody::ListEntries { ledger, availability } => {
            nested.int(1, code);
            nested.int(2, sent(ledger.get()));
            if let Some(availability) = availability {
                nested.bytes(3, availability);
            }
        }
        ResponseBody::Auth(message) => auth(&mut nested, message),
    }
    let (operation, field) = number_and_field(frame.operation);
    let field = if frame.body == ResponseBody::None { None } else { field };
    let transaction = frame.transaction;
    let head = Head { operation, transaction, priority: None, status: Some(status) };
    out.scratch = nested.finish(&head, field, out);
}

fn read(nested: &mut Nested<'_>, ledger: LedgerId, entry: i64, fence: Option<&MasterKey>) {
    if fence.is_some() {
        nested.int(100, FENCE.into());
    }
    nested.int(1, sent(ledger.get()));
    nested.int(2, entry);
    if let Some(key) = fence {
        nested.bytes(3, key.as_bytes());
    }
}

fn auth(nested: &mut Nested<'_>, message: &AuthMessage) {
    nested.bytes(1, message.plugin.as_bytes());
    nested.bytes(2, &message.payload);
}

/// Takes a request apart.
///
/// # Errors
/// [`DecodeError`]. Operations and fields that are not known are no error.
pub fn decode_request(frame: Bytes) -> Result<RequestFrame, DecodeError> {
    let message =
        proto::Request::decode(frame).map_err(|error| DecodeError::Malformed(error.to_string()))?;
    let header = message.header.ok_or(DecodeError::Missing("header"))?;
    let request = match operation(header.operation) {
        Operation::Read => read_request(message.read.ok_or(DecodeError::Missing("read request"))?)?,
        Operation::Add => add_request(message.add.ok_or(DecodeError::Missing("add request"))?)?,
        Operation::Auth => {
            Request::Auth(message.auth.ok_or(DecodeError::Missing("auth request"))?.into())
        }
        Operation::WriteLac => {
            let write = message.write_lac.ok_or(DecodeError::Missing("LAC to write"))?;
            Request::WriteLac {
                ledger: ledger_id(write.ledger)?,
                lac: some_entry_id(write.lac)?,
                key: master_key(&write.key)?,
                body: write.body,
            }
        }
        Operation::ReadLac => Request::ReadLac { ledger: of_ledger(message.read_lac)? },
        Operation::Force => Request::Force { ledger: of_ledger(message.force)? },
        Operation::ListEntries => Request::ListEntries { ledger: of_ledger(message.list_entries)? },
        Operation::BookieInfo => Request::BookieInfo,
        Operation::StartTls => Request::StartTls,
        Operation::BatchRead | Operation::Other(_) => {
            Request::Other { operation: header.operation }
        }
    };
    let priority = match header.priority {
        None | Some(0) => Priority::Normal,
        Some(_) => Priority::High,
    };
    Ok(RequestFrame { transaction: header.transaction, priority, request })
}

fn of_ledger(message: Option<proto::OfLedger>) -> Result<LedgerId, DecodeError> {
    ledger_id(message.ok_or(DecodeError::Missing("ledger"))?.ledger)
}

fn read_request(read: proto::ReadRequest) -> Result<Request, DecodeError> {
    let ledger = ledger_id(read.ledger)?;
    if read.flag == Some(WAIT) {
        let millis = unsigned("time to wait", read.wait_ms.unwrap_or(0))?;
        let beyond = entry_id(read.previous_lac.unwrap_or(-1))?;
        return Ok(Request::WaitLac { ledger, beyond, within: Duration::from_millis(millis) });
    }
    let fence = match read.flag {
        Some(FENCE) => {
            Some(master_key(&read.key.ok_or(DecodeError::Missing("key of a fencing read"))?)?)
        }
        _ => None,
    };
    Ok(match entry_id(read.entry)? {
        Some(entry) => Request::Read { ledger, entry, fence },
        None => Request::ReadLast { ledger, fence },
    })
}

fn add_request(add: proto::AddRequest) -> Result<Request, DecodeError> {
    let entry = Entry::from_bytes(add.body)?;
    if (entry.ledger(), entry.entry()) != (ledger_id(add.ledger)?, some_entry_id(add.entry)?) {
        return Err(DecodeError::OtherEntry);
    }
    Ok(Request::Add {
        entry,
        key: master_key(&add.key)?,
        kind: if add.flag == Some(RECOVERY) { AddKind::Recovery } else { AddKind::Normal },
        durability: match add.write_flags {
            Some(flags) if flags & DEFERRED_SYNC != 0 => Durability::Deferred,
            _ => Durability::Synced,
        },
    })
}

/// Takes an answer apart. Its status is that of the request as a whole, or, if that was carried out, that of the
/// operation.
///
/// # Errors
/// [`DecodeError`]. Operations, codes and fields that are not known are no error.
pub fn decode_response(frame: Bytes) -> Result<ResponseFrame, DecodeError> {
    let message = proto::Response::decode(frame)
        .map_err(|error| DecodeError::Malformed(error.to_string()))?;
    let header = message.header.ok_or(DecodeError::Missing("header"))?;
    let outer = message.status.ok_or(DecodeError::Missing("status"))?;
    let operation = operation(header.operation);
    let (inner, body) = match operation {
        Operation::Read => optional(message.read, read_response)?,
        Operation::Add => optional(message.add, |add| {
            let (ledger, entry) = (ledger_id(add.ledger)?, some_entry_id(add.entry)?);
            Ok((add.status, ResponseBody::Add { ledger, entry }))
        })?,
        Operation::WriteLac => optional(message.write_lac, |done| {
            Ok((done.status, ResponseBody::WriteLac { ledger: ledger_id(done.ledger)? }))
        })?,
        Operation::Force => optional(message.force, |done| {
            Ok((done.status, ResponseBody::Force { ledger: ledger_id(done.ledger)? }))
        })?,
        Operation::ReadLac => optional(message.read_lac, |lac| {
            let (ledger, explicit, last) = (ledger_id(lac.ledger)?, lac.explicit, lac.last);
            Ok((lac.status, ResponseBody::ReadLac { ledger, explicit, last }))
        })?,
        Operation::BookieInfo => optional(message.bookie_info, |info| {
            let (total_bytes, free_bytes) = (info.total, info.free);
            Ok((info.status, ResponseBody::BookieInfo { total_bytes, free_bytes }))
        })?,
        Operation::ListEntries => optional(message.list_entries, |list| {
            let (ledger, availability) = (ledger_id(list.ledger)?, list.availability);
            Ok((list.status, ResponseBody::ListEntries { ledger, availability }))
        })?,
        // These two have no status of their own.
        Operation::Auth => {
            optional(message.auth, |auth| Ok((Some(outer), ResponseBody::Auth(auth.into()))))?
        }
        Operation::StartTls => {
            optional(message.start_tls, |_| Ok((Some(outer), ResponseBody::StartTls)))?
        }
        Operation::BatchRead | Operation::Other(_) => (None, ResponseBody::None),
    };
    let status = match (Protocol::V3.status(outer), &body, inner) {
        (Err(refused), ..) => Err(refused),
        (Ok(()), ResponseBody::None, _) => Ok(()),
        (Ok(()), _, inner) => {
            Protocol::V3.status(inner.ok_or(DecodeError::Missing("status of the operation"))?)
        }
    };
    Ok(ResponseFrame { transaction: header.transaction, operation, status, body })
}

/// The status and body of an operation's own message, if it is there.
fn optional<M>(
    message: Option<M>,
    take: impl FnOnce(M) -> Result<(Option<i32>, ResponseBody), DecodeError>,
) -> Result<(Option<i32>, ResponseBody), DecodeError> {
    message.map_or(Ok((None, ResponseBody::None)), take)
}

fn read_response(read: proto::ReadResponse) -> Result<(Option<i32>, ResponseBody), DecodeError> {
    let body = ResponseBody::Read {
        ledger: ledger_id(read.ledger)?,
        entry: entry_id(read.entry)?,
        bytes: read.body,
        lac: entry_id(read.max_lac.unwrap_or(-1))?,
        lac_since_ms: read.lac_since_ms,
    };
    Ok((read.status, body))
}

impl From<Auth> for AuthMessage {
    fn from(message: Auth) -> Self {
        Self { plugin: message.plugin, payload: message.payload }
    }
}

impl From<&AuthMessage> for Auth {
    fn from(message: &AuthMessage) -> Self {
        Self { plugin: message.plugin.clone(), payload: message.payload.clone() }
    }
}
