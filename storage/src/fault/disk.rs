//! A disk that loses power.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::sync::Arc;

use fastrand::Rng;
use parking_lot::Mutex;
use redb::{DatabaseError, StorageBackend};
use tokio::sync::watch;

use crate::disk::{Disk, Presence};

/// What is kept or lost as one when power is lost, in bytes.
const SECTOR_BYTES: usize = 512;

/// A disk in memory that keeps, of each file, what it shows and what is durable. All files of a region may be on one;
/// a clone is the same disk.
///
/// What a failed sync should have written is lost for the disk and goes on being shown, as a system does that drops pages
/// it could not write.
///
/// Syncs are numbered from 1 over all files. The disk can be told to lose power instead of doing one of them; nothing
/// works from then on, until it is [restarted](Self::restart) with what was durable.
#[derive(Clone, Default)]
pub struct CrashDisk {
    state: Arc<Mutex<State>>,
}

/// What becomes of what was written and not synced when power is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsynced {
    /// All of it is lost.
    Lost,
    /// Each sector, and each change of a file's length, survives or not, as this seed says.
    Torn(u64),
}

/// What the disk refuses to do, once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskFault {
    /// The next read.
    Read,
    /// The next write.
    Write,
    /// The next sync.
    Sync,
}

#[derive(Default)]
struct State {
    files: BTreeMap<String, Content>,
    syncs: u64,
    openings: u64,
    cut_at: Option<u64>,
    fail_at: Option<u64>,
    power: watch::Sender<Power>,
    fault: Option<DiskFault>,
    space_bytes: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Power {
    #[default]
    On,
    Off,
}

#[derive(Default)]
struct Content {
    shown: Vec<u8>,
    durable: Vec<u8>,
    unsynced: Vec<Change>,
    lock: Lock,
    /// The opening that it is open with. Of what was opened before power was lost nothing works any more.
    opening: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Lock {
    #[default]
    Free,
    Held,
}

enum Change {
    Write { offset: usize, data: Vec<u8> },
    Length(usize),
}

impl CrashDisk {
    /// An empty disk.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// How many syncs were done or attempted.
    #[must_use]
    pub fn syncs(&self) -> u64 {
        self.state.lock().syncs
    }

    /// How often a file was opened, or was to be.
    #[must_use]
    pub fn openings(&self) -> u64 {
        self.state.lock().openings
    }

    /// Loses power instead of doing the sync of this number.
    pub fn cut_at(&self, sync: u64) {
        self.state.lock().cut_at = Some(sync);
    }

    /// Fails the sync of this number, as [`DiskFault::Sync`] does.
    pub fn fail_at(&self, sync: u64) {
        self.state.lock().fail_at = Some(sync);
    }

    /// Waits until the disk has lost power, as [`cut_at`](Self::cut_at) told it to; returns at once while it has none.
    ///
    /// Cancel-safe.
    ///
    /// # Panics
    /// Never: the disk owns what is waited for.
    pub async fn power_lost(&self) {
        let mut power = self.state.lock().power.subscribe();
        power.wait_for(|power| *power == Power::Off).await.expect("the disk is borrowed here");
    }

    /// Comes back after a loss of power, or loses it now. What was open before is dead. Syncs go on being counted.
    pub fn restart(&self, unsynced: Unsynced) {
        let mut state = self.state.lock();
        state.lose_power(unsynced);
        state.power.send_replace(Power::On);
        state.fault = None;
        (state.cut_at, state.fail_at) = (None, None);
    }

    /// The disk as a machine finds it that starts after a loss of power, which this one suffers now if it has not. On
    /// this one nothing works any more: threads of the old machine that live on in the test open nothing of the new.
    #[must_use]
    pub fn survivor(&self, unsynced: Unsynced) -> Self {
        let mut state = self.state.lock();
        state.lose_power(unsynced);
        let files = std::mem::take(&mut state.files);
        Self { state: Arc::new(Mutex::new(State { files, ..State::default() })) }
    }

    /// Fails the next operation of this kind, of any file.
    pub fn inject(&self, fault: DiskFault) {
        self.state.lock().fault = Some(fault);
    }

    /// How many bytes the disk has; none for as many as are asked for. Whatever is written at or beyond that place of
    /// a file finds no space.
    pub fn set_space(&self, bytes: Option<u64>) {
        self.state.lock().space_bytes = bytes;
    }

