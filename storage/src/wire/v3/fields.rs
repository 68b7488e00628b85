//! Protobuf fields, put together by hand.

use bytes::Bytes;
use prost::encoding::{encode_varint, encoded_len_varint};

use crate::wire::frame::Outgoing;

const VERSION: u64 = 3;
const VARINT: u32 = 0;
const BYTES: u32 = 2;

/// The fields of an operation's own message. One of them may be long; it is remembered and not copied.
pub(super) struct Nested<'a> {
    /// The encoded fields; of the body only its key and length.
    fields: Vec<u8>,
    body: Option<Body<'a>>,
}

struct Body<'a> {
    /// Where it belongs between the fields.
    at: usize,
    head: &'a [u8],
    payload: &'a Bytes,
}

/// What every message begins with.
pub(super) struct Head {
    pub(super) operation: u32,
    pub(super) transaction: u64,
    pub(super) priority: Option<u32>,
    /// Of an answer.
    pub(super) status: Option<i32>,
}

impl<'a> Nested<'a> {
    /// No fields yet, in a buffer that [`finish`](Self::finish) gives back.
    pub(super) fn new(mut buffer: Vec<u8>) -> Self {
        buffer.clear();
        Self { fields: buffer, body: None }
    }

    pub(super) fn uint(&mut self, tag: u32, value: u64) {
        encode_varint(key(tag, VARINT), &mut self.fields);
        encode_varint(value, &mut self.fields);
    }

    /// A signed number; a negative one has ten bytes.
    pub(super) fn int(&mut self, tag: u32, value: i64) {
        self.uint(tag, value.cast_unsigned());
    }

    pub(super) fn bytes(&mut self, tag: u32, bytes: &[u8]) {
        encode_varint(key(tag, BYTES), &mut self.fields);
        encode_varint(bytes.len() as u64, &mut self.fields);
        self.fields.extend_from_slice(bytes);
    }

    /// The field that may be long, in two parts.
    pub(super) fn body(&mut self, tag: u32, head: &'a [u8], payload: &'a Bytes) {
        encode_varint(key(tag, BYTES), &mut self.fields);
        encode_varint((head.len() + payload.len()) as u64, &mut self.fields);
        self.body = Some(Body { at: self.fields.len(), head, payload });
    }

    /// Puts the whole message behind what is in `out`: the head and, if it has a number, this message as a field of it.
    pub(super) fn finish(self, head: &Head, field: Option<u32>, out: &mut Outgoing) -> Vec<u8> {
        let body_bytes = self.body.as_ref().map_or(0, |body| body.head.len() + body.payload.len());
        let own_bytes = self.fields.len() + body_bytes;
        let mut start = Start::new();
        head.put(&mut start);
        if let Some(field) = field {
            start.varint(key(field, BYTES));
            start.varint(own_bytes as u64);
        }
        let own_bytes = field.map_or(0, |_| own_bytes);
        out.begin(start.used + own_bytes);
        out.put(&start.bytes[..start.used]);
        if field.is_some() {
            match self.body {
                None => out.put(&self.fields),
                Some(Body { at, head, payload }) => {
                    out.put(&self.fields[..at]);
                    out.put(head);
                    out.put_shared(payload);
                    out.put(&self.fields[at..]);
                }
            }
        }
        self.fields
    }
}

impl Head {
    fn put(&self, start: &mut Start) {
        let mut fields = Start::new();
        let priority = self.priority.map(|priority| (4, u64::from(priority)));
        let always = [(1, VERSION), (2, u64::from(self.operation)), (3, self.transaction)];
        for (tag, value) in always.into_iter().chain(priority) {
            fields.varint(key(tag, VARINT));
            fields.varint(value);
        }
        start.varint(key(1, BYTES));
        start.varint(fields.used as u64);
        start.put(&fields.bytes[..fields.used]);
        if let Some(status) = self.status {
            start.varint(key(2, VARINT));
            start.varint(i64::from(status).cast_unsigned());
        }
    }
}

/// The first bytes of a message, on the stack: at most 22 of the header's fields, 13 around them, 12 for the operation's
/// key and length.
struct Start {
    bytes: [u8; 64],
    used: usize,
}

impl Start {
    const fn new() -> Self {
        Self { bytes: [0; 64], used: 0 }
    }

    fn varint(&mut self, value: u64) {
        let mut rest = &mut self.bytes[self.used..];
        encode_varint(value, &mut rest);
        self.used += encoded_len_varint(value);
    }

    fn put(&mut self, bytes: &[u8]) {
        self.bytes[self.used..self.used + bytes.len()].copy_from_slice(bytes);
        self.used += bytes.len();
    }
}

const fn key(tag: u32, wire: u32) -> u64 {
    (tag << 3 | wire) as u64
}
