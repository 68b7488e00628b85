//! From what a client asks a bookie to what is sent, and from what is received to the answer.

use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};

use super::message::{
    Durability, Operation, Priority, Request, ResponseBody as Body, ResponseFrame,
};
use super::status::Protocol;
use crate::entry::Entry;
use crate::id::{EntryId, LedgerId};
use crate::transport::{AddKind, BookieError, RequestBody, ResponseBody};

/// What has to be remembered of a request to understand its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Question {
    kind: Kind,
    ledger: LedgerId,
    /// The entry that the answer has to name; none for the last one and where no entry is named.
    entry: Option<EntryId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Add,
    Read,
    /// Of the last entry, for its header's sake.
    ReadLast,
    ReadLac,
    WaitLac,
    WriteLac,
}

/// What an answer in v2 is matched by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    operation: Operation,
    ledger: LedgerId,
    entry: Option<EntryId>,
}

/// An answer that belongs to no request of this kind and place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OtherQuestion;

/// Puts a request into the words of a protocol; `lac_wait` is how long a bookie may hold a wait for the LAC. Without an
/// answer it has no words for it.
pub(super) fn ask(
    protocol: Protocol,
    ledger: LedgerId,
    body: RequestBody,
    lac_wait: Duration,
) -> Option<(Priority, Request, Question)> {
    let question = |kind, entry| Question { kind, ledger, entry };
    let said = match body {
        RequestBody::Add { entry, key, kind } => {
            let asked = question(Kind::Add, Some(entry.entry()));
            // A read-only bookie takes only adds of high priority, and recovery must not queue behind writers.
            let priority = match kind {
                AddKind::Normal => Priority::Normal,
                AddKind::Recovery => Priority::High,
            };
            let durability = Durability::Synced;
            (priority, Request::Add { entry, key, kind, durability }, asked)
        }
        RequestBody::Read { entry, fence } => {
            let priority = fence.map_or(Priority::Normal, |_| Priority::High);
            let asked = question(Kind::Read, Some(entry));
            (priority, Request::Read { ledger, entry, fence }, asked)
        }
        RequestBody::ReadLac { fence: None } if protocol == Protocol::V3 => {
            (Priority::Normal, Request::ReadLac { ledger }, question(Kind::ReadLac, None))
        }
        RequestBody::ReadLac { fence } => {
            (Priority::Normal, Request::ReadLast { ledger, fence }, question(Kind::ReadLast, None))
        }
        RequestBody::WaitLac { .. } | RequestBody::WriteLac { .. } if protocol == Protocol::V2 => {
            return None;
        }
        RequestBody::WaitLac { beyond } => {
            let request = Request::WaitLac { ledger, beyond, within: lac_wait };
            (Priority::Normal, request, question(Kind::WaitLac, None))
        }
        RequestBody::WriteLac { lac, key } => {
            let request = Request::WriteLac { ledger, lac, key, body: lac_body(ledger, lac) };
            (Priority::Normal, request, question(Kind::WriteLac, None))
        }
    };
    Some(said)
}

impl Question {
    /// Whether the bookie answers in its own time.
    pub(super) const fn is_wait(&self) -> bool {
        matches!(self.kind, Kind::WaitLac)
    }

    /// What the answer in v2 is matched by.
    pub(super) const fn place(&self) -> Place {
        let operation = match self.kind {
            Kind::Add => Operation::Add,
            Kind::Read | Kind::ReadLast | Kind::WaitLac => Operation::Read,
            Kind::ReadLac => Operation::ReadLac,
            Kind::WriteLac => Operation::WriteLac,
        };
        Place { operation, ledger: self.ledger, entry: self.entry }
    }

    /// The answer to this question that a message is.
    ///
    /// # Errors
    /// [`OtherQuestion`] if it is an answer to another one; nothing may be concluded from it.
    pub(super) fn understand(
        &self,
        frame: ResponseFrame,
    ) -> Result<Result<ResponseBody, BookieError>, OtherQuestion> {
        // A bookie that did not look at the request sends no body.
        if let (Body::None, Err(refused)) = (&frame.body, frame.status) {
            return Ok(Err(refused));
        }
        let named = match &frame.body {
            Body::Add { ledger, entry } => (*ledger, Some(*entry)),
            // A wait for the LAC of an entry that came is answered with that entry.
            Body::Read { ledger, .. } if self.kind == Kind::WaitLac => (*ledger, None),
            Body::Read { ledger, entry, .. } => (*ledger, *entry),
            Body::ReadLac { ledger, .. } | Body::WriteLac { ledger } => (*ledger, None),
            _ => return Err(OtherQuestion),
        };
        if named != (self.ledger, self.entry) {
            return Err(OtherQuestion);
        }
        match (self.kind, frame.body) {
            (Kind::Add, Body::Add { .. }) => Ok(frame.status.map(|()| ResponseBody::Added)),
            (Kind::WriteLac, Body::WriteLac { .. }) => {
                Ok(frame.status.map(|()| ResponseBody::LacWritten))
            }
            (Kind::Read, Body::Read { bytes, .. }) => {
                Ok(frame.status.and_then(|()| stored(bytes).map(ResponseBody::Entry)))
            }
            (Kind::ReadLast, Body::Read { bytes, lac, .. }) => {
                Ok(known_lac(frame.status, || Ok(last_lac(self.ledger, bytes)?.max(lac))))
            }
            (Kind::WaitLac, Body::Read { lac, .. }) => Ok(known_lac(frame.status, || Ok(lac))),
            (Kind::ReadLac, Body::ReadLac { explicit, last, .. }) => {
                Ok(known_lac(frame.status, || {
                    let explicit = explicit.map(|body| written_lac(self.ledger, &body));
                    let last = last.map(|entry| last_lac(self.ledger, Some(entry)));
                    Ok(explicit.transpose()?.max(last.transpose()?.flatten()))
                }))
            }
            _ => Err(OtherQuestion),
        }
    }
}

