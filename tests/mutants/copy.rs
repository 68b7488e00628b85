//! A copy of what is committed, in which a mutant is built and tried.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use std::{io, thread};

use serde_json::Value;

use crate::patch::{Catcher, Mutant};
use crate::report::{Outcome, Row, Trace};

/// How long a test may run. None that catches a mutant takes nearly so long; one that hangs has
/// caught nothing, unless it has a bound of its own and fails by it.
const TEST_TIME_MAX: Duration = Duration::from_secs(300);

/// How often a test that runs is looked at.
const PAUSE: Duration = Duration::from_millis(20);

/// What is built anew with a mutant, and quickly, because a fault is few steps away. What these depend on is built as it
/// is for all tests, and not again where those were run.
const PACKAGES: [&str; 5] =
    ["georepl-storage", "georepl-cursor", "georepl-replicator", "georepl", "georepl-tests"];

/// The copy: always the same one, so that what does not change is built once.
pub(crate) struct Copy {
    folder: PathBuf,
    target_dir: PathBuf,
}

/// Why there is no copy, or nothing can be run in it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("{what}: {error}")]
    Io { what: String, error: io::Error },
    #[error("{command} failed:\n{output}")]
    Command { command: String, output: String },
}

impl Error {
    fn io(what: impl ToString) -> impl FnOnce(io::Error) -> Self {
        let what = what.to_string();
        |error| Self::Io { what, error }
    }
}

/// The work tree around the current folder. Not where this was built: a copy builds it too, and puts it in the place of
/// what it was copied from.
pub(crate) fn root() -> Result<PathBuf, Error> {
    let root = succeed(Command::new("git").args(["rev-parse", "--show-toplevel"]))?;
    Ok(root.trim_end().into())
}

impl Copy {
    /// Copies what is committed.
    pub(crate) fn make(root: &Path, target_dir: &Path) -> Result<Self, Error> {
        let target_dir =
            std::path::absolute(target_dir).map_err(Error::io(target_dir.display()))?;
        let folder = target_dir.join("mutants");
        let copy = Self { folder: folder.join("copy"), target_dir };
        fs::create_dir_all(&folder).map_err(Error::io(folder.display()))?;
        if !copy.folder.exists() {
            let clone = ["clone", "--quiet", "--no-checkout"];
            succeed(Command::new("git").args(clone).arg(root).arg(&copy.folder))?;
        }
        succeed(copy.git(&["fetch", "--quiet"]).arg(root).arg("HEAD"))?;
        succeed(&mut copy.git(&["checkout", "--quiet", "--force", "FETCH_HEAD"]))?;
        Ok(copy)
    }

    /// Makes the change, builds the test, runs it, and takes the change back.
    pub(crate) fn try_out(&self, mutant: Mutant) -> Result<Row, Error> {
        let begun = Instant::now();
        let outcome = self.outcome(&mutant)?;
        succeed(&mut self.git(&["checkout", "--quiet", "."]))?;
        Ok(Row { mutant, outcome, seconds: begun.elapsed().as_secs_f64() })
    }

    fn outcome(&self, mutant: &Mutant) -> Result<Outcome, Error> {
        match succeed(self.git(&["apply"]).arg(&mutant.path)) {
            Ok(_) => {}
            Err(Error::Command { output, .. }) => return Ok(Outcome::DoesNotFit(output)),
            Err(error) => return Err(error),
        }
        // Apart from running it, so that a mutant that does not compile is not taken for one that was caught.
        let built = match succeed(&mut self.build(mutant)) {
            Ok(messages) => messages,
            Err(Error::Command { output, .. }) => return Ok(Outcome::DoesNotBuild(output)),
            Err(error) => return Err(error),
        };
        match executable(&built) {
            Some(built) => self.run(&built, &mutant.catcher),
            None => Ok(Outcome::DoesNotRun("cargo names no executable of the test".into())),
        }
    }

    fn build(&self, mutant: &Mutant) -> Command {
        let Catcher { package, target, .. } = &mutant.catcher;
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo
            .args(["test", "--quiet", "--no-run", "--message-format", "json-render-diagnostics"])
            .args(["-p", package])
            .args(target)
            .current_dir(&self.folder)
            .env("CARGO_TARGET_DIR", &self.target_dir);
        for package in PACKAGES {
            let profile = format!("profile.test.package.{package}");
            cargo.arg("--config").arg(format!("{profile}.opt-level={}", mutant.opt_level));
            // Cargo tells packages in one place of their workspaces apart by their profiles alone: with one of the
            // workspace's own, a mutant would be taken there for what it was made from.
            cargo.arg("--config").arg(format!("{profile}.debug=\"none\""));
        }
        cargo
    }

