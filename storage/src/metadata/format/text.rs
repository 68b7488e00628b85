//! Format version 2, of BookKeeper 4.2 to 4.8: the record's message as protobuf text.
//!
//! ```text
//! quorumSize: 3
//! segment {
//!   ensembleMember: "bookie-1"
//!   firstEntryId: 0
//! }
//! ```
//! Fields that are not known here are kept as they stand there and written again behind the known ones.

use bytes::{BufMut, Bytes, BytesMut};

use super::{Custom, Digest, FormatError, Record, Segment, State};

pub(super) fn encode(record: &Record, unknown_fields: &[u8]) -> Bytes {
    let mut text = BytesMut::new();
    let state = State::try_from(record.state).expect("states are encoded from their enum");
    number(&mut text, "quorumSize", record.write_quorum.into());
    number(&mut text, "ensembleSize", record.ensemble_size.into());
    number(&mut text, "length", record.length);
    optional(&mut text, "lastEntryId", record.last_entry);
    word(&mut text, "state", state.name());
    for segment in &record.segments {
        text.put_slice(b"segment {\n");
        for member in &segment.members {
            quoted(&mut text, "  ensembleMember", member.as_bytes());
        }
        number(&mut text, "  firstEntryId", segment.first_entry);
        text.put_slice(b"}\n");
    }
    if let Some(digest) = record.digest {
        let digest = Digest::try_from(digest).expect("digests are encoded from their enum");
        word(&mut text, "digestType", digest.name());
    }
    if let Some(password) = &record.password {
        quoted(&mut text, "password", password);
    }
    optional(&mut text, "ackQuorumSize", record.ack_quorum.map(i64::from));
    optional(&mut text, "ctime", record.ctime);
    for Custom { key, value } in &record.custom {
        text.put_slice(b"customMetadata {\n");
        if let Some(key) = key {
            quoted(&mut text, "  key", key.as_bytes());
        }
        if let Some(value) = value {
            quoted(&mut text, "  value", value);
        }
        text.put_slice(b"}\n");
    }
    text.put_slice(unknown_fields);
    text.freeze()
}

fn word(text: &mut BytesMut, name: &str, value: &str) {
    for part in [name, ": ", value, "\n"] {
        text.put_slice(part.as_bytes());
    }
}

fn number(text: &mut BytesMut, name: &str, value: i64) {
    word(text, name, &value.to_string());
}

fn optional(text: &mut BytesMut, name: &str, value: Option<i64>) {
    if let Some(value) = value {
        number(text, name, value);
    }
}

/// A string as Java's printer escapes it.
fn quoted(text: &mut BytesMut, name: &str, value: &[u8]) {
    let mut escaped = String::with_capacity(value.len() + 2);
    escaped.push('"');
    for &byte in value {
        match ESCAPES.iter().find(|(_, escaped)| *escaped == byte) {
            Some((letter, _)) => escaped.extend(['\\', char::from(*letter)]),
            None if (0x20..0x7f).contains(&byte) => escaped.push(char::from(byte)),
            None => escaped.push_str(&format!("\\{byte:03o}")),
        }
    }
    escaped.push('"');
    word(text, name, &escaped);
}

/// What stands behind a backslash, and the byte that it means.
const ESCAPES: [(u8, u8); 10] = [
    (b'a', 0x07),
    (b'b', 0x08),
    (b'f', 0x0c),
    (b'n', b'\n'),
    (b'r', b'\r'),
    (b't', b'\t'),
    (b'v', 0x0b),
    (b'\\', b'\\'),
    (b'\'', b'\''),
    (b'"', b'"'),
];

