//! Where things are kept in ZooKeeper: keys of the metadata store as paths of znodes.
//!
//! | key | znode |
//! |---|---|
//! | `ledgers/L0000000042` | the ledger's record, where BookKeeper's clients look for it, as `LAYOUT` says |
//! | `managed-ledgers/…` | the same path beside the root of the ledgers, where Pulsar keeps topics and cursors |
//! | any other | below `georepl` beside the root of the ledgers |
//!
//! ```text
//! flat                 /ledgers/L0000000042
//! hierarchical         /ledgers/00/0000/L0042                        10 digits, 2-4-4, below 2^31 - 1
//!                      /ledgers/000/0000/0021/4748/L3647             19 digits, 3-4-4-4-4, above
//! long hierarchical    always 19 digits
//! legacy hierarchical  always 10 digits
//! ```

use crate::id::LedgerId;

/// How BookKeeper spreads the records of ledgers over the tree, so that no znode has too many children.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LedgerLayout {
    /// All in one place.
    Flat,
    /// By ten digits of the id, or by nineteen from 2^31 - 1 on. What BookKeeper does unless it is told otherwise.
    Hierarchical,
    /// By nineteen digits.
    LongHierarchical,
    /// By ten digits. Ids of more than 31 bits are never given out.
    LegacyHierarchical,
}

/// The content of a `LAYOUT` node that cannot be worked with.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the layout of the ledgers is {0:?}, which is not supported; flat, hierarchical, long hierarchical and \
     legacy hierarchical are"
)]
pub struct UnsupportedLayout(String);

impl LedgerLayout {
    const ALL: [Self; 4] =
        [Self::Flat, Self::Hierarchical, Self::LongHierarchical, Self::LegacyHierarchical];

    /// Reads the content of the node `LAYOUT`: a format version, then a class or a name, a colon, and a version.
    ///
    /// # Errors
    /// [`UnsupportedLayout`].
    pub fn read(content: &[u8]) -> Result<Self, UnsupportedLayout> {
        let text = String::from_utf8_lossy(content);
        let mut lines = text.lines();
        let version = lines.next();
        let manager = lines.next().and_then(|line| line.rsplit_once(':'));
        let known = |layout: &Self| match (version, manager) {
            (Some("2"), Some((class, "1"))) => class == layout.class(),
            (Some("1"), Some((name, "1"))) => name == layout.name(),
            _ => false,
        };
        let found = Self::ALL.into_iter().find(known);
        found.ok_or_else(|| UnsupportedLayout(text.into_owned()))
    }

    /// What an URI and old `LAYOUT` nodes call it.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Flat => "flat",
            Self::Hierarchical => "hierarchical",
            Self::LongHierarchical => "longhierarchical",
            Self::LegacyHierarchical => "legacyhierarchical",
        }
    }

    pub(super) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|layout| layout.name() == name)
    }

    const fn class(self) -> &'static str {
        match self {
            Self::Flat => "org.apache.bookkeeper.meta.FlatLedgerManagerFactory",
            Self::Hierarchical => "org.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory",
            Self::LongHierarchical => {
                "org.apache.bookkeeper.meta.LongHierarchicalLedgerManagerFactory"
            }
            Self::LegacyHierarchical => {
                "org.apache.bookkeeper.meta.LegacyHierarchicalLedgerManagerFactory"
            }
        }
    }

    /// Where a ledger's record is, relative to the root of the ledgers.
    fn path(self, ledger: LedgerId) -> String {
        let short = match self {
            Self::Flat => return format!("L{:010}", ledger.get()),
            Self::Hierarchical => ledger.get() < SHORT_IDS_END,
            Self::LongHierarchical => false,
            Self::LegacyHierarchical => ledger.get() < TEN_DIGITS_END,
        };
        let (digits, widths) = if short {
            (format!("{:010}", ledger.get()), &SHORT_WIDTHS[..])
        } else {
            (format!("{:019}", ledger.get()), &LONG_WIDTHS[..])
        };
        let mut path = String::with_capacity(digits.len() + widths.len());
        let mut at = 0;
        for width in &widths[..widths.len() - 1] {
            path.push_str(&digits[at..at + width]);
            path.push('/');
            at += width;
        }
        path.push('L');
        path.push_str(&digits[at..]);
        path
    }
}

/// What a folder of ledgers' records has in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Listed {
    /// A ledger's record.
    Ledger(LedgerId),
    /// A folder with more of them.
    Folder,
    /// Something else.
    Other,
}

/// Where a cluster keeps what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tree {
    /// The root of the ledgers, such as `/ledgers`.
    root: String,
    layout: LedgerLayout,
}

impl Tree {
    pub(super) fn new(root: &str, layout: LedgerLayout) -> Self {
        Self { root: root.to_owned(), layout }
    }

    pub(super) fn root(&self) -> &str {
        &self.root
    }

    pub(super) const fn layout(&self) -> LedgerLayout {
        self.layout
    }

