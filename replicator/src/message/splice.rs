//! A stored entry becomes the message that is sent to a remote.

use bytes::{BufMut, Bytes, BytesMut};
use georepl_cursor::Position;
use prost::Message;
use prost::encoding::{encoded_len_varint, message, string};

use super::checksum::joined;
use super::facts::{Facts, PROPERTIES, REPLICATED_FROM};
use super::frame::{HEADER_BYTES, begin_message, seal};
use super::metadata::{Property, SOURCE_POSITION_PROPERTY};

/// A frame in two pieces; the payload is the stored entry's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spliced {
    /// Everything before the payload.
    pub head: Bytes,
    /// The payload.
    pub payload: Bytes,
    /// CRC32C of the stored entry.
    pub stored_checksum: u32,
}

/// Turns the stored entries of one cluster into what is sent.
///
/// The broker entry metadata goes, because it is the source's. The transaction's id goes, because it
/// means another transaction, or none, elsewhere. The origin and the source position are appended to
/// the metadata: of a single field protobuf takes the last one, and properties are a list.
///
/// Heads are carved off one buffer, so that an entry costs no allocation. A head that is kept keeps
/// up to [`Splicer::BUFFER_BYTES`] bytes with it.
#[derive(Debug)]
pub struct Splicer {
    /// `replicated_from`, encoded.
    origin: Vec<u8>,
    /// The property of the entry at hand; kept for its memory.
    property: Property,
    buffer: BytesMut,
}

impl Splicer {
    /// The bytes of heads that share one allocation: some hundred heads, and little to keep alive
    /// for the sake of one.
    pub const BUFFER_BYTES: usize = 16 << 10;

    /// For entries that are sent from the cluster `origin`.
    pub fn new(origin: &str) -> Self {
        let mut encoded = Vec::new();
        string::encode(REPLICATED_FROM, &origin.to_owned(), &mut encoded);
        let property = Property { key: SOURCE_POSITION_PROPERTY.to_owned(), value: String::new() };
        Self { origin: encoded, property, buffer: BytesMut::new() }
    }

    /// The message to send for the entry at `source`.
    ///
    /// # Panics
    /// If the entry was itself replicated from elsewhere. Sending it would hide where it came from,
    /// and it would go round in circles; [`filter::decide`](crate::filter::decide) passes it.
    pub fn splice(&mut self, facts: &Facts<'_>, source: Position) -> Spliced {
        assert!(facts.replicated_from().is_none(), "the filter passes entries from elsewhere");
        let payload = facts.frame().payload();
        self.name_position(source);
        let property_bytes = self.property.encoded_len();
        let kept_bytes = if facts.is_in_transaction() {
            facts.without_transaction().map(<[u8]>::len).sum()
        } else {
            facts.frame().metadata_bytes().len()
        };
        // The key of the property's field is one byte.
        let metadata_bytes = kept_bytes
            + (1 + encoded_len_varint(property_bytes as u64) + property_bytes)
            + self.origin.len();

        let head_bytes = HEADER_BYTES + metadata_bytes;
        if self.buffer.capacity() < head_bytes {
            self.buffer = BytesMut::with_capacity(head_bytes.max(Self::BUFFER_BYTES));
        }
        let head = &mut self.buffer;
        begin_message(head, metadata_bytes);
        if facts.is_in_transaction() {
            facts.without_transaction().for_each(|field| head.put_slice(field));
        } else {
            head.put_slice(facts.frame().metadata_bytes());
        }
        message::encode(PROPERTIES, &self.property, head);
        head.put_slice(&self.origin);
        assert_eq!(head.len(), head_bytes, "the metadata has the size written before it");
        // The payload is gone over once for both checksums.
        let (checksum, bytes) = (crc32c::crc32c(&payload), payload.len());
        seal(head, checksum, bytes);
        let stored_checksum = joined(crc32c::crc32c(facts.frame().head()), checksum, bytes);
        Spliced { head: self.buffer.split().freeze(), payload, stored_checksum }
    }

    /// As it is shown, without the machinery of formatting: every entry has another.
    fn name_position(&mut self, source: Position) {
        let name = &mut self.property.value;
        name.clear();
        push_number(name, source.ledger.get());
        name.push(':');
        push_number(name, source.entry.get());
    }
}

fn push_number(text: &mut String, number: u64) {
    if number >= 10 {
        push_number(text, number / 10);
    }
    text.push(char::from(b'0' + (number % 10) as u8));
}
