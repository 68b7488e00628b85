//! The metadata store in ZooKeeper.

use std::sync::atomic::{AtomicUsize, Ordering};

use georepl_storage::{
    ConnectError, DigestAuth, Expected, LedgerId, LedgerLayout, MetadataError, MetadataServiceUri,
    MetadataStore, ZooKeeperConfig, ZooKeeperMetadata, ledger_key,
};
use georepl_tests::conformance::metadata::Kind;
use zookeeper_client as zk;

use crate::roots::{connected, root, shared};

mod conforms {
    use super::Fresh;

    georepl_tests::metadata_conformance!(Fresh::new().await);
}

/// A root of ledgers that no other test has.
struct Fresh(MetadataServiceUri);

impl Fresh {
    async fn new() -> Self {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let name = format!("conforms-{}", MADE.fetch_add(1, Ordering::Relaxed));
        Self(root(shared(), &name, "Hierarchical").await)
    }
}

impl Kind for Fresh {
    type Store = ZooKeeperMetadata;

    async fn session(&self) -> ZooKeeperMetadata {
        connected(&self.0).await
    }

    async fn end(&self, session: ZooKeeperMetadata) {
        session.close().await;
    }
}

#[tokio::test]
async fn records_of_every_layout_are_where_they_belong_and_are_listed_and_go_without_a_trace() {
    for (class, layout, short, long) in [
        ("Flat", LedgerLayout::Flat, "L0000000042", "L4294967338"),
        ("Hierarchical", LedgerLayout::Hierarchical, "00/0000/L0042", "000/0000/0042/9496/L7338"),
        (
            "LongHierarchical",
            LedgerLayout::LongHierarchical,
            "000/0000/0000/0000/L0042",
            "000/0000/0042/9496/L7338",
        ),
        ("LegacyHierarchical", LedgerLayout::LegacyHierarchical, "00/0000/L0042", "42/9496/L7338"),
    ] {
        let uri = root(shared(), &format!("layout-{class}"), class).await;
        let store = connected(&uri).await;
        assert_eq!(store.layout(), layout);
        let client = shared().client().await;
        let mut names = Vec::new();
        for (id, path) in [(42, short), ((1 << 32) + 42, long)] {
            let key = ledger_key(LedgerId(id));
            let version = store.put(&key, "record".into(), Expected::Absent).await.expect("absent");
            let (value, stat) =
                client.get_data(&format!("{}/{path}", uri.root())).await.expect(path);
            assert_eq!((value.as_slice(), stat.mzxid as u64), (&b"record"[..], version.0));
            names.push((key["ledgers/".len()..].to_owned(), key, version));
        }
        store.allocate_ledger_id().await.expect("ZooKeeper is there");
        let mut listed: Vec<_> = names.iter().map(|(name, ..)| name.clone()).collect();
        listed.sort_unstable();
        assert_eq!(store.children("ledgers").await, Ok(listed), "{class}");
        for (_, key, version) in names {
            store.delete(&key, version).await.expect("its version");
        }
        let mut left = client.list_children(uri.root()).await.expect("the root");
        left.retain(|name| name != "idgen");
        assert_eq!(left, ["LAYOUT"], "{class}");
    }
}

#[tokio::test]
async fn ids_are_those_that_java_clients_give_out() {
    let uri = root(shared(), "ids", "Hierarchical").await;
    let store = connected(&uri).await;
    let client = shared().client().await;
    let open = zk::CreateMode::Persistent.with_acls(zk::Acls::anyone_all());
    for expected in [0, 1, 2] {
        assert_eq!(store.allocate_ledger_id().await, Ok(LedgerId(expected)));
    }
    // A Java client has come to the end of 31 bits, and began to give out long ids.
    let long = format!("{}/idgen-long", uri.root());
    client.mkdir(&long, &open).await.expect("ZooKeeper is there");
    let another = connected(&uri).await;
    assert_eq!(another.allocate_ledger_id().await, Ok(LedgerId(1 << 32)));
    assert_eq!(another.allocate_ledger_id().await, Ok(LedgerId((1 << 32) + 1)));
    client.mkdir(&format!("{long}/HOB-0000000007"), &open).await.expect("ZooKeeper is there");
    assert_eq!(another.allocate_ledger_id().await, Ok(LedgerId(7 << 32)));
    // Nothing is left of what gave them out.
    another.close().await;
    store.close().await;
    for folder in ["idgen", "idgen-long/HOB-0000000001", "idgen-long/HOB-0000000007"] {
        let left = client.list_children(&format!("{}/{folder}", uri.root())).await;
        assert_eq!(left.expect("the folder stays"), Vec::<String>::new(), "{folder}");
    }
}

