//! How a writer comes to its end: it closes the record at its LAC, or lets go of it.

use std::mem;

use super::adds::Progress;
use super::machine::{Machine, State, Word, Work};
use super::{CloseError, ClosedElsewhere, Error};
use crate::metadata::{LedgerEnd, LedgerState};

/// To how many reads in a row there may be no answer before a close gives up. It may be asked for again.
const UNANSWERED_READS_MAX: u32 = 3;

impl Machine {
    pub(super) fn on_close(&mut self) {
        match &mut self.state {
            State::Open => self.state = State::Closing,
            State::Closing | State::Failing(_) => {}
            State::Ended { closed: Some(result), .. } => {
                let result = result.clone();
                self.say(Word::Closed(result));
            }
            State::Ended { closed: None, .. } if self.work == Work::Closing => {}
            State::Ended { closed: None, .. } => {
                self.work = Work::Closing;
                self.record.refresh();
            }
        }
    }

    /// Nothing more is confirmed. The record is closed at LAC, while it still can be, before the reason is given.
    pub(super) fn fail(&mut self, error: Error) {
        if self.is_writing() {
            self.state = State::Failing(error);
            self.stop_writing();
            if let Work::Changing(_) = self.work {
                self.work = Work::Closing;
            }
        }
    }

    /// Somebody else decides where the ledger ends. Says so at once and writes nothing to the record from now on.
    pub(super) fn on_fenced(&mut self) {
        let failure = Error::Fenced { ledger: self.ledger };
        let state = mem::replace(
            &mut self.state,
            State::Ended { failure: Some(failure.clone()), closed: None },
        );
        self.stop_writing();
        self.record.withdraw();
        self.say(Word::Failed(failure));
        self.work = Work::Rest;
        // Whoever waits for the close learns what the record says; nobody else needs to know yet.
        if let State::Closing | State::Failing(_) = state {
            self.work = Work::Closing;
            self.record.refresh();
        }
    }

    /// The record says that nothing is left to do: ends, with what became of the close.
    pub(super) fn end(&mut self, failure: Error, closed: Result<LedgerEnd, CloseError>) {
        self.stop_writing();
        self.record.withdraw();
        self.work = Work::Rest;
        self.say(Word::Closed(closed.clone()));
        self.say(Word::Failed(failure.clone()));
        self.state = State::Ended { failure: Some(failure), closed: Some(closed) };
    }

    pub(super) fn begin_close(&mut self) -> Progress {
        self.work = Work::Closing;
        Progress::Made
    }

    /// The record is settled: closes it, or learns that it is closed.
    pub(super) fn continue_close(&mut self) -> Progress {
        let (ledger, confirmed) = (self.ledger, self.adds.confirmed());
        let fenced = Err(CloseError::Fenced { ledger });
        let is_fenced =
            matches!(self.state, State::Ended { failure: Some(Error::Fenced { .. }), .. });
        match self.record.newest().state() {
            LedgerState::Closed(found) if found == confirmed => self.finish_close(Ok(found)),
            LedgerState::Closed(found) => {
                let elsewhere = ClosedElsewhere { ledger, found, confirmed };
                // For who was fenced it is no news that somebody else closed it; that entries are lost is.
                match is_fenced && elsewhere.lost().is_none() {
                    true => self.finish_close(fenced),
                    false => self.finish_close(Err(elsewhere.into())),
                }
            }
            LedgerState::InRecovery => self.finish_close(fenced),
            LedgerState::Open if is_fenced => self.finish_close(fenced),
            LedgerState::Open => {
                let LedgerEnd { last_entry, length } = confirmed;
                match self.record.newest().closed(last_entry, length) {
                    Ok(closed) => self.record.write(closed),
                    Err(reason) => self.finish_close(Err(CloseError::Refused { ledger, reason })),
                }
            }
        }
        Progress::Made
    }

    /// A store that does not answer must not keep whoever waits for the close for ever.
    pub(super) fn give_up_closing(&mut self) -> Progress {
        if self.work == Work::Closing
            && let Some(reason) = self.record.give_up(UNANSWERED_READS_MAX)
        {
            self.finish_close(Err(CloseError::Unknown { ledger: self.ledger, reason }));
            return Progress::Made;
        }
        Progress::None
    }

    pub(super) fn finish_close(&mut self, result: Result<LedgerEnd, CloseError>) {
        self.work = Work::Rest;
        let is_final = match &result {
            Ok(_) | Err(CloseError::ClosedElsewhere(_)) => true,
            Err(CloseError::Refused { .. } | CloseError::Record { .. }) => true,
            // A fenced ledger will be closed by somebody, and what then is to be said may be another thing.
            Err(
                CloseError::Fenced { .. } | CloseError::Unknown { .. } | CloseError::Stopped { .. },
            ) => false,
        };
        let closed = is_final.then(|| result.clone());
        let ended = State::Ended { failure: None, closed: closed.clone() };
        let failure = match mem::replace(&mut self.state, ended) {
            State::Failing(error) => {
                // That somebody else closes the ledger outweighs why this side would have.
                let error = match &result {
                    Err(CloseError::Fenced { ledger }) => Error::Fenced { ledger: *ledger },
                    Err(CloseError::ClosedElsewhere(elsewhere)) => (*elsewhere).into(),
                    _ => error,
                };
                self.say(Word::Closed(result));
                self.say(Word::Failed(error.clone()));
                Some(error)
            }
            State::Ended { failure, .. } => {
                self.say(Word::Closed(result));
                failure
            }
            State::Open | State::Closing => {
                self.stop_writing();
                self.say(Word::Closed(result));
                None
            }
        };
        if let Some(Error::Fenced { .. }) = failure {
            self.record.withdraw();
        }
        self.state = State::Ended { failure, closed };
    }
}

#[cfg(test)]
#[path = "close_tests.rs"]
mod tests;
