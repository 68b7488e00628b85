//! Files that are gone, cut short or overwritten: what was published is served from elsewhere, or the file is named,
//! and with the file put back everything is as before.

use std::fs;
use std::ops::Range;
use std::path::Path;

use fastrand::Rng;

use super::{
    Site, assert_ok, consumed, copy, fed, georepl, lines, publish, refusal, report, stderr,
};

/// Lines of the region that is damaged.
const LINES: usize = 300;

/// Pages of each file that are overwritten. `GEOREPL_PAGES` sets another number, `all` means all.
const PAGES: usize = 12;

const PAGE_BYTES: usize = 4096;

/// What happens to a file.
#[derive(Clone, Copy, Debug)]
enum Damage {
    Gone,
    Empty,
    Half,
    AllZeros,
    /// The file of the next bookie lies there instead.
    Another,
    /// A page, with zeros.
    Zeros(usize),
    /// A page, with anything.
    Noise(usize),
    /// One bit, by its value, of the byte at this place.
    Bit(usize, u8),
}

impl Damage {
    fn apply(self, file: &Path, other: &Path, rng: &mut Rng) {
        if matches!(self, Self::Gone) {
            return fs::remove_file(file).expect("it is there");
        }
        let mut bytes = fs::read(file).expect("it is readable");
        let page =
            |page: usize, bytes: &[u8]| page * PAGE_BYTES..bytes.len().min((page + 1) * PAGE_BYTES);
        match self {
            Self::Gone | Self::Empty => bytes.clear(),
            Self::Half => bytes.truncate(bytes.len() / 2),
            Self::AllZeros => bytes.fill(0),
            Self::Another => bytes = fs::read(other).expect("it is readable"),
            Self::Zeros(at) => {
                let page = page(at, &bytes);
                bytes[page].fill(0);
            }
            Self::Noise(at) => {
                let page = page(at, &bytes);
                bytes[page].fill_with(|| rng.u8(..));
            }
            Self::Bit(at, bit) => bytes[at] ^= bit,
        }
        fs::write(file, bytes).expect("it is writable");
    }

    /// The bytes of the file that it changes.
    fn extent(self, length: usize) -> Range<usize> {
        match self {
            Self::Gone | Self::Empty | Self::Half | Self::AllZeros | Self::Another => 0..length,
            Self::Zeros(page) | Self::Noise(page) => {
                page * PAGE_BYTES..length.min((page + 1) * PAGE_BYTES)
            }
            // With its neighbours, by which it is found where the database has copied it to.
            Self::Bit(at, _) => at - 8..length.min(at + 9),
        }
    }
}

/// Whether a bookie is given entries.
fn has_entries(site: &Site, bookie: &str) -> bool {
    let listed = site.on_west(&["ledger", "list", "--json"]);
    assert_ok(&listed);
    report(&listed).as_array().expect("a list").iter().any(|ledger| {
        let id = ledger["ledger"].to_string();
        let shown = site.on_west(&["ledger", "show", &id, "--json"]);
        assert_ok(&shown);
        let shown = report(&shown);
        shown["entries"] != 0 && shown["ensembles"].to_string().contains(bookie)
    })
}

/// A region of which nothing is to be lost, and a copy of it that stays as it is.
struct Patient {
    site: Site,
    lines: Vec<String>,
}

impl Patient {
    fn new() -> Self {
        let site = Site::new();
        let mut lines = lines(0..LINES);
        // In several ledgers, so that there is something everywhere.
        for part in lines.chunks(LINES / 3) {
            assert_ok(&publish(&site.west, part));
        }
        // Ledgers are placed by chance.
        while !has_entries(&site, "west-bookie-2") {
            let next = super::lines(lines.len()..lines.len() + 1);
            assert_ok(&publish(&site.west, &next));
            lines.extend(next);
        }
        copy(Path::new(&site.west), &site.beside("whole"));
        Self { site, lines }
    }

    fn heal(&self) {
        copy(&self.site.beside("whole"), Path::new(&self.site.west));
    }

