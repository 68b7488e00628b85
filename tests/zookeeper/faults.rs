//! ZooKeeper that is cut off, paused, killed, and whose answers are lost.

use std::time::Duration;

use georepl_storage::{
    Expected, MetadataError, MetadataServiceUri, MetadataStore, Version, ZooKeeperConfig,
    ZooKeeperMetadata,
};
use georepl_tests::proxy::{Proxy, Request};
use georepl_tests::rig::Rig;
use zookeeper_client as zk;

use crate::roots::{by_way_of, connected, impatient, root, shared};

const KEY: &str = "topics/a";

/// A store whose connection the test can cut, and another that is connected directly.
struct Pair {
    proxy: Proxy,
    store: ZooKeeperMetadata,
    other: ZooKeeperMetadata,
}

impl Pair {
    async fn at(uri: &MetadataServiceUri, zookeeper: &str) -> Self {
        let proxy = Proxy::to(zookeeper).await;
        let near = by_way_of(proxy.address(), uri);
        let store = ZooKeeperMetadata::connect(impatient(near)).await.expect("it is there");
        Self { proxy, store, other: connected(uri).await }
    }

    async fn new(name: &str) -> Self {
        Self::at(&root(shared(), name, "Hierarchical").await, shared().zookeeper()).await
    }

    async fn made(&self) -> Version {
        self.store.put(KEY, "1".into(), Expected::Absent).await.expect("absent")
    }

    async fn value(&self) -> Option<Vec<u8>> {
        let found = self.other.get(KEY).await.expect("ZooKeeper is there");
        found.map(|found| found.value.to_vec())
    }
}

#[tokio::test]
async fn an_own_change_is_recognised_when_its_answer_is_lost() {
    let pair = Pair::new("lost-set").await;
    let seen = pair.made().await;
    pair.proxy.lose_answer_to(Request::SetData);
    let changed = pair.store.put(KEY, "2".into(), Expected::Version(seen)).await;
    assert!(pair.proxy.has_lost_it());
    let found = pair.other.get(KEY).await.expect("ZooKeeper is there").expect("a key");
    assert_eq!((changed, &found.value[..]), (Ok(found.version), &b"2"[..]));
    // It was made once, not twice.
    let stat = shared().client().await.check_stat("/lost-set/georepl/topics/a").await;
    assert_eq!(stat.expect("ZooKeeper is there").expect("a znode").version, 1);
}

#[tokio::test]
async fn an_own_creation_is_recognised_when_its_answer_is_lost() {
    let pair = Pair::new("lost-create").await;
    pair.other.put("topics/b", "0".into(), Expected::Absent).await.expect("absent");
    pair.proxy.lose_answer_to(Request::Create);
    let made = pair.store.put(KEY, "1".into(), Expected::Absent).await;
    assert!(pair.proxy.has_lost_it());
    let found = pair.other.get(KEY).await.expect("ZooKeeper is there").expect("a key");
    assert_eq!(made, Ok(found.version));
    pair.proxy.lose_answer_to(Request::Create);
    let held = pair.store.create_ephemeral("topics/held", "1".into()).await.expect("absent");
    assert!(pair.proxy.has_lost_it());
    let found = pair.other.get("topics/held").await.expect("ZooKeeper is there").expect("a key");
    assert_eq!(found.version, held);
    // Somebody else's is not taken for an own one, whatever its bytes are.
    let conflict = MetadataError::VersionConflict { key: "topics/held".into() };
    assert_eq!(pair.other.create_ephemeral("topics/held", "1".into()).await, Err(conflict));
}

#[tokio::test]
async fn an_own_deletion_is_recognised_when_its_answer_is_lost() {
    let pair = Pair::new("lost-delete").await;
    let seen = pair.made().await;
    pair.proxy.lose_answer_to(Request::Delete);
    assert_eq!(pair.store.delete(KEY, seen).await, Ok(()));
    assert!(pair.proxy.has_lost_it());
    assert_eq!(pair.value().await, None);
}

#[tokio::test]
async fn an_id_whose_answer_is_lost_is_used_up_and_not_given_out_twice() {
    let pair = Pair::new("lost-id").await;
    let first = pair.store.allocate_ledger_id().await.expect("ZooKeeper is there");
    pair.proxy.lose_answer_to(Request::Create);
    let second = pair.store.allocate_ledger_id().await.expect("ZooKeeper is there again");
    assert!(pair.proxy.has_lost_it());
    let third = pair.other.allocate_ledger_id().await.expect("ZooKeeper is there");
    assert!(first < second && second < third, "{first} {second} {third}");
}

