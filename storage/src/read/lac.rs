//! The LAC as the bookies of the last ensemble know it, by coverage.

use std::sync::Arc;

use super::error::LacUnknown;
use super::record::Core;
use crate::id::{EntryId, LedgerId};
use crate::mailbox::Mailbox;
use crate::metadata::LedgerMetadata;
use crate::quorum::{Coverage, LacAnswers, LacQuorum};
use crate::replica::{Answers, ReplicaError};
use crate::transport::{
    BookieError, CompletionSink, Evidence, Request, RequestBody, RequestId, ResponseBody,
};

/// Asks all bookies of the last ensemble and waits for coverage. The answer is what they have stored.
pub(super) async fn read_lac(
    core: &Core,
    ledger: LedgerId,
    metadata: &LedgerMetadata,
) -> Result<Option<EntryId>, LacUnknown> {
    let sizes = metadata.sizes();
    let (_, ensemble) = metadata.last_ensemble();
    let mailbox = Arc::new(Mailbox::new());
    let sink: Arc<dyn CompletionSink> = mailbox.clone();
    for (slot, bookie) in ensemble.iter().enumerate() {
        let body = RequestBody::ReadLac { fence: None };
        let mut batch = vec![Request { id: RequestId(slot as u64), ledger, body }];
        core.transport.submit(bookie, &mut batch, &sink);
    }
    let deadline = core.clock.instant(core.clock.now() + core.config.request_timeout);
    let (mut answers, mut stored, mut failures) = (LacAnswers::default(), None, Vec::new());
    let mut responses = Vec::new();
    loop {
        match answers.coverage(sizes) {
            Coverage::Reached(proof) => return Ok(covered_lac(proof, stored)),
            Coverage::Impossible => return Err(LacUnknown { ledger, answers: Answers(failures) }),
            Coverage::Possible => {}
        }
        if tokio::time::timeout_at(deadline, mailbox.recv_into(&mut responses)).await.is_err() {
            let missing =
                sizes.slots().filter(|slot| !answers.is_settled(*slot)).collect::<Vec<_>>();
            for slot in missing {
                answers.record_failure(slot);
                failures.push((ensemble[slot.index()].clone(), BookieError::Timeout.into()));
            }
        }
        for response in responses.drain(..) {
            let Some(slot) = sizes.slots().find(|slot| slot.index() as u64 == response.id.0) else {
                continue;
            };
            if ensemble[slot.index()] != response.bookie || answers.is_settled(slot) {
                continue;
            }
            // A bookie that was set up anew has forgotten what it knew: that it has nothing says nothing.
            let recorded = metadata.instance_of(&response.bookie);
            let is_other = recorded.zip(response.instance).is_some_and(|(one, other)| one != other);
            let failure = match response.result {
                _ if is_other => Some(ReplicaError::OtherInstance),
                Ok(ResponseBody::LastAddConfirmed { lac }) => {
                    stored = stored.max(lac);
                    None
                }
                Ok(_) => Some(ReplicaError::Unexpected),
                Err(error) => (error.evidence() == Evidence::Unknown).then_some(error.into()),
            };
            match failure {
                None => answers.record(slot),
                Some(failure) => {
                    answers.record_failure(slot);
                    failures.push((response.bookie, failure));
                }
            }
        }
    }
}

/// The highest answer is the stored LAC only once the answers cover every ack quorum.
const fn covered_lac(_: LacQuorum, highest_answer: Option<EntryId>) -> Option<EntryId> {
    highest_answer
}
