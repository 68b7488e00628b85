//! What can be asked of the process that holds a region, and what it answers.

use std::collections::BTreeMap;
use std::path::PathBuf;

use georepl::cursor::{ManagedLedgerInternalStats, ParsePositionError, Position, StartAt};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::exit::Failure;

/// The version of the protocol. A newer one is refused by name.
pub(crate) const VERSION: u64 = 1;

/// The line that asks.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Request {
    pub(crate) georepl: u64,
    pub(crate) command: Command,
}

/// What every version of the line has.
#[derive(Deserialize)]
pub(crate) struct Versioned {
    pub(crate) georepl: u64,
}

/// What is asked for.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Command {
    /// Who holds the region.
    Holder,
    /// Messages follow as data, behind those that were published before.
    Publish {
        so_far: Published,
    },
    /// Entries come as data.
    Consume {
        topic: String,
        from: Start,
        count: Option<u64>,
        until: Until,
    },
    Replicate {
        to: PathBuf,
        topics: Vec<String>,
        until: Until,
        /// Refusals of an entry after which it is put into quarantine; none never.
        quarantine_after: Option<u32>,
    },
    /// A session of another cluster's topic.
    Receive {
        cluster: String,
        topic: String,
        owner: u64,
        counter: u64,
        incarnation: u64,
        revision: u64,
    },
    Status {
        topics: Vec<String>,
    },
    Why {
        topics: Vec<String>,
    },
    StatsInternal {
        topic: String,
    },
    AllStatsInternal,
    Ledgers,
    LedgerRecord {
        ledger: u64,
    },
    /// Entries come as data.
    LedgerEntries {
        ledger: u64,
        first: u64,
        last: Option<u64>,
    },
    CheckLedgers {
        ledgers: Vec<u64>,
    },
    RecoverLedger {
        ledger: u64,
        consent: Consent,
    },
    Move {
        topic: String,
        remote: String,
        how: Move,
        run: Run,
        consent: Consent,
    },
    Topics,
    TrimTopic {
        topic: String,
    },
    Retention {
        topic: String,
        /// What to change.
        seconds: Option<Bound>,
        bytes: Option<Bound>,
        run: Run,
        consent: Consent,
    },
    Quarantine {
        topic: String,
        remote: String,
    },
    Settle {
        topic: String,
        remote: String,
        ledger: u64,
        entry: u64,
        how: Settle,
        run: Run,
        consent: Consent,
    },
    TerminateTopic {
        topic: String,
        consent: Consent,
    },
    DeleteTopic {
        topic: String,
        consent: Consent,
    },
}

/// Where to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Start {
    Earliest,
    Latest,
    Position {
        ledger: u64,
        entry: u64,
    },
    /// Behind an entry that was there, and may be gone.
    Behind {
        ledger: u64,
        entry: u64,
    },
}

/// When to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Until {
    /// With what is there now.
    End,
    /// When told to.
    Told,
}

/// Whether a guard was told that what it guards is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Consent {
    Given,
    Missing,
}

/// Whether a change is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Run {
    Real,
    /// Only said what it would do.
    Dry,
}

/// How the cursor of a remote is moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Move {
    Seek(Start),
    Skip(u64),
    Clear,
}

/// A bound of what is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Bound {
    None,
    AtMost(u64),
}

/// What becomes of an entry that lies in quarantine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Settle {
    /// It is sent before anything else.
    Release,
    /// It is never sent.
    Discard,
}

/// What a process holds a region for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Purpose {
    /// For one command, and others as long as that takes.
    Command,
    /// For others, until it is told to end.
    Serve,
}

/// What is answered.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Reply {
    /// The command is being carried out. The first answer, unless it is a failure.
    Taken,
    /// How far it has come.
    Progress(Value),
    /// It is done.
    Done(Value),
    Failed(Failure),
}

/// Who holds a region.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Holder {
    pub(crate) region: String,
    pub(crate) process: u32,
    pub(crate) purpose: Purpose,
}

