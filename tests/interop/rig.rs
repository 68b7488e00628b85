//! A small cluster of real Apache BookKeeper and ZooKeeper processes on loopback, by `tests/rig/bookkeeper/rig`.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

/// A cluster that ends with the value.
pub(crate) struct Rig {
    dir: tempfile::TempDir,
    /// The ids of the bookies, which are their addresses.
    pub(crate) bookies: Vec<String>,
}

/// A run of the Java tool that goes on.
pub(crate) struct Running {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Rig {
    /// Starts ZooKeeper and so many bookies.
    pub(crate) fn up(bookies: usize) -> Self {
        Self::up_with(bookies, &[])
    }

    /// Starts ZooKeeper and so many bookies with these settings, each `name=value`.
    pub(crate) fn up_with(bookies: usize, settings: &[String]) -> Self {
        for program in ["java", "javac", "mvn"] {
            let found = Command::new(program).arg("-version").output();
            assert!(
                found.is_ok(),
                "interop needs {program}: install a JDK 17 and Maven, on Debian `apt-get install openjdk-17-jdk-headless maven`"
            );
        }
        let dir = tempfile::tempdir().expect("a directory for the cluster");
        let mut rig = Self { dir, bookies: Vec::new() };
        let bookies = bookies.to_string();
        let options = ["up", "--no-autorecovery", "--bookies", &bookies].into_iter();
        rig.run(options.chain(settings.iter().flat_map(|setting| ["--set", setting])));
        let env = rig.run(["env"]);
        let ids = env.lines().find_map(|line| line.strip_prefix("RIG_BOOKIES="));
        let ids = ids.expect("the rig names its bookies").trim_matches('"');
        rig.bookies = ids.split(' ').map(Into::into).collect();
        rig
    }

    /// Kills a bookie; the first one is 1.
    pub(crate) fn kill_bookie(&self, number: usize) {
        self.run(["kill-bookie", &number.to_string()]);
    }

    /// Starts a bookie again that was killed, with all it had stored.
    pub(crate) fn start_bookie(&self, number: usize) {
        self.run(["start-bookie", &number.to_string()]);
    }

    /// Runs the Java tool to its end and returns what it prints.
    pub(crate) fn tool<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> String {
        self.run(["tool"].into_iter().chain(args))
    }

    /// Starts the Java tool and lets it run.
    pub(crate) fn start_tool<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> Running {
        let mut command = self.command(["tool"].into_iter().chain(args));
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the rig starts");
        let lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        Running { child, lines }
    }

    /// A place for files of the test.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn run(&self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> String {
        let mut command = self.command(args);
        let output = command.output().expect("the rig starts");
        let out = String::from_utf8_lossy(&output.stdout).into_owned();
        let err = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command:?} failed:\n{out}\n{err}");
        out
    }

    fn command(&self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
        let rig = Path::new(env!("CARGO_MANIFEST_DIR")).join("rig/bookkeeper/rig");
        let mut command = Command::new(rig);
        command.env("RIG_DIR", self.dir.path().join("cluster")).args(args);
        command
    }
}

impl Running {
    /// The next line it prints.
    pub(crate) fn line(&mut self) -> String {
        self.lines.next().expect("it goes on").expect("it prints text")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        // Not `run`: a test may be failing already.
        let _ = self.command(["down"]).output();
    }
}

/// The value of a number in a line of JSON without nesting.
pub(crate) fn number(json: &str, name: &str) -> i64 {
    let value = field(json, name).trim_end_matches('}');
    value.parse().unwrap_or_else(|_| panic!("{name} is no number in {json}"))
}

/// The value of a text without quotes in a line of JSON.
pub(crate) fn text<'a>(json: &'a str, name: &str) -> &'a str {
    field(json, name).trim_matches('"')
}

fn field<'a>(json: &'a str, name: &str) -> &'a str {
    let key = format!("\"{name}\":");
    let at = json.find(&key).unwrap_or_else(|| panic!("no {name} in {json}")) + key.len();
    let rest = &json[at..];
    rest[..rest.find([',', '}']).unwrap_or(rest.len())].trim()
}
