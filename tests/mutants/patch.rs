//! The patches and their headers.
//!
//! ```text
//! What the fault is, in a sentence or two.
//! caught-by: georepl-storage --lib write::machine_tests::acknowledgements_come_in_order
//! profile: opt-level 2
//!
//! diff --git a/storage/src/write/adds.rs b/storage/src/write/adds.rs
//! ```
//!
//! `caught-by` has the package, the target as cargo selects it, and the full name of the test. `profile` is for tests
//! that take too long as they are built otherwise, and stands only where it is needed.

use std::path::{Path, PathBuf};
use std::{fs, io};

/// A fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mutant {
    /// That of its file.
    pub(crate) name: String,
    /// What the fault is.
    pub(crate) about: String,
    pub(crate) catcher: Catcher,
    pub(crate) opt_level: u8,
    /// The first file that is changed.
    pub(crate) changes: String,
    pub(crate) path: PathBuf,
}

/// The test that must fail.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Catcher {
    pub(crate) package: String,
    /// As `--lib` or `--test NAME`.
    pub(crate) target: Vec<String>,
    pub(crate) test: String,
}

impl Mutant {
    /// What is built for it: equal for mutants that have the most in common.
    pub(crate) fn builds(&self) -> impl Ord + '_ {
        let Catcher { package, target, .. } = &self.catcher;
        (self.opt_level, package, target, &self.changes, &self.name)
    }

    fn parse(path: &Path, text: &str) -> Result<Self, BadHeader> {
        let stem = path.file_stem().expect("a patch has a name");
        let mut about = Vec::new();
        let (mut catcher, mut opt_level, mut changes) = (None, 0, None);
        for line in text.lines() {
            if let Some(test) = line.strip_prefix("caught-by: ") {
                let parsed = Catcher::parse(test).ok_or_else(|| BadHeader::Catcher(test.into()))?;
                if catcher.replace(parsed).is_some() {
                    return Err(BadHeader::TwoCatchers);
                }
            } else if let Some(profile) = line.strip_prefix("profile: ") {
                let level = profile.strip_prefix("opt-level ").and_then(|level| level.parse().ok());
                opt_level = level.ok_or_else(|| BadHeader::Profile(profile.into()))?;
            } else if let Some(file) = line.strip_prefix("diff --git a/") {
                changes = file.split(' ').next().map(str::to_owned);
                break;
            } else if catcher.is_none() {
                about.push(line.trim());
            }
        }
        Ok(Self {
            name: stem.to_string_lossy().into_owned(),
            about: about.join(" "),
            catcher: catcher.ok_or(BadHeader::NoCatcher)?,
            opt_level,
            changes: changes.ok_or(BadHeader::NoChange)?,
            path: path.to_owned(),
        })
    }

    /// Whether it is the mutant of this name, or of one that begins so.
    fn is_called(&self, name: &str) -> bool {
        let rest = self.name.strip_prefix(name);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    }
}

impl Catcher {
    fn parse(text: &str) -> Option<Self> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let [package, target @ .., test] = words.as_slice() else { return None };
        let selects = matches!(target, ["--lib"] | ["--test" | "--bin", _]);
        selects.then(|| Self {
            package: (*package).to_owned(),
            target: target.iter().map(|word| (*word).to_owned()).collect(),
            test: (*test).to_owned(),
        })
    }
}

/// Why a header is none.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadHeader {
    #[error("there is no line `caught-by: PACKAGE TARGET TEST`")]
    NoCatcher,
    #[error("there is more than one line `caught-by: `; name the test that finds it first")]
    TwoCatchers,
    #[error("`{0}` is not `PACKAGE --lib TEST` or `PACKAGE --test NAME TEST`")]
    Catcher(String),
    #[error("`{0}` is not `opt-level NUMBER`")]
    Profile(String),
    #[error("it changes no file: there is no line `diff --git a/FILE b/FILE`")]
    NoChange,
}

/// Why the patches could not be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    #[error("{}: {error}", path.display())]
    Io { path: PathBuf, error: io::Error },
    #[error("{}: {error}", path.display())]
    Header { path: PathBuf, error: BadHeader },
}

