//! The machine alone, in virtual time: inputs, and the outputs that follow.

use georepl_cursor::{
    KEPT_MAX, Kept, Offset, ReadFailed, ReadLimits, ReadOutcome, ReadRefused, ReadStart, StartAt,
};
use georepl_storage::{EntryId, LedgerId};

use super::*;
use crate::change::{Change, CommandRefused};
use crate::session::{Incarnation, OpenError, Outgoing, Receipt, Refusal, Revision};
use crate::why::Wake;
use crate::window::{Content, Delivered};

const SECOND: Duration = Duration::from_secs(1);

fn at(seconds: u32) -> Time {
    Time::ZERO + SECOND * seconds
}

fn position(entry: u64) -> Position {
    Position::new(LedgerId(1), EntryId(entry))
}

fn id(from: u64) -> ReadId {
    ReadId { generation: Generation::new(1), from: Offset::new(from) }
}

fn session(counter: u64) -> SessionId {
    SessionId { owner: 9, counter }
}

fn entries(range: std::ops::Range<u64>) -> ReadOutcome<Delivered<u64>> {
    let deliver = |n| Delivered { position: position(n), bytes: 10, content: Content::Send(n) };
    ReadOutcome::Entries(range.map(deliver).collect())
}

/// The same of so many bytes each.
fn sized(range: std::ops::Range<u64>, bytes: u64) -> ReadOutcome<Delivered<u64>> {
    let deliver = |n| Delivered { position: position(n), bytes, content: Content::Send(n) };
    ReadOutcome::Entries(range.map(deliver).collect())
}

fn failed(message: &str) -> ReadOutcome<Delivered<u64>> {
    ReadOutcome::Failed(ReadFailed { message: message.into() })
}

/// A machine, and what it wanted since the last look.
#[derive(Clone)]
struct Tested {
    machine: Machine<u64>,
    now: Time,
}

impl Tested {
    /// Started, connected and rewound to the first entry; the first read is asked for.
    fn started(limits: Limits) -> Self {
        let mut tested = Self {
            machine: Machine::new(limits, Poison::Block, 9, &Progress::default()),
            now: at(0),
        };
        assert!(matches!(tested.input(Input::Start)[..], [Output::Open { .. }]));
        let held = Held::Through(None);
        let outputs = tested.input(Input::Opened { session: session(1), held });
        assert_eq!(outputs, [Output::Rewind]);
        let outputs = tested.rewound(0);
        assert!(matches!(outputs[..], [Output::Read(_)]), "{outputs:?}");
        tested
    }

    fn input(&mut self, input: Input<u64>) -> Vec<Output<u64>> {
        self.machine.handle(self.now, input);
        std::iter::from_fn(|| self.machine.poll_output()).collect()
    }

    fn rewound(&mut self, to: u64) -> Vec<Output<u64>> {
        let (generation, read_position) = (Generation::new(1), Offset::new(to));
        self.input(Input::Rewound(Rewound { generation, read_position }))
    }

    fn dispatched(&mut self, from: u64) -> Vec<Output<u64>> {
        self.input(Input::ReadAnswered(Ok(ReadStart::Dispatched(id(from)))))
    }

    fn waits(&mut self, from: u64) -> Vec<Output<u64>> {
        self.input(Input::ReadAnswered(Ok(ReadStart::Waiting(id(from)))))
    }

    fn refused(&mut self, why: ReadRefused) -> Vec<Output<u64>> {
        self.input(Input::ReadAnswered(Err(why)))
    }

    fn completed(&mut self, from: u64, outcome: ReadOutcome<Delivered<u64>>) -> Vec<Output<u64>> {
        self.input(Input::ReadCompleted { id: id(from), outcome })
    }

    fn published(&mut self, entries: impl IntoIterator<Item = u64>) -> Vec<Output<u64>> {
        let receipts = entries.into_iter().map(|n| Receipt::Published(position(n))).collect();
        let session = self.machine.session().expect("a session is open");
        self.input(Input::Receipts { session, receipts })
    }

    fn tick(&mut self, now: Time) -> Vec<Output<u64>> {
        self.now = now;
        self.input(Input::Tick)
    }

    fn reason(&self) -> Reason {
        self.machine.why(self.now, 0).reason
    }

    fn awaits_rewind_for(&self, reason: RewindReason) -> bool {
        let Life::Running(flow) = &self.machine.life else { return false };
        flow.rewinding_for(reason)
    }
}

fn reads(n: u32) -> Limits {
    Limits { reads_in_flight: n, ..Limits::default() }
}