/// The message, and its unknown fields.
pub(super) fn decode(text: &[u8]) -> Result<(Record, Bytes), FormatError> {
    let mut record = Record::default();
    let mut missing = vec!["quorumSize", "ensembleSize", "length", "state"];
    let mut unknown = BytesMut::new();
    let mut rest = Scanner { text, at: 0 };
    while let Some((start, name)) = rest.field()? {
        missing.retain(|required| *required != name);
        match name {
            "quorumSize" => record.write_quorum = rest.number("write quorum size")?,
            "ensembleSize" => record.ensemble_size = rest.number("ensemble size")?,
            "length" => record.length = rest.number("length")?,
            "lastEntryId" => record.last_entry = Some(rest.number("last entry id")?),
            "state" => {
                let state = rest.word()?;
                record.state =
                    State::named(state).ok_or_else(|| unexpected("state", state))? as i32;
            }
            "segment" => record.segments.push(segment(&mut rest)?),
            "digestType" => {
                let digest = rest.word()?;
                let digest = Digest::named(digest).ok_or_else(|| unexpected("digest", digest))?;
                record.digest = Some(digest as i32);
            }
            "password" => record.password = Some(rest.quoted()?),
            "ackQuorumSize" => record.ack_quorum = Some(rest.number("ack quorum size")?),
            "ctime" => record.ctime = Some(rest.number("ctime")?),
            "customMetadata" => record.custom.push(custom(&mut rest)?),
            _ => {
                rest.skip_value()?;
                unknown.put_slice(text[start..rest.at].trim_ascii_end());
                unknown.put_u8(b'\n');
            }
        }
    }
    match missing.first() {
        None => Ok((record, unknown.freeze())),
        Some(name) => Err(FormatError::Malformed(format!("its field {name} is not there"))),
    }
}

fn segment(rest: &mut Scanner<'_>) -> Result<Segment, FormatError> {
    let mut segment = Segment::default();
    rest.open()?;
    while let Some(name) = rest.field_or_close()? {
        match name {
            "ensembleMember" => segment.members.push(rest.string()?),
            "firstEntryId" => segment.first_entry = rest.number("first entry of an ensemble")?,
            _ => rest.skip_value()?,
        }
    }
    Ok(segment)
}

fn custom(rest: &mut Scanner<'_>) -> Result<Custom, FormatError> {
    let mut custom = Custom::default();
    rest.open()?;
    while let Some(name) = rest.field_or_close()? {
        match name {
            "key" => custom.key = Some(rest.string()?),
            "value" => custom.value = Some(rest.quoted()?),
            _ => rest.skip_value()?,
        }
    }
    Ok(custom)
}

fn unexpected(what: &str, text: &str) -> FormatError {
    FormatError::Malformed(format!("its {what} is {text:?}"))
}

/// Where reading of the text has come to.
struct Scanner<'t> {
    text: &'t [u8],
    at: usize,
}

impl<'t> Scanner<'t> {
    /// The next field of the message: where it begins, and its name. None at the end.
    fn field(&mut self) -> Result<Option<(usize, &'t str)>, FormatError> {
        if self.peek().is_none() {
            return Ok(None);
        }
        let start = self.at;
        Ok(Some((start, self.bare()?)))
    }