    fn file(&self, name: &str) -> std::path::PathBuf {
        Path::new(&self.site.west).join(name)
    }

    fn damage(&self, name: &str, damage: Damage, rng: &mut Rng) {
        let other = if name == BOOKIE { METADATA } else { BOOKIE };
        damage.apply(&self.file(name), &self.site.beside("whole").join(other), rng);
    }

    /// Puts back one file alone.
    fn put_back(&self, name: &str) {
        let whole = self.site.beside("whole").join(name);
        fs::copy(whole, self.file(name)).expect("there is room");
    }

    /// Undoes a damage. What was damaged in the metadata is as it was, wherever the database has copied it to since; a
    /// bookie's file is taken away, for others have what it had.
    fn repair(&self, name: &str, damage: Damage) {
        if name == BOOKIE {
            return fs::remove_file(self.file(name)).expect("it is there");
        }
        let whole = fs::read(self.site.beside("whole").join(name)).expect("it is there");
        let mut bytes = fs::read(self.file(name)).expect("it is there");
        let extent = damage.extent(whole.len());
        let whole = &whole[extent.clone()];
        match damage {
            Damage::Bit(_, bit) => {
                let mut damaged = whole.to_vec();
                damaged[8] ^= bit;
                for at in 0..=bytes.len() - damaged.len() {
                    if bytes[at..].starts_with(&damaged) {
                        bytes[at..][..damaged.len()].copy_from_slice(whole);
                    }
                }
            }
            _ => bytes[extent].copy_from_slice(whole),
        }
        fs::write(self.file(name), bytes).expect("it is writable");
    }

    fn pages(&self, name: &str, rng: &mut Rng) -> Vec<usize> {
        let whole = fs::metadata(self.site.beside("whole").join(name)).expect("it is there");
        let pages = (whole.len() as usize).div_ceil(PAGE_BYTES);
        let wanted = match std::env::var("GEOREPL_PAGES").as_deref() {
            Err(_) => PAGES,
            Ok("all") => return (0..pages).collect(),
            Ok(wanted) => wanted.parse().expect("a number or `all`"),
        };
        // The first ones are in every file of importance.
        let mut chosen: Vec<_> = (0..pages.min(wanted / 3)).collect();
        chosen.extend((chosen.len()..wanted).map(|_| rng.usize(0..pages)));
        chosen
    }
}

const MANIFEST: &str = "region.json";
const METADATA: &str = "metadata.redb";
const BOOKIE: &str = "bookie-west-bookie-2.redb";

fn seeded() -> Rng {
    let seed = std::env::var("GEOREPL_SEED").ok().map(|seed| seed.parse().expect("a number"));
    let seed = seed.unwrap_or_else(|| fastrand::u64(..));
    eprintln!("play it again: GEOREPL_SEED={seed}");
    Rng::with_seed(seed)
}

#[test]
fn file_that_is_cut_or_replaced_is_named_and_works_again_when_it_is_put_back() {
    let (patient, mut rng) = (Patient::new(), seeded());
    for (name, named) in [(MANIFEST, MANIFEST), (METADATA, "metadata")] {
        let damages =
            [Damage::Gone, Damage::Empty, Damage::Half, Damage::AllZeros, Damage::Another];
        for damage in damages {
            patient.damage(name, damage, &mut rng);
            for command in [&["status"][..], &["consume", "orders"], &["why"]] {
                let said = refusal(&patient.site.on_west(command), 1);
                assert!(said.contains(named), "{name} {damage:?}: {said}");
            }
            let said = refusal(&publish(&patient.site.west, &lines(0..1)), 1);
            assert!(said.contains(named), "{name} {damage:?}: {said}");
            let is_there = patient.file(name).exists();
            assert_eq!(is_there, !matches!(damage, Damage::Gone), "{name}: nothing is made");
            patient.put_back(name);
            assert_eq!(consumed(&patient.site.west).as_ref(), Ok(&patient.lines), "{damage:?}");
            patient.heal();
        }
    }
}

