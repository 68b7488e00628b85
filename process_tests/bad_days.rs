//! Disks that are full, places that are forbidden: each command says so and what to do, nothing is lost, and all works
//! again when there is space or leave.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use super::{
    BINARY, Site, assert_ok, consumed, fed, georepl, lines, publish, refusal, stderr, stdout, text,
};

/// Lines of some 1 KB.
fn long_lines(of: std::ops::Range<usize>) -> Vec<String> {
    of.map(|n| format!("line {n:05} {}", "x".repeat(1_000))).collect()
}

/// A region of a few lines.
fn begun() -> (Site, Vec<String>) {
    let (site, published) = (Site::new(), lines(0..10));
    assert_ok(&publish(&site.west, &published));
    (site, published)
}

/// What a region holds begins with what was answered; what follows was sent, and not answered.
#[track_caller]
fn assert_kept(site: &Site, answered: &[String], sent: &[String]) {
    let held = consumed(&site.west).expect("it can be read");
    assert_eq!(held[..answered.len()], *answered);
    assert_eq!(held[answered.len()..], sent[..held.len() - answered.len()]);
}

/// Runs the binary where no file may grow beyond so many blocks of 512 bytes.
fn limited(blocks: usize, args: &[&str]) -> Command {
    let mut command = Command::new("sh");
    let script = format!("ulimit -f {blocks}; exec \"$0\" \"$@\"");
    command.args(["-c", &script, BINARY]).args(args).env_remove("RUST_LOG");
    command
}

#[test]
fn files_that_may_not_grow_fail_publishers_and_nothing_else() {
    let (site, published) = begun();
    let file = Path::new(&site.west).join("bookie-west-bookie-1.redb");
    let blocks = fs::metadata(file).expect("it is there").len() / 512 + 512;
    let args = ["publish", "--region", &site.west, "orders"];
    let more = long_lines(0..4_000);
    let said = refusal(&fed(limited(blocks as usize, &args), &more), 1);
    assert!(said.contains("bookie") && said.contains("read-only"), "{said}");
    assert_kept(&site, &published, &more);
    let kept = consumed(&site.west).expect("it can be read");
    // What is there can still be read where nothing can be written.
    let mut consume = limited(blocks as usize, &["consume", "--region", &site.west, "orders"]);
    let output = consume.output().expect("the shell runs");
    assert_ok(&output);
    assert_eq!(stdout(&output), text(&kept));
    assert_ok(&publish(&site.west, &published));
    assert_eq!(consumed(&site.west), Ok([kept, published].concat()));
}

/// A test that cannot be made here has not passed. Whoever knows that says so.
fn cannot_be_made(why: &str) {
    assert!(
        std::env::var_os("GEOREPL_SKIP").is_some(),
        "{why}; set GEOREPL_SKIP=1 to go on without this test"
    );
    eprintln!("skipped: {why}");
}

/// A script that runs in a place of its own where it may mount file systems; none where that is not allowed.
fn with_mounts(script: &str, args: &[&str]) -> Option<Output> {
    // Who is not root may be root of a place of their own.
    let places = [&["--mount"][..], &["--map-root-user", "--mount"]];
    let run = |place: &[&str], script: &str| {
        let mut command = Command::new("unshare");
        command.args(place).args(["sh", "-c", script, BINARY]).args(args).output()
    };
    let allowed = |place: &&&[&str]| {
        run(place, "mount -t tmpfs none /mnt").is_ok_and(|output| output.status.success())
    };
    let place = places.iter().find(allowed)?;
    Some(run(place, script).expect("it was run before"))
}

