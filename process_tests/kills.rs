//! `kill -9` at random moments, while lines are published, replicated and received by processes of their own.
//!
//! Every process is started again when it has ended. In some rounds publishers and replicator wait for those that serve
//! the regions; in others whoever comes first holds a region, and the next one does when that one is killed or ends.
//! Each round ends with the death of all of them, and what they have left is examined: every line that was answered is
//! in west, east has a prefix of what west has, and the cursor has acknowledged nothing beyond it. In the end everything
//! drains.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fastrand::Rng;
use serde_json::Value;

use super::{Site, assert_ok, georepl, on, report, run, stdout, text};

const TOPICS: [&str; 2] = ["orders", "payments"];

/// Kills of the gate. `GEOREPL_KILLS` sets another number.
const KILLS: usize = 50;

/// Kills of a round, without those at its end.
const KILLS_OF_A_ROUND: usize = 10;

/// How long anything may take before it counts as stuck.
const PATIENCE: Duration = Duration::from_secs(60);

/// The longest pause between two kills when everything is in motion.
const PAUSE_MAX_MS: u64 = 120;

/// What is started again after a process has ended by itself, as one does whose region is held by another, comes after
/// this. It only spares the machine.
const RESTART_PAUSE: Duration = Duration::from_millis(20);

/// Lines that one process published.
struct Run {
    lines: usize,
    /// Whether the process said that they are durable.
    answered: bool,
}

/// The runs on each topic, in their order.
type Runs = [Mutex<Vec<Run>>; 2];

/// The process that is there now, if it is.
#[derive(Clone, Default)]
struct Slot(Arc<Mutex<Option<Child>>>);

impl Slot {
    fn kill(&self) -> bool {
        let mut child = self.0.lock().expect("nobody panics with it");
        child.as_mut().is_some_and(|child| child.kill().is_ok())
    }

    fn pid(&self) -> Option<u32> {
        self.0.lock().expect("nobody panics with it").as_ref().map(Child::id)
    }

    /// Runs a process to its end, where others can kill it.
    fn run(&self, args: &[&str], input: &str) -> Ended {
        let mut command = georepl(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the binary runs");
        let (mut stdin, mut stdout, mut stderr) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take());
        *self.0.lock().expect("nobody panics with it") = Some(child);
        if let Some(mut stdin) = stdin.take() {
            // It may be dead by now.
            let _ = stdin.write_all(input.as_bytes());
        }
        let mut said = (String::new(), String::new());
        // The one who is killed leaves the other one at its end, too.
        stdout.take().expect("it was piped").read_to_string(&mut said.0).expect("text");
        stderr.take().expect("it was piped").read_to_string(&mut said.1).expect("text");
        // It has let go of both: it ends. Until it was waited for its number is nobody else's.
        let mut slot = self.0.lock().expect("nobody panics with it");
        let status = slot.take().expect("it was put there").wait().expect("it ends");
        assert!(!said.1.contains("panicked"), "{}", said.1);
        Ended { code: status.code(), stdout: said.0, stderr: said.1 }
    }
}

struct Ended {
    /// None if it was killed.
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

/// Whom a kill is to hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Victim {
    HolderOfWest,
    HolderOfEast,
    Replicator,
    Publisher(usize),
}

/// The places of processes in [`Scene::slots`], after those that serve west and east.
const REPLICATOR: usize = 2;
const PUBLISHERS: usize = 3;

const VICTIMS: [Victim; 5] = [
    Victim::HolderOfWest,
    Victim::HolderOfEast,
    Victim::Replicator,
    Victim::Publisher(0),
    Victim::Publisher(1),
];

/// When publishers and replicator are started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Clients {
    WhenRegionsAreServed,
    AtOnce,
}

/// The processes of both regions, and what was published so far.
struct Scene<'a> {
    site: &'a Site,
    clients: Clients,
    runs: &'a Runs,
    slots: [Slot; 5],
    answered: AtomicUsize,
    over: AtomicBool,
}

