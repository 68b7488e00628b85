//! The queue in front of a thread that does disk work.

use std::mem;

use parking_lot::{Condvar, Mutex};

/// Jobs on their way to one thread, which takes everything there is in one go: what gathers while it is busy is its
/// next batch. Those who push never wait; beyond its bounds the queue refuses.
#[derive(Debug)]
pub(crate) struct WorkQueue<J> {
    state: Mutex<State<J>>,
    arrived: Condvar,
    jobs_max: usize,
    bytes_max: usize,
}

/// Why a job was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The queue is full.
    Full,
    /// The thread is ending or has ended.
    Closed,
}

/// Whether more jobs may come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Door {
    Open,
    Closed,
}

/// What to do while there are no jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// Wait for one.
    Wait,
    /// Go on without.
    GoOn,
}

#[derive(Debug)]
struct State<J> {
    jobs: Vec<J>,
    bytes: usize,
    door: Door,
}

impl<J> WorkQueue<J> {
    /// An empty queue of at most so many jobs and bytes. Jobs that were taken no longer count.
    pub(crate) const fn new(jobs_max: usize, bytes_max: usize) -> Self {
        let state = State { jobs: Vec::new(), bytes: 0, door: Door::Open };
        Self { state: Mutex::new(state), arrived: Condvar::new(), jobs_max, bytes_max }
    }

    /// Adds jobs with their sizes in bytes, under one lock and with at most one wake-up. `refused` gets those that are
    /// not taken; it must not use the queue. An empty queue takes one job of any size, or it could never be done.
    pub(crate) fn push_all(
        &self,
        jobs: impl IntoIterator<Item = (J, usize)>,
        mut refused: impl FnMut(J, Refused),
    ) {
        let mut state = self.state.lock();
        let was_empty = state.jobs.is_empty();
        for (job, bytes) in jobs {
            if state.door == Door::Closed {
                refused(job, Refused::Closed);
            } else if state.jobs.len() >= self.jobs_max
                || (!state.jobs.is_empty() && state.bytes + bytes > self.bytes_max)
            {
                refused(job, Refused::Full);
            } else {
                state.bytes += bytes;
                state.jobs.push(job);
            }
        }
        let wake = was_empty && !state.jobs.is_empty();
        drop(state);
        if wake {
            self.arrived.notify_one();
        }
    }

    /// Adds one job, or gives it back.
    pub(crate) fn push(&self, job: J, bytes: usize) -> Result<(), (J, Refused)> {
        let mut result = Ok(());
        self.push_all([(job, bytes)], |job, why| result = Err((job, why)));
        result
    }

    /// Moves everything there is into `jobs`, which must be empty. Nothing in it and a closed door is the end. Only the
    /// queue's thread calls it.
    pub(crate) fn take_into(&self, jobs: &mut Vec<J>, patience: Patience) -> Door {
        let mut state = self.state.lock();
        while patience == Patience::Wait && state.jobs.is_empty() && state.door == Door::Open {
            self.arrived.wait(&mut state);
        }
        state.bytes = 0;
        mem::swap(&mut state.jobs, jobs);
        state.door
    }

    /// Refuses what comes from now on, and takes out what is inside.
    pub(crate) fn end(&self) -> Vec<J> {
        let mut left = Vec::new();
        self.close();
        self.take_into(&mut left, Patience::GoOn);
        left
    }

    /// Refuses what comes from now on. What is inside can still be taken.
    pub(crate) fn close(&self) {
        self.state.lock().door = Door::Closed;
        self.arrived.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn push(queue: &WorkQueue<u8>, job: u8, bytes: usize) -> Option<Refused> {
        queue.push(job, bytes).err().map(|(_, why)| why)
    }

    #[test]
    fn it_is_bounded_by_jobs_and_by_bytes() {
        let queue = WorkQueue::new(3, 10);
        assert_eq!(push(&queue, 0, 100), None, "an empty queue takes anything");
        assert_eq!(push(&queue, 1, 1), Some(Refused::Full));
        let mut taken = Vec::new();
        queue.take_into(&mut taken, Patience::GoOn);
        assert_eq!(taken, [0]);
        for job in 1..=3 {
            assert_eq!(push(&queue, job, 2), None);
        }
        assert_eq!(push(&queue, 4, 0), Some(Refused::Full), "three jobs are the most");
    }

    #[test]
    fn a_closed_queue_gives_what_it_has_and_then_nothing() {
        let queue = WorkQueue::new(3, 10);
        assert_eq!(push(&queue, 1, 1), None);
        queue.close();
        assert_eq!(push(&queue, 2, 1), Some(Refused::Closed));
        let mut taken = Vec::new();
        assert_eq!(queue.take_into(&mut taken, Patience::Wait), Door::Closed);
        assert_eq!(taken, [1]);
        taken.clear();
        assert_eq!(queue.take_into(&mut taken, Patience::Wait), Door::Closed);
        assert_eq!(taken, [0; 0]);
    }
}
