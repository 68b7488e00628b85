//! Breadth-first exploration: every situation that the actions reach, each once.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// Something whose situations are explored.
pub trait World: Clone + Hash {
    /// What can happen.
    type Action: Copy + fmt::Debug;

    /// Everything that can happen now.
    fn actions(&self) -> Vec<Self::Action>;
    /// Whether the action needs no fault and no new work: such moves must lead to a goal.
    fn is_free(&self, action: Self::Action) -> bool;
    /// Lets it happen, checks what must hold afterwards, and renames what is only a name.
    fn step(&mut self, action: Self::Action) -> Result<(), String>;
    /// Whether nothing remains to be done.
    fn is_goal(&self) -> bool;
    /// What a situation shows that the exploration must have seen (see [`Report::seen`]).
    fn marks(&self) -> u32;
}

/// How far an exploration went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// To the end: every situation, and that each of them leads to a goal.
    Whole,
    /// No further than so many steps from the start. Whether anything leads to a goal was not looked at.
    Steps(usize),
}

/// What was explored.
#[derive(Debug)]
pub struct Report {
    /// How far.
    pub extent: Extent,
    /// Different situations.
    pub states: usize,
    /// Steps between them.
    pub transitions: usize,
    /// Steps of the longest shortest way to one.
    pub depth: usize,
    /// How long it took.
    pub elapsed: Duration,
    /// All marks of all situations.
    pub seen: u32,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { extent, states, transitions, depth, elapsed, .. } = self;
        let seconds = elapsed.as_secs_f64();
        write!(f, "{states} states, {transitions} transitions, depth {depth}, {seconds:.1} s")?;
        match extent {
            Extent::Whole => Ok(()),
            Extent::Steps(steps) => write!(f, "; BOUNDED: nothing beyond {steps} steps was seen"),
        }
    }
}

/// A shortest way to something that must not be.
#[derive(Debug)]
pub struct Violation {
    /// Which rule was broken, and how.
    pub what: String,
    /// The steps that lead to it.
    pub trace: Vec<String>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} (after {} steps)", self.what, self.trace.len())?;
        self.trace.iter().enumerate().try_for_each(|(n, step)| writeln!(f, "{:4} {step}", n + 1))
    }
}

struct Found<A> {
    /// Where each state was reached from, and by what.
    parents: Vec<(u32, Option<A>)>,
    /// Where free moves lead.
    free: Vec<(u32, u32)>,
    goals: Vec<u32>,
}

/// Explores from `start` to the end.
///
/// # Errors
/// The first [`Violation`] in breadth, so that its trace is a shortest one. More than `states_max` states are a
/// failure of the exploration itself.
pub fn explore<W: World>(start: &W, states_max: usize) -> Result<Report, Violation> {
    search(start, usize::MAX, states_max)
}

/// Explores what lies within so many steps from `start`, where there is too much to explore it all. That the end was
/// not reached is what the report then says ([`Extent`]).
///
/// # Errors
/// As [`explore`].
pub fn explore_within<W: World>(
    start: &W,
    steps_max: usize,
    states_max: usize,
) -> Result<Report, Violation> {
    search(start, steps_max, states_max)
}

fn search<W: World>(start: &W, steps_max: usize, states_max: usize) -> Result<Report, Violation> {
    let begun = Instant::now();
    let mut found = Found { parents: vec![(0, None)], free: Vec::new(), goals: Vec::new() };
    let mut index = HashMap::<u128, u32, BuildHasherDefault<Lanes>>::default();
    index.insert(fingerprint(start), 0);
    let mut level = vec![(0_u32, start.clone())];
    let (mut transitions, mut depth, mut seen) = (0, 0, 0);
    while !level.is_empty() && depth < steps_max {
        let mut next_level = Vec::new();
        for (at, world) in level {
            seen |= world.marks();
            if world.is_goal() {
                found.goals.push(at);
            }
            for action in world.actions() {
                transitions += 1;
                let mut next = world.clone();
                take(&mut next, action).map_err(|what| {
                    let mut trace = found.trace(at);
                    trace.push(format!("{action:?}"));
                    Violation { what, trace }
                })?;
                let to = match index.entry(fingerprint(&next)) {
                    Entry::Occupied(known) => *known.get(),
                    Entry::Vacant(new) => {
                        let to = u32::try_from(found.parents.len()).expect("states fit a u32");
                        found.parents.push((at, Some(action)));
                        next_level.push((to, next));
                        *new.insert(to)
                    }
                };
                // A move that changes nothing, such as asking a dead bookie once more, is no circle.
                if to != at && world.is_free(action) {
                    found.free.push((at, to));
                }
            }
            if found.parents.len() > states_max {
                let what = format!("the bound of {states_max} states was reached");
                return Err(Violation { what, trace: Vec::new() });
            }
        }
        level = next_level;
        depth += 1;
    }
    let extent = if level.is_empty() { Extent::Whole } else { Extent::Steps(steps_max) };
    if extent == Extent::Whole {
        found.check_liveness()?;
    }
    let states = found.parents.len();
    Ok(Report { extent, states, transitions, depth, elapsed: begun.elapsed(), seen })
}