#[tokio::test]
async fn a_change_of_somebody_else_is_not_taken_for_the_own_one_whose_answer_is_lost() {
    let pair = Pair::new("lost-and-changed").await;
    let seen = pair.made().await;
    pair.proxy.lose_answer_to(Request::SetData);
    // The change lands, and before the store is connected again somebody else changes what it left.
    let client = shared().client().await;
    let path = "/lost-and-changed/georepl/topics/a";
    let (_, landed) = client.check_and_watch_stat(path).await.expect("ZooKeeper is there");
    let change = pair.store.put(KEY, "2".into(), Expected::Version(seen));
    let interference = async {
        landed.changed().await;
        pair.proxy.cut();
        client.set_data(path, b"3", Some(1)).await.expect("as the change left it");
        pair.proxy.mend();
    };
    let (changed, ()) = tokio::join!(change, interference);
    // Or the store was quicker and has seen its own change; what it may never say is that it made none.
    match changed {
        Ok(_) => {}
        Err(MetadataError::Unavailable { reason, .. }) => {
            assert!(reason.contains("somebody else"), "{reason}");
        }
        Err(other) => panic!("{other}"),
    }
    assert_eq!(pair.value().await.as_deref(), Some(&b"3"[..]));
}

#[tokio::test]
async fn what_is_asked_while_zookeeper_is_cut_off_is_answered_when_it_is_back() {
    let pair = Pair::new("cut").await;
    let seen = pair.made().await;
    pair.proxy.cut();
    let change = pair.store.put(KEY, "2".into(), Expected::Version(seen));
    let mend = async { pair.proxy.mend() };
    let (changed, ()) = tokio::join!(change, mend);
    assert!(changed.expect("it is back") > seen);
    assert_eq!(pair.value().await.as_deref(), Some(&b"2"[..]));
}

#[tokio::test]
async fn a_session_that_expires_takes_its_ephemeral_keys_and_the_store_goes_on_with_another() {
    let pair = Pair::new("expired").await;
    let seen = pair.made().await;
    pair.store.create_ephemeral("topics/held", "1".into()).await.expect("absent");
    let client = shared().client().await;
    let path = "/expired/georepl/topics/held";
    let (held, gone) = client.check_and_watch_stat(path).await.expect("ZooKeeper is there");
    assert!(held.is_some());
    pair.proxy.cut();
    assert_eq!(gone.changed().await.event_type, zk::EventType::NodeDeleted);
    let change = pair.store.put(KEY, "2".into(), Expected::Version(seen));
    pair.proxy.mend();
    assert!(change.await.expect("another session") > seen);
    assert_eq!(pair.store.get("topics/held").await, Ok(None));
    pair.store.create_ephemeral("topics/held", "2".into()).await.expect("its holder is gone");
}

#[tokio::test]
async fn without_an_answer_an_operation_ends_in_time_and_says_so() {
    let pair = Pair::new("silent").await;
    pair.proxy.cut();
    let timeout = Duration::from_millis(300);
    let uri =
        by_way_of(pair.proxy.address(), &"zk://x/silent/ledgers".parse().expect("an address"));
    let config = ZooKeeperConfig { operation_timeout: timeout, ..ZooKeeperConfig::new(uri) };
    let refused = ZooKeeperMetadata::connect(config.clone()).await.expect_err("it is cut off");
    assert!(refused.to_string().contains("did not answer within 300ms"), "{refused}");
    pair.proxy.mend();
    let store = ZooKeeperMetadata::connect(config).await.expect("it is back");
    pair.proxy.cut();
    let silent = store.get(KEY).await.expect_err("it is cut off");
    assert!(silent.to_string().contains("did not answer within 300ms"), "{silent}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_goes_on_when_zookeeper_is_paused_beyond_its_session_and_when_it_is_killed() {
    let rig = Rig::up(&["--bookies", "0", "--no-autorecovery"]);
    let config =
        ZooKeeperConfig { operation_timeout: Duration::from_secs(60), ..impatient(rig.uri()) };
    let store = ZooKeeperMetadata::connect(config).await.expect("it is there");
    let mut version = store.put(KEY, "0".into(), Expected::Absent).await.expect("absent");
    let first = store.allocate_ledger_id().await.expect("ZooKeeper is there");
    for (fault, end) in
        [("pause-zookeeper", "resume-zookeeper"), ("kill-zookeeper", "start-zookeeper")]
    {
        rig.run(&[fault]);
        // The client gives its session up after 7/5 of its time.
        let silent = tokio::time::timeout(Duration::from_secs(4), store.get(KEY)).await;
        assert!(silent.is_err(), "{fault}: {silent:?}");
        let change = store.put(KEY, fault.into(), Expected::Version(version));
        let back = async { rig.run(&[end]) };
        let (changed, _) = tokio::join!(change, back);
        let next = changed.expect("ZooKeeper is back");
        assert!(next > version, "{fault}");
        version = next;
        let found = store.get(KEY).await.expect("ZooKeeper is there").expect("a key");
        assert_eq!(found.value, fault);
    }
    assert!(store.allocate_ledger_id().await.expect("ZooKeeper is there") > first);
}
