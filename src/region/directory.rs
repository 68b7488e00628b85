//! The directory of a region: who holds it, and what it says of itself.
//!
//! | file | what it is |
//! |---|---|
//! | `region.json` | the manifest: format, name, bookies, and a digest of them; written first, and never changed |
//! | `lock` | locked as long as any file of the region is open; the lock dies with the process |
//! | `metadata.redb`, `bookie-ID.redb` | what the region holds |
//! | `socket` | where the process that holds it may serve others |

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

use georepl_storage::{BookieId, DirectoryDisk, Disk, Presence};
use redb::{DatabaseError, StorageBackend};
use serde::{Deserialize, Serialize};

use super::error::OpenRegionError;

/// What to do where there is no region yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Absent {
    /// Begin an empty one.
    #[default]
    Create,
    /// Fail.
    Refuse,
}

/// The version of the directory's layout. Another one is refused by name.
const FORMAT: u64 = 2;

const MANIFEST: &str = "region.json";
const MANIFEST_UNFINISHED: &str = "region.json.new";
const LOCK: &str = "lock";
const SOCKET: &str = "socket";
const METADATA: &str = "metadata.redb";

/// What a region says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Manifest {
    format: u64,
    pub(super) name: String,
    pub(super) bookies: Vec<String>,
    digest: u32,
}

/// A directory that this process holds.
#[derive(Debug)]
pub(super) struct Directory {
    pub(super) manifest: Manifest,
    /// Unlocked when it is closed.
    _lock: File,
}

/// What a directory of a new region is to say, and what one that exists has to say if it matters.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub(super) name: Option<String>,
    pub(super) bookies: usize,
    pub(super) absent: Absent,
}

impl Manifest {
    pub(super) fn new(name: &str, bookies: usize) -> Result<Self, OpenRegionError> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        if name.is_empty() || !name.chars().all(allowed) {
            return Err(OpenRegionError::InvalidName { name: name.to_owned() });
        }
        let bookies = (1..=bookies).map(|n| format!("{name}-bookie-{n}")).collect();
        let manifest = Self { format: FORMAT, name: name.to_owned(), bookies, digest: 0 };
        Ok(Self { digest: manifest.digest(), ..manifest })
    }

    /// CRC32C over the names, each with a line's end.
    fn digest(&self) -> u32 {
        let names = std::iter::once(&self.name).chain(&self.bookies);
        names.fold(0, |digest, name| {
            crc32c::crc32c_append(crc32c::crc32c_append(digest, name.as_bytes()), b"\n")
        })
    }
}

impl Directory {
    /// Takes hold of a directory, and begins a region in it if there is none. Blocks.
    pub(super) fn open(path: &Path, wanted: &Wanted) -> Result<Self, OpenRegionError> {
        let fresh = Self::prepare(path, wanted)?;
        let lock = lock(path)?;
        // Looked at again: whoever held the lock may have begun a region.
        let manifest = match (read_manifest(path)?, fresh) {
            (Some(found), _) => found,
            (None, Some(fresh)) => {
                write_manifest(path, &fresh)
                    .map_err(|error| disk(path, "begin a region", error))?;
                fresh
            }
            (None, None) => return Err(OpenRegionError::NotThere { directory: path.to_owned() }),
        };
        if let Some(expected) = &wanted.name
            && *expected != manifest.name
        {
            return Err(OpenRegionError::OtherName {
                directory: path.to_owned(),
                found: manifest.name,
                expected: expected.clone(),
            });
        }
        Ok(Self { manifest, _lock: lock })
    }