    /// The znode of a key.
    pub(super) fn path(&self, key: &str) -> String {
        if let Some(ledger) = ledger_of(key) {
            return format!("{}/{}", self.root, self.layout.path(ledger));
        }
        let (beside, _) = self.root.rsplit_once('/').expect("a root begins with a slash");
        if key.split('/').next() == Some("managed-ledgers") {
            format!("{beside}/{key}")
        } else {
            format!("{beside}/georepl/{key}")
        }
    }

    /// The folders above a ledger's record that hold nothing but such records: innermost first. None for other keys.
    pub(super) fn folders(&self, key: &str) -> Vec<String> {
        let Some(ledger) = ledger_of(key) else { return Vec::new() };
        let path = self.layout.path(ledger);
        let ends = path.rmatch_indices('/').map(|(end, _)| end);
        ends.map(|end| format!("{}/{}", self.root, &path[..end])).collect()
    }

    /// What `name` is in `folder`, a path relative to the root of the ledgers; the root itself is the empty one.
    pub(super) fn listed(&self, folder: &str, name: &str) -> Listed {
        let outer: Vec<_> = folder.split('/').filter(|name| !name.is_empty()).collect();
        let (record, digits) = match name.strip_prefix('L') {
            Some(digits) => (true, digits),
            None => (false, name),
        };
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Listed::Other;
        }
        if record {
            let all = outer.concat() + digits;
            return match all.parse().map(LedgerId) {
                // Whatever is elsewhere is not where a client would look for it.
                Ok(ledger) if self.layout.path(ledger) == join(folder, name) => {
                    Listed::Ledger(ledger)
                }
                _ => Listed::Other,
            };
        }
        let widths: Vec<_> = outer.iter().copied().chain([name]).map(str::len).collect();
        let folder_of = |all: &[usize]| all[..all.len() - 1].starts_with(&widths);
        let is_folder = match self.layout {
            LedgerLayout::Flat => false,
            LedgerLayout::Hierarchical => folder_of(&SHORT_WIDTHS) || folder_of(&LONG_WIDTHS),
            LedgerLayout::LongHierarchical => folder_of(&LONG_WIDTHS),
            LedgerLayout::LegacyHierarchical => folder_of(&SHORT_WIDTHS),
        };
        if is_folder { Listed::Folder } else { Listed::Other }
    }
}

/// A path of two, the first of which may be empty.
pub(super) fn join(folder: &str, name: &str) -> String {
    if folder.is_empty() { name.to_owned() } else { format!("{folder}/{name}") }
}

/// The ledger whose record is under this key.
fn ledger_of(key: &str) -> Option<LedgerId> {
    let digits = key.strip_prefix("ledgers/L")?;
    let all_digits = digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|id| all_digits && *id <= LEDGER_ID_MAX).map(LedgerId)
}

const SHORT_WIDTHS: [usize; 3] = [2, 4, 4];
const LONG_WIDTHS: [usize; 5] = [3, 4, 4, 4, 4];

