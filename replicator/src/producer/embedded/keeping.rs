//! What a topic keeps of its sources, so that it goes on after a restart and after trimming.
//!
//! ```text
//!   log     ... ┃ entries, each with its origin in its stamp ...        end
//!               ┃
//!   cursor ─────┛ mark-delete, and per source: newest session, incarnation, revision, watermark
//! ```
//!
//! The cursor [`KEEPER`] stands where the log still has to be read to know the watermarks; what lies
//! before it is in the cursor's own record, written in one step with its mark-delete. So neither can
//! be ahead of the other, and the topic, which no cursor's unread entries are trimmed from, keeps
//! every entry whose origin is nowhere else. It begins with the first source; a topic without one
//! needs none.

use std::collections::BTreeMap;
use std::sync::Arc;

use georepl_cursor::{
    ManagedCursor, ManagedLedger, MarkDeleteError, Offset, OpenCursorError, Position, StartAt,
};
use georepl_storage::{Advice, EntryId, LedgerId};
use tokio::sync::{Mutex, OnceCell};

use super::opening::OpenTopicError;
use super::{Inbound, Inner, State};
use crate::producer::target::Target;
use crate::session::{Incarnation, Revision, SessionId, Watermark};

/// The cursor of a topic that keeps what is known of the sources.
pub const KEEPER: &str = "georepl.sources";

/// After so many entries the sources are kept anew, in the background. More make an opening of the
/// topic read further back, fewer cost more writes of one record.
pub const CHECKPOINT_ENTRIES: u64 = 1_000;

/// Or after so many bytes of entries: so much more than its readers need stays in a topic. A backlog
/// quota does not count it.
pub const CHECKPOINT_BYTES: u64 = 4 << 20;

/// Where the sources are kept. Held while they are written, so that what is older is never
/// written over what is newer.
#[derive(Default)]
pub(super) struct Keeper(OnceCell<Mutex<Arc<ManagedCursor>>>);

/// What is kept of one source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Known {
    pub(super) session: SessionId,
    pub(super) incarnation: Incarnation,
    pub(super) revision: Revision,
    pub(super) watermark: Option<Watermark>,
}

/// What is kept of a source says something impossible.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("what is kept of the sources cannot be understood: {name} = {value}")]
pub struct InvalidSource {
    name: String,
    value: i64,
}

