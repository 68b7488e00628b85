//! The bytes of an entry as bookies store them.
//!
//! | bytes | field |
//! |---|---|
//! | 8 | ledger id |
//! | 8 | entry id |
//! | 8 | LAC when the entry was first sent, -1 if there was none |
//! | 8 | length: payload bytes of the ledger up to and including this entry |
//! | 4 | CRC32C over the 32 bytes above and the payload |
//! | … | payload |
//!
//! All integers are big-endian and signed. This is Apache BookKeeper's layout with the CRC32C digest.

use std::fmt;

use bytes::{BufMut, Bytes, BytesMut};
use sha1::{Digest, Sha1};

use crate::id::{EntryId, LedgerId};

const HEADER_BYTES: usize = 32;
const HEAD_BYTES: usize = HEADER_BYTES + 4;

/// How the entries of a ledger are protected against corruption. Those of a ledger with another digest than CRC32C
/// cannot be read or written here; its record can.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum DigestType {
    /// CRC32C (Castagnoli), four bytes.
    #[default]
    Crc32c,
    /// CRC32 (IEEE 802.3), in eight bytes.
    Crc32,
    /// HMAC with SHA-1, keyed with the ledger's password: twenty bytes.
    Hmac,
    /// None.
    Dummy,
}

impl DigestType {
    /// The name that BookKeeper's records have for it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Crc32c => "CRC32C",
            Self::Crc32 => "CRC32",
            Self::Hmac => "HMAC",
            Self::Dummy => "DUMMY",
        }
    }
}

/// One entry: header, digest and payload. A clone shares the payload.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Entry {
    head: [u8; HEAD_BYTES],
    payload: Bytes,
}

/// Bytes that are not the entry they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error, Hash)]
pub enum EntryError {
    /// Fewer bytes than an entry without payload has.
    #[error("an entry has at least {HEAD_BYTES} bytes, these are {bytes}")]
    TooShort {
        /// How many there are.
        bytes: usize,
    },
    /// A header field is negative where the format has no meaning for it.
    #[error("the entry's {field} is {value}, which no writer produces")]
    Negative {
        /// Name of the field.
        field: &'static str,
        /// What it says.
        value: i64,
    },
    /// The bytes are not those the writer digested.
    #[error(
        "digest {found:#010x} does not match the content, which has {computed:#010x}: this copy is corrupt"
    )]
    Digest {
        /// The digest in the entry.
        found: u32,
        /// The digest of header and payload as they are.
        computed: u32,
    },
    /// A valid entry of another place.
    #[error("this is entry {entry} of ledger {ledger}, not the one asked for")]
    Misplaced {
        /// The ledger it belongs to.
        ledger: LedgerId,
        /// Its id there.
        entry: EntryId,
    },
}

impl Entry {
    /// Builds the entry a writer sends. `length` counts the payload bytes of the ledger including this entry's;
    /// the payload is digested where it is, not copied.
    ///
    /// # Panics
    /// If an id or the length exceeds 2^63 - 1, the range of the format.
    #[must_use]
    pub fn seal(
        ledger: LedgerId,
        entry: EntryId,
        lac: Option<EntryId>,
        length: u64,
        payload: Bytes,
    ) -> Self {
        let mut head = [0; HEAD_BYTES];
        let lac = lac.map_or(-1, |lac| signed(lac.get()));
        let fields = [signed(ledger.get()), signed(entry.get()), lac, signed(length)];
        for (at, field) in head.chunks_exact_mut(8).zip(fields) {
            at.copy_from_slice(&field.to_be_bytes());
        }
        let digest = digest(&head, &payload);
        head[HEADER_BYTES..].copy_from_slice(&digest.to_be_bytes());
        Self { head, payload }
    }

    /// Takes an entry apart that came from a bookie or a file. The payload is a slice of `bytes`.
    ///
    /// The digest is not checked here, so that a bookie can keep what it is given; see [`verify`](Self::verify).
    ///
    /// # Errors
    /// [`EntryError::TooShort`] and [`EntryError::Negative`] for bytes that cannot be an entry.
    pub fn from_bytes(bytes: Bytes) -> Result<Self, EntryError> {
        let Some(head) = bytes.first_chunk::<HEAD_BYTES>() else {
            return Err(EntryError::TooShort { bytes: bytes.len() });
        };
        let entry = Self { head: *head, payload: bytes.slice(HEAD_BYTES..) };
        for (field, at, least) in
            [("ledger id", 0, 0), ("entry id", 8, 0), ("LAC", 16, -1), ("length", 24, 0)]
        {
            let value = entry.field(at);
            if value < least {
                return Err(EntryError::Negative { field, value });
            }
        }
        Ok(entry)
    }

