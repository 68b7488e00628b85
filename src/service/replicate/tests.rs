use std::path::Path;

use georepl::cursor::{BacklogQuota, BeyondQuota, ManagedLedgerConfig, StartAt};
use georepl::replicator::EmbeddedTopics;
use georepl::replicator::message::{MessageMetadata, compose};
use georepl::storage::fault::Fault;
use georepl::{Absent, Region};
use tempfile::TempDir;
use tokio::task::JoinHandle;

use super::super::host::{Attached, PATIENCE, attach};
use super::super::stops::Stop;
use super::super::words::{Command, Link, Purpose, Request, VERSION};
use super::super::{line, links, socket};
use super::*;

const TOPICS: [&str; 2] =
    ["persistent://public/default/orders", "persistent://public/default/payments"];

async fn hold(path: &Path) -> Arc<Host> {
    match Box::pin(attach(path, Absent::Create, PATIENCE, Purpose::Command)).await.unwrap() {
        Attached::Local(host) => host,
        Attached::Remote(_) => panic!("nobody else holds it"),
    }
}

async fn publish(region: &Region, topic: &str, payload: &str) {
    let topic = region.topic(topic).await.unwrap();
    let message = compose(&MessageMetadata::default(), payload.as_bytes());
    topic.publish(message).await.unwrap();
}

