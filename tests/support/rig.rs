//! A cluster of real servers on free ports of this machine, which ends with whoever started it.

use std::path::PathBuf;
use std::process::Command;

use georepl_storage::MetadataServiceUri;
use serde_json::Value;
use tempfile::TempDir;
use zookeeper_client as zk;

/// A running cluster of Apache BookKeeper and ZooKeeper. It ends when this is dropped, or else with the process.
pub struct Rig {
    dir: TempDir,
    zookeeper: String,
}

impl Rig {
    /// Starts a cluster with these options of `rig up`, which are listed in `tests/rig/bookkeeper/README.md`.
    ///
    /// # Panics
    /// If the servers cannot be started.
    #[must_use]
    pub fn up(options: &[&str]) -> Self {
        for program in ["java", "javac", "mvn"] {
            let found = Command::new(program).arg("-version").output().is_ok();
            assert!(
                found,
                "no {program}: install a JDK 17 and Maven, as in `apt-get install openjdk-17-jdk-headless maven`"
            );
        }
        let dir = tempfile::tempdir().expect("there is room for temporary files");
        let mut rig = Self { dir, zookeeper: String::new() };
        let owner = std::process::id().to_string();
        rig.run(&[&["up", "--owner", &owner], options].concat());
        rig.zookeeper = text(&rig.environment()["zookeeper"]);
        rig
    }

    /// `host:port` of ZooKeeper.
    #[must_use]
    pub fn zookeeper(&self) -> &str {
        &self.zookeeper
    }

    /// The cluster's metadata.
    ///
    /// # Panics
    /// Never.
    #[must_use]
    pub fn uri(&self) -> MetadataServiceUri {
        format!("zk://{}/ledgers", self.zookeeper).parse().expect("an address of a server")
    }

    /// What the rig says of its servers.
    #[must_use]
    pub fn environment(&self) -> Value {
        json(&self.run(&["env", "--json"]))
    }

    /// What a command of the rig prints.
    ///
    /// # Panics
    /// If it fails, or takes longer than any of them does.
    pub fn run(&self, arguments: &[&str]) -> String {
        let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("rig/bookkeeper/rig");
        let output = Command::new("timeout")
            .args([COMMAND_SECONDS_MAX, "bash"])
            .arg(script)
            .arg("--dir")
            .arg(self.dir.path().join("cluster"))
            .args(arguments)
            .output()
            .expect("coreutils and bash are there");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let complained = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "rig {arguments:?}: {}\n{said}{complained}",
            output.status
        );
        said
    }

    /// What the Java client answers; it is told to do something as in `tests/rig/bookkeeper/rig tool help`.
    #[must_use]
    pub fn tool(&self, arguments: &[&str]) -> Value {
        json(&self.run(&[&["tool"], arguments].concat()))
    }

    /// A client of ZooKeeper, to see what is really there.
    ///
    /// # Panics
    /// If it cannot be reached.
    pub async fn client(&self) -> zk::Client {
        zk::Client::connect(&self.zookeeper).await.expect("ZooKeeper is there")
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        // A panic in here would hide the one that a test may be ending with.
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.run(&["down"])));
        if ended.is_err() {
            eprintln!(
                "the rig in {} did not end; it ends with this process",
                self.dir.path().display()
            );
        }
    }
}

/// The text of a JSON string.
///
/// # Panics
/// If it is none.
#[must_use]
pub fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("{value} is no string")).to_owned()
}

/// The last line, which is the answer; what comes before it is talk.
fn json(said: &str) -> Value {
    let line = said.lines().last().unwrap_or_default();
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {said}"))
}

/// The first start on a machine fetches what it needs.
const COMMAND_SECONDS_MAX: &str = "300";
