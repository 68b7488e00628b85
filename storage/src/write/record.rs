//! The ledger's record as its writer knows it, and the one question about it that may be outstanding.
//!
//! ```text
//!              write            Written
//!  Settled ───────────► Asking ─────────► Settled
//!     ▲                 │    ▲ Conflict, or a write without answer: read
//!     │ Found           │    └───────────────┐
//!     └─────────────────┴── a read without answer ──► Pausing
//! ```
//!
//! A write whose outcome is unknown may still land, but only while the record has the version that it expects. So
//! the record is settled once it has a higher one: because the write came through, because somebody else wrote, or
//! because this side rewrote the record unchanged at the version just read. Who asked decides afresh from what is
//! then there; whether its own write is among that needs no memory.

use std::sync::Arc;
use std::time::Duration;

use crate::metadata::{LedgerMetadata, RecordAnswer, RecordRequest, Version};
use crate::time::Time;

/// How long to wait after a read without answer before the next one. Short beside an operation's timeout, and enough
/// that a store which refuses at once is not asked in a loop.
const PAUSE: Duration = Duration::from_millis(250);

/// The newest record that is known, and how to get on from it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Record {
    newest: Arc<LedgerMetadata>,
    version: Version,
    phase: Phase,
    /// The version that a write without answer expects; none when no write of ours can land any more.
    doubt: Option<Version>,
    /// No older version is believed: a store may answer a read with a value that has been replaced.
    least: Version,
    sight: Sight,
    /// Why there was no answer to the last reads, and to how many in a row.
    unanswered: Option<(u32, Arc<str>)>,
    rights: Rights,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Settled,
    /// A question that is still to be handed out.
    Asking(RecordRequest),
    /// One that was handed out.
    Asked(RecordRequest),
    Pausing {
        until: Time,
    },
}

/// What the last answer said of there being a record. A store may answer a read with what was there earlier, also
/// with nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Sight {
    Found,
    Lost,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Rights {
    /// The owner's: to change the record.
    Write,
    /// A fenced writer's: to look at it.
    Read,
}

/// What an answer led to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Learnt {
    /// The record is known and nothing of ours can change it any more: decide.
    Settled,
    /// Nothing yet.
    Unsettled,
    /// The record is gone.
    Missing,
    /// The record cannot be understood, and why.
    Unusable(Arc<str>),
}

impl Record {
    pub(super) const fn new(newest: Arc<LedgerMetadata>, version: Version) -> Self {
        Self {
            newest,
            version,
            phase: Phase::Settled,
            doubt: None,
            least: version,
            sight: Sight::Found,
            unanswered: None,
            rights: Rights::Write,
        }
    }

    pub(super) const fn newest(&self) -> &Arc<LedgerMetadata> {
        &self.newest
    }

    pub(super) const fn version(&self) -> Version {
        self.version
    }

    pub(super) const fn is_settled(&self) -> bool {
        matches!(self.phase, Phase::Settled)
    }

    /// Replaces the newest record, which must be settled.
    pub(super) fn write(&mut self, record: LedgerMetadata) {
        assert!(self.is_settled() && self.doubt.is_none(), "what is in doubt is settled first");
        self.ask(RecordRequest::Write { record: Arc::new(record), expected: self.version });
    }

    /// Reads it again, unless a question is outstanding, which does as well.
    pub(super) fn refresh(&mut self) {
        self.unanswered = None;
        if !matches!(self.phase, Phase::Asked(_)) {
            self.ask(RecordRequest::Read);
        }
    }

    /// Stops asking after so many reads in a row without answer, and says why there was none to the last. What is in
    /// doubt stays so until the next read.
    pub(super) fn give_up(&mut self, reads_max: u32) -> Option<Arc<str>> {
        let (reads, reason) = self.unanswered.as_ref()?;
        if *reads < reads_max || matches!(self.phase, Phase::Asked(_)) {
            return None;
        }
        let reason = reason.clone();
        (self.phase, self.unanswered) = (Phase::Settled, None);
        Some(reason)
    }

