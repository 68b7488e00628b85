//! The front door: create, open and delete ledgers; the handle to write one.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use fastrand::Rng;
use tokio::sync::watch;

use crate::check::{self, CheckError, CheckReport};
use crate::config::ClientConfig;
use crate::entry::{MasterKey, Password};
use crate::error::Advice;
use crate::id::{EntryId, LedgerId, Shown};
use crate::metadata::{
    Expected, InvalidMetadata, InvalidTransition, LedgerEnd, LedgerMetadata, LedgerState,
    MetadataError, MetadataStore, Version, encode, ledger_key,
};
use crate::placement::{self, NotEnoughBookies};
use crate::quorum::QuorumSizes;
use crate::read::{Core, LacUnknown, LedgerReader, RecordError};
use crate::recover;
use crate::registry::BookieRegistry;
use crate::time::Clock;
use crate::transport::BookieTransport;
use crate::write::{self, AppendSink, Writing};

/// How often one compare-and-set is tried before the caller is asked. Each attempt but the first follows a change by
/// somebody else or a lost answer, both rare.
const ATTEMPTS_MAX: usize = 16;

/// Creates, opens and deletes ledgers. A clone is the same client.
#[derive(Clone)]
pub struct LedgerClient {
    core: Arc<Core>,
    registry: Arc<dyn BookieRegistry>,
}

/// What a new ledger is to be.
#[derive(Clone, Debug)]
pub struct LedgerOptions {
    /// Ensemble size and quorums.
    pub sizes: QuorumSizes,
    /// Whoever opens or recovers the ledger must know it. May be empty.
    pub password: Password,
    /// Stored with the ledger for the application.
    pub custom: BTreeMap<String, Vec<u8>>,
}

/// Why a ledger could not be created.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CreateError {
    /// Too few bookies take new entries.
    #[error(transparent)]
    NotEnoughBookies(#[from] NotEnoughBookies),
    /// The record would break a rule.
    #[error(transparent)]
    Invalid(#[from] InvalidMetadata),
    /// The metadata store failed. A ledger that nobody writes to may have been created.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// Somebody else created every ledger id that was tried.
    #[error(
        "ledger {ledger} was created by somebody else; the store gives out ids that are in use"
    )]
    IdInUse {
        /// The last id tried.
        ledger: LedgerId,
    },
}

impl CreateError {
    /// What to do about it.
    #[must_use]
    pub const fn advice(&self) -> Advice {
        match self {
            // A new attempt takes a new id, so one that came through unseen does no harm.
            Self::NotEnoughBookies(_) | Self::Metadata(_) => Advice::Retry,
            Self::Invalid(_) | Self::IdInUse { .. } => Advice::GiveUp,
        }
    }
}

/// Why a ledger could not be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The record could not be read.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The password is not the ledger's.
    #[error("ledger {ledger} has another password")]
    Unauthorized {
        /// The ledger.
        ledger: LedgerId,
    },
    /// Too few bookies answered.
    #[error(transparent)]
    Unknown(#[from] LacUnknown),
}

impl OpenError {
    /// What to do about it.
    #[must_use]
    pub const fn advice(&self) -> Advice {
        match self {
            Self::Record(error) => error.advice(),
            Self::Unauthorized { .. } => Advice::GiveUp,
            Self::Unknown(_) => Advice::Retry,
        }
    }
}

/// Why a writer could not close its ledger.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloseError {
    /// Somebody else is recovering the ledger and will close it. The record was left alone.
    #[error(
        "ledger {ledger} is fenced: its end is decided by whoever recovers it; open it to learn the end"
    )]
    Fenced {
        /// The ledger.
        ledger: LedgerId,
    },
    /// The task of the ledger is gone, and with it the knowledge of where it ends.
    #[error("the task of ledger {ledger} was stopped with its runtime; recover the ledger")]
    Stopped {
        /// The ledger.
        ledger: LedgerId,
    },
    /// Somebody else closed the ledger, at another end.
    #[error(
        "ledger {ledger} was closed by somebody else at entry {}, this writer had confirmed up to {}",
        Shown(found.last_entry), Shown(confirmed.last_entry)
    )]
    ClosedElsewhere {
        /// The ledger.
        ledger: LedgerId,
        /// The end in the record. Entries confirmed after it are lost.
        found: LedgerEnd,
        /// The end this writer knows.
        confirmed: LedgerEnd,
    },
    /// The record does not allow the end.
    #[error("ledger {ledger} cannot be closed where its writer ends: {reason}")]
    Refused {
        /// The ledger.
        ledger: LedgerId,
        /// Why.
        #[source]
        reason: InvalidTransition,
    },
    /// The record could not be read or written. Whether the ledger is closed is unknown; close it again.
    #[error(transparent)]
    Record(#[from] RecordError),
}

