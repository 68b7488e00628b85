//! Publishing what comes in.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use futures::FutureExt;
use georepl::replicator::PublishError;
use georepl::replicator::message::{MessageMetadata, compose};

use super::Host;
use super::line::{Inbox, Outbox};
use super::words::{Published, Reply, Rest};
use crate::exit::{Exit, Failure};

/// Publishes messages until there are no more. Each batch is durable before its number is told.
pub(super) async fn run(
    host: &Arc<Host>,
    name: String,
    inbox: &mut Inbox,
    outbox: &mut Outbox,
) -> Result<Published, Failure> {
    let topic = host.topic_or_new(&name).await?;
    let mut published = Published { topic: name, ..Published::default() };
    let mut more = true;
    while more {
        let message = tokio::select! {
            message = inbox.data() => message.map_err(Failure::failed)?,
            () = host.closing() => return Err(host.ending(published.then(Rest::NotWritten))),
        };
        let Some(message) = message else { break };
        let mut bytes = message.len();
        let mut batch = vec![frame(published.messages, &message)];
        // What is there already goes along; nothing is waited for.
        while batch.len() < BATCH_ENTRIES_MAX && bytes < BATCH_BYTES {
            let Some(next) = inbox.data().now_or_never() else { break };
            let Some(message) = next.map_err(Failure::failed)? else {
                more = false;
                break;
            };
            bytes += message.len();
            batch.push(frame(published.messages + batch.len() as u64, &message));
        }
        let messages = batch.len() as u64;
        let positions = topic.publish_batch(batch).await.map_err(|error| {
            Failure::failed(format!("{error}; {}", published.then(rest(&error))))
        })?;
        published.messages += messages;
        published.bytes += bytes as u64;
        published.first.get_or_insert_with(|| positions[0].to_string());
        published.last = positions.last().map(ToString::to_string);
        let progress = serde_json::to_value(&published).expect("a report of text and numbers");
        let told = outbox.word(&Reply::Progress(progress)).await;
        told.map_err(|error| Failure::new(Exit::Unreachable, error))?;
    }
    Ok(published)
}

/// What a failure says of its batch.
fn rest(error: &PublishError) -> Rest {
    match error {
        PublishError::Append(error) if !error.outcome_known() => Rest::InDoubt,
        PublishError::Append(_) | PublishError::Frame { .. } | PublishError::TooLarge { .. } => {
            Rest::NotWritten
        }
    }
}

fn frame(number: u64, payload: &Bytes) -> Bytes {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let metadata = MessageMetadata {
        producer_name: "georepl-publish".to_owned(),
        sequence_id: number,
        publish_time: u64::try_from(since.as_millis()).unwrap_or(u64::MAX),
        ..MessageMetadata::default()
    };
    compose(&metadata, payload)
}

/// One append: enough to spread its cost.
const BATCH_ENTRIES_MAX: usize = 1_000;
/// A batch is complete with the message that reaches this.
const BATCH_BYTES: usize = 1 << 20;