    /// From now on the record is only looked at.
    pub(super) fn withdraw(&mut self) {
        self.rights = Rights::Read;
        if let Phase::Asking(RecordRequest::Write { .. }) = self.phase {
            self.phase = Phase::Settled;
        }
    }

    pub(super) fn on_answer(&mut self, now: Time, answer: RecordAnswer) -> Learnt {
        let Phase::Asked(question) = &self.phase else {
            // An answer to no question says nothing.
            return Learnt::Unsettled;
        };
        let question = question.clone();
        match (question, answer) {
            (RecordRequest::Read, RecordAnswer::Found(record, version))
                if version >= self.least =>
            {
                self.adopt(record, version)
            }
            (RecordRequest::Write { record, .. }, RecordAnswer::Written(version)) => {
                self.adopt(record, version)
            }
            // The version has moved on, so an earlier write that expected it is dead as well.
            (RecordRequest::Write { expected, .. }, RecordAnswer::Conflict) => {
                self.doubt = None;
                self.least = self.least.max(Version(expected.0 + 1));
                self.ask(RecordRequest::Read);
                Learnt::Unsettled
            }
            // A write that finds no record is believed, and so is the second read in a row.
            (RecordRequest::Read, RecordAnswer::Missing) if self.sight == Sight::Found => {
                self.sight = Sight::Lost;
                self.phase = Phase::Pausing { until: now + PAUSE };
                Learnt::Unsettled
            }
            (_, RecordAnswer::Missing) => {
                self.phase = Phase::Settled;
                Learnt::Missing
            }
            (RecordRequest::Read, RecordAnswer::Unusable(reason)) => {
                self.phase = Phase::Settled;
                Learnt::Unusable(reason)
            }
            (RecordRequest::Write { expected, .. }, _) => {
                self.doubt = Some(expected);
                self.ask(RecordRequest::Read);
                Learnt::Unsettled
            }
            (RecordRequest::Read, answer) => {
                let reason = match answer {
                    RecordAnswer::Unknown(reason) => reason,
                    _ => "the answer was older than what is known".into(),
                };
                let reads = self.unanswered.take().map_or(0, |(reads, _)| reads);
                self.unanswered = Some((reads + 1, reason));
                self.phase = Phase::Pausing { until: now + PAUSE };
                Learnt::Unsettled
            }
        }
    }

    pub(super) fn on_wake(&mut self, now: Time) {
        if let Phase::Pausing { until } = self.phase
            && until <= now
        {
            self.ask(RecordRequest::Read);
        }
    }

    pub(super) const fn wake_at(&self) -> Option<Time> {
        match self.phase {
            Phase::Pausing { until } => Some(until),
            _ => None,
        }
    }

    pub(super) fn poll_question(&mut self) -> Option<RecordRequest> {
        let Phase::Asking(question) = &self.phase else { return None };
        let question = question.clone();
        self.phase = Phase::Asked(question.clone());
        Some(question)
    }

    pub(super) fn renumber(&mut self, now: Time) {
        if let Phase::Pausing { until } = &mut self.phase {
            *until = Time::ZERO + until.saturating_since(now);
        }
    }

    fn adopt(&mut self, record: Arc<LedgerMetadata>, version: Version) -> Learnt {
        (self.newest, self.version, self.unanswered) = (record, version, None);
        (self.least, self.sight) = (version, Sight::Found);
        // The write without answer still finds the version it expects. It must not land after what is decided now:
        // the change it carries would make entries acknowledged meanwhile ones of an ensemble that lacks them.
        if self.doubt == Some(version) && self.rights == Rights::Write {
            let record = self.newest.clone();
            self.ask(RecordRequest::Write { record, expected: version });
            return Learnt::Unsettled;
        }
        self.doubt = None;
        self.phase = Phase::Settled;
        Learnt::Settled
    }

    fn ask(&mut self, question: RecordRequest) {
        self.phase = Phase::Asking(question);
    }
}
