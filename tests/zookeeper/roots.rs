//! One ZooKeeper for the tests that leave it alone, and in it a root of ledgers for each of them.

use std::sync::OnceLock;
use std::time::Duration;

use georepl_storage::{MetadataServiceUri, ZooKeeperConfig, ZooKeeperMetadata};
use georepl_tests::rig::Rig;
use zookeeper_client as zk;

/// A cluster with one bookie that no test stops. It ends with the process.
pub(crate) fn shared() -> &'static Rig {
    static RIG: OnceLock<Rig> = OnceLock::new();
    RIG.get_or_init(|| Rig::up(&["--bookies", "1", "--no-autorecovery"]))
}

/// Makes `/name/ledgers` for a cluster of its own, laid out as BookKeeper's class of this name does, and says where it is.
pub(crate) async fn root(rig: &Rig, name: &str, class: &str) -> MetadataServiceUri {
    let client = rig.client().await;
    let open = zk::CreateMode::Persistent.with_acls(zk::Acls::anyone_all());
    let root = format!("/{name}/ledgers");
    client.mkdir(&root, &open).await.expect("ZooKeeper is there");
    let layout = format!("2\norg.apache.bookkeeper.meta.{class}LedgerManagerFactory:1");
    let made = client.create(&format!("{root}/LAYOUT"), layout.as_bytes(), &open).await;
    made.expect("each test has a name of its own");
    format!("zk://{}{root}", rig.zookeeper()).parse().expect("an address of a server")
}

/// The same metadata by way of another server.
pub(crate) fn by_way_of(address: &str, uri: &MetadataServiceUri) -> MetadataServiceUri {
    format!("zk://{address}{}", uri.root()).parse().expect("an address of a server")
}

/// Settings for tests that wait for sessions to expire: the shortest session that the rig's ZooKeeper grants.
pub(crate) fn impatient(uri: MetadataServiceUri) -> ZooKeeperConfig {
    ZooKeeperConfig {
        session_timeout: Duration::from_secs(2),
        operation_timeout: Duration::from_secs(20),
        ..ZooKeeperConfig::new(uri)
    }
}

pub(crate) async fn connected(uri: &MetadataServiceUri) -> ZooKeeperMetadata {
    ZooKeeperMetadata::connect(ZooKeeperConfig::new(uri.clone())).await.expect("it is there")
}