/// What a moved cursor leads to: the session is given up, and the next is opened a little later.
#[track_caller]
fn assert_moved(tested: &mut Tested, outputs: &[Output<u64>]) {
    assert!(outputs.contains(&Output::Close(session(1))), "{outputs:?}");
    assert!(tested.awaits_rewind_for(RewindReason::CursorMoved));
    assert!(matches!(tested.reason(), Reason::Connecting { failures: 1, .. }));
    let outputs = tested.tick(tested.machine.wake_at().unwrap());
    assert!(matches!(outputs[..], [Output::Open { .. }]), "{outputs:?}");
    let held = Held::Through(None);
    let outputs = tested.input(Input::Opened { session: session(2), held });
    assert_eq!(outputs, [Output::Rewind]);
    let outputs = tested.rewound(7);
    assert!(matches!(outputs[..], [Output::Read(_)]), "{outputs:?}");
    tested.dispatched(7);
    assert!(matches!(tested.completed(7, entries(7..8))[0], Output::Send { .. }));
}

#[test]
fn default_bounds_fill_a_long_link_with_small_entries_too() {
    // On its way at 1 Gb/s in a round trip of 150 ms.
    const LINK_BYTES: u64 = 18_750_000;
    for bytes in [150, 1_100, 65_600, 5 << 20] {
        let mut tested = Tested::started(reads(1));
        tested.dispatched(0);
        let (mut outputs, mut sent) = (tested.completed(0, sized(0..1, bytes)), 1);
        while let Some(Output::Read(limits)) =
            outputs.iter().find(|output| matches!(output, Output::Read(_)))
        {
            let read = u64::from(limits.entries).min(limits.bytes / bytes).max(1);
            tested.dispatched(sent);
            outputs = tested.completed(sent, sized(sent..sent + read, bytes));
            sent += read;
        }
        // And no more than the bytes that may be in the window, but for the last entry.
        let most = Limits::default().window_bytes + bytes;
        assert!((LINK_BYTES..most).contains(&(sent * bytes)), "{sent} entries of {bytes} bytes");
    }
}

#[test]
fn read_from_beyond_the_window_rewinds() {
    // Another read was outstanding when it was asked for, so that only its completion shows it.
    let mut skipped = Tested::started(reads(2));
    skipped.dispatched(0);
    skipped.dispatched(2);
    skipped.completed(0, entries(0..1));
    let outputs = skipped.completed(2, entries(2..3));
    assert!(!outputs.iter().any(|output| matches!(output, Output::Send { .. })), "{outputs:?}");
    assert_moved(&mut skipped, &outputs);
}

#[test]
fn read_that_is_answered_elsewhere_rewinds_at_once() {
    let mut dispatched = Tested::started(reads(1));
    let outputs = dispatched.dispatched(5);
    assert!(dispatched.awaits_rewind_for(RewindReason::CursorMoved));
    assert!(outputs.contains(&Output::Close(session(1))), "{outputs:?}");
    // What it brings is dropped, and then nothing holds the rewind up.
    dispatched.completed(5, entries(5..6));
    assert_moved(&mut dispatched, &outputs);

    let mut waits = Tested::started(reads(1));
    let outputs = waits.waits(5);
    assert!(outputs.contains(&Output::CancelRead), "{outputs:?}");
    assert!(waits.input(Input::CancelAnswered(true)).is_empty());
    assert_moved(&mut waits, &outputs);
}

#[test]
fn waiting_read_behind_entries_that_another_reader_took_rewinds() {
    let mut tested = Tested::started(reads(2));
    tested.dispatched(0);
    tested.waits(2);
    let outputs = tested.completed(0, entries(0..1));
    assert!(outputs.contains(&Output::CancelRead), "{outputs:?}");
    let outputs = tested.input(Input::CancelAnswered(true));
    assert_moved(&mut tested, &outputs);
}

#[test]
fn waiting_read_that_a_short_read_took_back_rewinds_nothing() {
    let mut tested = Tested::started(reads(2));
    tested.dispatched(0);
    tested.waits(2);
    tested.completed(0, entries(0..1));
    assert!(tested.input(Input::CancelAnswered(false)).is_empty());
    let outputs = tested.completed(2, ReadOutcome::Superseded);
    assert!(matches!(outputs[..], [Output::Read(_)]), "{outputs:?}");
}