/// A panic inside the code under exploration is a violation with a trace like any other.
fn take<W: World>(world: &mut W, action: W::Action) -> Result<(), String> {
    catch_unwind(AssertUnwindSafe(|| world.step(action))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(format!("panicked: {}", text.unwrap_or("without a message")))
    })
}

/// Two situations are the same if these 128 bits are: a clash among millions of states is out of
/// the question.
pub fn fingerprint(of: &impl Hash) -> u128 {
    let mut lanes = Lanes(0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344);
    of.hash(&mut lanes);
    u128::from(lanes.finish()) << 64 | u128::from(mix(lanes.1))
}

/// Two independent multiplicative hashes, in one pass over the state.
#[derive(Default)]
pub struct Lanes(u64, u64);

impl Hasher for Lanes {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    #[inline]
    fn write_u8(&mut self, word: u8) {
        self.write_u64(word.into());
    }

    #[inline]
    fn write_u32(&mut self, word: u32) {
        self.write_u64(word.into());
    }

    #[inline]
    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }

    #[inline]
    fn write_u128(&mut self, word: u128) {
        self.write_u64(word as u64);
        self.write_u64((word >> 64) as u64);
    }

    #[inline]
    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.1 = mix(self.1 ^ word).wrapping_add(0xd1b5_4a32_d192_ed03);
    }

    #[inline]
    fn finish(&self) -> u64 {
        mix(self.0)
    }
}

/// Spreads every bit over the word.
#[inline]
fn mix(word: u64) -> u64 {
    let word = (word ^ word >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    let word = (word ^ word >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    word ^ word >> 32
}

impl<A: Copy + fmt::Debug> Found<A> {
    fn trace(&self, mut at: u32) -> Vec<String> {
        let mut trace = Vec::new();
        while let (parent, Some(action)) = self.parents[at as usize] {
            trace.push(format!("{action:?}"));
            at = parent;
        }
        trace.reverse();
        trace
    }

    /// Every state must reach a goal by free moves alone, and free moves must not go in circles.
    fn check_liveness(&self) -> Result<(), Violation> {
        let states = self.parents.len();
        let mut before = vec![Vec::new(); states];
        let mut moves = vec![0_u32; states];
        for &(from, to) in &self.free {
            before[to as usize].push(from);
            moves[from as usize] += 1;
        }
        let mut reaches = vec![false; states];
        let mut open = self.goals.clone();
        open.iter().for_each(|&goal| reaches[goal as usize] = true);
        while let Some(at) = open.pop() {
            for &from in &before[at as usize] {
                if !std::mem::replace(&mut reaches[from as usize], true) {
                    open.push(from);
                }
            }
        }
        if let Some(stuck) = reaches.iter().position(|reached| !reached) {
            let what = "L1: with faults off, nothing leads to the end from here".to_owned();
            return Err(Violation { what, trace: self.trace(stuck as u32) });
        }
        let mut done = vec![false; states];
        let mut open: Vec<u32> = (0..states as u32).filter(|&at| moves[at as usize] == 0).collect();
        for &goal in &self.goals {
            moves[goal as usize] = 0;
            open.push(goal);
        }
        while let Some(at) = open.pop() {
            if std::mem::replace(&mut done[at as usize], true) {
                continue;
            }
            for &from in &before[at as usize] {
                moves[from as usize] = moves[from as usize].saturating_sub(1);
                if moves[from as usize] == 0 {
                    open.push(from);
                }
            }
        }
        if let Some(circle) = done.iter().position(|done| !done) {
            let what = "L8: free moves go in a circle from here".to_owned();
            return Err(Violation { what, trace: self.trace(circle as u32) });
        }
        Ok(())
    }
}
