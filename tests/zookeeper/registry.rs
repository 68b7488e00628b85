//! The list of bookies in ZooKeeper.

use std::sync::Arc;
use std::time::Duration;

use georepl_storage::bookie_rules::Mode;
use georepl_storage::wire::BookieResolver;
use georepl_storage::{
    BookieRegistry, MetadataStore, RegisteredBookie, ZooKeeperConfig, ZooKeeperMetadata,
    ZooKeeperRegistry,
};
use georepl_tests::proxy::Proxy;
use georepl_tests::rig::{Rig, text};
use tokio::sync::watch;
use zookeeper_client as zk;

use crate::roots::{by_way_of, connected, impatient, root, shared};

type List = watch::Receiver<Arc<[RegisteredBookie]>>;

/// The ids in the list and whether they take entries, when it is this.
async fn comes_to(list: &mut List, wanted: &[(&str, Mode)]) {
    let is_wanted = |list: &Arc<[RegisteredBookie]>| {
        list.iter().map(|bookie| (bookie.id.as_str(), bookie.mode)).eq(wanted.iter().copied())
    };
    let came = tokio::time::timeout(Duration::from_secs(60), list.wait_for(is_wanted)).await;
    let came = came.map(|came| came.map(|list| list.len()));
    assert!(matches!(came, Ok(Ok(_))), "{:?} does not come to {wanted:?}", list.borrow());
}

#[tokio::test(flavor = "multi_thread")]
async fn real_bookies_are_listed_in_their_lives_and_found_by_ids_that_are_no_addresses() {
    let rig = Rig::up(&["--bookies", "2", "--no-autorecovery", "--ids", "bk"]);
    let metadata = ZooKeeperMetadata::connect(ZooKeeperConfig::new(rig.uri())).await;
    let metadata = metadata.expect("it is there");
    let registry = ZooKeeperRegistry::follow(&metadata).await;
    let mut list = registry.bookies();
    let (writable, read_only) = (Mode::Writable, Mode::ReadOnly);
    assert_eq!(list.borrow().len(), 2, "the first list is there at once");
    comes_to(&mut list, &[("bk1", writable), ("bk2", writable)]).await;
    let first = list.borrow().clone();
    let client = rig.client().await;
    for (bookie, told) in first.iter().zip(0..) {
        let cookie = client.check_stat(&format!("/ledgers/cookies/{}", bookie.id)).await;
        let cookie = cookie.expect("ZooKeeper is there").expect("a cookie");
        assert_eq!(bookie.instance.0, cookie.czxid.unsigned_abs());
        let address = registry.resolve(&bookie.id).expect("it says where it is");
        assert_eq!(*address.host_port, text(&rig.environment()["bookies"][told]["address"]));
        assert_eq!(address.instance, Some(bookie.instance));
    }
    assert_eq!(registry.resolve(&"bk9".into()), None);
    let unregistered = registry.resolve(&"10.0.0.1:3181".into()).expect("an address");
    assert_eq!((&*unregistered.host_port, unregistered.instance), ("10.0.0.1:3181", None));

    rig.run(&["stop-bookie", "2"]);
    comes_to(&mut list, &[("bk1", writable)]).await;
    assert!(registry.resolve(&"bk2".into()).is_some(), "where it was, it may be again");
    rig.run(&["start-bookie", "2", "--readOnly"]);
    comes_to(&mut list, &[("bk1", writable), ("bk2", read_only)]).await;
    assert_eq!(list.borrow()[1].instance, first[1].instance, "a restart begins no other life");
    rig.run(&["add-bookie"]);
    comes_to(&mut list, &[("bk1", writable), ("bk2", read_only), ("bk3", writable)]).await;
}

/// Registers a bookie without a bookie, as releases before 4.11 do: with no word on where it is.
async fn register(client: &zk::Client, path: &str) {
    let ephemeral = zk::CreateMode::Ephemeral.with_acls(zk::Acls::anyone_all());
    client.create(path, &[], &ephemeral).await.expect("it is not registered yet");
}

#[tokio::test]
async fn what_changes_while_the_connection_is_cut_or_the_session_expires_is_learnt_after_it() {
    let uri = root(shared(), "followed", "Hierarchical").await;
    let available = format!("{}/available", uri.root());
    let client = shared().client().await;
    let open = zk::CreateMode::Persistent.with_acls(zk::Acls::anyone_all());
    client.mkdir(&available, &open).await.expect("ZooKeeper is there");
    let proxy = Proxy::to(shared().zookeeper()).await;
    let near = impatient(by_way_of(proxy.address(), &uri));
    let metadata = ZooKeeperMetadata::connect(near).await.expect("it is there");
    let registry = ZooKeeperRegistry::follow(&metadata).await;
    let mut list = registry.bookies();
    assert!(list.borrow().is_empty());

    register(&client, &format!("{available}/a:1")).await;
    comes_to(&mut list, &[("a:1", Mode::Writable)]).await;
    assert_eq!(list.borrow()[0].instance.0, 0, "there is no cookie");
    assert_eq!(&*registry.resolve(&"a:1".into()).expect("an address").host_port, "a:1");

    proxy.cut();
    register(&client, &format!("{available}/b:1")).await;
    proxy.mend();
    comes_to(&mut list, &[("a:1", Mode::Writable), ("b:1", Mode::Writable)]).await;

    // The folder of the others is made when there is the first of them.
    client.mkdir(&format!("{available}/readonly"), &open).await.expect("ZooKeeper is there");
    register(&client, &format!("{available}/readonly/b:1")).await;
    comes_to(&mut list, &[("a:1", Mode::Writable), ("b:1", Mode::ReadOnly)]).await;

    // The session expires, which its ephemeral key shows; the list stays as it was until it can be read again.
    metadata.create_ephemeral("held", "1".into()).await.expect("absent");
    let (_, gone) =
        client.check_and_watch_stat("/followed/georepl/held").await.expect("it is there");
    proxy.cut();
    gone.changed().await;
    client.delete(&format!("{available}/a:1"), None).await.expect("it is registered");
    assert_eq!(list.borrow().len(), 2);
    proxy.mend();
    comes_to(&mut list, &[("b:1", Mode::ReadOnly)]).await;
    drop(registry);
    assert!(list.changed().await.is_err(), "nobody follows it any more");
}

#[tokio::test]
async fn a_list_that_cannot_be_read_is_empty_until_it_can() {
    let uri = root(shared(), "no-bookies", "Hierarchical").await;
    let metadata = ZooKeeperMetadata::connect(ZooKeeperConfig {
        operation_timeout: Duration::from_millis(500),
        ..ZooKeeperConfig::new(uri.clone())
    });
    let metadata = metadata.await.expect("it is there");
    let registry = ZooKeeperRegistry::follow(&metadata).await;
    let mut list = registry.bookies();
    assert!(list.borrow().is_empty());
    let client = shared().client().await;
    let open = zk::CreateMode::Persistent.with_acls(zk::Acls::anyone_all());
    let available = format!("{}/available", uri.root());
    client.mkdir(&available, &open).await.expect("ZooKeeper is there");
    register(&client, &format!("{available}/a:1")).await;
    comes_to(&mut list, &[("a:1", Mode::Writable)]).await;
    // The store is as good as before for whoever has it.
    assert_eq!(connected(&uri).await.layout(), metadata.layout());
}