#[test]
fn refusals_that_a_port_should_not_give_are_named_and_survived() {
    let broken =
        [ReadRefused::NothingToRead, ReadRefused::AlreadyWaiting, ReadRefused::TooManyInFlight];
    for refusal in broken {
        let mut tested = Tested::started(reads(1));
        assert!(tested.refused(refusal).is_empty());
        assert!(matches!(tested.reason(), Reason::ReadFailed { .. }), "{refusal}");
        let outputs = tested.tick(at(1));
        assert!(matches!(outputs[..], [Output::Read(_)]), "{outputs:?}");
    }
}

#[test]
fn terminated_topic_is_not_drained_before_a_short_read_was_made_good() {
    for outcome in [entries(0..1), failed("a bookie is slow"), entries(0..0)] {
        let mut tested = Tested::started(reads(2));
        tested.dispatched(0);
        tested.refused(ReadRefused::Terminated { end: Offset::new(2) });
        tested.completed(0, outcome.clone());
        if outcome == entries(0..1) {
            tested.published([0]);
        }
        assert_eq!(tested.machine.state(), State::Started, "{outcome:?}");
    }
    let mut tested = Tested::started(reads(2));
    tested.dispatched(0);
    tested.refused(ReadRefused::Terminated { end: Offset::new(2) });
    let outputs = tested.completed(0, entries(0..1));
    assert!(matches!(outputs.last(), Some(Output::Read(_))), "{outputs:?}");
    tested.dispatched(1);
    tested.refused(ReadRefused::Terminated { end: Offset::new(2) });
    tested.completed(1, entries(1..2));
    tested.refused(ReadRefused::Terminated { end: Offset::new(2) });
    tested.published([0, 1]);
    assert_eq!(tested.reason(), Reason::Stopped(StopReason::Drained));
}

#[test]
fn terminated_topic_is_not_drained_by_what_another_reader_took() {
    let mut refused = Tested::started(reads(1));
    refused.dispatched(0);
    refused.completed(0, entries(0..1));
    // Another reader took the entries 1 and 2 through the same cursor.
    let outputs = refused.refused(ReadRefused::Terminated { end: Offset::new(3) });
    assert_eq!(refused.machine.state(), State::Started);
    assert_moved(&mut refused, &outputs);

    let mut woken = Tested::started(reads(2));
    woken.dispatched(0);
    woken.waits(3);
    let terminated = woken.completed(3, ReadOutcome::Terminated);
    assert!(!terminated.contains(&Output::Close(session(1))), "the first read may bring it all");
    let outputs = woken.completed(0, entries(0..1));
    assert!(matches!(outputs.last(), Some(Output::Read(_))), "{outputs:?}");
    let outputs = woken.refused(ReadRefused::Terminated { end: Offset::new(3) });
    assert_moved(&mut woken, &outputs);
}

#[test]
fn refusal_that_nothing_was_awaited_for_ends_the_session_with_a_growing_delay() {
    let mut tested = Tested::started(reads(1));
    tested.dispatched(0);
    tested.completed(0, entries(0..2));
    tested.published([0]);
    // Answered already, and never sent.
    for (entry, attempt, delay) in [(0, 1, 100), (7, 2, 200), (7, 3, 400)] {
        let outputs = tested.refuses(entry);
        assert_eq!(outputs, [Output::Close(session(attempt))]);
        let Reason::Connecting { last: Some(message), .. } = tested.reason() else {
            panic!("{:?}", tested.reason());
        };
        assert!(message.contains(&position(entry).to_string()), "{message}");
        let later = tested.now + Duration::from_millis(delay);
        assert_eq!(tested.machine.wake_at(), Some(later));
        let outputs = tested.tick(later);
        assert!(matches!(outputs[..], [Output::Open { .. }]), "{outputs:?}");
        tested.opened(Some(0), 1);
    }
    let counts = tested.machine.accounting();
    assert_eq!((counts.refusals, counts.links_lost), (0, 3));
}

#[test]
fn entry_without_a_receipt_times_out_although_later_ones_are_answered() {
    let mut tested = Tested::started(reads(1));
    tested.dispatched(0);
    tested.completed(0, entries(0..30));
    for second in 1..30 {
        tested.now = at(second);
        tested.published([u64::from(second)]);
        assert_eq!(tested.machine.wake_at(), Some(at(30)), "after {second} s");
    }
    let outputs = tested.tick(at(30));
    assert_eq!(outputs, [Output::Close(session(1))]);
    assert!(tested.awaits_rewind_for(RewindReason::ReceiptTimeout));
    assert_eq!(tested.machine.accounting().links_lost, 1);
}

