//! Asks the process that holds a region, which may be this one, and shows what it answers.

mod consume;
mod publish;
mod renew;
mod serve;
mod show;
mod talk;

use std::io;
use std::path::Path;

use georepl::Absent;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::cli::{
    BookieCommand, Lane, LedgerCommand, OneTopic, Output, Place, QuarantineCommand, RegionCommand,
    Settled, TopicCommand, consent, until,
};
use crate::exit::{Exit, Failure, say};
use crate::interrupt::Interrupt;
use crate::service::words::{self, Command, LedgerCheck, Move, Replicated, Settle, Until};
use crate::service::{ENDING, PATIENCE};
use talk::{Talk, ask};

/// How a command went that did what it was asked to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// All is well.
    Healthy,
    /// It has shown something that is not.
    Unhealthy,
}

/// Carries a command out.
pub(crate) async fn run(command: RegionCommand, interrupt: Interrupt) -> Result<Found, Failure> {
    use RegionCommand as On;
    match command {
        On::Publish { place, topic, input, output } => {
            publish::run(&place.region, topic, &input, &output, interrupt).await
        }
        On::Consume { place, topic, from, follow, count, output } => {
            let command = Command::Consume { topic, from, count, until: until(follow) };
            consume::run(&place.region, command, &output, interrupt).await
        }
        On::Serve { place } => serve::run(&place.region, interrupt).await,
        On::Replicate { from, to, topics, follow, quarantine_after, output } => {
            // The process that does it may be elsewhere.
            let to = std::path::absolute(to).map_err(|error| Failure::new(Exit::Usage, error))?;
            let until = until(follow);
            let command = Command::Replicate { to, topics, until, quarantine_after };
            replicate(&from, command, until, &output, interrupt).await
        }
        On::Status { place, topics, output } => {
            tell(&place.region, Command::Status { topics }, &output, interrupt, show::status).await
        }
        On::Why { place, topics, output } => {
            tell(&place.region, Command::Why { topics }, &output, interrupt, show::why).await
        }
        On::StatsInternal { place, topic } => {
            let output = Output { json: true };
            match topic {
                Some(topic) => {
                    let command = Command::StatsInternal { topic };
                    tell(&place.region, command, &output, interrupt, show::internal).await
                }
                None => {
                    let command = Command::AllStatsInternal;
                    tell(&place.region, command, &output, interrupt, show::all_internal).await
                }
            }
        }
        On::Ledger(command) => ledger(command, interrupt).await,
        On::Bookie(BookieCommand::Renew { place, bookie, yes, output }) => {
            renew::run(&place.region, bookie, consent(yes), &output).await
        }
        On::Topic(command) => on_topic(command, interrupt).await,
        On::Quarantine(command) => quarantine(command, interrupt).await,
        On::Seek { place, topic, remote, to, rule, output } => {
            let how = Move::Seek(to);
            let (run, consent) = (rule.run(), rule.consent());
            let command = Command::Move { topic, remote, how, run, consent };
            tell(&place.region, command, &output, interrupt, show::moved).await
        }
        On::Skip { place, topic, remote, entries, rule, output } => {
            let how = Move::Skip(entries);
            let (run, consent) = (rule.run(), rule.consent());
            let command = Command::Move { topic, remote, how, run, consent };
            tell(&place.region, command, &output, interrupt, show::moved).await
        }
        On::Clear { place, topic, remote, rule, output } => {
            let (run, consent) = (rule.run(), rule.consent());
            let command = Command::Move { topic, remote, how: Move::Clear, run, consent };
            tell(&place.region, command, &output, interrupt, show::moved).await
        }
    }
}

async fn replicate(
    from: &Path,
    command: Command,
    until: Until,
    output: &Output,
    interrupt: Interrupt,
) -> Result<Found, Failure> {
    let talk = async |talk: &mut Talk| Ok((talk.report().await?, talk.is_interrupted()));
    let mut patience = PATIENCE;
    let (report, cut_short) = loop {
        let (asked, interrupt) = (command.clone(), interrupt.clone());
        match ask(from, Absent::Refuse, patience, asked, interrupt, talk).await {
            // It goes on where it was, in this process or whichever holds the region next.
            Err(failure) if failure.exit == Exit::Ended => patience = ENDING,
            result => break result?,
        }
    };
    let found = shown(&report, output, show::replicated)?;
    // Whoever follows has no end to miss.
    if !cut_short || until == Until::Told {
        return Ok(found);
    }
    let Replicated { topics, .. } = Replicated::deserialize(&report).map_err(Failure::failed)?;
    match interrupted(topics.iter().map(|lane| lane.backlog).sum()) {
        Found::Healthy => Ok(found),
        Found::Unhealthy => Ok(Found::Unhealthy),
    }
}

/// How a command went that was interrupted with so many entries left, in words if there are any.
fn interrupted(left: u64) -> Found {
    if left == 0 {
        return Found::Healthy;
    }
    say(format_args!("interrupted: {left} entries are left"));
    Found::Unhealthy
}