    /// The next field of a message within the message; none at its end, which is then read.
    fn field_or_close(&mut self) -> Result<Option<&'t str>, FormatError> {
        if self.take(b'}') {
            return Ok(None);
        }
        self.bare().map(Some)
    }

    fn open(&mut self) -> Result<(), FormatError> {
        self.take(b':');
        if self.take(b'{') { Ok(()) } else { Err(self.unexpected("{")) }
    }

    fn word(&mut self) -> Result<&'t str, FormatError> {
        if !self.take(b':') {
            return Err(self.unexpected(":"));
        }
        self.bare()
    }

    fn number<N: TryFrom<i64>>(&mut self, field: &'static str) -> Result<N, FormatError> {
        let word = self.word()?;
        let value: i64 = word.parse().map_err(|_| unexpected(field, word))?;
        N::try_from(value).map_err(|_| FormatError::OutOfRange { field, value })
    }

    fn string(&mut self) -> Result<String, FormatError> {
        String::from_utf8(self.quoted()?).map_err(super::malformed)
    }

    fn quoted(&mut self) -> Result<Vec<u8>, FormatError> {
        if !self.take(b':') {
            return Err(self.unexpected(":"));
        }
        let mut value = self.literal()?;
        while let Some(b'"' | b'\'') = self.peek() {
            value.extend(self.literal()?);
        }
        Ok(value)
    }

    /// One literal; what stands behind another without a sign between them belongs together.
    fn literal(&mut self) -> Result<Vec<u8>, FormatError> {
        let Some(quote @ (b'"' | b'\'')) = self.peek() else {
            return Err(self.unexpected("a string"));
        };
        self.at += 1;
        let mut value = Vec::new();
        loop {
            match self.byte()? {
                byte if byte == quote => return Ok(value),
                b'\n' => return Err(self.unexpected("the end of a string")),
                b'\\' => value.push(self.escape()?),
                byte => value.push(byte),
            }
        }
    }

    fn escape(&mut self) -> Result<u8, FormatError> {
        let (radix, mut digits, digits_max) = match self.byte()? {
            digit @ b'0'..=b'7' => (8, u32::from(digit - b'0'), 2),
            b'x' | b'X' => (16, 0, 2),
            letter => {
                let known = ESCAPES.iter().find(|(known, _)| *known == letter);
                let (_, byte) = known.ok_or_else(|| self.unexpected("an escape"))?;
                return Ok(*byte);
            }
        };
        for _ in 0..digits_max {
            let digit = self.text.get(self.at).and_then(|byte| char::from(*byte).to_digit(radix));
            let Some(digit) = digit else { break };
            digits = digits * radix + digit;
            self.at += 1;
        }
        u8::try_from(digits).map_err(|_| self.unexpected("an escaped byte"))
    }

    /// Passes over the value of a field that is not known: a scalar, or a message or list with all that is in it.
    fn skip_value(&mut self) -> Result<(), FormatError> {
        self.take(b':');
        let mut depth = 0_usize;
        loop {
            match self.peek() {
                Some(b'{' | b'[' | b'<') => {
                    depth += 1;
                    self.at += 1;
                }
                Some(b'}' | b']' | b'>') if depth > 0 => {
                    depth -= 1;
                    self.at += 1;
                }
                Some(b':') if depth > 0 => self.at += 1,
                Some(b'"' | b'\'') => {
                    self.literal()?;
                    if depth == 0 && matches!(self.peek(), Some(b'"' | b'\'')) {
                        continue;
                    }
                }
                Some(_) => drop(self.bare()?),
                None => return Err(self.unexpected("a value")),
            }
            if depth == 0 {
                return Ok(());
            }
        }
    }

    /// A name or a number.
    fn bare(&mut self) -> Result<&'t str, FormatError> {
        self.peek();
        let rest = &self.text[self.at..];
        let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || b"_.+-".contains(byte);
        let bytes = rest.iter().take_while(|byte| is_part(byte)).count();
        if bytes == 0 {
            return Err(self.unexpected("a name or a number"));
        }
        self.at += bytes;
        Ok(std::str::from_utf8(&rest[..bytes]).expect("letters, digits and signs are ASCII"))
    }

    fn take(&mut self, sign: u8) -> bool {
        let found = self.peek() == Some(sign);
        self.at += usize::from(found);
        found
    }

    fn byte(&mut self) -> Result<u8, FormatError> {
        let byte = self.text.get(self.at).copied().ok_or_else(|| self.unexpected("more"))?;
        self.at += 1;
        Ok(byte)
    }

    /// The next byte that means something: spaces, comments and signs between fields do not.
    fn peek(&mut self) -> Option<u8> {
        loop {
            match *self.text.get(self.at)? {
                b' ' | b'\t' | b'\r' | b'\n' | b',' | b';' => self.at += 1,
                b'#' => {
                    let rest = &self.text[self.at..];
                    self.at += rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
                }
                byte => return Some(byte),
            }
        }
    }

    fn unexpected(&self, wanted: &str) -> FormatError {
        FormatError::Malformed(format!("there is no {wanted} at byte {} of its text", self.at))
    }
}