#[test]
fn bookie_whose_file_is_cut_or_replaced_is_named_and_done_without() {
    let (patient, mut rng) = (Patient::new(), seeded());
    for damage in [Damage::Half, Damage::Another] {
        patient.damage(BOOKIE, damage, &mut rng);
        let status = patient.site.on_west(&["status", "--json"]);
        let said = refusal_or_report(&status);
        assert!(said.contains(BOOKIE), "{damage:?}: {said}");
        assert_eq!(consumed(&patient.site.west).as_ref(), Ok(&patient.lines), "{damage:?}");
        patient.put_back(BOOKIE);
        assert_ok(&patient.site.on_west(&["status"]));
        assert_ok(&patient.site.on_west(&["ledger", "check"]));
        assert_eq!(consumed(&patient.site.west).as_ref(), Ok(&patient.lines), "{damage:?}");
        patient.heal();
    }
}

/// What a command says that ends with 1.
fn refusal_or_report(output: &std::process::Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = stderr(output);
    assert!(!said.contains("panicked"), "{said}");
    said + &super::stdout(output)
}

#[test]
fn bookie_whose_file_is_lost_begins_again_when_it_is_renewed_and_not_before() {
    let (patient, mut rng) = (Patient::new(), seeded());
    for damage in [Damage::Gone, Damage::Empty, Damage::AllZeros] {
        patient.damage(BOOKIE, damage, &mut rng);
        for _ in 0..2 {
            let said = refusal_or_report(&patient.site.on_west(&["status"]));
            assert!(said.contains(BOOKIE) && said.contains("bookie renew"), "{damage:?}: {said}");
            assert_eq!(consumed(&patient.site.west).as_ref(), Ok(&patient.lines), "{damage:?}");
        }
        patient.put_back(BOOKIE);
        assert_ok(&patient.site.on_west(&["ledger", "check"]));
        // Now it is lost for good.
        patient.damage(BOOKIE, Damage::Gone, &mut rng);
        let renew = ["bookie", "renew", "west-bookie-2", "--yes"];
        assert_ok(&patient.site.on_west(&renew));
        assert_eq!(consumed(&patient.site.west).as_ref(), Ok(&patient.lines), "{damage:?}");
        let check = patient.site.on_west(&["ledger", "check", "--json"]);
        assert_eq!(check.status.code(), Some(1), "{check:?}");
        let report = report(&check);
        let lacking = report.as_array().expect("a list").iter();
        let lacking: u64 = lacking.filter_map(|check| check["under_replicated"].as_u64()).sum();
        assert!(lacking > 0, "{damage:?}: {report}");
        assert!(report.to_string().contains("west-bookie-2"), "{damage:?}: {report}");
        // Its old life is over: who would put the old file back is told so.
        patient.put_back(BOOKIE);
        let said = refusal_or_report(&patient.site.on_west(&["status"]));
        assert!(said.contains("west-bookie-2") && said.contains("life"), "{damage:?}: {said}");
        assert_eq!(consumed(&patient.site.west).as_ref(), Ok(&patient.lines), "{damage:?}");
        patient.heal();
    }
}

#[test]
fn files_of_all_bookies_that_were_away_for_a_command_are_as_before() {
    let patient = Patient::new();
    let names: Vec<_> = (1..=4).map(|n| format!("bookie-west-bookie-{n}.redb")).collect();
    let away = patient.site.beside("away");
    fs::create_dir(&away).expect("there is room");
    let moved = |from: &dyn Fn(&str) -> std::path::PathBuf,
                 to: &dyn Fn(&str) -> std::path::PathBuf| {
        for name in &names {
            fs::rename(from(name), to(name)).expect("they are on one disk");
        }
    };
    let (here, there) = (|name: &str| patient.file(name), |name: &str| away.join(name));
    moved(&here, &there);
    let said = refusal(&patient.site.on_west(&["status"]), 1);
    assert!(names.iter().all(|name| said.contains(name)), "{said}");
    assert!(publish(&patient.site.west, &lines(0..1)).status.code() == Some(1));
    assert!(names.iter().all(|name| !here(name).exists()), "none is made");
    moved(&there, &here);
    assert_ok(&patient.site.on_west(&["status"]));
    assert_eq!(consumed(&patient.site.west).as_ref(), Ok(&patient.lines));
}