impl Scene<'_> {
    fn over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    /// Returns when a client may be started. Looks for sockets that a process serves.
    fn wait_for_servers(&self) {
        let served = |region: &str| UnixStream::connect(format!("{region}/socket")).is_ok();
        let begun = Instant::now();
        while self.clients == Clients::WhenRegionsAreServed
            && !self.over()
            && !(served(&self.site.west) && served(&self.site.east))
        {
            assert!(begun.elapsed() < PATIENCE, "the regions are not served any more");
            std::thread::sleep(RESTART_PAUSE);
        }
    }

    /// Keeps a process running.
    fn keep(&self, slot: usize, args: &[&str]) {
        while !self.over() {
            if slot == REPLICATOR {
                self.wait_for_servers();
            }
            let ended = self.slots[slot].run(args, "");
            // 1: served by another already. 3: the holder ended under it. 4: who was killed is still replicated for.
            assert!(
                matches!(ended.code, None | Some(1 | 3 | 4)),
                "{args:?} ended with {:?}: {}",
                ended.code,
                ended.stderr
            );
            std::thread::sleep(RESTART_PAUSE);
        }
    }

    /// Publishes one run of lines after the other.
    fn publish(&self, topic: usize, mut rng: Rng) {
        while !self.over() {
            self.wait_for_servers();
            let n = self.runs[topic].lock().expect("nobody panics with it").len();
            let count = if rng.u8(0..8) == 0 { 2_000 } else { rng.usize(1..=100) };
            let lines: Vec<_> = (0..count).map(|line| format!("{n}:{line}")).collect();
            self.runs[topic]
                .lock()
                .expect("nobody panics with it")
                .push(Run { lines: count, answered: false });
            let args = ["publish", "--region", &self.site.west, TOPICS[topic], "--json"];
            let ended = self.slots[PUBLISHERS + topic].run(&args, &text(&lines));
            assert!(
                matches!(ended.code, None | Some(0 | 1 | 3)),
                "{args:?} ended with {:?}: {}",
                ended.code,
                ended.stderr
            );
            if ended.code == Some(0) {
                let report: Value = serde_json::from_str(&ended.stdout).expect("a report");
                assert_eq!(report["messages"], count, "{report}");
                self.runs[topic].lock().expect("nobody panics with it")[n].answered = true;
                self.answered.fetch_add(1, Ordering::SeqCst);
            }
        }
    }

    /// Kills somebody. False if there was nobody to be killed.
    fn kill(&self, victim: Victim) -> bool {
        let holder = |region: &str| {
            let lock = fs::read_to_string(format!("{region}/lock")).unwrap_or_default();
            let pid: Option<u32> = lock.trim().parse().ok();
            self.slots.iter().find(|slot| pid.is_some() && slot.pid() == pid)
        };
        match victim {
            Victim::HolderOfWest => holder(&self.site.west).is_some_and(Slot::kill),
            Victim::HolderOfEast => holder(&self.site.east).is_some_and(Slot::kill),
            Victim::Replicator => self.slots[REPLICATOR].kill(),
            Victim::Publisher(topic) => self.slots[PUBLISHERS + topic].kill(),
        }
    }

    /// Kills one process after the other, in the end all at once.
    fn kill_at_random(&self, kills: usize, rng: &mut Rng, killed: &mut BTreeMap<Victim, usize>) {
        for _ in 0..kills {
            let (goal, begun) =
                (self.answered.load(Ordering::SeqCst) + rng.usize(0..=1), Instant::now());
            while self.answered.load(Ordering::SeqCst) < goal {
                assert!(begun.elapsed() < PATIENCE, "nothing is published any more");
                std::thread::sleep(Duration::from_millis(1));
            }
            std::thread::sleep(Duration::from_millis(rng.u64(0..=PAUSE_MAX_MS)));
            let victim = VICTIMS[rng.usize(0..VICTIMS.len())];
            while !self.kill(victim) {
                assert!(begun.elapsed() < PATIENCE, "there is no {victim:?}");
                std::thread::sleep(Duration::from_millis(1));
            }
            *killed.entry(victim).or_default() += 1;
        }
        self.over.store(true, Ordering::SeqCst);
    }

    /// Kills whatever is there or still comes, until everybody has seen that it is over.
    fn kill_all(&self, running: &[std::thread::ScopedJoinHandle<'_, ()>]) {
        self.over.store(true, Ordering::SeqCst);
        while running.iter().any(|thread| !thread.is_finished()) {
            self.slots.iter().for_each(|slot| _ = slot.kill());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Runs every process and kills them.
fn round(
    site: &Site,
    runs: &Runs,
    clients: Clients,
    kills: usize,
    rng: &mut Rng,
    killed: &mut BTreeMap<Victim, usize>,
) {
    let scene = Scene {
        site,
        runs,
        clients,
        slots: Default::default(),
        answered: AtomicUsize::new(0),
        over: AtomicBool::new(false),
    };
    let scene = &scene;
    std::thread::scope(|threads| {
        let (west, east) = (&*site.west, &*site.east);
        let rngs = [rng.fork(), rng.fork()];
        let mut running = vec![
            threads.spawn(move || scene.keep(0, &["serve", "--region", west])),
            threads.spawn(move || scene.keep(1, &["serve", "--region", east])),
            threads.spawn(move || {
                let args = ["replicate", "--from", west, "--to", east, TOPICS[0], TOPICS[1]];
                scene.keep(REPLICATOR, &[&args[..], &["--follow"]].concat());
            }),
        ];
        for (topic, rng) in rngs.into_iter().enumerate() {
            running.push(threads.spawn(move || scene.publish(topic, rng)));
        }
        // Whatever fails in here, the processes end.
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            scene.kill_at_random(kills, rng, killed);
        }));
        scene.kill_all(&running);
        for thread in running {
            thread.join().expect("it ended well");
        }
        if let Err(panic) = outcome {
            std::panic::resume_unwind(panic);
        }
    });
}

