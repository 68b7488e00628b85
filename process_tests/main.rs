//! Regions in the hands of the system: processes that are killed, disks that are full or forbidden, files that are
//! damaged, directories that are put back from copies.

mod bad_days;
mod damage;
mod kills;
mod restored;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

/// Two directories for regions that are not there yet.
struct Site {
    temporary: TempDir,
    west: String,
    east: String,
}

impl Site {
    fn new() -> Self {
        let temporary = tempfile::tempdir().expect("there is room for a directory");
        let path = |name: &str| temporary.path().join(name).to_str().expect("UTF-8").to_owned();
        Self { west: path("west"), east: path("east"), temporary }
    }

    /// A place beside the regions.
    fn beside(&self, name: &str) -> PathBuf {
        self.temporary.path().join(name)
    }

    fn on_west(&self, args: &[&str]) -> Output {
        on(&self.west, args)
    }

    /// Replicates until everything is there.
    fn replicate(&self) -> Output {
        let args = ["replicate", "--from", &self.west, "--to", &self.east, "orders", "--json"];
        run(&args)
    }
}

fn georepl(args: &[&str]) -> Command {
    let mut command = Command::new(BINARY);
    command.args(args).env_remove("RUST_LOG").stdin(Stdio::null());
    command
}

const BINARY: &str = env!("CARGO_BIN_EXE_georepl");

fn run(args: &[&str]) -> Output {
    georepl(args).output().expect("the binary runs")
}

fn on(region: &str, args: &[&str]) -> Output {
    run(&[args, &["--region", region]].concat())
}

/// Runs a command to its end with lines as its input.
fn fed(mut command: Command, lines: &[String]) -> Output {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the binary runs");
    let mut stdin = child.stdin.take().expect("it was piped");
    // Whoever is refused reads nothing.
    let _ = stdin.write_all(text(lines).as_bytes());
    drop(stdin);
    child.wait_with_output().expect("it ends")
}

fn text(lines: &[String]) -> String {
    lines.iter().flat_map(|line| [line, "\n"]).collect()
}

fn publish(region: &str, lines: &[String]) -> Output {
    fed(georepl(&["publish", "--region", region, "orders"]), lines)
}

fn lines(of: std::ops::Range<usize>) -> Vec<String> {
    of.map(|n| format!("line {n:05}")).collect()
}

/// What a region holds of a topic, or why it does not say.
fn consumed(region: &str) -> Result<Vec<String>, String> {
    let output = on(region, &["consume", "orders"]);
    match output.status.code() {
        Some(0) => Ok(stdout(&output).lines().map(ToOwned::to_owned).collect()),
        _ => Err(refusal(&output, 1)),
    }
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("its words are text")
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("its words are text")
}

fn report(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"))
}

#[track_caller]
fn assert_ok(output: &Output) {
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

/// The line in which a command that ended with this status says why. It did not panic.
#[track_caller]
fn refusal(output: &Output, status: i32) -> String {
    assert_eq!(output.status.code(), Some(status), "{output:?}");
    let said = stderr(output);
    assert!(!said.contains("panicked"), "{said}");
    let last = said.lines().last().unwrap_or_default();
    last.strip_prefix("georepl: ").unwrap_or_else(|| panic!("{output:?}")).to_owned()
}

/// Copies the files of a region; what is no file of it, as a socket, stays behind.
fn copy(from: &Path, to: &Path) {
    let _ = fs::remove_dir_all(to);
    fs::create_dir_all(to).expect("the place is writable");
    for file in fs::read_dir(from).expect("it is there") {
        let file = file.expect("it is readable");
        if file.file_type().expect("it is readable").is_file() {
            fs::copy(file.path(), to.join(file.file_name())).expect("there is room");
        }
    }
}