#[test]
fn entry_that_becomes_the_first_without_a_receipt_gets_its_full_time() {
    let mut tested = Tested::started(reads(1));
    tested.dispatched(0);
    tested.completed(0, entries(0..3));
    tested.now = at(20);
    tested.published([0]);
    assert_eq!(tested.machine.wake_at(), Some(at(50)));
    tested.published([1, 2]);
    assert_eq!(tested.machine.session(), Some(session(1)));
}

#[test]
fn opening_that_times_out_is_no_lost_link_and_no_receipt_timeout() {
    let mut tested = Tested {
        machine: Machine::new(Limits::default(), Poison::Block, 9, &Progress::default()),
        now: at(0),
    };
    tested.input(Input::Start);
    assert_eq!(tested.tick(at(10)), [Output::Close(session(1))]);
    assert_eq!(tested.machine.accounting().links_lost, 0);
    assert!(!tested.awaits_rewind_for(RewindReason::ReceiptTimeout));
    assert!(matches!(tested.reason(), Reason::Connecting { failures: 1, .. }));
}

#[test]
fn why_keeps_the_last_failure_while_it_connects_again() {
    let mut tested = Tested {
        machine: Machine::new(Limits::default(), Poison::Block, 9, &Progress::default()),
        now: at(0),
    };
    tested.input(Input::Start);
    let error = OpenError::Unreachable("no route to east".into());
    tested.input(Input::OpenFailed { session: session(1), error });
    let waiting = Reason::Connecting { failures: 1, last: Some("no route to east".into()) };
    assert_eq!(tested.reason(), waiting);
    let outputs = tested.tick(tested.machine.wake_at().unwrap());
    assert!(matches!(outputs[..], [Output::Open { .. }]), "{outputs:?}");
    assert_eq!(tested.reason(), waiting, "the attempt that is under way has not failed yet");
    tested.input(Input::Opened { session: session(2), held: Held::Through(None) });
    assert!(
        matches!(tested.reason(), Reason::Rewinding(_) | Reason::Reading),
        "{:?}",
        tested.reason()
    );
}

/// Its cause stays, and since when, over all the attempts to have it taken.
#[test]
fn why_names_the_remote_that_takes_no_more_until_it_does() {
    let mut tested = Tested::started(reads(1));
    tested.dispatched(0);
    tested.completed(0, entries(0..1));
    let said = || Input::NotWritable { session: session(1), message: "its quota is full".into() };
    let held = Reason::RemoteNotWritable { message: "its quota is full".into() };
    tested.now = at(10);
    assert!(tested.input(said()).is_empty());
    let why = tested.machine.why(tested.now, 1);
    assert_eq!((&why.reason, why.wake), (&held, Wake::Remote(SECOND * 20)));

    // The link may have died since.
    assert_eq!(tested.tick(at(30)), [Output::Close(session(1))]);
    let why = tested.machine.why(tested.now, 1);
    assert_eq!((&why.reason, why.wake), (&held, Wake::Timer(Duration::from_millis(100))));
    tested.tick(at(31));
    let why = tested.machine.why(tested.now, 1);
    assert_eq!((&why.reason, why.wake), (&held, Wake::Remote(SECOND * 10)));
    tested.opened(None, 0);
    tested.dispatched(0);
    tested.completed(0, entries(0..1));
    let why = tested.machine.why(at(40), 1);
    assert_eq!((&why.reason, why.since), (&held, SECOND * 30));

    let mut failed = tested.clone();
    tested.published([0]);
    assert_eq!(tested.reason(), Reason::Reading);
    let lost = Input::Lost { session: session(2), message: "reset by peer".into() };
    failed.input(lost);
    assert!(matches!(failed.reason(), Reason::Connecting { failures: 2, .. }));
    failed.input(said());
    assert!(matches!(failed.reason(), Reason::Connecting { .. }), "of another session");
}

#[test]
fn why_names_only_timers_that_run() {
    let mut tested = Tested::started(reads(1));
    tested.waits(0);
    let why = tested.machine.why(tested.now, 1);
    assert_eq!((why.reason, why.wake), (Reason::Reading, Wake::Read), "an entry woke the read");
    assert_eq!(tested.machine.wake_at(), None);
    let why = tested.machine.why(tested.now, 0);
    assert_eq!((why.reason, why.wake), (Reason::WaitingForEntries, Wake::Append));

    let mut tested = Tested::started(reads(1));
    tested.dispatched(0);
    assert_eq!(tested.machine.why(at(10), 1).wake, Wake::Storage(SECOND * 20));
    assert_eq!(tested.machine.wake_at(), Some(at(30)));
}