async fn ledger(command: LedgerCommand, interrupt: Interrupt) -> Result<Found, Failure> {
    match command {
        LedgerCommand::List { place, output } => {
            tell(&place.region, Command::Ledgers, &output, interrupt, show::ledgers).await
        }
        LedgerCommand::Show { place, ledger, output } => {
            let command = Command::LedgerRecord { ledger };
            tell(&place.region, command, &output, interrupt, show::ledger).await
        }
        LedgerCommand::Read { place, ledger, first, last, output } => {
            let command = Command::LedgerEntries { ledger, first, last };
            consume::run_hexadecimal(&place.region, command, &output, interrupt).await
        }
        LedgerCommand::Check { place, ledgers, output } => {
            check(&place.region, ledgers, &output, interrupt).await
        }
        LedgerCommand::Recover { place, ledger, yes, output } => {
            let command = Command::RecoverLedger { ledger, consent: consent(yes) };
            tell(&place.region, command, &output, interrupt, show::recovered).await
        }
    }
}

async fn check(
    directory: &Path,
    ledgers: Vec<u64>,
    output: &Output,
    interrupt: Interrupt,
) -> Result<Found, Failure> {
    let talk = async |talk: &mut Talk| Ok((talk.report().await?, talk.is_interrupted()));
    let command = Command::CheckLedgers { ledgers };
    let asked = ask(directory, Absent::Refuse, PATIENCE, command, interrupt, talk);
    let (report, interrupted) = asked.await?;
    let found = shown(&report, output, show::checks)?;
    if !interrupted {
        return Ok(found);
    }
    let ledgers = Vec::<LedgerCheck>::deserialize(&report).map_or(0, |checked| checked.len());
    say(format_args!("interrupted after {ledgers} ledgers; others were not checked"));
    Ok(Found::Unhealthy)
}

async fn on_topic(command: TopicCommand, interrupt: Interrupt) -> Result<Found, Failure> {
    let (Place { region }, output, command) = match command {
        TopicCommand::List { place, output } => {
            let show = |out: &mut dyn io::Write, topics: &Vec<String>| show::topics(out, topics);
            return tell(&place.region, Command::Topics, &output, interrupt, show).await;
        }
        TopicCommand::Trim(one) => (one.place, one.output, Command::TrimTopic { topic: one.topic }),
        TopicCommand::Retention { one, time, size, rule } => {
            let OneTopic { place, topic, output } = one;
            let (run, consent) = (rule.run(), rule.consent());
            let command = Command::Retention { topic, seconds: time, bytes: size, run, consent };
            return tell(&place.region, command, &output, interrupt, show::retained).await;
        }
        TopicCommand::Terminate(ended) => {
            let (consent, one) = (ended.consent(), ended.one);
            (one.place, one.output, Command::TerminateTopic { topic: one.topic, consent })
        }
        TopicCommand::Delete(ended) => {
            let (consent, one) = (ended.consent(), ended.one);
            (one.place, one.output, Command::DeleteTopic { topic: one.topic, consent })
        }
    };
    tell(&region, command, &output, interrupt, show::changed).await
}

async fn quarantine(command: QuarantineCommand, interrupt: Interrupt) -> Result<Found, Failure> {
    let (settled, how) = match command {
        QuarantineCommand::List(Lane { place, topic, remote, output }) => {
            let command = Command::Quarantine { topic, remote };
            let show = |out: &mut dyn io::Write, entries: &Vec<_>| show::quarantine(out, entries);
            return tell(&place.region, command, &output, interrupt, show).await;
        }
        QuarantineCommand::Release(settled) => (settled, Settle::Release),
        QuarantineCommand::Discard(settled) => (settled, Settle::Discard),
    };
    let Settled { lane: Lane { place, topic, remote, output }, position, rule } = settled;
    let (ledger, entry) = (position.ledger.get(), position.entry.get());
    let (run, consent) = (rule.run(), rule.consent());
    let command = Command::Settle { topic, remote, ledger, entry, how, run, consent };
    tell(&place.region, command, &output, interrupt, show::settled).await
}

/// Carries out a command that answers with one report, and shows it.
async fn tell<T: DeserializeOwned>(
    directory: &Path,
    command: Command,
    output: &Output,
    interrupt: Interrupt,
    show: fn(&mut dyn io::Write, &T) -> io::Result<Found>,
) -> Result<Found, Failure> {
    let talk = async |talk: &mut Talk| talk.report().await;
    let report = ask(directory, Absent::Refuse, PATIENCE, command, interrupt, talk).await?;
    shown(&report, output, show)
}

/// Prints a report.
fn shown<T: DeserializeOwned>(
    report: &Value,
    output: &Output,
    show: fn(&mut dyn io::Write, &T) -> io::Result<Found>,
) -> Result<Found, Failure> {
    let known: T = T::deserialize(report).map_err(|error| {
        Failure::failed(format!(
            "the answer is not understood: {error}; it came from another version"
        ))
    })?;
    let mut text = Vec::new();
    let found = show(&mut text, &known).expect("memory takes any text");
    if output.json {
        text = serde_json::to_vec_pretty(report).expect("it was JSON");
        text.push(b'\n');
    }
    match print(&text) {
        Ok(()) => Ok(found),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(found),
        Err(error) => Err(Failure::failed(format!("the answer could not be written: {error}"))),
    }
}

fn print(text: &[u8]) -> io::Result<()> {
    use io::Write;
    let mut out = io::stdout().lock();
    out.write_all(text)?;
    out.flush()
}