/// The first id that has a long path. One less than 2^31, since Java counts that as an overflow.
pub(super) const SHORT_IDS_END: u64 = i32::MAX as u64;
const TEN_DIGITS_END: u64 = 10_000_000_000;
const LEDGER_ID_MAX: u64 = i64::MAX as u64;

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::*;
    use crate::metadata::store::ledger_key;

    fn tree(layout: LedgerLayout) -> Tree {
        Tree::new("/ledgers", layout)
    }

    fn path(layout: LedgerLayout, id: u64) -> String {
        tree(layout).path(&ledger_key(LedgerId(id)))
    }

    const EDGES: [u64; 9] =
        [0, 1, 9_999, 170_001, 2_147_483_646, 2_147_483_647, 2_147_483_648, 1 << 32, LEDGER_ID_MAX];

    #[test]
    fn records_are_where_java_clients_look_for_them() {
        use LedgerLayout::*;
        assert_eq!(path(Flat, 42), "/ledgers/L0000000042");
        assert_eq!(path(Flat, 12_345_678_901), "/ledgers/L12345678901");
        assert_eq!(path(Hierarchical, 1), "/ledgers/00/0000/L0001");
        assert_eq!(path(Hierarchical, 2_147_483_646), "/ledgers/21/4748/L3646");
        assert_eq!(path(Hierarchical, 2_147_483_647), "/ledgers/000/0000/0021/4748/L3647");
        assert_eq!(path(Hierarchical, 2_147_483_648), "/ledgers/000/0000/0021/4748/L3648");
        assert_eq!(path(LongHierarchical, 1), "/ledgers/000/0000/0000/0000/L0001");
        assert_eq!(path(LegacyHierarchical, 2_147_483_648), "/ledgers/21/4748/L3648");
        assert_eq!(path(Hierarchical, LEDGER_ID_MAX), "/ledgers/922/3372/0368/5477/L5807");
    }

    #[test]
    fn recorded_records_are_where_their_keys_are() {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/bookkeeper");
        let index = fs::read_to_string(folder.join("metadata/index.tsv")).expect("the index");
        let mut recorded = Vec::new();
        for line in index.lines().skip(1) {
            let columns: Vec<_> = line.split('\t').collect();
            let ledger = LedgerId(columns[2].parse().expect("a number"));
            let path = tree(LedgerLayout::Hierarchical).path(&ledger_key(ledger));
            assert_eq!(path, format!("/ledgers/{}", columns[1]));
            recorded.push(ledger);
        }
        // And what is listed in the recorded tree is those, and nothing else.
        let nodes = fs::read_to_string(folder.join("znodes/named/tree.tsv")).expect("the tree");
        let listed = nodes.lines().filter_map(|line| {
            let (path, _) = line.split_once('\t')?;
            let (folder, name) = path.strip_prefix("/ledgers")?.rsplit_once('/')?;
            let folder = folder.trim_start_matches('/');
            match tree(LedgerLayout::Hierarchical).listed(folder, name) {
                Listed::Ledger(ledger) => Some(ledger),
                Listed::Folder | Listed::Other => None,
            }
        });
        let mut listed: Vec<_> = listed.collect();
        listed.sort_unstable();
        assert_eq!(listed, recorded);
    }

    #[test]
    fn every_record_is_found_by_walking_down_its_folders() {
        for layout in LedgerLayout::ALL {
            for id in EDGES.map(LedgerId) {
                if layout == LedgerLayout::LegacyHierarchical && id.get() >= TEN_DIGITS_END {
                    continue;
                }
                let tree = tree(layout);
                let key = ledger_key(id);
                let path = tree.path(&key);
                let names: Vec<_> = path["/ledgers/".len()..].split('/').collect();
                let (record, folders) = names.split_last().expect("a name");
                let mut folder = String::new();
                for name in folders {
                    assert_eq!(tree.listed(&folder, name), Listed::Folder, "{layout:?} {path}");
                    folder = join(&folder, name);
                }
                assert_eq!(tree.listed(&folder, record), Listed::Ledger(id), "{layout:?} {path}");
                assert_eq!(tree.folders(&key).len(), folders.len());
                assert_eq!(
                    tree.folders(&key).first(),
                    (!folder.is_empty()).then(|| format!("/ledgers/{folder}")).as_ref()
                );
            }
        }
    }

    #[test]
    fn what_else_a_cluster_keeps_there_is_no_ledger() {
        let names = [
            "LAYOUT",
            "INSTANCEID",
            "available",
            "cookies",
            "idgen",
            "idgen-long",
            "underreplication",
            "disableHealthCheck",
            "ID-0000000001",
            "L",
            "Lx",
            "0",
        ];
        for layout in LedgerLayout::ALL {
            for name in names {
                assert_eq!(tree(layout).listed("", name), Listed::Other, "{layout:?} {name}");
            }
        }
        let hierarchical = tree(LedgerLayout::Hierarchical);
        assert_eq!(hierarchical.listed("00/0000", "L01"), Listed::Other);
        assert_eq!(hierarchical.listed("", "L0000000001"), Listed::Other);
        // A long path for a short id is no place where anybody looks.
        assert_eq!(hierarchical.listed("000/0000/0000/0000", "L0001"), Listed::Other);
        assert_eq!(hierarchical.listed("00/0000", "0001"), Listed::Other);
    }

    #[test]
    fn other_keys_lie_beside_the_ledgers() {
        let tree = Tree::new("/chroot/ledgers", LedgerLayout::Hierarchical);
        let topic = "managed-ledgers/acme/eu/persistent/orders";
        assert_eq!(tree.path(topic), format!("/chroot/{topic}"));
        assert_eq!(tree.path("managed-ledgers"), "/chroot/managed-ledgers");
        assert_eq!(tree.path("bookies/b1"), "/chroot/georepl/bookies/b1");
        assert_eq!(tree.path("ledgers/L0000000042"), "/chroot/ledgers/00/0000/L0042");
        for key in ["ledgers/L", "ledgers/L+5", "ledgers/L9223372036854775808", "ledgers"] {
            assert_eq!(tree.path(key), format!("/chroot/georepl/{key}"));
            assert!(tree.folders(key).is_empty());
        }
    }

    #[test]
    fn layout_nodes_of_both_versions_are_read_and_others_refused_by_name() {
        for name in ["named", "host-port", "release-4.14.7"] {
            let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
                .join("../tests/fixtures/bookkeeper/znodes")
                .join(name);
            let content = fs::read(folder.join("LAYOUT.bin")).expect("the recording is there");
            assert_eq!(LedgerLayout::read(&content), Ok(LedgerLayout::Hierarchical));
        }
        for layout in LedgerLayout::ALL {
            let second = format!("2\n{}:1\n", layout.class());
            assert_eq!(LedgerLayout::read(second.as_bytes()), Ok(layout));
            assert_eq!(
                LedgerLayout::read(format!("1\n{}:1", layout.name()).as_bytes()),
                Ok(layout)
            );
        }
        for bad in ["", "2", "2\nflat:1", "3\nx:1", "1\nhierarchical:2", "2\norg.example.Mine:1"] {
            let refused = LedgerLayout::read(bad.as_bytes()).expect_err(bad).to_string();
            assert!(refused.contains(&format!("{bad:?}")), "{refused}");
        }
    }
}