/// A line and where it is.
struct Placed {
    line: String,
    /// Ledger and entry.
    position: (u64, u64),
}

fn held(region: &str, topic: &str) -> Vec<Placed> {
    let output = on(region, &["consume", topic, "--json"]);
    assert_ok(&output);
    let placed = |line: &str| {
        let line: Value = serde_json::from_str(line).expect("JSON");
        let text = |value: &Value| value.as_str().expect("a text").to_owned();
        Placed { line: text(&line["payload"]), position: position(&text(&line["position"])) }
    };
    stdout(&output).lines().map(placed).collect()
}

fn position(text: &str) -> (u64, u64) {
    let (ledger, entry) = text.split_once(':').expect("a position");
    (ledger.parse().expect("a number"), entry.parse().expect("a number"))
}

/// What west holds is what was published: whole runs where that was answered, beginnings of runs where it was not, each
/// line once, in the order of its run, and answered runs in their order.
fn assert_as_published(held: &[Placed], runs: &[Run]) {
    let mut found = vec![0; runs.len()];
    let mut last_answered = 0;
    for Placed { line, .. } in held {
        let (n, at) = line.split_once(':').expect("a line that was published");
        let (n, at): (usize, usize) = (n.parse().expect("a run"), at.parse().expect("a line"));
        assert!(n < runs.len() && at < runs[n].lines, "{line} was never published");
        assert_eq!(found[n], at, "{line} comes instead of the next line of its run");
        found[n] += 1;
        if runs[n].answered {
            assert!(n >= last_answered, "{line} comes after run {last_answered}");
            last_answered = n;
        }
    }
    for (n, (run, found)) in runs.iter().zip(found).enumerate() {
        assert!(!run.answered || found == run.lines, "run {n} was answered, but ends at {found}");
    }
}