    /// Looks whether there is a region, or may be one; what it is to be if it is to be begun.
    fn prepare(path: &Path, wanted: &Wanted) -> Result<Option<Manifest>, OpenRegionError> {
        let directory = || path.to_owned();
        let found = match fs::metadata(path) {
            Ok(found) if found.is_dir() => Some(found),
            Ok(_) => return Err(OpenRegionError::NotADirectory { directory: directory() }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(disk(path, "look at", error)),
        };
        if found.is_some() && read_manifest(path)?.is_some() {
            return Ok(None);
        }
        if found.is_some() {
            refuse_remains(path)?;
        }
        if wanted.absent == Absent::Refuse {
            return Err(OpenRegionError::NotThere { directory: directory() });
        }
        refuse_inside_another(path)?;
        let from_path = || path.file_name().map(|name| name.to_string_lossy().into_owned());
        let name = wanted.name.clone().or_else(from_path).unwrap_or_default();
        let manifest = Manifest::new(&name, wanted.bookies)?;
        match found {
            None => create_durably(path).map_err(|error| disk(path, "create", error))?,
            Some(_) => {
                if let Err(foreign) = refuse_foreign(path) {
                    // A region that is begun just now has its manifest before it has anything else.
                    return read_manifest(path)?.map_or(Err(foreign), |_| Ok(None));
                }
            }
        }
        Ok(Some(manifest))
    }
}

/// The files of a region. Whoever has one open, or could open it again, shares this, and with it the directory is held:
/// a topic that outlives its region still writes.
#[derive(Debug)]
pub(super) struct HeldDisk {
    files: DirectoryDisk,
    _held: Directory,
}

impl HeldDisk {
    pub(super) fn new(path: &Path, held: Directory) -> Self {
        Self { files: DirectoryDisk::new(path), _held: held }
    }
}

impl Disk for HeldDisk {
    fn open(
        &self,
        name: &str,
        presence: Presence,
    ) -> Result<Box<dyn StorageBackend>, DatabaseError> {
        self.files.open(name, presence)
    }

    fn locate(&self, name: &str) -> PathBuf {
        self.files.locate(name)
    }
}

/// Where the region of this directory is served, if it is.
pub(super) fn socket_in(directory: &Path) -> PathBuf {
    directory.join(SOCKET)
}

/// The file that whoever holds the region of this directory has locked. It stays when they let go.
pub(super) fn lock_in(directory: &Path) -> PathBuf {
    directory.join(LOCK)
}

/// A region whose manifest is gone is no place for a new one.
fn refuse_remains(path: &Path) -> Result<(), OpenRegionError> {
    let entries = fs::read_dir(path).map_err(|error| disk(path, "list", error))?;
    for entry in entries {
        let name = entry.map_err(|error| disk(path, "list", error))?.file_name();
        let found = name.to_string_lossy();
        let is_bookie = found.starts_with("bookie-") && found.ends_with(".redb");
        if (is_bookie || found == METADATA)
            // A region that is begun just now has its manifest before it has anything else.
            && read_manifest(path)?.is_none()
        {
            let (manifest, found) = (path.join(MANIFEST), found.into_owned());
            return Err(OpenRegionError::ManifestGone { manifest, found });
        }
    }
    Ok(())
}

/// What is done to the files of a region, such as moving it or putting it back from a copy, is done to all that lies in
/// its directory.
fn refuse_inside_another(path: &Path) -> Result<(), OpenRegionError> {
    let absolute = std::path::absolute(path).map_err(|error| disk(path, "locate", error))?;
    // Where links lead to, as far as it is there.
    let around = match absolute.canonicalize() {
        Ok(there) => there.parent().map(Path::to_owned),
        Err(_) => absolute.ancestors().skip(1).find_map(|above| above.canonicalize().ok()),
    };
    let mut around = around.iter().flat_map(|around| around.ancestors());
    match around.find(|above| above.join(MANIFEST).is_file()) {
        Some(outer) => {
            let (directory, outer) = (path.to_owned(), outer.to_owned());
            Err(OpenRegionError::InsideAnother { directory, outer })
        }
        None => Ok(()),
    }
}

/// The file of a bookie that holds something: whoever has one had metadata before it.
pub(super) fn bookie_file(path: &Path, bookies: &[BookieId]) -> Option<PathBuf> {
    let mut files = bookies.iter().map(|bookie| path.join(format!("bookie-{bookie}.redb")));
    files.find(|file| fs::metadata(file).is_ok_and(|found| found.len() > 0))
}

/// A directory that is to become a region must be empty but for what a beginning leaves that was cut off.
fn refuse_foreign(path: &Path) -> Result<(), OpenRegionError> {
    let entries = fs::read_dir(path).map_err(|error| disk(path, "list", error))?;
    for entry in entries {
        let name = entry.map_err(|error| disk(path, "list", error))?.file_name();
        if ![MANIFEST_UNFINISHED, LOCK].iter().any(|known| name == *known) {
            let found = name.to_string_lossy().into_owned();
            return Err(OpenRegionError::NotARegion { directory: path.to_owned(), found });
        }
    }
    Ok(())
}

/// Locks the directory for this process, and says so in the lock's file.
fn lock(path: &Path) -> Result<File, OpenRegionError> {
    let cannot = |error| disk(path, "lock", error);
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).create(true).truncate(false);
    let mut file = options.open(path.join(LOCK)).map_err(cannot)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut holder = String::new();
            // Only for the message; whoever holds it may just be writing.
            let _ = file.read_to_string(&mut holder);
            let pid = holder.trim().parse().ok();
            return Err(OpenRegionError::InUse { directory: path.to_owned(), pid });
        }
        Err(TryLockError::Error(error)) => return Err(cannot(error)),
    }
    let told = file.set_len(0).and_then(|()| file.rewind());
    // Only for the messages of others: a full disk must not keep anybody from opening the region to make room.
    let _ = told.and_then(|()| writeln!(file, "{}", std::process::id()));
    Ok(file)
}

