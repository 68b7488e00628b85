//! Entries that a replicator has passed over, because the remote refused them or they are not readable.

use std::sync::Arc;

use georepl::cursor::{Kept, Position};
use georepl::replicator::Change;

use super::Host;
use super::lanes::Claimed;
use super::links::existing_cursor;
use super::topics::guard;
use super::words::{Consent, KeptEntry, Run, Settle, Settled};
use crate::exit::Failure;

/// The entries of a topic that lie in quarantine for a remote.
pub(super) async fn list(
    host: &Arc<Host>,
    topic: String,
    remote: String,
) -> Result<Vec<KeptEntry>, Failure> {
    let cursor = existing_cursor(host, &topic, &remote).await?;
    let kept = cursor.progress().kept.into_iter().map(|(position, kept)| KeptEntry {
        position: position.to_string(),
        state: match kept {
            Kept::Quarantined => "quarantined".to_owned(),
            Kept::Released => "released".to_owned(),
            Kept::Sending => "sending".to_owned(),
            // Whether it arrived is not learnt any more; released, it may come twice.
            Kept::InDoubt => "in-doubt".to_owned(),
        },
    });
    Ok(kept.collect())
}

/// An entry in quarantine, and what is to become of it.
pub(super) struct What {
    pub(super) topic: String,
    pub(super) remote: String,
    pub(super) position: Position,
    pub(super) how: Settle,
}

/// Releases or discards an entry, or says that it can be.
pub(super) async fn settle(
    host: &Arc<Host>,
    what: What,
    run: Run,
    consent: Consent,
) -> Result<Settled, Failure> {
    let What { topic, remote, position, how } = what;
    // Before the cursor is opened, so that it is not one that is just being closed.
    let claimed = host.lanes.claim(&topic, &remote)?;
    let cursor = existing_cursor(host, &topic, &remote).await?;
    if !cursor.progress().kept.contains_key(&position) {
        return Err(Failure::failed(format!(
            "{position} of {topic} does not lie in quarantine for {remote}; see georepl quarantine list"
        )));
    }
    if run == Run::Real {
        if how == Settle::Discard {
            guard(consent, || format!("{position} would never be replicated to {remote}"))?;
        }
        let settled = match (&claimed, how) {
            (Claimed::Running(replicator), Settle::Release) => {
                replicator.release(position).await.map_err(Failure::failed)
            }
            (Claimed::Running(replicator), Settle::Discard) => {
                replicator.discard(position).await.map_err(Failure::failed)
            }
            (Claimed::Free(_), how) => {
                let change = match how {
                    Settle::Release => Change::Release(position),
                    Settle::Discard => Change::Discard(position),
                };
                let stored = cursor.store_progress(|progress| change.apply(progress)).await;
                stored.map_err(Failure::failed)
            }
        };
        settled?;
        tracing::warn!(topic, remote, %position, ?how, "an entry in quarantine was settled by hand");
    }
    let position = position.to_string();
    Ok(Settled { topic, remote, position, how, done: run == Run::Real })
}