#[test]
fn failed_read_is_tried_again_later_with_one_entry_alone() {
    let mut tested = Tested::started(reads(2));
    tested.dispatched(0);
    tested.dispatched(500);
    tested.completed(0, failed("too many requests"));
    assert!(tested.completed(500, ReadOutcome::Superseded).is_empty(), "not at once");
    let limits = Limits::default();
    let one = ReadLimits { entries: 1, bytes: limits.read_bytes };
    assert_eq!(tested.tick(at(1)), [Output::Read(one)]);
    assert!(tested.dispatched(0).is_empty(), "one retry");
    let outputs = tested.completed(0, entries(0..1));
    let all = ReadLimits { entries: limits.read_entries, bytes: limits.read_bytes };
    assert_eq!(outputs.last(), Some(&Output::Read(all)));
}

#[test]
fn stop_that_settles_has_a_deadline_and_is_not_disturbed_by_reads() {
    let mut tested = Tested::started(reads(2));
    tested.dispatched(0);
    tested.completed(0, entries(0..2));
    tested.dispatched(2);
    let until = at(60);
    assert!(tested.input(Input::Stop(Stop::Settle(until))).is_empty());
    // Neither a read that hangs, nor one that somebody else moved, ends the session now.
    assert_eq!((tested.machine.wake_at(), tested.machine.deadline()), (Some(at(30)), Some(until)));
    tested.completed(2, entries(5..6));
    assert_eq!(tested.machine.session(), Some(session(1)));
    tested.published([0]);
    assert_eq!(tested.machine.state(), State::Started);
    tested.published([1]);
    assert_eq!(tested.machine.state(), State::Stopped);
    assert_eq!((tested.machine.wake_at(), tested.machine.deadline()), (None, None));
}

#[test]
fn answers_of_other_sessions_change_nothing() {
    let mut tested = Tested::started(reads(1));
    tested.dispatched(0);
    tested.completed(0, entries(0..2));
    let before = tested.machine.clone();
    let old = session(0);
    let refused = Receipt::Refused(position(0), Refusal { message: "no".into() });
    let receipts = [Receipt::Published(position(0)), Receipt::Gap(position(1)), refused];
    for receipt in receipts {
        tested.input(Input::Receipts { session: old, receipts: vec![receipt] });
    }
    tested.input(Input::Lost { session: old, message: "late".into() });
    tested.input(Input::Opened { session: old, held: Held::Through(Some(position(1))) });
    let error = OpenError::Unreachable("late".into());
    tested.input(Input::OpenFailed { session: old, error });
    assert_eq!(tested.machine, before);
}

#[test]
fn failure_of_whoever_runs_it_ends_it_for_good() {
    let mut tested = Tested::started(reads(1));
    tested.dispatched(0);
    tested.machine.fail("its task panicked".into());
    assert_eq!(tested.machine.poll_output(), None);
    let reason = StopReason::Failed("its task panicked".into());
    assert_eq!(tested.machine.ended(), Some(&reason));
    assert!(tested.input(Input::Start).is_empty());
    assert!(tested.machine.accounting().balances());
}

const AFTER_TWO: Poison = Poison::Quarantine { after: 2 };

fn kept(entries: impl IntoIterator<Item = u64>, how: Kept) -> Progress {
    let kept = entries.into_iter().map(|n| (position(n), how)).collect();
    Progress { kept, ..Progress::default() }
}

impl Tested {
    fn keeping(progress: &Progress) -> Self {
        let machine = Machine::new(reads(1), AFTER_TWO, 9, progress);
        let mut tested = Self { machine, now: at(0) };
        tested.input(Input::Start);
        tested
    }

    /// The session that is being opened is open, and the cursor is rewound.
    fn opened(&mut self, held: Option<u64>, rewound: u64) -> Vec<Output<u64>> {
        let session = self.machine.session().expect("a session is being opened");
        let held = Held::Through(held.map(position));
        assert_eq!(self.input(Input::Opened { session, held }), [Output::Rewind]);
        self.rewound(rewound)
    }

    fn refuses(&mut self, entry: u64) -> Vec<Output<u64>> {
        let session = self.machine.session().expect("a session is open");
        let refusal = Refusal { message: "no".into() };
        let receipts = vec![Receipt::Refused(position(entry), refusal)];
        self.input(Input::Receipts { session, receipts })
    }
}

fn opens(counter: u64, incarnation: u64, revision: u64) -> Output<u64> {
    Output::Open {
        session: session(counter),
        incarnation: Incarnation(incarnation),
        revision: Revision(revision),
    }
}