fn read_manifest(path: &Path) -> Result<Option<Manifest>, OpenRegionError> {
    /// What every version of the manifest has.
    #[derive(Deserialize)]
    struct Versioned {
        format: u64,
    }
    let file = path.join(MANIFEST);
    let text = match fs::read(&file) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(disk(&file, "read", error)),
    };
    let damaged = |error: serde_json::Error| OpenRegionError::Damaged {
        file: file.clone(),
        reason: error.to_string(),
    };
    let Versioned { format } = serde_json::from_slice(&text).map_err(damaged)?;
    if format != FORMAT {
        return Err(OpenRegionError::OtherFormat {
            directory: path.to_owned(),
            found: format,
            known: FORMAT,
        });
    }
    let manifest: Manifest = serde_json::from_slice(&text).map_err(damaged)?;
    if manifest.digest != manifest.digest() {
        let reason = "its digest is of other names".into();
        return Err(OpenRegionError::Damaged { file, reason });
    }
    Ok(Some(manifest))
}

/// Creates a directory and those it lies in, with their names: a directory whose name is lost is lost.
fn create_durably(path: &Path) -> io::Result<()> {
    let missing = path.ancestors().take_while(|ancestor| !ancestor.exists()).count();
    fs::create_dir_all(path)?;
    for parent in path.ancestors().skip(1).take(missing) {
        // The parent of a relative name is where we are.
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        File::open(parent)?.sync_all()?;
    }
    Ok(())
}

/// Writes the manifest so that after a crash it is there whole or not at all.
fn write_manifest(path: &Path, manifest: &Manifest) -> io::Result<()> {
    let unfinished = path.join(MANIFEST_UNFINISHED);
    let mut file = File::create(&unfinished)?;
    let text = serde_json::to_vec_pretty(manifest).expect("a manifest is made of text and numbers");
    file.write_all(&text)?;
    file.sync_all()?;
    fs::rename(unfinished, path.join(MANIFEST))?;
    File::open(path)?.sync_all()
}