    /// Whether somebody has a file open.
    #[must_use]
    pub fn is_open(&self, name: &str) -> bool {
        self.state.lock().files.get(name).is_some_and(|content| content.lock == Lock::Held)
    }

    /// What a file shows; none if there is no such file.
    #[must_use]
    pub fn content(&self, name: &str) -> Option<Vec<u8>> {
        self.state.lock().files.get(name).map(|content| content.shown.clone())
    }

    /// Puts another content into a file that is not open, durably.
    ///
    /// # Panics
    /// If the file is open.
    pub fn replace(&self, name: &str, bytes: Vec<u8>) {
        let mut state = self.state.lock();
        let content = state.files.entry(name.into()).or_default();
        assert_eq!(content.lock, Lock::Free, "{name} is open");
        content.durable = bytes.clone();
        content.shown = bytes;
        content.unsynced.clear();
    }

    /// Cuts a file to nothing, durably, whether or not somebody has it open.
    pub fn truncate(&self, name: &str) {
        if let Some(content) = self.state.lock().files.get_mut(name) {
            content.shown.clear();
            content.durable.clear();
            content.unsynced.clear();
        }
    }

    /// Removes a file. Nothing works any more for who has it open.
    pub fn remove(&self, name: &str) {
        self.state.lock().files.remove(name);
    }
}

impl Disk for CrashDisk {
    fn open(
        &self,
        name: &str,
        presence: Presence,
    ) -> Result<Box<dyn StorageBackend>, DatabaseError> {
        let mut state = self.state.lock();
        state.openings += 1;
        if *state.power.borrow() == Power::Off {
            return Err(powerless().into());
        }
        if presence == Presence::MustExist && !state.files.contains_key(name) {
            return Err(io::Error::from(ErrorKind::NotFound).into());
        }
        let opening = state.openings;
        let content = state.files.entry(name.into()).or_default();
        if content.lock == Lock::Held {
            return Err(DatabaseError::DatabaseAlreadyOpen);
        }
        content.lock = Lock::Held;
        content.opening = opening;
        let name = name.to_owned();
        Ok(Box::new(CrashFile { disk: self.clone(), name, opening }))
    }

    fn locate(&self, name: &str) -> PathBuf {
        name.into()
    }
}

/// An open file of a [`CrashDisk`].
struct CrashFile {
    disk: CrashDisk,
    name: String,
    opening: u64,
}

impl CrashFile {
    /// Does something with the file, unless the fault strikes that.
    fn with<R>(
        &self,
        kind: Option<DiskFault>,
        run: impl FnOnce(&mut Content, Option<u64>) -> io::Result<R>,
    ) -> io::Result<R> {
        let mut state = self.disk.state.lock();
        let state = &mut *state;
        if kind == Some(DiskFault::Sync) {
            state.syncs += 1;
            if state.cut_at == Some(state.syncs) {
                state.power.send_replace(Power::Off);
            }
            if state.fail_at == Some(state.syncs) {
                state.fault = Some(DiskFault::Sync);
            }
        }
        if *state.power.borrow() == Power::Off {
            return Err(powerless());
        }
        let content = state.files.get_mut(&self.name);
        let content = content.filter(|content| content.opening == self.opening);
        let content = content.ok_or_else(|| io::Error::other("the file is gone"))?;
        if kind.is_some() && state.fault == kind {
            state.fault = None;
            if kind == Some(DiskFault::Sync) {
                content.unsynced.clear();
            }
            return Err(io::Error::other("the disk was told to fail"));
        }
        run(content, state.space_bytes)
    }
}

impl StorageBackend for CrashFile {
    fn len(&self) -> io::Result<u64> {
        self.with(None, |content, _| Ok(content.shown.len() as u64))
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.with(Some(DiskFault::Read), |content, _| {
            let start = usize::try_from(offset).map_err(io::Error::other)?;
            let found = content.shown.get(start..start + out.len());
            out.copy_from_slice(found.ok_or(ErrorKind::UnexpectedEof)?);
            Ok(())
        })
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.with(None, |content, _| {
            content.change(Change::Length(usize::try_from(len).map_err(io::Error::other)?));
            Ok(())
        })
    }