/// The second incarnation, for a released entry.
fn begin(entry: u64) -> Change {
    Change::Begin { incarnation: Incarnation(2), position: position(entry) }
}

fn changes(outputs: &[Output<u64>]) -> Option<Change> {
    outputs.iter().find_map(|output| match output {
        Output::Change(change) => Some(*change),
        _ => None,
    })
}

#[test]
fn nothing_is_sent_behind_a_refused_entry_before_its_quarantine_is_durable() {
    let mut tested = Tested::keeping(&Progress::default());
    tested.opened(None, 0);
    tested.dispatched(0);
    tested.completed(0, entries(0..2));
    assert_eq!(changes(&tested.refuses(0)), None, "the first refusal is tried again");
    tested.opened(None, 0);
    tested.dispatched(0);
    tested.completed(0, entries(0..2));
    tested.tick(tested.machine.wake_at().unwrap());
    let outputs = tested.refuses(0);
    assert_eq!(changes(&outputs), Some(Change::Quarantine(position(0))));
    assert_eq!((tested.machine.session(), tested.machine.state()), (None, State::Starting));

    // It is not stored at once; only storing it is tried again.
    assert!(tested.input(Input::Stored(Err("no bookie answers".into()))).is_empty());
    let failed = Some("no bookie answers".into());
    assert_eq!(tested.reason(), Reason::Storing { failed });
    let outputs = tested.tick(tested.machine.wake_at().unwrap());
    assert_eq!(outputs, [Output::Persist]);
    let outputs = tested.input(Input::Stored(Ok(0)));
    assert_eq!(outputs, [opens(3, 1, 1)], "the remote is told that something was noted");
    tested.opened(None, 0);
    tested.dispatched(0);
    let outputs = tested.completed(0, entries(0..2));
    let through = |output: &Output<u64>| matches!(output, Output::Acknowledge { .. });
    assert!(outputs.iter().any(through), "the entry is passed over: {outputs:?}");
    assert_eq!(tested.machine.accounting().quarantined, 1);
    assert_eq!(tested.machine.last_published(), None, "and is not published");
}

#[test]
fn released_entry_waits_for_what_is_in_doubt_and_is_first_in_its_incarnation() {
    let progress = kept([0], Kept::Released);
    let mut tested = Tested::keeping(&progress);
    // The remote holds 2, and only 1 is acknowledged.
    tested.opened(Some(2), 2);
    tested.dispatched(2);
    let outputs = tested.completed(2, entries(2..4));
    assert_eq!(changes(&outputs), Some(begin(0)));
    let sent = |output: &Output<u64>| matches!(output, Output::Send { .. });
    assert!(!outputs.iter().any(sent), "3 is not sent before it: {outputs:?}");
    let acknowledged = outputs.iter().any(|output| matches!(output, Output::Acknowledge { .. }));
    assert!(acknowledged, "2 is: {outputs:?}");
    let outputs = tested.input(Input::Stored(Ok(0)));
    let begun = opens(2, 2, 0);
    assert_eq!(outputs, [begun]);
    let outputs = tested.opened(None, 3);
    assert!(outputs.contains(&Output::Fetch(position(0))), "{outputs:?}");
    let content = Content::Send(0);
    let fetched = Delivered { position: position(0), bytes: 10, content };
    let outputs = tested.input(Input::Fetched(Ok(fetched)));
    let first = Outgoing { previous: None, position: position(0), entry: 0 };
    assert_eq!(outputs, [Output::Send { session: session(2), batch: vec![first] }]);
    let outputs = tested.published([0]);
    assert_eq!(changes(&outputs), Some(Change::Delivered(position(0))));
    tested.input(Input::Stored(Ok(0)));
    assert!(tested.machine.progress().kept.is_empty());
    tested.opened(Some(0), 3);
    tested.dispatched(3);
    let outputs = tested.completed(3, entries(3..4));
    let next = Outgoing { previous: Some(position(0)), position: position(3), entry: 3 };
    assert_eq!(outputs[0], Output::Send { session: session(3), batch: vec![next] });
}

#[test]
fn released_entry_that_has_landed_is_not_sent_again_for_one_released_later() {
    let mut progress = kept([0], Kept::Released);
    progress.kept.insert(position(2), Kept::Sending);
    progress.incarnation = 2;
    let mut tested = Tested::keeping(&progress);
    // 2 was sent first in incarnation 2, and its receipt was lost; 0 was released after it.
    let outputs = tested.opened(Some(2), 3);
    assert_eq!(changes(&outputs), Some(Change::Delivered(position(2))), "{outputs:?}");
    tested.input(Input::Stored(Ok(0)));
    assert_eq!(tested.machine.progress().kept, kept([0], Kept::Released).kept);
}