/// Why the sources were not kept.
#[derive(Debug, thiserror::Error)]
pub(super) enum KeepError {
    #[error(transparent)]
    Open(#[from] OpenTopicError),
    #[error(transparent)]
    Write(#[from] MarkDeleteError),
}

impl Keeper {
    pub(super) fn begun(&self) -> bool {
        self.0.initialized()
    }

    /// Opens the cursor. It is at the end of the topic when it is new.
    pub(super) async fn open(
        ledger: &ManagedLedger,
    ) -> Result<(Arc<ManagedCursor>, BTreeMap<Arc<str>, Known>), OpenTopicError> {
        let cursor = ManagedCursor::open(ledger, KEEPER, StartAt::Latest).await?;
        let known = from_properties(&cursor.progress().others)?;
        Ok((cursor, known))
    }

    pub(super) fn with(cursor: Arc<ManagedCursor>) -> Self {
        Self(OnceCell::new_with(Some(Mutex::new(cursor))))
    }
}

impl Inner {
    /// Before the first source is known. If somebody else had begun, it is known what they knew:
    /// they can have appended nothing since this topic was opened.
    pub(super) async fn begin_keeping(&self) -> Result<(), OpenTopicError> {
        let open = async || {
            let (cursor, known) = Keeper::open(&self.ledger).await?;
            self.state.lock().adopt(known);
            Ok(Mutex::new(cursor))
        };
        self.keeper.0.get_or_try_init(open).await.map(drop)
    }

    /// Keeps what is known of the sources, durably. If the future is dropped, it may be kept.
    pub(super) async fn keep(&self) -> Result<(), KeepError> {
        let cursor = self.keeper.0.get().expect("keeping has begun before sources are known");
        let mut cursor = cursor.lock().await;
        match self.keep_with(&cursor).await {
            // Somebody has closed or removed the cursor. What it should say is known here; whether
            // the topic still belongs to this object, the opening finds out.
            Err(error) if error.advice() == Advice::Reopen => {
                (*cursor, _) = Keeper::open(&self.ledger).await?;
                Ok(self.keep_with(&cursor).await?)
            }
            kept => Ok(kept?),
        }
    }

    async fn keep_with(&self, cursor: &ManagedCursor) -> Result<(), MarkDeleteError> {
        let (place, known) = {
            let state = self.state.lock();
            (state.kept_up_to(self.ledger.end()), state.known())
        };
        // Before an entry that exists: behind it may by now be others, which are not in `known`.
        let to = self.ledger.position_of(place).map_or(StartAt::Earliest, StartAt::Position);
        let kept = cursor.reset(to, |progress| {
            progress.others.retain(|name, _| !name.starts_with(PREFIX));
            progress.others.extend(to_properties(&known));
        });
        kept.await.map(drop)
    }
}

impl State {
    pub(super) fn adopt(&mut self, known: BTreeMap<Arc<str>, Known>) {
        for (cluster, Known { session, incarnation, revision, watermark }) in known {
            let target = || Target::new(session, incarnation, revision, watermark);
            self.sources.entry(cluster).or_insert_with(|| Inbound::new(target()));
        }
    }

    /// Entries before it are in the targets' watermarks. The last entry of the log is never among
    /// them: it tells the next index.
    fn kept_up_to(&self, end: Offset) -> Offset {
        let last = Offset::new(end.get().saturating_sub(1));
        let in_doubt = self.sources.values().filter_map(|inbound| inbound.in_doubt.front());
        in_doubt.copied().chain([last]).min().unwrap_or(last)
    }

    fn known(&self) -> BTreeMap<Arc<str>, Known> {
        let known = |inbound: &Inbound| Known {
            session: inbound.target.newest(),
            incarnation: inbound.target.incarnation(),
            revision: inbound.target.revision(),
            watermark: inbound.target.watermark(),
        };
        self.sources.iter().map(|(cluster, inbound)| (cluster.clone(), known(inbound))).collect()
    }
}

/// In front of the cluster's name; behind it, after a slash, which of the numbers it is.
const PREFIX: &str = "source/";
const OWNER: &str = "session.owner";
const COUNTER: &str = "session.counter";
const INCARNATION: &str = "incarnation";
const REVISION: &str = "revision";
const LEDGER: &str = "watermark.ledger";
const ENTRY: &str = "watermark.entry";
const CHECKSUM: &str = "watermark.checksum";

fn to_properties(sources: &BTreeMap<Arc<str>, Known>) -> BTreeMap<String, i64> {
    let mut properties = BTreeMap::new();
    for (cluster, known) in sources {
        // The numbers are the source's own and may be any; their bits are kept.
        let mut set = |name: &str, value: u64| {
            properties.insert(format!("{PREFIX}{cluster}/{name}"), value.cast_signed());
        };
        set(OWNER, known.session.owner);
        set(COUNTER, known.session.counter);
        set(INCARNATION, known.incarnation.0);
        set(REVISION, known.revision.0);
        if let Some(Watermark { position, checksum }) = known.watermark {
            set(LEDGER, position.ledger.get());
            set(ENTRY, position.entry.get());
            set(CHECKSUM, checksum.into());
        }
    }
    properties
}

fn from_properties(
    properties: &BTreeMap<String, i64>,
) -> Result<BTreeMap<Arc<str>, Known>, InvalidSource> {
    let mut sources: BTreeMap<Arc<str>, Known> = BTreeMap::new();
    for (name, &value) in properties {
        let Some(ours) = name.strip_prefix(PREFIX) else { continue };
        let invalid = || InvalidSource { name: name.clone(), value };
        let (cluster, which) = ours.rsplit_once('/').ok_or_else(invalid)?;
        let nothing = Known {
            session: SessionId::default(),
            incarnation: Incarnation(0),
            // What an earlier version has kept names none.
            revision: Revision(0),
            watermark: None,
        };
        let known = sources.entry(cluster.into()).or_insert(nothing);
        let number = value.cast_unsigned();
        let origin = Position::new(LedgerId(0), EntryId(0));
        let unset = Watermark { position: origin, checksum: 0 };
        match which {
            OWNER => known.session.owner = number,
            COUNTER => known.session.counter = number,
            INCARNATION => known.incarnation = Incarnation(number),
            REVISION => known.revision = Revision(number),
            LEDGER | ENTRY | CHECKSUM => {
                let mark = known.watermark.get_or_insert(unset);
                match which {
                    LEDGER => mark.position.ledger = LedgerId(number),
                    ENTRY => mark.position.entry = EntryId(number),
                    _ => mark.checksum = u32::try_from(number).map_err(|_| invalid())?,
                }
            }
            _ => return Err(invalid()),
        }
    }
    Ok(sources)
}

impl From<OpenCursorError> for OpenTopicError {
    fn from(error: OpenCursorError) -> Self {
        Self::Keeper(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quota_does_not_count_what_is_kept_for_the_sources() {
        assert!(KEEPER.starts_with(georepl_cursor::OWN_CURSORS));
    }

    #[test]
    fn properties_give_back_what_was_kept_and_what_is_not_understood_is_named() {
        let known = |owner, watermark| Known {
            session: SessionId { owner, counter: 3 },
            incarnation: Incarnation(u64::MAX),
            revision: Revision(7),
            watermark,
        };
        let watermark = Watermark { position: "7:9".parse().unwrap(), checksum: u32::MAX };
        let sources: BTreeMap<Arc<str>, Known> =
            [("north/2".into(), known(1, None)), ("west".into(), known(9, Some(watermark)))].into();
        assert_eq!(from_properties(&to_properties(&sources)), Ok(sources));

        for (name, value) in [("source/west/later", 1), ("source/x/watermark.checksum", -1)] {
            let error = from_properties(&[(name.to_owned(), value)].into()).unwrap_err();
            assert!(error.to_string().contains(name), "{error}");
        }
        assert_eq!(from_properties(&[("others".to_owned(), 1)].into()), Ok(BTreeMap::new()));
    }
}