#[tokio::test]
async fn topics_are_where_pulsar_keeps_them_and_folders_are_no_keys() {
    let uri = root(shared(), "topics", "Hierarchical").await;
    let store = connected(&uri).await;
    let topic = "managed-ledgers/acme/eu/persistent/orders";
    let cursor = format!("{topic}/pulsar.repl.us");
    let made = store.put(&cursor, "cursor".into(), Expected::Absent).await.expect("absent");
    let client = shared().client().await;
    let (value, _) = client.get_data(&format!("/topics/{cursor}")).await.expect("it is there");
    assert_eq!(value, b"cursor");
    // Above it are folders, which are no keys, and one of them can become one.
    for folder in ["managed-ledgers", "managed-ledgers/acme/eu", topic] {
        assert_eq!(store.get(folder).await, Ok(None), "{folder}");
    }
    assert_eq!(store.children("managed-ledgers/acme").await, Ok(vec!["eu".into()]));
    let version = store.put(topic, "topic".into(), Expected::Absent).await.expect("a folder");
    assert_eq!(store.children(topic).await, Ok(vec!["pulsar.repl.us".into()]));
    let conflict = MetadataError::VersionConflict { key: topic.into() };
    assert_eq!(store.put(topic, "other".into(), Expected::Absent).await, Err(conflict));
    // Removed while it has cursors, it is a folder again; one that is left when they go is no key either.
    store.delete(topic, version).await.expect("its version");
    assert_eq!(store.get(topic).await, Ok(None));
    let missing = MetadataError::NotFound { key: topic.into() };
    assert_eq!(store.delete(topic, version).await, Err(missing.clone()));
    assert_eq!(store.put(topic, "x".into(), Expected::Version(version)).await, Err(missing));
    store.delete(&cursor, made).await.expect("its version");
    let again = store.put(topic, "topic".into(), Expected::Absent).await.expect("a folder");
    assert!(again > version);
}

#[tokio::test]
async fn a_record_that_was_made_again_is_not_taken_for_the_one_before() {
    let uri = root(shared(), "again", "Hierarchical").await;
    let (store, other) = (connected(&uri).await, connected(&uri).await);
    let seen = store.put("topics/a", "1".into(), Expected::Absent).await.expect("absent");
    // Both times ZooKeeper's own count of changes is 0.
    other.delete("topics/a", seen).await.expect("its version");
    let made = other.put("topics/a", "1".into(), Expected::Absent).await.expect("absent");
    let conflict = MetadataError::VersionConflict { key: "topics/a".into() };
    let put = store.put("topics/a", "2".into(), Expected::Version(seen)).await;
    assert_eq!(put, Err(conflict.clone()));
    assert_eq!(store.delete("topics/a", seen).await, Err(conflict));
    let found = store.get("topics/a").await.expect("ZooKeeper is there").expect("a key");
    assert_eq!(found.version, made);
}

#[tokio::test]
async fn what_is_made_with_a_password_is_for_its_user_alone() {
    let uri = root(shared(), "secret", "Hierarchical").await;
    let auth = DigestAuth { user: "bk".into(), password: "s3cret".into() };
    let config = ZooKeeperConfig { digest_auth: Some(auth), ..ZooKeeperConfig::new(uri.clone()) };
    assert!(!format!("{config:?}").contains("s3cret"));
    let owner = ZooKeeperMetadata::connect(config.clone()).await.expect("it is there");
    owner.put("topics/a", "1".into(), Expected::Absent).await.expect("absent");
    let stranger = connected(&uri).await;
    let Err(MetadataError::Unavailable { reason, .. }) = stranger.get("topics/a").await else {
        panic!("a stranger read it");
    };
    assert_eq!(reason, "not authorized");
    let again = ZooKeeperMetadata::connect(config).await.expect("it is there");
    assert!(again.get("topics/a").await.expect("its own user").is_some());
}

#[tokio::test]
async fn where_there_is_no_cluster_or_another_one_is_said() {
    let connect = |uri: String| async move {
        let uri = uri.parse().expect("an address");
        ZooKeeperMetadata::connect(ZooKeeperConfig::new(uri)).await.map(|store| store.layout())
    };
    let zookeeper = shared().zookeeper();
    let missing = connect(format!("zk://{zookeeper}/nothing/here")).await;
    assert!(matches!(missing, Err(ConnectError::NoCluster { .. })), "{missing:?}");
    let flat = connect(format!("zk+flat://{zookeeper}/ledgers")).await;
    let hierarchical = LedgerLayout::Hierarchical;
    assert!(
        matches!(flat, Err(ConnectError::OtherLayout { found, .. }) if found == hierarchical),
        "{flat:?}"
    );
    let named = connect(format!("zk+hierarchical://{zookeeper};{zookeeper}/ledgers")).await;
    assert_eq!(named, Ok(hierarchical));
    let strange = root(shared(), "strange", "org.example.Mine").await;
    let strange = connect(strange.to_string()).await.expect_err("a layout of somebody's own");
    assert!(strange.to_string().contains("org.example.Mine"), "{strange}");
}

#[tokio::test]
async fn a_value_that_zookeeper_would_not_take_is_refused_and_the_session_goes_on() {
    let uri = root(shared(), "large", "Hierarchical").await;
    let store = connected(&uri).await;
    let largest = vec![7; 1_000_000];
    store.put("topics/a", largest.clone().into(), Expected::Absent).await.expect("it fits");
    let larger = store.put("topics/b", vec![7; 1_000_001].into(), Expected::Absent).await;
    let Err(MetadataError::Unavailable { reason, .. }) = larger else { panic!("{larger:?}") };
    assert!(reason.contains("1000001"), "{reason}");
    let found = store.get("topics/a").await.expect("ZooKeeper is there").expect("a key");
    assert_eq!(found.value, largest);
}