impl CloseError {
    /// What to do about it.
    #[must_use]
    pub const fn advice(&self) -> Advice {
        match self {
            Self::Fenced { .. } | Self::Stopped { .. } => Advice::Reopen,
            Self::ClosedElsewhere { .. } | Self::Refused { .. } => Advice::GiveUp,
            Self::Record(error) => error.advice(),
        }
    }
}

impl LedgerClient {
    /// A client of these bookies and this store.
    #[must_use]
    pub fn new(
        transport: Arc<dyn BookieTransport>,
        store: Arc<dyn MetadataStore>,
        registry: Arc<dyn BookieRegistry>,
        config: ClientConfig,
    ) -> Self {
        let core = Core { transport, store, config, clock: Clock::new() };
        Self { core: Arc::new(core), registry }
    }

    /// Creates a ledger and starts its task on the current runtime. `sink` learns what becomes of the appends.
    ///
    /// A lost answer of the store is settled by reading: the record carries a token that only this call knows.
    /// If the future is dropped, an empty, open ledger may be left.
    ///
    /// # Errors
    /// [`CreateError`].
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub async fn create(
        &self,
        options: LedgerOptions,
        sink: Arc<dyn AppendSink>,
    ) -> Result<LedgerWriter, CreateError> {
        let mut rng = Rng::new();
        let LedgerOptions { sizes, password, custom } = options;
        let bookies = self.registry.bookies().borrow().clone();
        let ensemble = placement::choose_ensemble(&bookies, sizes.ensemble(), &mut rng)?;
        let instances: Vec<_> = ensemble.iter().map(|b| (b.id.clone(), b.instance)).collect();
        let ensemble = ensemble.into_iter().map(|bookie| bookie.id).collect();
        // Never 0, which is what a Java client writes when it rewrites a record.
        let token = rng.u64(1..1 << 63);
        let metadata = LedgerMetadata::created(sizes, password, ensemble, token, custom)?
            .with_instances(instances);
        let (ledger, version) = self.store_new(&metadata).await?;
        let config = write::Config {
            ledger,
            sizes,
            key: MasterKey::of(metadata.password()),
            ensemble: metadata.last_ensemble().1.to_vec(),
            request_timeout: self.core.config.request_timeout,
            add_quorum_timeout: self.core.config.add_quorum_timeout,
        };
        let writing = write::start(config, self.core.clock, self.core.transport.clone(), sink);
        Ok(LedgerWriter {
            core: self.core.clone(),
            ledger,
            record: (Arc::new(metadata), version),
            writing,
        })
    }

    /// Opens a ledger to read what is confirmed, without recovering it. Changes nothing on bookies or in the store.
    ///
    /// A closed ledger has its exact end. For any other the bookies of the last ensemble are asked for the LAC.
    /// Cancel-safe.
    ///
    /// # Errors
    /// [`OpenError`]; that too few bookies answered is an error, never an empty ledger.
    pub async fn open(
        &self,
        ledger: LedgerId,
        password: &Password,
    ) -> Result<LedgerReader, OpenError> {
        let record = self.core.record(ledger).await?;
        if record.0.password() != password {
            return Err(OpenError::Unauthorized { ledger });
        }
        Ok(LedgerReader::open(self.core.clone(), ledger, record).await?)
    }