fn disk(path: &Path, what: &'static str, error: io::Error) -> OpenRegionError {
    OpenRegionError::Disk { path: path.to_owned(), what, reason: error.to_string() }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    fn wanted() -> Wanted {
        Wanted { name: None, bookies: 4, absent: Absent::Create }
    }

    fn refused(path: &Path, wanted: &Wanted) -> OpenRegionError {
        Directory::open(path, wanted).map(|_| ()).unwrap_err()
    }

    #[test]
    fn new_region_takes_the_name_of_its_directory_and_keeps_it() {
        let temporary = tempfile::tempdir().unwrap();
        let (first, second) = (temporary.path().join("data/west"), temporary.path().join("moved"));
        let made = Directory::open(&first, &wanted()).unwrap();
        assert_eq!((made.manifest.name.as_str(), made.manifest.bookies.len()), ("west", 4));
        drop(made);
        fs::rename(&first, &second).unwrap();
        let other = Wanted { bookies: 7, absent: Absent::Refuse, ..wanted() };
        let moved = Directory::open(&second, &other).unwrap();
        assert_eq!((moved.manifest.name.as_str(), moved.manifest.bookies.len()), ("west", 4));
        drop(moved);
        let named = Wanted { name: Some("east".into()), ..wanted() };
        assert!(refused(&second, &named).to_string().contains("west"));
    }

    #[test]
    fn second_opener_is_refused_with_the_pid_of_the_first_until_that_is_gone() {
        let temporary = tempfile::tempdir().unwrap();
        let path = temporary.path().join("west");
        let held = Directory::open(&path, &wanted()).unwrap();
        let error = refused(&path, &wanted());
        assert!(error.to_string().contains(&std::process::id().to_string()), "{error}");
        assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
        drop(held);
        Directory::open(&path, &wanted()).unwrap();
    }

    #[test]
    fn of_many_first_openers_one_begins_the_region_and_the_others_find_it_in_use() {
        let temporary = tempfile::tempdir().unwrap();
        for round in 0..ROUNDS {
            let path = temporary.path().join(format!("west-{round}"));
            // In half of the rounds the directory is there.
            if round % 2 == 0 {
                fs::create_dir(&path).unwrap();
            }
            let (start, begun) = (Barrier::new(OPENERS), AtomicBool::new(false));
            // Again and again, so that the beginning is met at each of its steps.
            let open = || {
                start.wait();
                loop {
                    match Directory::open(&path, &wanted()) {
                        Ok(held) => {
                            fs::write(path.join("metadata.redb"), "what is written next").unwrap();
                            begun.store(true, Ordering::SeqCst);
                            return Some(held);
                        }
                        Err(OpenRegionError::InUse { .. }) if begun.load(Ordering::SeqCst) => {
                            return None;
                        }
                        Err(OpenRegionError::InUse { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            };
            let held: Vec<_> = std::thread::scope(|scope| {
                let openers: Vec<_> = (0..OPENERS).map(|_| scope.spawn(open)).collect();
                openers.into_iter().filter_map(|opener| opener.join().unwrap()).collect()
            });
            assert_eq!(held.len(), 1);
        }
    }

    const OPENERS: usize = 4;
    const ROUNDS: usize = 60;

    #[test]
    fn beginning_that_was_cut_off_is_begun_again() {
        let temporary = tempfile::tempdir().unwrap();
        let path = temporary.path().join("west");
        fs::create_dir(&path).unwrap();
        fs::write(path.join(MANIFEST_UNFINISHED), "{\"form").unwrap();
        fs::write(path.join(LOCK), "").unwrap();
        let made = Directory::open(&path, &wanted()).unwrap();
        assert_eq!(read_manifest(&path).unwrap().unwrap(), made.manifest);
        assert!(!path.join(MANIFEST_UNFINISHED).exists());
    }

    #[test]
    fn what_is_no_region_is_left_as_it_is() {
        let temporary = tempfile::tempdir().unwrap();
        let path = temporary.path().join("west");
        let none = Wanted { absent: Absent::Refuse, ..wanted() };
        assert!(matches!(refused(&path, &none), OpenRegionError::NotThere { .. }));
        assert!(!path.exists());
        fs::write(&path, "a file").unwrap();
        assert!(matches!(refused(&path, &wanted()), OpenRegionError::NotADirectory { .. }));
        let full = temporary.path().join("full");
        fs::create_dir(&full).unwrap();
        fs::write(full.join("letter.txt"), "dear").unwrap();
        assert!(refused(&full, &wanted()).to_string().contains("letter.txt"));
        assert_eq!(fs::read_dir(&full).unwrap().count(), 1);
        let bad = temporary.path().join("a b");
        assert!(matches!(refused(&bad, &wanted()), OpenRegionError::InvalidName { .. }));
        assert!(!bad.exists());
    }

    #[test]
    fn region_that_has_lost_its_manifest_is_no_place_for_another() {
        let temporary = tempfile::tempdir().unwrap();
        let path = temporary.path().join("west");
        for remains in ["metadata.redb", "bookie-west-bookie-3.redb"] {
            fs::create_dir(&path).unwrap();
            fs::write(path.join(remains), "entries").unwrap();
            for absent in [Absent::Refuse, Absent::Create] {
                let error = refused(&path, &Wanted { absent, ..wanted() });
                assert!(matches!(error, OpenRegionError::ManifestGone { .. }), "{error}");
                let manifest = path.join(MANIFEST).display().to_string();
                assert!(
                    [&manifest[..], remains].iter().all(|named| error.to_string().contains(named))
                );
            }
            assert_eq!(fs::read_dir(&path).unwrap().count(), 1, "nothing was made");
            fs::remove_dir_all(&path).unwrap();
        }
    }

    #[test]
    fn region_is_not_begun_inside_another() {
        let temporary = tempfile::tempdir().unwrap();
        let outer = temporary.path().join("west");
        drop(Directory::open(&outer, &wanted()).unwrap());
        std::os::unix::fs::symlink(&outer, temporary.path().join("link")).unwrap();
        let inner = ["west/east", "west/deep/er/east", "link/east"];
        for path in inner.map(|inner| temporary.path().join(inner)) {
            let error = refused(&path, &wanted());
            assert!(matches!(error, OpenRegionError::InsideAnother { .. }), "{error}");
            assert!(error.to_string().contains(outer.canonicalize().unwrap().to_str().unwrap()));
            assert!(!path.exists());
        }
        fs::create_dir(outer.join("empty")).unwrap();
        let error = refused(&outer.join("empty"), &wanted());
        assert!(matches!(error, OpenRegionError::InsideAnother { .. }), "{error}");
        drop(Directory::open(&temporary.path().join("link"), &wanted()).unwrap());
        drop(Directory::open(&temporary.path().join("east"), &wanted()).unwrap());
    }

    #[test]
    fn other_format_and_damaged_manifest_are_refused_by_name() {
        let temporary = tempfile::tempdir().unwrap();
        let path = temporary.path().join("west");
        drop(Directory::open(&path, &wanted()).unwrap());
        let whole = fs::read(path.join(MANIFEST)).unwrap();
        for format in [1, 3] {
            let text = format!(r#"{{"format": {format}, "shape": "another"}}"#);
            fs::write(path.join(MANIFEST), text).unwrap();
            let error = refused(&path, &wanted());
            assert!(matches!(error, OpenRegionError::OtherFormat { known: 2, .. }), "{error}");
        }
        fs::write(path.join(MANIFEST), r#"{"format": 2, "na"#).unwrap();
        let error = refused(&path, &wanted());
        assert!(error.to_string().contains(MANIFEST), "{error}");
        // Or a bit makes another name of it, or another bookie.
        for at in 0..whole.len() {
            let mut flipped = whole.clone();
            flipped[at] ^= 1;
            fs::write(path.join(MANIFEST), &flipped).unwrap();
            if let Ok(manifest) = read_manifest(&path) {
                assert_eq!(serde_json::to_vec_pretty(&manifest.unwrap()).unwrap(), whole, "{at}");
            }
        }
    }
}