/// Examines what processes have left that were all killed. Returns the lines of west and how many of them are in east.
fn examine(site: &Site, runs: &Runs) -> [usize; 2] {
    let mut totals = [0; 2];
    for (topic, runs) in TOPICS.into_iter().zip(runs) {
        let runs = runs.lock().expect("nobody panics with it");
        let topics = report(&on(&site.west, &["topic", "list", "--json"]));
        let full = format!("persistent://public/default/{topic}");
        if !topics.as_array().expect("a list").iter().any(|name| *name == *full) {
            assert!(runs.iter().all(|run| !run.answered), "{topic} was answered for and is gone");
            continue;
        }
        let west = held(&site.west, topic);
        assert_as_published(&west, &runs);
        let topics = report(&on(&site.east, &["topic", "list", "--json"]));
        let arrived = topics.as_array().expect("a list").iter().any(|name| *name == *full);
        let east = if arrived { held(&site.east, topic) } else { Vec::new() };
        let first = west.iter().zip(&east).position(|(west, east)| west.line != east.line);
        assert_eq!(first, None, "{topic}: east differs from west at this line");
        assert!(east.len() <= west.len(), "{topic}: east has what west has not");
        assert_acknowledged(&on(&site.west, &["status", topic, "--json"]), &full, &west, &east);
        totals[0] += west.len();
        totals[1] += east.len();
    }
    totals
}

/// The cursor has acknowledged nothing beyond what east has, and says how much is left. There is one before anything is sent.
fn assert_acknowledged(status: &Output, topic: &str, west: &[Placed], east: &[Placed]) {
    assert_ok(status);
    let status = report(status);
    assert_eq!(status["topics"][0]["topic"], topic, "{status}");
    let cursors = status["topics"][0]["cursors"].as_array().expect("a list");
    let [cursor] = &cursors[..] else {
        assert!(cursors.is_empty() && east.is_empty(), "{status}");
        return;
    };
    let acknowledged = cursor["mark_delete"].as_str().map(position);
    let acknowledged = west.iter().filter(|placed| Some(placed.position) <= acknowledged).count();
    assert!(acknowledged <= east.len(), "{topic}: {acknowledged} lines are acknowledged");
    // Also where there is no position to compare with: nothing is acknowledged, and it says so.
    assert_eq!(cursor["backlog"], west.len() - acknowledged, "{status}");
}

#[test]
fn what_was_answered_arrives_once_and_in_order_whoever_is_killed() {
    let number = |name: &str| std::env::var(name).ok().map(|value| value.parse::<u64>());
    let number = |name: &str| number(name).map(|value| value.expect("a number"));
    let kills = number("GEOREPL_KILLS").map_or(KILLS, |kills| kills as usize);
    let seed = number("GEOREPL_SEED").unwrap_or_else(|| fastrand::u64(..));
    // The seed chooses victims and pauses; what they meet is up to the machine.
    eprintln!("play it again: GEOREPL_SEED={seed} GEOREPL_KILLS={kills}");
    let (site, runs, mut rng) = (Site::new(), Runs::default(), Rng::with_seed(seed));
    let (mut left, mut rounds, mut killed) = (kills, 0, BTreeMap::new());
    while left > 0 {
        let next = left.min(KILLS_OF_A_ROUND);
        let clients = [Clients::WhenRegionsAreServed, Clients::AtOnce][rounds % 2];
        round(&site, &runs, clients, next, &mut rng, &mut killed);
        (left, rounds) = (left - next, rounds + 1);
        let [west, east] = examine(&site, &runs);
        eprintln!("killed {killed:?}, west has {west} lines, east {east} of them");
    }
    let args = ["replicate", "--from", &site.west, "--to", &site.east, "orders", "payments"];
    assert_ok(&run(&args));
    let [west, east] = examine(&site, &runs);
    let answered = runs.iter().map(|runs| {
        let runs = runs.lock().expect("nobody panics with it");
        runs.iter().filter(|run| run.answered).map(|run| run.lines).sum::<usize>()
    });
    let answered: usize = answered.sum();
    eprintln!("{answered} lines were answered, west has {west}, east {east}");
    assert!(answered >= kills, "lines are published between kills");
    assert_eq!(west, east, "in the end east has everything");
}