    /// Finds out where a ledger ends, whoever wrote it and whether or not they are alive, closes it there, and opens it.
    /// Its writer is fenced: it acknowledges nothing more. A closed ledger is just opened.
    ///
    /// Every acknowledged entry is found, and so may be entries that were not acknowledged, but only right behind the
    /// others. Cancel-safe: a recovery that is dropped or fails leaves the ledger in recovery, and may be repeated here
    /// or elsewhere, also by several at once; all learn the same end.
    ///
    /// # Errors
    /// [`recover::Error`]; on doubt a ledger is not closed.
    pub async fn recover(
        &self,
        ledger: LedgerId,
        password: &Password,
    ) -> Result<LedgerReader, recover::Error> {
        let (progress, _) = watch::channel(recover::Progress::default());
        self.recover_reporting(ledger, password, &progress).await
    }

    /// Like [`recover`](Self::recover), and tells how far it has come: for the recovery of a ledger of which much is
    /// not known to be confirmed.
    ///
    /// # Errors
    /// As [`recover`](Self::recover).
    pub async fn recover_reporting(
        &self,
        ledger: LedgerId,
        password: &Password,
        progress: &watch::Sender<recover::Progress>,
    ) -> Result<LedgerReader, recover::Error> {
        let registry = self.registry.bookies();
        let recovered =
            recover::run(&self.core, registry, ledger, password.clone(), progress).await?;
        let record = (Arc::unwrap_or_clone(recovered.record), recovered.version);
        let reader = LedgerReader::open(self.core.clone(), ledger, record).await;
        Ok(reader.expect("a closed ledger is opened without asking a bookie"))
    }

    /// Finds out where the copies of a ledger's confirmed entries are, which fragments are closed, and which lack
    /// copies and why. Reads only, a few entries at a time; `checked` is told after each of those how far it has come.
    /// Cancel-safe.
    ///
    /// # Errors
    /// [`CheckError`]; that copies are missing is none.
    pub async fn check(
        &self,
        ledger: LedgerId,
        checked: impl FnMut(EntryId) + Send,
    ) -> Result<CheckReport, CheckError> {
        check::check(&self.core, ledger, checked).await
    }

    /// Deletes the record of a ledger, whatever its state: nobody can open it any more. The bookies drop its entries
    /// later. A ledger that is not there is a success. If the future is dropped, call it again.
    ///
    /// # Errors
    /// [`MetadataError`]; whether the ledger is deleted is then unknown, and the call may be repeated.
    pub async fn delete(&self, ledger: LedgerId) -> Result<(), MetadataError> {
        let key = ledger_key(ledger);
        let mut attempts = 1..=ATTEMPTS_MAX;
        loop {
            let Some(found) = self.core.metadata(&key, self.core.store.get(&key)).await? else {
                return Ok(());
            };
            match self.core.metadata(&key, self.core.store.delete(&key, found.version)).await {
                Ok(()) | Err(MetadataError::NotFound { .. }) => return Ok(()),
                Err(error) if attempts.next().is_none() => return Err(error),
                Err(MetadataError::VersionConflict { .. } | MetadataError::Unavailable { .. }) => {}
            }
        }
    }

    /// Stores a new record under a new id.
    async fn store_new(
        &self,
        metadata: &LedgerMetadata,
    ) -> Result<(LedgerId, Version), CreateError> {
        let store = &*self.core.store;
        let value = encode(metadata);
        let mut ledger = self.core.metadata("a ledger id", store.allocate_ledger_id()).await?;
        let mut attempts = 1..=ATTEMPTS_MAX;
        loop {
            let key = ledger_key(ledger);
            let error = match self
                .core
                .metadata(&key, store.put(&key, value.clone(), Expected::Absent))
                .await
            {
                Ok(version) => return Ok((ledger, version)),
                Err(error) => error,
            };
            // The answer may have been lost, of this attempt or of the one before: see whose record is there.
            match self.core.record(ledger).await {
                Ok((found, version)) if found.creation_token() == metadata.creation_token() => {
                    return Ok((ledger, version));
                }
                Ok(_) | Err(RecordError::Format { .. }) => {
                    attempts.next().ok_or(CreateError::IdInUse { ledger })?;
                    ledger = self.core.metadata("a ledger id", store.allocate_ledger_id()).await?;
                }
                Err(RecordError::NoSuchLedger { .. }) => {
                    attempts.next().ok_or(error)?;
                }
                Err(RecordError::Metadata(error)) => return Err(error.into()),
            }
        }
    }
}