/// Reads all of them, by their names.
pub(crate) fn read(folder: &Path) -> Result<Vec<Mutant>, ReadError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        |error| ReadError::Io { path, error }
    };
    let mut mutants = Vec::new();
    for found in fs::read_dir(folder).map_err(failed(folder))? {
        let path = found.map_err(failed(folder))?.path();
        if path.extension().is_some_and(|extension| extension == "patch") {
            let text = fs::read_to_string(&path).map_err(failed(&path))?;
            let mutant = Mutant::parse(&path, &text);
            mutants.push(mutant.map_err(|error| ReadError::Header { path, error })?);
        }
    }
    mutants.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(mutants)
}

/// No mutant is called so.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("no mutant is called {0}; --list names them all")]
pub(crate) struct Unknown(String);

/// Those that are called so; all if no name is given.
pub(crate) fn choose(mut mutants: Vec<Mutant>, names: &[String]) -> Result<Vec<Mutant>, Unknown> {
    for name in names {
        if !mutants.iter().any(|mutant| mutant.is_called(name)) {
            return Err(Unknown(name.clone()));
        }
    }
    let chosen = |mutant: &Mutant| names.iter().any(|name| mutant.is_called(name));
    mutants.retain(|mutant| names.is_empty() || chosen(mutant));
    Ok(mutants)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
The writer forgets.
It is not told.
caught-by: georepl-tests --test ledgers two_recoveries_agree
profile: opt-level 2

diff --git a/storage/src/id.rs b/storage/src/id.rs
caught-by: in the change this is no header
";

    fn parse(text: &str) -> Result<Mutant, BadHeader> {
        Mutant::parse(Path::new("/mutants/C1-it-forgets.patch"), text)
    }

    #[test]
    fn header_says_what_the_fault_is_and_which_test_must_fail() {
        let mutant = parse(TEXT).unwrap();
        assert_eq!(mutant.name, "C1-it-forgets");
        assert_eq!(mutant.about, "The writer forgets. It is not told.");
        let Catcher { package, target, test } = &mutant.catcher;
        assert_eq!((package.as_str(), test.as_str()), ("georepl-tests", "two_recoveries_agree"));
        assert_eq!(target, &["--test", "ledgers"]);
        assert_eq!((mutant.opt_level, mutant.changes.as_str()), (2, "storage/src/id.rs"));
    }

    #[test]
    fn code_is_not_optimised_unless_the_header_says_so() {
        assert_eq!(parse(&TEXT.replace("profile: opt-level 2\n", "")).unwrap().opt_level, 0);
    }

    #[test]
    fn headers_that_lack_something_are_refused_by_what_they_lack() {
        let catcher = "caught-by: georepl-tests --test ledgers two_recoveries_agree";
        let table = [
            (TEXT.replace(&format!("{catcher}\n"), ""), BadHeader::NoCatcher),
            (TEXT.replace(catcher, &format!("{catcher}\n{catcher}")), BadHeader::TwoCatchers),
            (TEXT.replace("--test ledgers ", ""), {
                BadHeader::Catcher("georepl-tests two_recoveries_agree".into())
            }),
            (TEXT.replace("opt-level 2", "fast"), BadHeader::Profile("fast".into())),
            (TEXT.split("diff").next().unwrap().to_owned(), BadHeader::NoChange),
        ];
        for (text, error) in table {
            assert_eq!(parse(&text), Err(error));
        }
    }

    #[test]
    fn names_choose_by_whole_words_and_an_unknown_one_is_refused() {
        let named = |name: &str| Mutant { name: name.into(), ..parse(TEXT).unwrap() };
        let all = ["C1-it-forgets", "C10-it-waits", "case-C1-it-hangs"].map(named).to_vec();
        let chosen = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            let chosen = choose(all.clone(), &names)?;
            Ok(chosen.into_iter().map(|mutant| mutant.name).collect::<Vec<_>>())
        };
        assert_eq!(chosen(&[]).unwrap().len(), 3);
        assert_eq!(chosen(&["C1"]).unwrap(), ["C1-it-forgets"]);
        assert_eq!(chosen(&["case", "C10"]).unwrap(), ["C10-it-waits", "case-C1-it-hangs"]);
        assert_eq!(chosen(&["C1", "C2"]), Err(Unknown("C2".into())));
    }

    #[test]
    fn every_patch_has_a_header() {
        let mutants = read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("mutants")).unwrap();
        assert!(!mutants.is_empty());
        assert!(mutants.iter().all(|mutant| !mutant.about.is_empty()));
    }
}
