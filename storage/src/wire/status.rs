//! The numbers by which bookies say how a request went.

use crate::transport::BookieError;

/// One of the two protocols that bookies speak. A connection carries one of them, but for START_TLS, which is always
/// sent in [`V3`](Self::V3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// Fixed headers, no request ids: an answer is matched by operation, ledger and entry.
    V2,
    /// Protobuf messages with an id per request.
    #[default]
    V3,
}

/// Every refusal with its numbers in v2 and v3.
const CODES: [(BookieError, i32, i32); 10] = [
    (BookieError::NoSuchLedger, 1, 402),
    (BookieError::NoSuchEntry, 2, 403),
    (BookieError::BadRequest, 100, 404),
    (BookieError::Io, 101, 501),
    (BookieError::Unauthorized, 102, 502),
    (BookieError::BadVersion, 103, 503),
    (BookieError::Fenced, 104, 504),
    (BookieError::ReadOnly, 105, 505),
    (BookieError::TooManyRequests, 106, 506),
    (BookieError::UnknownLedgerState, 107, 507),
];

impl Protocol {
    /// What a status code means. A code that is not known here is of a later version of the protocol, and says nothing
    /// about the entry.
    ///
    /// # Errors
    /// The refusal, for every code but 0.
    pub fn status(self, code: i32) -> Result<(), BookieError> {
        if code == 0 {
            return Ok(());
        }
        let known = CODES.iter().find(|row| self.of(row) == code);
        Err(known.map_or(BookieError::BadVersion, |row| row.0))
    }

    /// The status code for an outcome. What only a client can see, the want of an answer, is an I/O error to whoever
    /// asks through this bookie.
    #[must_use]
    pub fn code(self, status: Result<(), BookieError>) -> i32 {
        let error = match status {
            Ok(()) => return 0,
            Err(BookieError::Timeout | BookieError::Unreachable) => BookieError::Io,
            Err(error) => error,
        };
        let row = CODES.iter().find(|row| row.0 == error);
        self.of(row.expect("every refusal of a bookie has its row"))
    }

    const fn of(self, row: &(BookieError, i32, i32)) -> i32 {
        match self {
            Self::V2 => row.1,
            Self::V3 => row.2,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_one_refusal_and_every_refusal_one_code() {
        for protocol in [Protocol::V2, Protocol::V3] {
            let mut seen = vec![0];
            assert_eq!(protocol.status(0), Ok(()));
            assert_eq!(protocol.code(Ok(())), 0);
            for (error, ..) in CODES {
                let code = protocol.code(Err(error));
                assert_eq!(protocol.status(code), Err(error), "{code}");
                assert!(!seen.contains(&code), "{code} is used twice");
                seen.push(code);
            }
        }
        // One row by its numbers, so that the table cannot be shifted as a whole.
        assert_eq!(Protocol::V2.status(104), Err(BookieError::Fenced));
        assert_eq!(Protocol::V3.status(504), Err(BookieError::Fenced));
    }

    #[test]
    fn a_code_of_a_later_version_is_no_success_and_denies_nothing() {
        for code in [-1, 3, 108, 400, 508, i32::MAX, i32::MIN] {
            for protocol in [Protocol::V2, Protocol::V3] {
                let refusal = protocol.status(code).expect_err("it is no success");
                assert_eq!(refusal.evidence(), crate::Evidence::Unknown, "{code}");
            }
        }
    }
}