/// What was published so far, all of it durable.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Published {
    pub(crate) topic: String,
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
    pub(crate) first: Option<String>,
    pub(crate) last: Option<String>,
    /// Why not everything was published; none if it was, or goes on.
    pub(crate) failed: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Consumed {
    pub(crate) topic: String,
    pub(crate) entries: u64,
    pub(crate) last: Option<String>,
    /// Entries that were asked for and not sent, because no more was wanted.
    pub(crate) left: u64,
}

/// What became of topics on their way to a remote.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Replicated {
    pub(crate) from: String,
    pub(crate) to: String,
    pub(crate) topics: Vec<Lane>,
}

/// One topic of them.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Lane {
    pub(crate) topic: String,
    pub(crate) published: u64,
    pub(crate) duplicate: u64,
    pub(crate) filtered: u64,
    pub(crate) rewinds: u64,
    pub(crate) backlog: u64,
    pub(crate) why: String,
    /// Why it is not replicated to the end; none if it is, or goes on.
    pub(crate) failed: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Status {
    pub(crate) region: String,
    pub(crate) process: u32,
    pub(crate) healthy: bool,
    pub(crate) bookies: Vec<BookieStatus>,
    pub(crate) topics: Vec<TopicStatus>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct BookieStatus {
    pub(crate) bookie: String,
    /// `writable`, `read-only`, `missing` or `failed`.
    pub(crate) state: String,
    pub(crate) reason: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct TopicStatus {
    pub(crate) topic: String,
    /// In Pulsar's words; `Unopened` with a reason if it cannot be opened.
    pub(crate) state: String,
    pub(crate) reason: Option<String>,
    pub(crate) entries: u64,
    pub(crate) bytes: u64,
    pub(crate) cursors: Vec<CursorStatus>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct CursorStatus {
    pub(crate) cursor: String,
    pub(crate) mark_delete: Option<String>,
    /// None if the cursor cannot be opened.
    pub(crate) backlog: Option<u64>,
    /// Why it cannot be opened.
    pub(crate) reason: Option<String>,
    pub(crate) replicating: bool,
}

/// Why a topic does not get on to a remote.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Link {
    pub(crate) topic: String,
    /// None if the topic cannot be opened, so that its remotes are not known.
    pub(crate) remote: Option<String>,
    pub(crate) backlog: Option<u64>,
    /// A stable name.
    pub(crate) reason: String,
    pub(crate) since_seconds: f64,
    pub(crate) why: String,
    /// Whether nothing will move it but an operator, here or at the remote.
    pub(crate) stuck: bool,
    /// Where no replicator runs: why the last one stopped, if it did not come to its end.
    #[serde(default)]
    pub(crate) stopped: Option<String>,
}

/// The state of a topic, in Pulsar's words.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Internal {
    #[serde(flatten)]
    pub(crate) topic: ManagedLedgerInternalStats,
    /// Cursors that cannot be opened, and why.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) unopened_cursors: BTreeMap<String, String>,
}

/// One of many, of which some may fail.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum InternalOrError {
    Known(Box<Internal>),
    Unknown { error: String },
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct LedgerRecord {
    pub(crate) ledger: u64,
    /// `unreadable` with a reason if the record cannot be read; then the rest is not known.
    pub(crate) state: String,
    pub(crate) reason: Option<String>,
    pub(crate) quorums: Option<Quorums>,
    pub(crate) entries: Option<u64>,
    pub(crate) bytes: Option<u64>,
    pub(crate) ensembles: Vec<Ensemble>,
    /// What the application stored with it, as text.
    pub(crate) custom: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Quorums {
    pub(crate) ensemble: usize,
    pub(crate) write: usize,
    pub(crate) ack: usize,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Ensemble {
    pub(crate) first_entry: u64,
    pub(crate) bookies: Vec<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct LedgerCheck {
    pub(crate) ledger: u64,
    /// `unknown` with a reason if the ledger cannot be checked.
    pub(crate) state: String,
    pub(crate) reason: Option<String>,
    pub(crate) entries: u64,
    pub(crate) under_replicated: u64,
    /// Copies that are not present, in words.
    pub(crate) findings: Vec<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct LedgerEnd {
    pub(crate) ledger: u64,
    pub(crate) entries: u64,
}

/// A cursor that was moved, or would be.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Moved {
    pub(crate) topic: String,
    pub(crate) remote: String,
    pub(crate) done: bool,
    /// Entries that will not be replicated.
    pub(crate) passed_over: u64,
    /// Entries that will be sent again.
    pub(crate) sent_again: u64,
    pub(crate) backlog: u64,
}

/// For how long a topic keeps what every cursor has acknowledged.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Retained {
    pub(crate) topic: String,
    /// None without a bound.
    pub(crate) seconds: Option<u64>,
    /// None without a bound.
    pub(crate) bytes: Option<u64>,
    /// Whether it was changed.
    pub(crate) done: bool,
    /// What it lets go, found before it was changed: the deletion begins with the change, or would.
    pub(crate) deleted_ledgers: u64,
    pub(crate) deleted_entries: u64,
}

/// A bookie that begins another life when its region is next opened.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Renewed {
    pub(crate) bookie: String,
    /// What shows what has too few copies then.
    pub(crate) next: String,
}

/// An entry that was passed over.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct KeptEntry {
    pub(crate) position: String,
    /// `quarantined`, or `released` when it is to be sent.
    pub(crate) state: String,
}

/// What became of an entry in quarantine, or would.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Settled {
    pub(crate) topic: String,
    pub(crate) remote: String,
    pub(crate) position: String,
    pub(crate) how: Settle,
    pub(crate) done: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Changed {
    pub(crate) topic: String,
    pub(crate) what: String,
}

/// What is known of the lines behind those that were published when publishing failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rest {
    /// None of them was written.
    NotWritten,
    /// None of them was written, and the one of this number is longer than a message.
    TooLong(u64),
    /// The next ones may be in the topic.
    InDoubt,
}

