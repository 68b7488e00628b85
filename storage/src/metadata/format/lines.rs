//! Format version 1, of BookKeeper 4.0: lines of text.
//!
//! ```text
//! WQ LF  E LF  length LF
//! { first entry  { TAB bookie }  LF }          one line per ensemble
//! [ last entry TAB "CLOSED" ]                  a last entry of -102 stands for a ledger in recovery
//! ```

use std::collections::BTreeMap;
use std::fmt::Write;

use super::FormatError;
use crate::id::{BookieId, EntryId};
use crate::metadata::ledger::{
    FormatVersion, LedgerEnd, LedgerMetadata, LedgerState, ListedOrder, Parts,
};
use crate::quorum::QuorumSizes;

const CLOSED: &str = "CLOSED";
const IN_RECOVERY: &str = "-102";
const NO_ENTRY: &str = "-1";

pub(super) fn encode(metadata: &LedgerMetadata) -> String {
    let (sizes, mut text) = (metadata.sizes(), String::new());
    let end = match metadata.state() {
        LedgerState::Closed(end) => end,
        LedgerState::Open | LedgerState::InRecovery => LedgerEnd::default(),
    };
    write!(text, "{}\n{}\n{}\n", sizes.write(), sizes.ensemble(), end.length).expect(ANY_TEXT);
    for (first, members) in metadata.ensembles() {
        write!(text, "{first}").expect(ANY_TEXT);
        for member in members {
            write!(text, "\t{member}").expect(ANY_TEXT);
        }
        text.push('\n');
    }
    match metadata.state() {
        LedgerState::Open => {}
        LedgerState::InRecovery => write!(text, "{IN_RECOVERY}\t{CLOSED}").expect(ANY_TEXT),
        LedgerState::Closed(LedgerEnd { last_entry: Some(last), .. }) => {
            write!(text, "{last}\t{CLOSED}").expect(ANY_TEXT);
        }
        LedgerState::Closed(LedgerEnd { last_entry: None, .. }) => {
            write!(text, "{NO_ENTRY}\t{CLOSED}").expect(ANY_TEXT);
        }
    }
    text
}

pub(super) fn decode(bytes: &[u8]) -> Result<LedgerMetadata, FormatError> {
    let text = std::str::from_utf8(bytes).map_err(super::malformed)?;
    let mut lines = text.split_terminator('\n');
    let mut next = |field| number(field, lines.next().unwrap_or_default());
    let size = |size| usize::try_from(size).unwrap_or(usize::MAX);
    let (write, ensemble) = (size(next("write quorum size")?), size(next("ensemble size")?));
    let length = next("length")?;
    // There was no ack quorum yet: every bookie of the write quorum had to answer.
    let sizes = QuorumSizes::new(ensemble, write, write)?;
    let mut ensembles = BTreeMap::new();
    let mut state = LedgerState::Open;
    for line in lines {
        if state != LedgerState::Open {
            return Err(FormatError::Malformed(format!("something follows its end: {line:?}")));
        }
        match line.split_once('\t') {
            Some((IN_RECOVERY, CLOSED)) => state = LedgerState::InRecovery,
            Some((NO_ENTRY, CLOSED)) => {
                state = LedgerState::Closed(LedgerEnd { last_entry: None, length });
            }
            Some((last, CLOSED)) => {
                let last_entry = Some(EntryId(number("last entry id", last)?));
                state = LedgerState::Closed(LedgerEnd { last_entry, length });
            }
            Some((first, members)) => {
                let first = EntryId(number("first entry of an ensemble", first)?);
                let members = members.split('\t').map(BookieId::from).collect();
                if ensembles.insert(first, members).is_some() {
                    return Err(FormatError::DuplicateEnsemble(first));
                }
            }
            None => return Err(FormatError::Malformed(format!("a line of it is {line:?}"))),
        }
    }
    Ok(LedgerMetadata::from_parts(Parts {
        format: FormatVersion::V1,
        state,
        sizes,
        digest: None,
        password: Default::default(),
        ensembles,
        ctime: None,
        creation_token: 0,
        custom: BTreeMap::new(),
        custom_order: ListedOrder::default(),
        unknown_fields: Default::default(),
    })?)
}

fn number(field: &'static str, text: &str) -> Result<u64, FormatError> {
    match text.parse::<i64>() {
        Ok(value) => super::unsigned(field, value),
        Err(error) => Err(FormatError::Malformed(format!("its {field} is {text:?}: {error}"))),
    }
}

const ANY_TEXT: &str = "a string takes any text";
