//! A look at the metadata's fields without decoding them into a record.

use super::frame::{Frame, FrameError, undecodable};

/// What filtering, publishing and counting need of a frame's metadata. Made without allocation.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    frame: &'a Frame,
    replicated_from: Option<&'a str>,
    has_replicate_to: bool,
    messages: u32,
    in_transaction: bool,
}

impl<'a> Facts<'a> {
    pub(super) fn scan(frame: &'a Frame) -> Result<Self, FrameError> {
        let mut facts = Self {
            frame,
            replicated_from: None,
            has_replicate_to: false,
            messages: 1,
            in_transaction: false,
        };
        let mut missing = REQUIRED;
        for field in Fields(frame.metadata_bytes()) {
            let field = field?;
            missing &= !(1_u64.checked_shl(field.number).unwrap_or(0));
            facts.take(&field)?;
        }
        match missing {
            0 => Ok(facts),
            _ => Err(bad(format!("required field {} is missing", missing.trailing_zeros()))),
        }
    }

    /// Of a field that occurs more than once the last counts, as protobuf has it.
    fn take(&mut self, field: &Field<'a>) -> Result<(), FrameError> {
        match (field.number, &field.value) {
            (PUBLISH_TIME | MARKER_TYPE, Value::Varint(_)) => {}
            (REPLICATED_FROM, Value::Bytes(value)) => {
                let cluster = std::str::from_utf8(value);
                self.replicated_from = Some(cluster.map_err(|e| bad(e.to_string()))?);
            }
            (REPLICATE_TO, Value::Bytes(_)) => self.has_replicate_to = true,
            (NUM_MESSAGES_IN_BATCH, Value::Varint(value)) => {
                self.messages = u32::try_from(*value).unwrap_or(1).max(1);
            }
            (TXNID_LEAST_BITS | TXNID_MOST_BITS, Value::Varint(_)) => self.in_transaction = true,
            (
                PUBLISH_TIME
                | REPLICATED_FROM
                | REPLICATE_TO
                | NUM_MESSAGES_IN_BATCH
                | MARKER_TYPE
                | TXNID_LEAST_BITS
                | TXNID_MOST_BITS,
                _,
            ) => return Err(bad(format!("field {} has the wrong wire type", field.number))),
            _ => {}
        }
        Ok(())
    }

    /// The frame they were read off.
    pub fn frame(&self) -> &'a Frame {
        self.frame
    }

    /// The cluster it was replicated from; none where it was published.
    pub fn replicated_from(&self) -> Option<&'a str> {
        self.replicated_from
    }

    /// Whether it is meant for `cluster`: it names it, or names no cluster at all.
    pub fn is_meant_for(&self, cluster: &str) -> bool {
        !self.has_replicate_to
            || self.fields().any(|field| {
                field.number == REPLICATE_TO
                    && matches!(field.value, Value::Bytes(name) if name == cluster.as_bytes())
            })
    }

    /// The messages in it, at least 1.
    pub fn messages(&self) -> u32 {
        self.messages
    }

    /// Whether it belongs to a transaction of its cluster.
    pub fn is_in_transaction(&self) -> bool {
        self.in_transaction
    }

    /// The metadata without the transaction's id, in pieces.
    pub(super) fn without_transaction(&self) -> impl Iterator<Item = &'a [u8]> {
        self.fields()
            .filter(|field| !matches!(field.number, TXNID_LEAST_BITS | TXNID_MOST_BITS))
            .map(|field| field.encoded)
    }

    fn fields(&self) -> impl Iterator<Item = Field<'a>> {
        Fields(self.frame.metadata_bytes())
            .map(|field| field.expect("the scan went through all fields"))
    }
}

/// One field as it stands in the metadata.
struct Field<'a> {
    number: u32,
    value: Value<'a>,
    /// Tag and value.
    encoded: &'a [u8],
}

enum Value<'a> {
    Varint(u64),
    Bytes(&'a [u8]),
    /// Eight or four bytes; Pulsar's metadata has none, a later one may.
    Fixed,
}

/// The fields of a protobuf message. Ends after the first error.
struct Fields<'a>(&'a [u8]);

impl<'a> Iterator for Fields<'a> {
    type Item = Result<Field<'a>, FrameError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.read();
        if field.is_err() {
            self.0 = &[];
        }
        Some(field)
    }
}

impl<'a> Fields<'a> {
    #[inline]
    fn read(&mut self) -> Result<Field<'a>, FrameError> {
        let start = self.0;
        let tag = u32::try_from(self.varint()?).map_err(|_| bad("a field number is too high"))?;
        let (number, wire_type) = (tag >> 3, tag & 7);
        if number == 0 {
            return Err(bad("field number 0 does not exist"));
        }
        let value = match wire_type {
            0 => Value::Varint(self.varint()?),
            1 => self.take(8).map(|_| Value::Fixed)?,
            2 => {
                let length = self.varint()?;
                Value::Bytes(self.take(usize::try_from(length).unwrap_or(usize::MAX))?)
            }
            5 => self.take(4).map(|_| Value::Fixed)?,
            _ => return Err(bad(format!("field {number} has wire type {wire_type}"))),
        };
        Ok(Field { number, value, encoded: &start[..start.len() - self.0.len()] })
    }

    /// Nearly all are of one byte: tags, and the lengths of names.
    #[inline]
    fn varint(&mut self) -> Result<u64, FrameError> {
        match self.0 {
            [byte @ ..0x80, rest @ ..] => {
                self.0 = rest;
                Ok(u64::from(*byte))
            }
            _ => self.long_varint(),
        }
    }

    #[cold]
    fn long_varint(&mut self) -> Result<u64, FrameError> {
        prost::encoding::decode_varint(&mut self.0).map_err(|e| bad(e.to_string()))
    }

    #[inline]
    fn take(&mut self, length: usize) -> Result<&'a [u8], FrameError> {
        let (taken, rest) = self
            .0
            .split_at_checked(length)
            .ok_or_else(|| bad(format!("a field of {length} bytes reaches beyond the end")))?;
        self.0 = rest;
        Ok(taken)
    }
}

#[cold]
fn bad(reason: impl std::fmt::Display) -> FrameError {
    undecodable("message metadata", reason)
}

const PUBLISH_TIME: u32 = 3;
pub(super) const PROPERTIES: u32 = 4;
pub(super) const REPLICATED_FROM: u32 = 5;
const REPLICATE_TO: u32 = 7;
const NUM_MESSAGES_IN_BATCH: u32 = 11;
const MARKER_TYPE: u32 = 20;
const TXNID_LEAST_BITS: u32 = 22;
const TXNID_MOST_BITS: u32 = 23;
/// Producer name, sequence id and publish time, as bits.
const REQUIRED: u64 = 1 << 1 | 1 << 2 | 1 << PUBLISH_TIME;