impl Published {
    /// How far it has come.
    pub(crate) fn durable(&self) -> String {
        match &self.last {
            None => "no line is in the topic".to_owned(),
            Some(last) => {
                format!("{} lines are in the topic and durable, the last at {last}", self.messages)
            }
        }
    }

    /// How to go on after a failure.
    pub(crate) fn then(&self, rest: Rest) -> String {
        let Self { messages, last, .. } = self;
        let (durable, next) = (self.durable(), messages + 1);
        match (last, rest) {
            (None, Rest::NotWritten) => format!("{durable}; publish all of them again"),
            (None, Rest::TooLong(line)) => format!(
                "{durable}; split line {line} or leave it out, and publish all of them again"
            ),
            (None, Rest::InDoubt) => {
                "it is not known whether the first lines are in the topic; look for them \
                 with georepl consume before publishing again"
                    .into()
            }
            (Some(_), Rest::NotWritten) => format!("{durable}; go on with line {next}"),
            (Some(_), Rest::TooLong(line)) => format!(
                "{durable}; split line {line} or leave it out, and publish what is behind line {messages}"
            ),
            (Some(last), Rest::InDoubt) => format!(
                "{durable}, and some behind them may be; \
                 see georepl consume --from {last} before going on with line {next}"
            ),
        }
    }
}

impl Bound {
    pub(crate) fn limit(self) -> Option<u64> {
        match self {
            Self::None => None,
            Self::AtMost(limit) => Some(limit),
        }
    }
}

impl Start {
    pub(crate) fn at(self) -> StartAt {
        match self {
            Self::Earliest => StartAt::Earliest,
            Self::Latest => StartAt::Latest,
            Self::Position { ledger, entry } => StartAt::Position(position(ledger, entry)),
            Self::Behind { ledger, entry } => StartAt::Position(position(ledger, entry + 1)),
        }
    }
}

impl std::str::FromStr for Start {
    type Err = ParsePositionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "earliest" => Ok(Self::Earliest),
            "latest" => Ok(Self::Latest),
            position => {
                let Position { ledger, entry } = position.parse()?;
                Ok(Self::Position { ledger: ledger.get(), entry: entry.get() })
            }
        }
    }
}

pub(crate) fn position(ledger: u64, entry: u64) -> Position {
    Position::new(georepl::storage::LedgerId(ledger), georepl::storage::EntryId(entry))
}
