//! Where the records of topics and cursors are kept, as Apache Pulsar lays them out.

use std::fmt::Write;

/// A name that no record can be kept under.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidName {
    /// It is none.
    #[error(
        "{0:?} names no topic and no cursor: write persistent://tenant/namespace/topic, \
         or names joined by `/`, none of them empty and without control characters"
    )]
    Malformed(String),
    /// It is longer than [`NAME_BYTES_MAX`].
    #[error(
        "the name that begins with {start:?} has {bytes} bytes, and the longest has {NAME_BYTES_MAX}; shorten it"
    )]
    TooLong {
        /// Its first characters.
        start: String,
        /// Its length in bytes.
        bytes: usize,
    },
}

/// The longest name of a topic or a cursor, in bytes: names are in keys, records and messages to people, and a longer one
/// is a mistake.
pub const NAME_BYTES_MAX: usize = 1_024;

fn bounded(name: &str) -> Result<(), InvalidName> {
    match name.len() {
        0..=NAME_BYTES_MAX => Ok(()),
        bytes => Err(InvalidName::TooLong { start: name.chars().take(40).collect(), bytes }),
    }
}

/// The name of a topic's managed ledger: `persistent://tenant/namespace/topic` becomes
/// `tenant/namespace/persistent/topic`, with the topic's own name encoded; a name without a
/// scheme is one already.
pub(crate) fn persistence_path(name: &str) -> Result<String, InvalidName> {
    let invalid = || InvalidName::Malformed(name.to_owned());
    bounded(name)?;
    let path = match name.strip_prefix("persistent://") {
        None => name.to_owned(),
        Some(rest) => {
            let mut parts = rest.splitn(3, '/');
            let mut part = || parts.next().ok_or_else(invalid);
            let (tenant, namespace, topic) = (part()?, part()?, part()?);
            format!("{tenant}/{namespace}/persistent/{}", encoded(topic))
        }
    };
    if name.contains(char::is_control) || path.contains(':') || path.split('/').any(str::is_empty) {
        return Err(invalid());
    }
    Ok(path)
}

/// The name of the topic whose managed ledger is `path`.
pub(crate) fn name_of(path: &str) -> String {
    match path.split('/').collect::<Vec<_>>()[..] {
        [tenant, namespace, "persistent", topic] => {
            format!("persistent://{tenant}/{namespace}/{}", decoded(topic))
        }
        _ => path.to_owned(),
    }
}

/// A cursor whose name begins so is a topic's own bookkeeping. What it has not acknowledged stays in
/// the topic, and is nobody's backlog: a quota does not count it.
pub const OWN_CURSORS: &str = "georepl.";

/// What the record of a ledger says under this name: the path of the topic that it was created for.
pub(crate) const FOR_TOPIC: &str = "pulsar/managed-ledger";

/// And under this one: the cursor, if it was created for one.
pub(crate) const FOR_CURSOR: &str = "pulsar/cursor";

/// The key of a topic's record.
pub(crate) fn topic_key(path: &str) -> String {
    format!("managed-ledgers/{path}")
}

/// The key of a cursor's record.
pub(crate) fn cursor_key(path: &str, cursor: &str) -> Result<String, InvalidName> {
    bounded(cursor)?;
    if cursor.is_empty() || cursor.contains(char::is_control) {
        return Err(InvalidName::Malformed(cursor.to_owned()));
    }
    Ok(format!("managed-ledgers/{path}/{}", encoded(cursor)))
}

/// Form encoding, which is what Pulsar uses for the last part of a path.
fn encoded(name: &str) -> String {
    let mut text = String::with_capacity(name.len());
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'-' | b'*' | b'_' => {
                text.push(char::from(byte));
            }
            b' ' => text.push('+'),
            other => write!(text, "%{other:02X}").expect("a string takes any text"),
        }
    }
    text
}

/// The name that was encoded; text that no encoding yields is taken as it is.
pub(crate) fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let escaped = match (first, tail) {
            (b'%', [high, low, ..]) => {
                let digit = |byte: &u8| char::from(*byte).to_digit(16);
                digit(high).zip(digit(low)).map(|(high, low)| (16 * high + low) as u8)
            }
            _ => None,
        };
        rest = if escaped.is_some() { &tail[2..] } else { tail };
        bytes.push(escaped.unwrap_or(if *first == b'+' { b' ' } else { *first }));
    }
    String::from_utf8(bytes).unwrap_or_else(|_| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_and_cursors_have_pulsars_paths() {
        let path = persistence_path("persistent://acme/eu/orders v2/é").unwrap();
        assert_eq!(path, "acme/eu/persistent/orders+v2%2F%C3%A9");
        assert_eq!(topic_key(&path), format!("managed-ledgers/{path}"));
        let key = cursor_key("acme/eu/persistent/orders", "pulsar.repl.us/west").unwrap();
        assert_eq!(key, "managed-ledgers/acme/eu/persistent/orders/pulsar.repl.us%2Fwest");
        assert_eq!(persistence_path("acme/orders").unwrap(), "acme/orders");
    }

    #[test]
    fn encoded_names_are_read_again() {
        for name in ["orders v2/é", "a+b%", "pulsar.repl.us/west", ""] {
            assert_eq!(decoded(&encoded(name)), name);
        }
        assert_eq!(decoded("%zz%4"), "%zz%4");
    }

    #[test]
    fn names_without_a_place_are_refused() {
        let bad = ["", "a//b", "/a", "persistent://acme/eu", "persistent:///eu/t", "other://a/b/c"];
        for bad in bad {
            assert!(persistence_path(bad).unwrap_err().to_string().contains(bad));
        }
        for bad in ["a/b\n", "persistent://acme/eu/or\0ders", "acme/\u{7f}/t"] {
            let refused = persistence_path(bad).unwrap_err().to_string();
            assert!(refused.contains(&format!("{bad:?}")), "{refused}");
        }
        let prefix = "persistent://acme/eu/";
        let name = |bytes: usize| format!("{prefix}{}", "x".repeat(bytes - prefix.len()));
        assert!(persistence_path(&name(NAME_BYTES_MAX)).is_ok());
        let refused = persistence_path(&name(NAME_BYTES_MAX + 1)).unwrap_err().to_string();
        assert!(refused.contains(prefix) && refused.contains("1025 bytes"), "{refused}");
        assert!(refused.contains("the longest has 1024") && refused.len() < 200, "{refused}");
        assert!(cursor_key("a", &name(NAME_BYTES_MAX + 1)).is_err());
        assert!(cursor_key("a", "").is_err());
        assert!(cursor_key("a", "c\td").is_err());
    }
}