#[test]
fn released_entry_that_is_not_acknowledged_yet_does_not_overtake_what_is_before_it() {
    let mut tested = Tested::keeping(&kept([1], Kept::Released));
    tested.opened(None, 0);
    tested.dispatched(0);
    let outputs = tested.completed(0, entries(0..3));
    assert!(matches!(outputs[0], Output::Send { .. }), "{outputs:?}");
    assert_eq!(changes(&outputs), None);
    assert_eq!(changes(&tested.published([0, 2])), None, "it is past it, and has more to read");
    let outputs = tested.waits(3);
    assert_eq!(changes(&outputs), Some(begin(1)));
}

#[test]
fn entry_that_was_given_up_is_never_sent_also_when_it_is_not_acknowledged_yet() {
    let mut tested = Tested::keeping(&kept([1], Kept::Quarantined));
    tested.input(Input::Command(Command::Discard(position(1))));
    tested.input(Input::Stored(Ok(0)));
    let discarded = Progress { discarded: [position(1)].into(), ..kept([], Kept::Released) };
    assert_eq!(tested.machine.progress().discarded, discarded.discarded);
    // It goes on, and so does one that is made from what was stored.
    for mut tested in [tested, Tested::keeping(&discarded)] {
        tested.opened(None, 0);
        tested.dispatched(0);
        let Output::Send { batch, .. } = tested.completed(0, entries(0..3)).remove(0) else {
            panic!("nothing is sent");
        };
        let sent: Vec<_> = batch.iter().map(|sent| sent.entry).collect();
        assert_eq!(sent, [0, 2]);
        assert!(tested.machine.progress().discarded.contains(&position(1)), "0 is not there yet");
        tested.published([0]);
        assert!(tested.machine.progress().discarded.is_empty(), "it is acknowledged");
        assert_eq!(tested.machine.accounting().discarded, 1);
    }
}

#[test]
fn seek_over_a_release_in_doubt_goes_on_in_the_incarnation_that_tells_whether_it_landed() {
    let progress = Progress { incarnation: 2, ..kept([1], Kept::Sending) };
    let seek = |to| Command::Seek(to);
    let table = [
        (StartAt::Latest, 2),
        (StartAt::Position(position(2)), 2),
        (StartAt::Position(position(1)), 3),
        (StartAt::Earliest, 3),
    ];
    for (to, incarnation) in table {
        let mut tested = Tested::keeping(&progress);
        let outputs = tested.input(Input::Command(seek(to)));
        let incarnation = Incarnation(incarnation);
        assert_eq!(changes(&outputs), Some(Change::Seek { to, incarnation }));
    }
    let mut landed = Tested::keeping(&progress);
    landed.input(Input::Command(seek(StartAt::Latest)));
    landed.input(Input::Stored(Ok(3)));
    let outputs = landed.opened(Some(1), 5);
    assert_eq!(changes(&outputs), Some(Change::Delivered(position(1))), "it is not sent again");
}

/// Running, stopped, or made anew from what was stored.
#[test]
fn seek_out_of_a_block_begins_an_incarnation_also_over_a_release_in_doubt() {
    let progress =
        Progress { incarnation: 2, last_published: Some(position(4)), ..kept([1], Kept::Sending) };
    let seek = Command::Seek(StartAt::Latest);
    for held in [Held::Foreign(position(9)), Held::Through(None), Held::Through(Some(position(7)))]
    {
        let mut running = Tested::keeping(&progress);
        let session = running.machine.session().unwrap();
        running.input(Input::Opened { session, held });
        assert_eq!(running.machine.why(at(0), 0).wake, Wake::Operator, "{held:?}");
        let mut stopped = running.clone();
        stopped.input(Input::Stop(Stop::Now));
        let mut anew = Tested::keeping(stopped.machine.progress());
        anew.input(Input::Stop(Stop::Now));
        for mut tested in [running, stopped, anew] {
            tested.input(Input::Command(seek));
            tested.input(Input::Stored(Ok(3)));
            let after = tested.machine.progress();
            assert!(after.incarnation > 2, "{held:?}");
            // Somebody decides on the entry again.
            assert_eq!(after.kept, kept([1], Kept::InDoubt).kept);
        }
    }
}