/// The answer to a question for the LAC. A bookie without an entry of the ledger says "no such entry", which is to know
/// of none that is confirmed.
fn known_lac(
    status: Result<(), BookieError>,
    lac: impl FnOnce() -> Result<Option<EntryId>, BookieError>,
) -> Result<ResponseBody, BookieError> {
    let lac = match status {
        Ok(()) => lac()?,
        Err(BookieError::NoSuchEntry) => None,
        Err(refused) => return Err(refused),
    };
    Ok(ResponseBody::LastAddConfirmed { lac })
}

/// An entry that came as bytes. What cannot be one is a damaged copy.
fn stored(bytes: Option<Bytes>) -> Result<Entry, BookieError> {
    let bytes = bytes.ok_or(BookieError::Io)?;
    Entry::from_bytes(bytes).map_err(|_| BookieError::Io)
}

/// The LAC in the header of the last entry. It is believed only of an undamaged copy: a LAC that is too high would close
/// the ledger beyond what was acknowledged.
fn last_lac(ledger: LedgerId, bytes: Option<Bytes>) -> Result<Option<EntryId>, BookieError> {
    let entry = stored(bytes)?;
    entry.verify(ledger, entry.entry()).map_err(|_| BookieError::Io)?;
    Ok(entry.lac())
}

const LAC_BYTES: usize = 16;

/// Ledger and LAC, with a digest over both, as a writer sends them by themselves.
pub(super) fn lac_body(ledger: LedgerId, lac: EntryId) -> Bytes {
    let mut body = BytesMut::with_capacity(LAC_BYTES + 4);
    body.put_u64(ledger.get());
    body.put_u64(lac.get());
    let digest = crc32c::crc32c(&body);
    body.put_u32(digest);
    body.freeze()
}

/// The LAC that a writer sent by itself, of an undamaged copy.
fn written_lac(ledger: LedgerId, body: &[u8]) -> Result<EntryId, BookieError> {
    let lac = body.get(8..LAC_BYTES).and_then(|lac| lac.try_into().ok()).map(u64::from_be_bytes);
    let lac = EntryId(lac.ok_or(BookieError::Io)?);
    // Put together anew it must be the same, ledger and digest included.
    if *body == lac_body(ledger, lac) { Ok(lac) } else { Err(BookieError::Io) }
}