impl fmt::Debug for LedgerClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LedgerClient").field("config", &self.core.config).finish_non_exhaustive()
    }
}

/// The one writer of a ledger. Dropping it stops the ledger's task and leaves the ledger open.
pub struct LedgerWriter {
    core: Arc<Core>,
    ledger: LedgerId,
    record: (Arc<LedgerMetadata>, Version),
    writing: Writing,
}

impl LedgerWriter {
    /// The ledger's id.
    #[must_use]
    pub const fn id(&self) -> LedgerId {
        self.ledger
    }

    /// Appends payloads, one entry each, and returns the id of the first; the others follow it. The sink is told when
    /// they are acknowledged. An empty batch returns the id that the next entry will get.
    ///
    /// Never blocks and never waits: what is appended is held in memory until its bookies have answered or their
    /// request timeout is over, so the caller bounds the bytes it has unconfirmed. The iterator runs under the
    /// ledger's lock and must not use the ledger.
    ///
    /// # Errors
    /// [`write::Error`] if the ledger takes no more entries; none of the batch was appended.
    pub fn append(
        &self,
        payloads: impl IntoIterator<Item = Bytes>,
    ) -> Result<EntryId, write::Error> {
        self.writing.append(self.ledger, payloads)
    }

    /// Everything up to this entry is acknowledged.
    #[must_use]
    pub fn last_add_confirmed(&self) -> Option<EntryId> {
        self.writing.lac().get()
    }

    /// A reader whose bound is this writer's LAC at every moment. It may outlive the writer.
    #[must_use]
    pub fn reader(&self) -> LedgerReader {
        LedgerReader::of_writer(
            self.core.clone(),
            self.ledger,
            self.record.clone(),
            self.writing.lac().clone(),
        )
    }

    /// Closes the ledger: refuses further appends, waits until those before are decided, and writes the end into the
    /// record. After a failed append too the ledger is closed at its last confirmed entry, unless it is fenced.
    ///
    /// May be called again and by several at once; all learn the same end. If the future is dropped, appends stay
    /// refused, and whether the ledger is closed is unknown until it is called again.
    ///
    /// # Errors
    /// [`CloseError`].
    pub async fn close(&self) -> Result<LedgerEnd, CloseError> {
        let ledger = self.ledger;
        let ended = self.writing.finish(ledger).await;
        match ended.error {
            // A fenced writer keeps its hands off the record: its end is no longer for it to decide.
            Some(write::Error::Fenced { .. }) => Err(CloseError::Fenced { ledger }),
            Some(write::Error::Stopped { .. }) => Err(CloseError::Stopped { ledger }),
            _ => close_record(&self.core, ledger, ended.confirmed).await,
        }
    }
}

impl fmt::Debug for LedgerWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LedgerWriter")
            .field("ledger", &self.ledger)
            .field("last_add_confirmed", &self.last_add_confirmed())
            .finish_non_exhaustive()
    }
}

/// Writes the end of a ledger into its record. Every attempt starts from what is there, so an attempt whose answer
/// was lost is recognised, and one that still lands later writes the same end.
async fn close_record(
    core: &Core,
    ledger: LedgerId,
    confirmed: LedgerEnd,
) -> Result<LedgerEnd, CloseError> {
    let key = ledger_key(ledger);
    let mut attempts = 1..=ATTEMPTS_MAX;
    loop {
        let (metadata, version) = core.record(ledger).await?;
        let LedgerEnd { last_entry, length } = confirmed;
        let closed = match metadata.state() {
            LedgerState::Open => metadata.closed(last_entry, length),
            LedgerState::InRecovery => return Err(CloseError::Fenced { ledger }),
            LedgerState::Closed(found) if found == confirmed => return Ok(found),
            LedgerState::Closed(found) => {
                return Err(CloseError::ClosedElsewhere { ledger, found, confirmed });
            }
        };
        let closed = closed.map_err(|reason| CloseError::Refused { ledger, reason })?;
        let put = core.store.put(&key, encode(&closed), Expected::Version(version));
        match core.metadata(&key, put).await {
            Ok(_) => return Ok(confirmed),
            Err(error) if attempts.next().is_none() => return Err(RecordError::from(error).into()),
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests;