/// In the incarnation that began for an entry, anything else at the remote was sent by a state that is forgotten.
#[test]
fn remote_that_holds_another_entry_than_the_one_being_sent_blocks() {
    let progress = Progress { incarnation: 2, ..kept([1], Kept::Sending) };
    for (watermark, agrees) in [(None, true), (Some(1), true), (Some(0), false), (Some(6), false)] {
        let mut tested = Tested::keeping(&progress);
        let (session, watermark) = (tested.machine.session().unwrap(), watermark.map(position));
        tested.input(Input::Opened { session, held: Held::Through(watermark) });
        let behind = Reason::CursorBehind { watermark, last_published: None };
        assert_eq!(tested.reason() != behind, agrees, "{watermark:?}");
    }
}

#[test]
fn remote_that_knows_a_later_revision_blocks_until_a_seek() {
    let progress = Progress { last_published: Some(position(2)), ..Progress::default() };
    let mut tested = Tested::keeping(&progress);
    let (asked, newest, watermark) = (Revision(0), Revision(1), Some(position(5)));
    let error = OpenError::LaterRevision { asked, newest, watermark };
    tested.input(Input::OpenFailed { session: session(1), error });
    let why = tested.machine.why(at(0), 3);
    let last_published = Some(position(2));
    assert_eq!(why.reason, Reason::CursorBehind { watermark, last_published });
    assert_eq!((why.wake, tested.machine.wake_at()), (Wake::Operator, None));
    for word in ["up to 1:5", "up to 1:2", "seek"] {
        assert!(why.to_string().contains(word), "{why}");
    }
    let outputs = tested.input(Input::Command(Command::Seek(StartAt::Earliest)));
    let Some(Change::Seek { incarnation, .. }) = changes(&outputs) else { panic!("{outputs:?}") };
    assert!(incarnation > Incarnation(1));
    let outputs = tested.input(Input::Stored(Ok(0)));
    assert_eq!(outputs.last(), Some(&opens(2, incarnation.0, 0)));
}

#[test]
fn full_quarantine_blocks_and_says_so() {
    let full = kept(1..=KEPT_MAX as u64, Kept::Quarantined);
    let mut tested = Tested::keeping(&full);
    for _ in 0..2 {
        tested.opened(None, 0);
        tested.dispatched(0);
        tested.completed(0, entries(0..1));
        // The second time it is sent after a delay.
        tested.tick(tested.now + SECOND);
        assert_eq!(changes(&tested.refuses(0)), None);
    }
    tested.opened(None, 0);
    tested.dispatched(0);
    tested.completed(0, entries(0..1));
    let full = Reason::QuarantineFull { position: position(0), message: "no".into() };
    assert_eq!(tested.reason(), full);
}

#[test]
fn commands_are_carried_out_one_after_the_other_and_refused_at_the_end() {
    let mut tested = Tested::started(reads(1));
    let outputs = tested.input(Input::Command(Command::Skip(3)));
    assert_eq!(outputs, [Output::Close(session(1)), Output::Change(Change::Skip(3))]);
    assert!(tested.input(Input::Command(Command::Seek(StartAt::Earliest))).is_empty());
    let seek = Change::Seek { to: StartAt::Earliest, incarnation: Incarnation(2) };
    let outputs = tested.input(Input::Stored(Ok(3)));
    assert_eq!(outputs, [Output::Answered(Ok(3)), Output::Change(seek)]);
    tested.input(Input::Command(Command::Skip(1)));
    tested.input(Input::Stop(Stop::Now));
    let outputs = tested.input(Input::CursorClosed);
    let refused = Output::Answered(Err(CommandRefused::Ended(StopReason::CursorClosed)));
    assert_eq!(outputs, [refused.clone(), refused]);
    assert_eq!(tested.machine.accounting().skipped, 3);
}

#[test]
fn seek_is_the_answer_to_a_later_incarnation_and_goes_above_it() {
    let mut tested = Tested {
        machine: Machine::new(reads(1), Poison::Block, 9, &Progress::default()),
        now: at(0),
    };
    tested.input(Input::Start);
    let (asked, newest) = (Incarnation(1), Incarnation(7));
    let error = OpenError::LaterIncarnation { asked, newest };
    tested.input(Input::OpenFailed { session: session(1), error });
    assert!(tested.machine.ended().is_some());
    let outputs = tested.input(Input::Command(Command::Seek(StartAt::Latest)));
    let seek = Change::Seek { to: StartAt::Latest, incarnation: Incarnation(8) };
    assert_eq!(outputs, [Output::Change(seek)]);
    tested.input(Input::Stored(Ok(0)));
    let outputs = tested.input(Input::Start);
    let open = opens(2, 8, 0);
    assert_eq!(outputs, [open]);
}
