//! The front door: create, open and delete ledgers.

mod writer;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use fastrand::Rng;
use tokio::sync::watch;

use crate::check::{self, CheckError, CheckReport};
use crate::config::ClientConfig;
use crate::entry::Password;
use crate::error::Advice;
use crate::id::{EntryId, LedgerId};
use crate::marks;
use crate::metadata::{
    Expected, InvalidMetadata, LedgerMetadata, MetadataError, MetadataStore, Version, encode,
    ledger_key,
};
use crate::placement::{self, NotEnoughBookies};
use crate::quorum::QuorumSizes;
use crate::read::{Core, LacUnknown, LedgerReader, READ_AGAIN_AFTER, RecordError};
use crate::recover;
use crate::registry::BookieRegistry;
use crate::time::Clock;
use crate::transport::BookieTransport;
use crate::write::{self, AppendSink};

/// How often one compare-and-set is tried before the caller is asked. Each attempt but the first follows a change by
/// somebody else or a lost answer, both rare.
const ATTEMPTS_MAX: usize = 16;

/// What a record has that was not read. A store that has one at this version may well delete that.
const UNSEEN: Version = Version(0);

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

pub use writer::LedgerWriter;

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

    /// The settings it was given.
    #[must_use]
    pub fn config(&self) -> &ClientConfig {
        &self.core.config
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
        let ClientConfig { request_timeout, add_quorum_timeout, .. } = self.core.config;
        let limits = write::Limits {
            request_timeout,
            add_quorum_timeout,
            bookie_backlog_bytes_max: self.core.config.bookie_backlog_bytes_max,
            ensemble_changes_max: self.core.config.ensemble_changes_max,
            explicit_lac_interval: self.core.config.explicit_lac_interval,
        };
        let config = write::Config { ledger, record: Arc::new(metadata), version, limits };
        let writing = write::start(config, self.core.clone(), &*self.registry, sink);
        Ok(LedgerWriter { core: self.core.clone(), ledger, writing })
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
        let record = self.core.known_record(ledger).await?;
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
    /// Of a ledger that does not exist it removes the mark, if one was left. Cancel-safe.
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

    /// Deletes the record of a ledger and its mark, whatever its state: nobody can open it any more. The bookies drop its
    /// entries later. A ledger that is not there is a success; that it is not is believed of a change alone, since what is
    /// read may be older. If the future is dropped, call it again.
    ///
    /// # Errors
    /// [`MetadataError`]; whether the ledger is deleted is then unknown, and the call may be repeated.
    pub async fn delete(&self, ledger: LedgerId) -> Result<(), MetadataError> {
        let key = ledger_key(ledger);
        let mut attempts = 1..=ATTEMPTS_MAX;
        loop {
            let found = self.core.metadata(&key, self.core.store.get(&key)).await?;
            let version = found.as_ref().map_or(UNSEEN, |found| found.version);
            match self.core.metadata(&key, self.core.store.delete(&key, version)).await {
                Ok(()) | Err(MetadataError::NotFound { .. }) => break,
                Err(error) if attempts.next().is_none() => return Err(error),
                // The store lags.
                Err(MetadataError::VersionConflict { .. }) if found.is_none() => {
                    tokio::time::sleep(READ_AGAIN_AFTER).await;
                }
                Err(MetadataError::VersionConflict { .. } | MetadataError::Unavailable { .. }) => {}
            }
        }
        // Second, so that a ledger which is there never loses its mark.
        marks::remove(&self.core, ledger).await
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

#[cfg(test)]
mod tests;