    fn run(&self, test: &Executable, catcher: &Catcher) -> Result<Outcome, Error> {
        let log = self.target_dir.join("mutants/test.log");
        let file = File::create(&log).map_err(Error::io(log.display()))?;
        let other = file.try_clone().map_err(Error::io(log.display()))?;
        let mut child = Command::new(&test.path)
            .args(["--exact", "--include-ignored", &catcher.test])
            .current_dir(&test.package)
            .env("CARGO_MANIFEST_DIR", &test.package)
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(other)
            .spawn()
            .map_err(Error::io(test.path.display()))?;
        let Some(status) = wait(&mut child).map_err(Error::io(test.path.display()))? else {
            return Ok(Outcome::Hangs);
        };
        let output = fs::read(&log).map_err(Error::io(log.display()))?;
        Ok(judge(status, &String::from_utf8_lossy(&output)))
    }

    fn git(&self, args: &[&str]) -> Command {
        let mut git = Command::new("git");
        git.arg("-C").arg(&self.folder).args(args);
        git
    }
}

/// How it ended, unless it took too long.
fn wait(child: &mut Child) -> io::Result<Option<ExitStatus>> {
    let begun = Instant::now();
    while begun.elapsed() < TEST_TIME_MAX {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        thread::sleep(PAUSE);
    }
    child.kill()?;
    child.wait()?;
    Ok(None)
}

/// What the test's end says of the mutant.
fn judge(status: ExitStatus, output: &str) -> Outcome {
    let ended = |how: &str| output.lines().any(|line| line.starts_with(how));
    if ended("test result: FAILED. 0 passed; 1 failed") && !status.success() {
        Outcome::Caught(Trace::find(output))
    } else if ended("test result: ok. 1 passed") && status.success() {
        Outcome::Survives
    } else {
        Outcome::DoesNotRun(format!("{status}\n{output}"))
    }
}

/// The test that cargo has built.
struct Executable {
    path: PathBuf,
    /// The folder of its package, in which cargo runs it.
    package: PathBuf,
}

/// The last executable of a test: what it depends on comes before it.
fn executable(messages: &str) -> Option<Executable> {
    messages.lines().rev().find_map(|line| {
        let message: Value = serde_json::from_str(line).ok()?;
        let is_test = message["profile"]["test"].as_bool()?;
        let path = message["executable"].as_str()?.into();
        let manifest = Path::new(message["manifest_path"].as_str()?);
        is_test.then(|| Executable { path, package: manifest.with_file_name("") })
    })
}

/// Runs it to its end. Returns what it wrote to its standard output.
fn succeed(command: &mut Command) -> Result<String, Error> {
    let name = || format!("{command:?}");
    let name = name();
    let output = command.stdin(Stdio::null()).output().map_err(Error::io(&name))?;
    if !output.status.success() {
        let output = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(Error::Command { command: name, output });
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    #[test]
    fn only_the_failure_of_exactly_this_test_has_caught_a_mutant() {
        let (passed, failed) = (ExitStatus::from_raw(0), ExitStatus::from_raw(101 << 8));
        let aborted = ExitStatus::from_raw(6);
        let failure = "test x ... FAILED\n\ntest result: FAILED. 0 passed; 1 failed; 0 ignored\n";
        assert_eq!(judge(failed, failure), Outcome::Caught(None));
        let success = "test x ... ok\n\ntest result: ok. 1 passed; 0 failed; 0 ignored\n";
        assert_eq!(judge(passed, success), Outcome::Survives);
        let nothing = "test result: ok. 0 passed; 0 failed; 0 ignored; 9 filtered out\n";
        for (status, output) in [(passed, nothing), (aborted, "memory"), (failed, success)] {
            assert!(matches!(judge(status, output), Outcome::DoesNotRun(_)), "{output}");
        }
    }

    #[test]
    fn executable_of_the_test_is_found_among_the_messages_of_cargo() {
        let message = |test: bool, path: &str| {
            format!(
                r#"{{"manifest_path":"/copy/tests/Cargo.toml","profile":{{"test":{test}}},"executable":{path}}}"#
            )
        };
        let messages = [
            message(false, "null"),
            message(true, r#""/target/ledgers-1""#),
            message(false, r#""/target/mutants""#),
            r#"{"reason":"build-finished","success":true}"#.into(),
        ];
        let found = executable(&messages.join("\n")).expect("there is one");
        assert_eq!(found.path, Path::new("/target/ledgers-1"));
        assert_eq!(found.package, Path::new("/copy/tests/"));
    }
}