    fn sync_data(&self) -> io::Result<()> {
        self.with(Some(DiskFault::Sync), |content, _| {
            for change in std::mem::take(&mut content.unsynced) {
                change.apply(&mut content.durable);
            }
            Ok(())
        })
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.with(Some(DiskFault::Write), |content, space_bytes| {
            let end = offset + data.len() as u64;
            if space_bytes.is_some_and(|space| end > space) {
                return Err(ErrorKind::StorageFull.into());
            }
            if end > content.shown.len() as u64 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            let offset = usize::try_from(offset).map_err(io::Error::other)?;
            content.change(Change::Write { offset, data: data.to_vec() });
            Ok(())
        })
    }
}

impl Drop for CrashFile {
    fn drop(&mut self) {
        if let Some(content) = self.disk.state.lock().files.get_mut(&self.name)
            && content.opening == self.opening
        {
            content.lock = Lock::Free;
        }
    }
}

impl State {
    fn lose_power(&mut self, unsynced: Unsynced) {
        self.power.send_replace(Power::Off);
        let mut rng = match unsynced {
            Unsynced::Lost => None,
            Unsynced::Torn(seed) => Some(Rng::with_seed(seed)),
        };
        for content in self.files.values_mut() {
            let lost = std::mem::take(&mut content.unsynced);
            if let Some(rng) = &mut rng {
                lost.iter().for_each(|change| change.apply_torn(&mut content.durable, rng));
            }
            content.shown = content.durable.clone();
            content.lock = Lock::Free;
            content.opening = 0;
        }
    }
}

impl Content {
    fn change(&mut self, change: Change) {
        change.apply(&mut self.shown);
        self.unsynced.push(change);
    }
}

impl Change {
    fn apply(&self, content: &mut Vec<u8>) {
        match self {
            Self::Write { offset, data } => {
                let end = offset + data.len();
                // The change that made the file so long may have been lost in a failed sync.
                if content.len() < end {
                    content.resize(end, 0);
                }
                content[*offset..end].copy_from_slice(data);
            }
            Self::Length(bytes) => content.resize(*bytes, 0),
        }
    }

    /// As much of it as a loss of power leaves. What lies beyond the end that is left is lost.
    fn apply_torn(&self, content: &mut Vec<u8>, rng: &mut Rng) {
        match self {
            Self::Write { offset, data } => {
                for (sector, data) in data.chunks(SECTOR_BYTES).enumerate() {
                    let start = offset + sector * SECTOR_BYTES;
                    if rng.bool()
                        && let Some(place) = content.get_mut(start..start + data.len())
                    {
                        place.copy_from_slice(data);
                    }
                }
            }
            Self::Length(bytes) => {
                if rng.bool() {
                    content.resize(*bytes, 0);
                }
            }
        }
    }
}

fn powerless() -> io::Error {
    io::Error::other("the disk has no power")
}

impl fmt::Debug for CrashDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.lock();
        f.debug_struct("CrashDisk")
            .field("files", &state.files.keys())
            .field("syncs", &state.syncs)
            .field("power", &*state.power.borrow())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for CrashFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CrashFile").field("name", &self.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn whoever_waits_for_the_cut_learns_of_it_before_and_after() {
        let disk = CrashDisk::new();
        disk.cut_at(2);
        let file = disk.open("file", Presence::MayBeNew).expect("there is power");
        let waiting = tokio::spawn({
            let disk = disk.clone();
            async move { disk.power_lost().await }
        });
        tokio::task::yield_now().await;
        file.sync_data().expect("the first sync is done");
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished(), "there is power yet");

        file.sync_data().expect_err("power is lost instead");
        waiting.await.expect("it was waited for");
        disk.power_lost().await;
    }

    #[test]
    fn what_survives_a_loss_of_power_is_out_of_reach_of_who_lived_before() {
        let disk = CrashDisk::new();
        let file = disk.open("file", Presence::MayBeNew).expect("there is power");
        file.set_len(1).expect("there is power");
        file.write(0, b"a").expect("there is power");
        file.sync_data().expect("there is power");
        file.write(0, b"b").expect("there is power");

        let survivor = disk.survivor(Unsynced::Lost);
        assert_eq!(survivor.content("file"), Some(b"a".to_vec()));
        file.write(0, b"c").expect_err("no power");
        disk.open("file", Presence::MustExist).map(drop).expect_err("no power");
        survivor.open("file", Presence::MustExist).map(drop).expect("nobody has it open");
    }
}