#[test]
fn page_that_is_overwritten_costs_nothing_or_is_named() {
    let (patient, mut rng) = (Patient::new(), seeded());
    for name in [METADATA, BOOKIE] {
        let pages = patient.pages(name, &mut rng).into_iter();
        let damages = pages.flat_map(|page| [Damage::Zeros(page), Damage::Noise(page)]);
        assert_costs_nothing_or_is_named(&patient, name, damages.collect(), &mut rng);
    }
}

/// In and around the keys of the records, where a bit makes another record or none.
#[test]
fn bit_that_flips_in_the_metadata_costs_nothing_or_is_named() {
    let (patient, mut rng) = (Patient::new(), seeded());
    let whole = fs::read(patient.site.beside("whole").join(METADATA)).expect("it is there");
    let folders = ["ledgers/L", "managed-ledgers/", "cookies/"];
    let keys = folders.iter().flat_map(|folder| {
        let found = whole.windows(folder.len()).enumerate();
        found.filter(|(_, bytes)| *bytes == folder.as_bytes()).map(|(at, _)| at)
    });
    let keys: Vec<_> = keys.collect();
    let damages = (0..2 * PAGES).map(|_| {
        let at = keys[rng.usize(0..keys.len())] + rng.usize(0..100);
        Damage::Bit(at.min(whole.len() - 9), 1 << rng.u8(..8))
    });
    let damages = damages.collect();
    assert_costs_nothing_or_is_named(&patient, METADATA, damages, &mut rng);
}

fn assert_costs_nothing_or_is_named(
    patient: &Patient,
    name: &str,
    damages: Vec<Damage>,
    rng: &mut Rng,
) {
    let more = lines(LINES..LINES + 5);
    let (mut served, mut refused, mut moved) = (0, 0, 0);
    for damage in damages {
        patient.damage(name, damage, rng);
        match consumed(&patient.site.west) {
            Ok(lines) => {
                assert_eq!(lines, patient.lines, "{name} {damage:?}");
                assert_goes_on(patient, &more, (name, damage));
                served += 1;
            }
            Err(said) => {
                assert!(said.contains(name), "{name} {damage:?}: {said}");
                patient.repair(name, damage);
                match consumed(&patient.site.west) {
                    Ok(lines) => assert_eq!(lines, patient.lines, "{name} {damage:?}"),
                    Err(said) => {
                        assert_still_named(&said, (name, damage));
                        moved += 1;
                    }
                }
                refused += 1;
            }
        }
        patient.heal();
    }
    eprintln!("{name}: {served} served, {refused} refused, {moved} of them still when mended");
    assert!(refused < 8 || moved < refused, "{name}: nothing was mended to show that all is there");
}

/// What was damaged may have been copied to among other bytes, where the mending does not find it. It stays named then.
fn assert_still_named(said: &str, which: (&str, Damage)) {
    assert!(said.contains(which.0) && said.contains("damaged"), "{which:?}: {said}");
}

/// A region that serves in spite of damage takes more lines and keeps all that it has answered for, or says why not; with
/// the damage undone, all are there.
fn assert_goes_on(patient: &Patient, more: &[String], which: (&str, Damage)) {
    let west = &patient.site.west;
    let published = fed(georepl(&["publish", "--region", west, "orders"]), more);
    if published.status.code() != Some(0) {
        let said = refusal(&published, 1);
        assert!(said.contains("metadata") || said.contains("bookie"), "{which:?}: {said}");
        return;
    }
    let (all, (name, damage)) = ([&patient.lines, more].concat(), which);
    let held = consumed(west).or_else(|said| {
        assert!(said.contains(name), "{which:?}: {said}");
        patient.repair(name, damage);
        consumed(west)
    });
    match held {
        Ok(held) => assert_eq!(held, all, "{which:?}: lines are lost"),
        Err(said) => assert_still_named(&said, which),
    }
}
