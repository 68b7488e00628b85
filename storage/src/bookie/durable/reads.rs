//! The thread that reads.

use super::ANSWER_BYTES_MAX;
use super::serving::{Ask, Bookie, Stop};
use super::tables::Snapshot;
use crate::disk::{Door, Patience};
use crate::transport::{BookieError, ResponseBody};

/// The thread that reads, as long as it runs.
struct Reader<'b>(&'b Bookie);

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

impl Bookie {
    /// Serves reads until the queue is closed.
    pub(super) fn serve_reads(&self) {
        let _reader = Reader(self);
        let mut asks = Vec::new();
        loop {
            let door = self.reads.take_into(&mut asks, Patience::Wait);
            if asks.is_empty() && door == Door::Closed {
                return;
            }
            while !asks.is_empty() {
                let answers = self.read_some(&asks);
                self.answer(asks.drain(..answers.len()).zip(answers));
            }
        }
    }

    /// The answers to the first of the requests, as many as fit into one turn, from one snapshot.
    fn read_some(&self, asks: &[Ask]) -> Vec<Result<ResponseBody, BookieError>> {
        let read = self.file.read(|transaction| {
            let snapshot = Snapshot::open(transaction)?;
            let (mut answers, mut bytes) = (Vec::new(), 0);
            for Ask { request, .. } in asks {
                let answer = match snapshot.serve(request.ledger, &request.body) {
                    Err(Stop::Failed(error)) => return Err(error),
                    Err(Stop::Refused(error)) => Err(error),
                    Ok(body) => Ok(body),
                };
                if let Ok(ResponseBody::Entry(entry)) = &answer {
                    bytes += entry.size_bytes();
                }
                answers.push(answer);
                if bytes >= ANSWER_BYTES_MAX {
                    break;
                }
            }
            Ok(answers)
        });
        self.settle(read).unwrap_or_else(|error| vec![Err(error); asks.len()])
    }
}
