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

/// Publishes messages until there are no more, behind those that were published before. Each batch is durable before
/// its number is told.
pub(super) async fn run(
    host: &Arc<Host>,
    mut published: Published,
    inbox: &mut Inbox,
    outbox: &mut Outbox,
) -> Result<Published, Failure> {
    let topic = host.topic_or_new(&published.topic).await?;
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
        host.in_place().map_err(|failure| Failure {
            message: format!("{failure}; {}", published.then(Rest::NotWritten)),
            ..failure
        })?;
        let positions =
            topic.publish_batch(batch).await.map_err(|error| failure(&published, &error))?;
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

/// What has failed behind what was published, and how to go on.
fn failure(published: &Published, error: &PublishError) -> Failure {
    let (what, rest) = match error {
        PublishError::TooLarge { index, .. } => {
            let line = published.messages + *index as u64 + 1;
            (too_long(line, "what came"), Rest::TooLong(line))
        }
        PublishError::Append(append) if !append.outcome_known() => {
            (error.to_string(), Rest::InDoubt)
        }
        PublishError::Append(_) | PublishError::Frame { .. } => {
            (error.to_string(), Rest::NotWritten)
        }
    };
    Failure::failed(format!("{what}; {}", published.then(rest)))
}

/// That a line is no message.
pub(crate) fn too_long(line: u64, of: &str) -> String {
    format!("line {line} of {of} is longer than the largest message, {LINE_BYTES_MAX} bytes")
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

/// The largest line: with its head, of [`HEAD_BYTES_MAX`], it is a message that a topic takes.
pub(crate) const LINE_BYTES_MAX: usize = (5 << 20) - (32 << 10) - HEAD_BYTES_MAX;
/// What [`frame`] puts before a line, at most.
const HEAD_BYTES_MAX: usize = 64;
/// One append: enough to spread its cost.
const BATCH_ENTRIES_MAX: usize = 1_000;
/// A batch is complete with the message that reaches this.
const BATCH_BYTES: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use georepl::replicator::EmbeddedTopicConfig;

    use super::*;

    #[test]
    fn largest_line_is_a_message_that_a_topic_takes_whatever_its_number() {
        let bytes_max = EmbeddedTopicConfig::default().frame_bytes_max;
        let line = Bytes::from(vec![0; LINE_BYTES_MAX]);
        for number in [0, 127, 128, u64::MAX] {
            assert!(frame(number, &line).len() <= bytes_max, "{number}");
        }
        assert_eq!(LINE_BYTES_MAX + HEAD_BYTES_MAX, bytes_max);
    }

    #[test]
    fn line_that_cannot_be_taken_is_named_and_not_gone_on_with() {
        let at = |messages, index| {
            let last = (messages > 0).then(|| "0:1".to_owned());
            let published = Published { messages, last, ..Published::default() };
            let error = PublishError::TooLarge { index, bytes: 6 << 20, bytes_max: 5 << 20 };
            failure(&published, &error).message
        };
        assert!(at(0, 0).starts_with("line 1 of what came is longer than the largest message, "));
        assert!(at(0, 0).ends_with(
            "; no line is in the topic; split line 1 or leave it out, and publish all of them again"
        ));
        assert!(at(2, 5).starts_with("line 8 of what came "));
        assert!(at(2, 5).ends_with(
            "the last at 0:1; split line 8 or leave it out, and publish what is behind line 2"
        ));
    }
}