#[test]
fn full_disk_fails_publishers_and_has_space_again() {
    let site = Site::new();
    let input = site.beside("input");
    fs::write(&input, text(&long_lines(0..20_000))).expect("there is room");
    fs::create_dir(site.beside("disk")).expect("there is room");
    // On standard output: how the publisher ends on the full disk, what it says, and how it goes on.
    let script = r#"
        mount -t tmpfs -o size=24m none "$1" || exit 99
        head -100 "$2" | "$0" publish --region "$1/west" orders >/dev/null || exit 99
        tail -n +101 "$2" | "$0" publish --region "$1/west" orders >/dev/null 2>"$3/said"; echo $?
        tail -1 "$3/said"
        "$0" consume --region "$1/west" orders >"$3/held" 2>"$3/unread"; echo "consume $?"
        mount -o remount,size=200m "$1"
        echo later | "$0" publish --region "$1/west" orders >/dev/null; echo "publish $?"
        "$0" consume --region "$1/west" orders >"$3/later"; echo "consume $?"
        "$0" status --region "$1/west" >/dev/null; echo "status $?"
    "#;
    let (disk, beside) = (site.beside("disk"), site.beside(""));
    let args = [&disk, &input, &beside].map(|path| path.to_str().expect("UTF-8").to_owned());
    let Some(output) = with_mounts(script, &args.each_ref().map(String::as_str)) else {
        return cannot_be_made("this machine lets nobody mount a small file system");
    };
    let told = stdout(&output);
    let told: Vec<_> = told.lines().collect();
    assert_eq!(told.len(), 6, "{output:?}");
    assert!(told[1].contains("bookie") && told[1].contains("read-only"), "{told:?}");
    let read = |name: &str| fs::read_to_string(beside.join(name)).expect("it was written");
    let (held, later) = (read("held"), read("later"));
    // Even an opening is noted, for which there may be no page left.
    match told[2] {
        "consume 0" => assert_eq!(later, held + "later\n"),
        _ => assert!(read("unread").contains("no space left"), "{}", read("unread")),
    }
    assert_eq!((told[0], &told[3..]), ("1", &["publish 0", "consume 0", "status 0"][..]));
    let before = later.strip_suffix("later\n").expect("what was published in the end");
    assert!(text(&long_lines(0..20_000)).starts_with(before), "in order and once");
    assert!(before.starts_with(&text(&long_lines(0..100))), "what was answered is there");
}

/// Runs the binary as somebody who is nobody here. As root it is another user; else it is oneself.
fn as_nobody(site: &Site, args: &[&str]) -> Option<Command> {
    let id = Command::new("id").arg("-u").output().expect("there is an id");
    let mut command = if stdout(&id).trim() == "0" {
        // The place it was built in may be closed to others.
        let binary = site.beside("georepl");
        // By a process of its own: one that another test starts just now would inherit the file while it is written to,
        // and what somebody may write to cannot be run.
        let copied = Command::new("cp").arg(BINARY).arg(&binary).status().expect("there is a cp");
        assert!(copied.success(), "there is room");
        let known = Command::new("setpriv").arg("--help").output();
        if known.is_err() {
            cannot_be_made("root may do everything, and there is no setpriv to be somebody else");
            return None;
        }
        fs::set_permissions(site.beside(""), Permissions::from_mode(0o755)).expect("it is ours");
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]).arg(binary);
        command.args(args);
        command
    } else {
        georepl(args)
    };
    command.env_remove("RUST_LOG");
    Some(command)
}

/// What may be done with a file.
fn chmod(path: &str, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("it is ours");
}

#[test]
fn places_that_may_not_be_written_or_read_are_named() {
    let (site, published) = begun();
    let file = |name: &str| format!("{}/{name}", site.west);
    let region = ["--region", &site.west];
    // What is forbidden, the exit status, which is 3 where nobody can tell whether the region is served, and what is to
    // be named.
    let forbidden = [
        (site.west.clone(), 0o500, 1, site.west.clone()),
        (site.west.clone(), 0o000, 3, site.west.clone()),
        (file("region.json"), 0o000, 1, file("region.json")),
        (file("lock"), 0o400, 1, format!("lock {}", site.west)),
        (file("metadata.redb"), 0o400, 1, file("metadata.redb")),
        (file("bookie-west-bookie-3.redb"), 0o400, 1, file("bookie-west-bookie-3.redb")),
    ];
    // Others may do everything else.
    let open = || {
        chmod(&site.west, 0o777);
        for found in fs::read_dir(&site.west).expect("it is ours") {
            let path = found.expect("it is ours").path();
            chmod(path.to_str().expect("UTF-8"), 0o666);
        }
    };
    for (path, mode, code, named) in forbidden {
        open();
        // Group and others alike.
        chmod(&path, mode | mode >> 3 | mode >> 6);
        let Some(mut status) = as_nobody(&site, &[&["status"][..], &region].concat()) else {
            return;
        };
        let output = status.output().expect("it runs");
        assert_eq!(output.status.code(), Some(code), "{path} {mode:o}: {output:?}");
        let said = stderr(&output);
        assert!(said.contains(&named), "{path} {mode:o}: {output:?}");
        assert!(said.to_lowercase().contains("permission denied"), "{path} {mode:o}: {output:?}");
        open();
        let mut again = as_nobody(&site, &[&["consume", "orders"][..], &region].concat());
        let output = again.as_mut().expect("it ran before").output().expect("it runs");
        assert_eq!(stdout(&output), text(&published), "{path} {mode:o}: {output:?}");
    }
    assert_eq!(consumed(&site.west), Ok(published));
}