    /// The entry in one piece, as it is stored and sent.
    #[must_use]
    pub fn to_bytes(&self) -> Bytes {
        let mut bytes = BytesMut::with_capacity(self.size_bytes());
        bytes.put_slice(&self.head);
        bytes.put_slice(&self.payload);
        bytes.freeze()
    }

    /// What stands before the payload: header and digest.
    pub(crate) const fn head(&self) -> &[u8; HEAD_BYTES] {
        &self.head
    }

    /// Like [`to_bytes`](Self::to_bytes), behind what is there.
    #[cfg(feature = "io")]
    pub(crate) fn append_to(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&self.head);
        bytes.extend_from_slice(&self.payload);
    }

    /// Checks that this is an undamaged copy of entry `entry` of ledger `ledger`.
    ///
    /// The header's LAC is not checked against the id: a copy made by a repair may carry a LAC at or above it.
    ///
    /// # Errors
    /// [`EntryError::Digest`] and [`EntryError::Misplaced`]. Either concerns this copy only, not the entry.
    pub fn verify(&self, ledger: LedgerId, entry: EntryId) -> Result<(), EntryError> {
        let computed = digest(&self.head, &self.payload);
        let found = self.digest();
        if found != computed {
            return Err(EntryError::Digest { found, computed });
        }
        if (self.ledger(), self.entry()) != (ledger, entry) {
            return Err(EntryError::Misplaced { ledger: self.ledger(), entry: self.entry() });
        }
        Ok(())
    }

    /// The ledger named in the header.
    #[must_use]
    pub fn ledger(&self) -> LedgerId {
        LedgerId(self.field(0).unsigned_abs())
    }

    /// The entry id named in the header.
    #[must_use]
    pub fn entry(&self) -> EntryId {
        EntryId(self.field(8).unsigned_abs())
    }

    /// The LAC in the header: everything up to it was confirmed when the entry was first sent.
    #[must_use]
    pub fn lac(&self) -> Option<EntryId> {
        u64::try_from(self.field(16)).ok().map(EntryId)
    }

    /// Payload bytes of the ledger up to and including this entry.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.field(24).unsigned_abs()
    }

    /// The payload. Cloning it shares the bytes.
    #[must_use]
    pub fn payload(&self) -> &Bytes {
        &self.payload
    }

    /// The payload, without the rest.
    #[must_use]
    pub fn into_payload(self) -> Bytes {
        self.payload
    }

    /// The size of [`to_bytes`](Self::to_bytes), in bytes.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        HEAD_BYTES + self.payload.len()
    }

    fn digest(&self) -> u32 {
        let bytes =
            self.head.last_chunk().expect("the head ends with the four bytes of the digest");
        u32::from_be_bytes(*bytes)
    }

    fn field(&self, at: usize) -> i64 {
        let bytes = self.head[at..].first_chunk().expect("the fields lie within the head");
        i64::from_be_bytes(*bytes)
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry")
            .field("ledger", &self.ledger().get())
            .field("entry", &self.entry().get())
            .field("lac", &self.lac().map(EntryId::get))
            .field("length", &self.length())
            .field("payload_bytes", &self.payload.len())
            .finish()
    }
}

fn digest(head: &[u8; HEAD_BYTES], payload: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&head[..HEADER_BYTES]), payload)
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).expect("ids and lengths stay below 2^63")
}

/// The password of a ledger. Never shown.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Password(Bytes);

impl Password {
    /// The bytes, for the ledger's stored record.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl From<&[u8]> for Password {
    fn from(bytes: &[u8]) -> Self {
        Self(Bytes::copy_from_slice(bytes))
    }
}

impl From<&str> for Password {
    fn from(text: &str) -> Self {
        text.as_bytes().into()
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password(..)")
    }
}

/// What a client shows a bookie to write to or fence a ledger: SHA-1 over `ledger` and the password. Never shown.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct MasterKey([u8; 20]);

impl MasterKey {
    /// The key that belongs to `password`; the empty password has one as well.
    #[must_use]
    pub fn of(password: &Password) -> Self {
        Self(Sha1::new().chain_update("ledger").chain_update(password.as_bytes()).finalize().into())
    }

    /// The bytes, for the wire and the disk.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 20] {
        &self.0
    }
}

impl From<[u8; 20]> for MasterKey {
    fn from(bytes: [u8; 20]) -> Self {
        Self(bytes)
    }
}

impl fmt::Debug for MasterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MasterKey(..)")
    }
}

#[cfg(test)]
mod tests;