impl ResponseFrame {
    /// What the answer in v2 is matched by; none if it is no answer to an add or a read.
    pub(super) const fn place(&self) -> Option<Place> {
        let (ledger, entry) = match &self.body {
            Body::Add { ledger, entry } => (*ledger, Some(*entry)),
            Body::Read { ledger, entry, .. } => (*ledger, *entry),
            _ => return None,
        };
        Some(Place { operation: self.operation, ledger, entry })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::{MasterKey, Password};

    const LEDGER: LedgerId = LedgerId(7);
    const OK: Result<(), BookieError> = Ok(());

    fn question(body: RequestBody) -> Question {
        ask(Protocol::V3, LEDGER, body, Duration::ZERO).expect("v3 can say everything").2
    }

    fn frame(operation: Operation, status: Result<(), BookieError>, body: Body) -> ResponseFrame {
        ResponseFrame { transaction: 1, operation, status, body }
    }

    fn entry(lac: u64) -> Bytes {
        Entry::seal(LEDGER, EntryId(9), Some(EntryId(lac)), 3, Bytes::from_static(b"abc"))
            .to_bytes()
    }

    fn damaged(bytes: &Bytes) -> Option<Bytes> {
        let mut bytes = bytes.to_vec();
        bytes[23] ^= 1; // The lowest byte of the header's LAC.
        Some(bytes.into())
    }

    const fn lac(lac: Option<u64>) -> Result<ResponseBody, BookieError> {
        let lac = match lac {
            Some(lac) => Some(EntryId(lac)),
            None => None,
        };
        Ok(ResponseBody::LastAddConfirmed { lac })
    }

    #[test]
    fn the_lac_is_the_higher_of_the_last_entrys_and_the_written_one() {
        let asked = question(RequestBody::ReadLac { fence: None });
        let answer = |explicit: Option<u64>, last: Option<u64>| {
            let explicit = explicit.map(|lac| lac_body(LEDGER, EntryId(lac)));
            let body = Body::ReadLac { ledger: LEDGER, explicit, last: last.map(entry) };
            asked.understand(frame(Operation::ReadLac, OK, body))
        };
        assert_eq!(answer(None, None), Ok(lac(None)));
        assert_eq!(answer(Some(3), None), Ok(lac(Some(3))));
        assert_eq!(answer(Some(3), Some(8)), Ok(lac(Some(8))));
        assert_eq!(answer(Some(8), Some(3)), Ok(lac(Some(8))));
    }

    #[test]
    fn a_lac_of_a_damaged_copy_is_not_believed() {
        let asked = question(RequestBody::ReadLac { fence: None });
        let mut explicit = lac_body(LEDGER, EntryId(1)).to_vec();
        explicit[15] ^= 4;
        let of_another_ledger = lac_body(LedgerId(8), EntryId(1));
        for (explicit, last) in [
            (Some(explicit.into()), None),
            (Some(of_another_ledger), None),
            (Some(Bytes::from_static(b"short")), None),
            (None, damaged(&entry(3))),
            (None, Some(Bytes::from_static(b"short"))),
        ] {
            let body = Body::ReadLac { ledger: LEDGER, explicit, last };
            let answer = asked.understand(frame(Operation::ReadLac, OK, body));
            assert_eq!(answer, Ok(Err(BookieError::Io)));
        }
        let key = MasterKey::of(&Password::default());
        let asked = question(RequestBody::ReadLac { fence: Some(key) });
        let body = Body::Read {
            ledger: LEDGER,
            entry: None,
            bytes: damaged(&entry(3)),
            lac: None,
            lac_since_ms: None,
        };
        let answer = asked.understand(frame(Operation::Read, OK, body));
        assert_eq!(answer, Ok(Err(BookieError::Io)));
    }

    #[test]
    fn a_bookie_without_entries_knows_of_no_lac() {
        let asked = question(RequestBody::ReadLac { fence: None });
        let body = Body::ReadLac { ledger: LEDGER, explicit: None, last: None };
        let none = frame(Operation::ReadLac, Err(BookieError::NoSuchEntry), body.clone());
        assert_eq!(asked.understand(none), Ok(lac(None)));
        let ledger = frame(Operation::ReadLac, Err(BookieError::NoSuchLedger), body);
        assert_eq!(asked.understand(ledger), Ok(Err(BookieError::NoSuchLedger)));
    }

    #[test]
    fn an_answer_to_another_question_is_none() {
        let add = RequestBody::Add {
            entry: Entry::seal(LEDGER, EntryId(4), None, 0, Bytes::new()),
            key: MasterKey::of(&Password::default()),
            kind: AddKind::Normal,
        };
        let asked = question(add);
        let added = |ledger, entry| Body::Add { ledger, entry };
        let understood = |body| asked.understand(frame(Operation::Add, OK, body));
        assert_eq!(understood(added(LEDGER, EntryId(4))), Ok(Ok(ResponseBody::Added)));
        assert_eq!(understood(added(LEDGER, EntryId(5))), Err(OtherQuestion));
        assert_eq!(understood(added(LedgerId(8), EntryId(4))), Err(OtherQuestion));
        assert_eq!(understood(Body::WriteLac { ledger: LEDGER }), Err(OtherQuestion));
        assert_eq!(understood(Body::None), Err(OtherQuestion), "success needs its body");
        let refused = frame(Operation::Add, Err(BookieError::Unauthorized), Body::None);
        assert_eq!(asked.understand(refused), Ok(Err(BookieError::Unauthorized)));
    }

    #[test]
    fn what_fences_or_recovers_goes_first_as_the_java_client_has_it() {
        let key = MasterKey::of(&Password::default());
        let priority = |body| ask(Protocol::V2, LEDGER, body, Duration::ZERO).map(|said| said.0);
        let entry = Entry::seal(LEDGER, EntryId(4), None, 0, Bytes::new());
        let add = |kind| RequestBody::Add { entry: entry.clone(), key, kind };
        let read = |fence| RequestBody::Read { entry: EntryId(4), fence };
        for (body, expected) in [
            (add(AddKind::Normal), Priority::Normal),
            (add(AddKind::Recovery), Priority::High),
            (read(None), Priority::Normal),
            (read(Some(key)), Priority::High),
            (RequestBody::ReadLac { fence: Some(key) }, Priority::Normal),
        ] {
            assert_eq!(priority(body.clone()), Some(expected), "{body:?}");
        }
        assert_eq!(priority(RequestBody::WaitLac { beyond: None }), None, "not in v2");
    }
}
