//! What replicators cost that have nothing to do.

use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use cpu_time::ProcessTime;
use futures::{StreamExt, TryStreamExt, stream};
use georepl::cursor::{ManagedCursor, StartAt};
use georepl::replicator::{
    EmbeddedRemote, EmbeddedTopic, EmbeddedTopics, Replicator, ReplicatorConfig, State,
};
use georepl_benches::{
    Copies, Failed, Figure, Report, Storage, Switches, Unit, at_least_one, count, lane_name,
    publish, region, resident_bytes, spread,
};

/// Replicators between two regions in memory, each with a topic of its own in both, that have caught up.
///
/// Each has a message published and replicated before, so that its cursor is open and is stored, and its session with
/// the other region is open. What a replicator keeps in memory includes what the other region keeps for it: its copy of
/// the message, the session, and what it remembers of the source. The processor time of a process and its memory are
/// what Linux says of it.
#[derive(Debug, Parser)]
#[command(
    after_help = "Example:\n  cargo run --release -p georepl-benches --bin idle -- --replicators 1000"
)]
struct Arguments {
    /// How many replicators
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = at_least_one)]
    replicators: usize,
    /// How long they are left alone before that is measured
    #[arg(long, value_name = "SECONDS", default_value_t = 5)]
    settle: u64,
    /// How long to watch them do nothing
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    idle: u64,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

/// Topics that are opened at once.
const AT_ONCE: usize = 64;

#[tokio::main]
async fn main() -> Result<(), Failed> {
    let Arguments { replicators, settle, idle, json } = Arguments::parse();
    let (settle, idle) = (Duration::from_secs(settle), Duration::from_secs(idle));
    let west = region("west", &Storage::Memory, Copies::Three).await?;
    let east = region("east", &Storage::Memory, Copies::Three).await?;
    let before = resident_bytes()?;
    let topics = stream::iter(0..replicators).map(async |number| {
        let topic = west.topic(&lane_name(number)).await.map_err(|error| error.to_string())?;
        east.topic(&lane_name(number)).await.map_err(|error| error.to_string())?;
        publish(&topic, &[b"the only one"[..].into()], 1).await?;
        Ok::<_, Failed>(topic)
    });
    let topics: Vec<EmbeddedTopic> = topics.buffer_unordered(AT_ONCE).try_collect().await?;
    let with_topics = resident_bytes()?;

    let cursors = stream::iter(&topics).map(async |topic| {
        let cursor = ManagedCursor::open(topic.ledger(), "pulsar.repl.east", StartAt::Earliest);
        Ok::<_, Failed>(cursor.await?)
    });
    let cursors: Vec<Arc<ManagedCursor>> = cursors.buffer_unordered(AT_ONCE).try_collect().await?;
    let with_cursors = resident_bytes()?;

    let remote = Arc::new(EmbeddedRemote::new(east.clone()));
    let running = stream::iter(cursors).map(async |cursor| {
        let config = ReplicatorConfig::new("west", "east", cursor.ledger().name());
        let replicator = Replicator::new(config, cursor, remote.clone()).await?;
        replicator.start();
        replicator.drained().await?;
        Ok::<_, Failed>(replicator)
    });
    let running: Vec<Replicator> = running.buffer_unordered(AT_ONCE).try_collect().await?;
    // What was acknowledged last is stored meanwhile.
    tokio::time::sleep(settle).await;
    let with_replicators = resident_bytes()?;

    let (cpu, switches) = (ProcessTime::now(), Switches::now()?);
    tokio::time::sleep(idle).await;
    let (cpu, switches) = (cpu.elapsed(), switches.since()?);
    assert!(running.iter().all(|replicator| replicator.state() == State::Started));

    let each = |from: u64, to: u64| to.saturating_sub(from) as f64 / replicators as f64;
    let seconds = idle.as_secs();
    let figures = [
        ("a topic in both regions".into(), Unit::Bytes, each(before, with_topics)),
        ("its cursor".into(), Unit::Bytes, each(with_topics, with_cursors)),
        (
            "its replicator, the session, and what the other region keeps".into(),
            Unit::Bytes,
            each(with_cursors, with_replicators),
        ),
        ("an idle replicator in all".into(), Unit::Bytes, each(with_topics, with_replicators)),
        (
            format!("processor time of all of them in {seconds} s"),
            Unit::Nanoseconds,
            cpu.as_nanos() as f64,
        ),
        (format!("times a thread went to sleep in {seconds} s"), Unit::Number, switches as f64),
    ];
    let figure = |(what, unit, value)| Figure { what, unit, value: spread([value]) };
    let figures = figures.into_iter().map(figure).collect();
    Report { bench: "idle", rounds: 1, rows: Vec::new(), figures }.print(json)?;
    if !json {
        println!("{} replicators", count(replicators as u64));
    }
    Ok(())
}