async fn until<T>(look: impl AsyncFn() -> Option<T>) -> T {
    let wait = async {
        loop {
            match look().await {
                Some(found) => break found,
                None => tokio::task::yield_now().await,
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(60), wait).await.expect("it comes about")
}

async fn arrive(host: &Host, topic: &str, entries: u64) {
    let log = host.region.topic(topic).await.unwrap();
    until(async || (log.ledger().end().get() >= entries).then_some(())).await;
}

/// A replication that `west` was asked for.
struct Asked {
    outbox: Outbox,
    last: JoinHandle<Option<Reply>>,
}

impl Asked {
    async fn of(west: &Arc<Host>, to: &Path, topics: &[&str], until: Until) -> Self {
        let (here, there) = tokio::io::duplex(64 << 10);
        west.serve(Box::new(there));
        let topics = topics.iter().map(|topic| (*topic).to_owned()).collect();
        let command =
            Command::Replicate { to: to.to_owned(), topics, until, quarantine_after: None };
        let request = Request { georepl: VERSION, command };
        let (mut inbox, outbox) = line::ask(Box::new(here), &request).await.unwrap();
        let last = tokio::spawn(async move {
            let mut last = None;
            while let Some(line::Frame::Word(word)) = inbox.next().await.unwrap() {
                last = Some(line::parse::<Reply>(&word).unwrap());
            }
            last
        });
        Self { outbox, last }
    }

    async fn interrupt(&mut self) {
        self.outbox.feed(line::Frame::End).await.unwrap();
        self.outbox.flush().await.unwrap();
    }

    /// Its last word.
    async fn answer(self) -> Reply {
        let answered = tokio::time::timeout(Duration::from_secs(60), self.last);
        answered.await.expect("it ends").unwrap().expect("it answers")
    }

    async fn report(self) -> Replicated {
        match self.answer().await {
            Reply::Done(report) => serde_json::from_value(report).unwrap(),
            other => panic!("{other:?}"),
        }
    }
}

fn places() -> (TempDir, [std::path::PathBuf; 2]) {
    let directory = tempfile::tempdir().unwrap();
    let places = ["west", "east"].map(|name| directory.path().join(name));
    (directory, places)
}

#[tokio::test]
async fn topic_whose_cursor_was_closed_under_it_is_followed_by_another_replicator() {
    let (_directory, [west, east]) = places();
    let (west, to, east) = (hold(&west).await, east.clone(), hold(&east).await);
    for topic in TOPICS {
        publish(&west.region, topic, "one").await;
    }
    let mut asked = Asked::of(&west, &to, &TOPICS, Until::Told).await;
    for topic in TOPICS {
        arrive(&east, topic, 1).await;
    }
    let log = west.topic(TOPICS[0]).await.unwrap();
    let cursor = ManagedCursor::open(log.ledger(), "pulsar.repl.east", StartAt::Earliest);
    // As when its topic is opened again after a failed write.
    cursor.await.unwrap().close().await.unwrap();
    for topic in TOPICS {
        publish(&west.region, topic, "two").await;
        arrive(&east, topic, 2).await;
    }
    asked.interrupt().await;
    let report = asked.report().await;
    let lanes = report.topics.iter().map(|lane| (lane.published, lane.failed.clone()));
    assert_eq!(lanes.collect::<Vec<_>>(), [(2, None), (2, None)], "counted over both");
    west.close().await.unwrap();
    east.close().await.unwrap();
}

#[tokio::test]
async fn topic_that_blocks_is_noted_while_the_others_are_followed() {
    let (_directory, [west, east]) = places();
    let (west, to, east) = (hold(&west).await, east.clone(), hold(&east).await);
    let orders = west.region.topic(TOPICS[0]).await.unwrap();
    orders.ledger().append("no message".into()).await.unwrap();
    publish(&west.region, TOPICS[1], "one").await;
    let mut asked = Asked::of(&west, &to, &TOPICS, Until::Told).await;
    // A process that is killed now has said it.
    let noted = until(async || Stop::last(orders.ledger(), "east").await).await;
    assert!(noted.why.contains("is not readable"), "{noted:?}");
    arrive(&east, TOPICS[1], 1).await;
    asked.interrupt().await;
    let lanes = asked.report().await.topics;
    assert!(lanes[0].failed.as_ref().unwrap().contains("is not readable"), "{lanes:?}");
    assert_eq!((&lanes[1].failed, lanes[1].backlog), (&None, 0));
    let payments = west.region.topic(TOPICS[1]).await.unwrap();
    assert_eq!(Stop::last(payments.ledger(), "east").await, None);
    west.close().await.unwrap();
    east.close().await.unwrap();
}

#[tokio::test]
async fn topic_that_is_being_opened_does_not_hold_up_an_interruption() {
    let (_directory, [west, east]) = places();
    // Not closed, so that the next opening asks the bookies where the topic ends.
    publish(&Region::open(&west).await.unwrap(), TOPICS[0], "one").await;
    let west = hold(&west).await;
    let bookies: Vec<_> = west.region.registered().iter().map(|found| found.id.clone()).collect();
    let transport = west.region.transport();
    bookies.iter().for_each(|bookie| transport.inject(bookie, Fault::HoldRequests));
    let mut asked = Asked::of(&west, &east, &TOPICS[..1], Until::End).await;
    asked.interrupt().await;
    let Reply::Failed(failure) = asked.answer().await else { panic!("it cannot be done") };
    assert_eq!((failure.exit, failure.message.as_str()), (Exit::Failed, NOT_BEGUN));
    assert!(!east.exists(), "the other region is not touched");
    bookies.iter().for_each(|bookie| transport.heal(bookie));
    assert!(west.topic(TOPICS[0]).await.is_ok(), "it was opened all the same");
    west.close().await.unwrap();
}

#[tokio::test]
async fn remote_at_its_quota_is_named_with_the_quota_and_what_to_do() {
    for beyond in [BeyondQuota::Hold, BeyondQuota::Refuse] {
        let (_directory, [west, to]) = places();
        let west = hold(&west).await;
        let quota = Some(BacklogQuota { bytes: 1, beyond });
        let ledgers = ManagedLedgerConfig { backlog_quota: quota, ..Default::default() };
        let east = Region::builder().ledgers(ledgers).open(&to).await.unwrap();
        let full = east.topic(TOPICS[0]).await.unwrap();
        let reader = ManagedCursor::open(full.ledger(), "reader", StartAt::Earliest).await.unwrap();
        publish(&east, TOPICS[0], "its own").await;
        let socket = socket::of(&to).unwrap();
        let east = Host::of(east, &to, socket, Purpose::Command).unwrap();
        publish(&west.region, TOPICS[0], "one").await;
        let asked = Asked::of(&west, &to, &TOPICS[..1], Until::End).await;
        let link: Link = until(async || {
            let links = links::why(&west, vec![TOPICS[0].to_owned()]).await.unwrap();
            links.into_iter().find(|link| link.why.contains("its quota is 1"))
        })
        .await;
        for part in ["1 entry behind: ", TOPICS[0], "let its slowest cursor acknowledge more"] {
            assert!(link.why.contains(part), "{link:?}");
        }
        if beyond == BeyondQuota::Hold {
            assert_eq!((link.reason.as_str(), link.stuck), ("remote-not-writable", true));
            assert!(link.why.contains("georepl status"), "{link:?}");
        }
        reader.clear_backlog().await.unwrap();
        let lanes = asked.report().await.topics;
        assert_eq!((lanes[0].published, &lanes[0].failed), (1, &None));
        west.close().await.unwrap();
        east.close().await.unwrap();
    }
}
