//! Two regions in directories, and processes that hold them.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, ChildStderr, Output, Stdio};
use std::time::{Duration, Instant};

use georepl::Region;
use serde_json::Value;
use tempfile::TempDir;

use super::{report, run, run_with_input, spawn, words};

/// Two directories for regions that are not there yet.
pub(crate) struct Site {
    _temporary: TempDir,
    pub(crate) west: String,
    pub(crate) east: String,
}

impl Site {
    pub(crate) fn new() -> Self {
        let temporary = tempfile::tempdir().expect("there is room for a directory");
        let path = |name: &str| temporary.path().join(name).to_str().expect("UTF-8").to_owned();
        Self { west: path("west"), east: path("east"), _temporary: temporary }
    }

    pub(crate) fn publish(&self, lines: &[&str]) {
        let input: String = lines.iter().map(|line| format!("{line}\n")).collect();
        let args = ["publish", "--region", &self.west, "orders"];
        assert_ok(&run_with_input(&args, input.as_bytes()));
    }

    pub(crate) fn consumed(region: &str) -> Vec<String> {
        let output = run(&["consume", "--region", region, "orders"]);
        assert_ok(&output);
        words(&output).0.lines().map(ToOwned::to_owned).collect()
    }

    pub(crate) fn on_west(&self, args: &[&str]) -> Output {
        run(&[args, &["--region", &self.west]].concat())
    }

    pub(crate) fn replicate(&self) -> Value {
        let args = ["replicate", "--from", &self.west, "--to", &self.east, "orders", "--json"];
        let output = run(&args);
        assert_ok(&output);
        report(&output)["topics"][0].clone()
    }

    pub(crate) fn file(&self, name: &str) -> std::path::PathBuf {
        Path::new(&self.west).join(name)
    }
}

#[track_caller]
pub(crate) fn assert_ok(output: &Output) {
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

/// A process that serves a region. Killed with the test.
pub(crate) struct Server {
    pub(crate) child: Child,
    pub(crate) stderr: BufReader<ChildStderr>,
}

impl Server {
    pub(crate) fn start(region: &str) -> Self {
        let mut child = spawn(&["serve", "--region", region], Stdio::null());
        let mut stderr = BufReader::new(child.stderr.take().expect("it was piped"));
        let mut line = String::new();
        stderr.read_line(&mut line).expect("it says that it serves");
        assert!(line.contains("serving") && line.contains(region), "{line}");
        Self { child, stderr }
    }

    pub(crate) fn terminate(mut self) -> (Option<i32>, String) {
        terminate(&self.child);
        let mut said = String::new();
        self.stderr.read_to_string(&mut said).expect("its words are text");
        (self.child.wait().expect("it ends").code(), said)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn terminate(child: &Child) {
    let pid = child.id().to_string();
    let told = std::process::Command::new("kill").args(["-TERM", &pid]).status();
    assert!(told.expect("there is a kill").success());
}

/// Does something to the region of a directory that nobody holds.
pub(crate) fn inside(directory: &str, change: impl AsyncFnOnce(&Region)) {
    let runtime = tokio::runtime::Runtime::new().expect("there are threads");
    runtime.block_on(async {
        let region = Region::open(directory).await.expect("nobody holds it");
        change(&region).await;
        region.close().await.expect("its disk works");
    });
}

/// Copies the files of a region that nobody holds.
pub(crate) fn copy_files(from: &str, to: &str) {
    fs::create_dir_all(to).expect("there is room");
    for file in fs::read_dir(from).expect("it is there") {
        let file = file.expect("it can be listed");
        if file.file_type().expect("it has one").is_file() {
            fs::copy(file.path(), Path::new(to).join(file.file_name())).expect("there is room");
        }
    }
}

/// How often it is looked whether something has arrived. Each look takes a process.
pub(crate) const ATTEMPTS: usize = 500;

/// A process that holds a region for as long as it has lines to publish. Killed with the test.
pub(crate) struct Publisher(pub(crate) Child);

impl Publisher {
    /// Begins to publish, and holds the region when this returns.
    pub(crate) fn hold(region: &str, topic: &str) -> Self {
        let child = spawn(&["publish", "--region", region, topic], Stdio::piped());
        let begun = Instant::now();
        while UnixStream::connect(Path::new(region).join("socket")).is_err() {
            assert!(begun.elapsed() < PATIENCE, "it does not serve");
            std::thread::yield_now();
        }
        Self(child)
    }

    pub(crate) fn write(&mut self, line: &str) {
        let stdin = self.0.stdin.as_mut().expect("it was piped");
        writeln!(stdin, "{line}").expect("it reads");
    }

    /// Has no more lines for it.
    pub(crate) fn end(mut self) -> Output {
        drop(self.0.stdin.take());
        self.outcome()
    }

    pub(crate) fn kill(mut self) -> Output {
        self.0.kill().expect("it runs");
        self.outcome()
    }

    /// What it says in the end.
    pub(crate) fn outcome(&mut self) -> Output {
        let mut output = Output {
            status: self.0.wait().expect("it ends"),
            stdout: Vec::new(),
            stderr: Vec::new(),
        };
        let (stdout, stderr) = (self.0.stdout.take(), self.0.stderr.take());
        stdout.expect("it was piped").read_to_end(&mut output.stdout).expect("it is read");
        stderr.expect("it was piped").read_to_end(&mut output.stderr).expect("it is read");
        output
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Of a process that begins to serve.
const PATIENCE: Duration = Duration::from_secs(60);
