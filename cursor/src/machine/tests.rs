use super::*;

type Cursor = Machine<u64>;

const LIMITS: ReadLimits = ReadLimits { entries: 5, bytes: u64::MAX };

fn offset(n: u64) -> Offset {
    Offset::new(n)
}

fn id(generation: u64, from: u64) -> ReadId {
    ReadId { generation: Generation(generation), from: offset(from) }
}

fn entries(from: u64, to: u64) -> Result<Vec<u64>, ReadFailed> {
    Ok((from..to).collect())
}

fn outputs(cursor: &mut Cursor) -> Vec<Output<u64>> {
    std::iter::from_fn(|| cursor.poll_output()).collect()
}

fn fetch(id: ReadId, to: u64) -> Output<u64> {
    Output::Fetch { id, to: offset(to), bytes: u64::MAX }
}

fn completed(id: ReadId, outcome: ReadOutcome<u64>) -> Output<u64> {
    Output::Complete { id, outcome }
}

#[test]
fn stale_read_that_completes_after_a_rewind_moves_nothing() {
    let mut cursor = Cursor::new(offset(0), offset(5));
    assert_eq!(cursor.read_or_wait(LIMITS), Ok(ReadStart::Dispatched(id(0, 0))));
    assert_eq!(outputs(&mut cursor), [fetch(id(0, 0), 5)]);

    let rewound = cursor.rewind();
    assert_eq!(rewound, Rewound { generation: Generation(1), read_position: offset(0) });
    assert_eq!(outputs(&mut cursor), [completed(id(0, 0), ReadOutcome::Superseded)]);

    cursor.fetched(id(0, 0), entries(0, 5));
    assert_eq!(outputs(&mut cursor), []);
    assert_eq!(cursor.read_position(), offset(0));
    assert_eq!(cursor.read_or_wait(LIMITS), Ok(ReadStart::Dispatched(id(1, 0))));
}

#[test]
fn waiting_read_wakes_with_the_next_entry_and_only_once() {
    let mut cursor = Cursor::new(offset(0), offset(0));
    assert_eq!(cursor.read_or_wait(LIMITS), Ok(ReadStart::Waiting(id(0, 0))));
    assert_eq!(cursor.read_or_wait(LIMITS), Err(ReadRefused::AlreadyWaiting));
    cursor.appended(offset(0));
    assert_eq!(outputs(&mut cursor), []);
    cursor.appended(offset(2));
    cursor.appended(offset(3));
    assert_eq!(outputs(&mut cursor), [fetch(id(0, 0), 2)]);
    cursor.fetched(id(0, 0), entries(0, 2));
    assert_eq!(outputs(&mut cursor), [completed(id(0, 0), ReadOutcome::Entries(vec![0, 1]))]);
    assert_eq!(cursor.read_position(), offset(2));
}

#[test]
fn cancel_takes_a_waiting_read_and_leaves_one_in_storage() {
    let mut cursor = Cursor::new(offset(0), offset(0));
    assert!(!cursor.cancel_pending_read());
    cursor.read_or_wait(LIMITS).unwrap();
    assert!(cursor.cancel_pending_read());
    assert!(!cursor.cancel_pending_read());
    assert_eq!(outputs(&mut cursor), [completed(id(0, 0), ReadOutcome::Cancelled)]);

    cursor.appended(offset(1));
    assert_eq!(outputs(&mut cursor), []);
    assert_eq!(cursor.read_or_wait(LIMITS), Ok(ReadStart::Dispatched(id(0, 0))));
    assert!(!cursor.cancel_pending_read());
    assert_eq!(cursor.reads_in_flight(), 1);
}

#[test]
fn reads_answered_out_of_order_are_delivered_in_order() {
    let mut cursor = Cursor::new(offset(0), offset(9));
    cursor.read(LIMITS).unwrap();
    cursor.read(LIMITS).unwrap();
    assert_eq!(outputs(&mut cursor), [fetch(id(0, 0), 5), fetch(id(0, 5), 9)]);
    cursor.fetched(id(0, 5), entries(5, 9));
    assert_eq!(outputs(&mut cursor), []);
    assert_eq!(cursor.read_position(), offset(0));
    cursor.fetched(id(0, 0), entries(0, 5));
    let first = completed(id(0, 0), ReadOutcome::Entries(vec![0, 1, 2, 3, 4]));
    let second = completed(id(0, 5), ReadOutcome::Entries(vec![5, 6, 7, 8]));
    assert_eq!(outputs(&mut cursor), [first, second]);
    assert_eq!(cursor.read_position(), offset(9));
}

#[test]
fn short_read_takes_back_the_reads_behind_it() {
    let mut cursor = Cursor::new(offset(0), offset(9));
    cursor.read(LIMITS).unwrap();
    cursor.read(LIMITS).unwrap();
    outputs(&mut cursor);
    cursor.fetched(id(0, 0), entries(0, 3));
    let short = completed(id(0, 0), ReadOutcome::Entries(vec![0, 1, 2]));
    assert_eq!(outputs(&mut cursor), [short, completed(id(0, 5), ReadOutcome::Superseded)]);
    cursor.fetched(id(0, 5), entries(5, 9));
    assert_eq!(outputs(&mut cursor), []);
    assert_eq!(cursor.read(LIMITS), Ok(ReadStart::Dispatched(id(1, 3))));
}

#[test]
fn read_without_entries_completes_and_leaves_the_read_position() {
    let mut cursor = Cursor::new(offset(0), offset(5));
    cursor.read_or_wait(LIMITS).unwrap();
    outputs(&mut cursor);
    cursor.fetched(id(0, 0), Ok(Vec::new()));
    assert_eq!(outputs(&mut cursor), [completed(id(0, 0), ReadOutcome::Entries(vec![]))]);
    assert_eq!((cursor.read_position(), cursor.reads_in_flight()), (offset(0), 0));
}

#[test]
fn failed_read_leaves_the_read_position_and_frees_its_slot() {
    let mut cursor = Cursor::new(offset(0), offset(9));
    cursor.read(LIMITS).unwrap();
    cursor.read(LIMITS).unwrap();
    outputs(&mut cursor);
    let failed = ReadFailed { message: "ledger 3 is unreachable".into() };
    cursor.fetched(id(0, 0), Err(failed.clone()));
    let expected = [
        completed(id(0, 0), ReadOutcome::Failed(failed)),
        completed(id(0, 5), ReadOutcome::Superseded),
    ];
    assert_eq!(outputs(&mut cursor), expected);
    assert_eq!((cursor.read_position(), cursor.reads_in_flight()), (offset(0), 0));
}

#[test]
fn mark_delete_moves_forward_only_and_within_the_topic() {
    let mut cursor = Cursor::new(offset(0), offset(5));
    assert_eq!(cursor.backlog(), 5);
    assert_eq!(cursor.mark_delete(offset(3), None), Ok(()));
    assert_eq!(cursor.backlog(), 2);
    let backwards = MarkDeleteRefused::Backwards { acknowledged: offset(3), asked: offset(2) };
    assert_eq!(cursor.mark_delete(offset(2), None), Err(backwards));
    let beyond = MarkDeleteRefused::BeyondEnd { end: offset(5), asked: offset(6) };
    assert_eq!(cursor.mark_delete(offset(6), None), Err(beyond));
    assert_eq!(cursor.mark_delete_offset(), offset(3));
}

#[test]
fn mark_delete_beyond_the_read_position_takes_reads_back() {
    let mut cursor = Cursor::new(offset(0), offset(9));
    cursor.read(LIMITS).unwrap();
    outputs(&mut cursor);
    cursor.mark_delete(offset(7), None).unwrap();
    assert_eq!(outputs(&mut cursor), [completed(id(0, 0), ReadOutcome::Superseded)]);
    assert_eq!(cursor.read(LIMITS), Ok(ReadStart::Dispatched(id(1, 7))));
}

#[test]
fn terminated_topic_is_read_to_its_end() {
    let mut cursor = Cursor::new(offset(0), offset(2));
    cursor.terminate();
    assert_eq!(cursor.read_or_wait(LIMITS), Ok(ReadStart::Dispatched(id(0, 0))));
    cursor.fetched(id(0, 0), entries(0, 2));
    assert_eq!(cursor.read_or_wait(LIMITS), Err(ReadRefused::Terminated { end: offset(2) }));

    let mut waiting = Cursor::new(offset(0), offset(0));
    waiting.read_or_wait(LIMITS).unwrap();
    waiting.terminate();
    assert_eq!(outputs(&mut waiting), [completed(id(0, 0), ReadOutcome::Terminated)]);
    assert_eq!(waiting.waiting_read(), None);
    assert_eq!(waiting.read_or_wait(LIMITS), Err(ReadRefused::Terminated { end: offset(0) }));
}

#[test]
fn close_completes_every_read_once() {
    let mut cursor = Cursor::new(offset(0), offset(5));
    cursor.read_or_wait(LIMITS).unwrap();
    cursor.read_or_wait(LIMITS).unwrap();
    outputs(&mut cursor);
    cursor.close();
    cursor.close();
    let expected =
        [completed(id(0, 5), ReadOutcome::Closed), completed(id(0, 0), ReadOutcome::Closed)];
    assert_eq!(outputs(&mut cursor), expected);
    cursor.fetched(id(0, 0), entries(0, 5));
    assert_eq!(outputs(&mut cursor), []);
    assert_eq!(cursor.read_or_wait(LIMITS), Err(ReadRefused::Closed));
    assert!(!cursor.cancel_pending_read());
}

#[test]
fn answers_from_before_a_move_change_nothing() {
    let moves: [(&str, Move, u64); 6] = [
        ("rewind", |cursor| drop_it(cursor.rewind()), 2),
        ("seek back", |cursor| drop_it(cursor.seek(offset(0))), 2),
        ("seek on", |cursor| drop_it(cursor.seek(offset(8))), 8),
        ("reset back", |cursor| drop_it(cursor.reset(offset(1)).unwrap()), 1),
        ("reset on", |cursor| drop_it(cursor.reset(offset(8)).unwrap()), 8),
        ("mark-delete", |cursor| cursor.mark_delete(offset(7), None).unwrap(), 7),
    ];
    // Storage has answered the second read already, or not.
    for ((name, change, at), early) in moves.into_iter().flat_map(|m| [(m, false), (m, true)]) {
        let mut cursor = Cursor::new(offset(2), offset(9));
        cursor.read(LIMITS).unwrap();
        cursor.read(LIMITS).unwrap();
        assert_eq!(cursor.read_or_wait(LIMITS), Ok(ReadStart::Waiting(id(0, 9))));
        if early {
            cursor.fetched(id(0, 7), entries(7, 9));
        }
        assert_eq!(outputs(&mut cursor), [fetch(id(0, 2), 7), fetch(id(0, 7), 9)]);

        change(&mut cursor);
        let superseded = |from| completed(id(0, from), ReadOutcome::Superseded);
        assert_eq!(outputs(&mut cursor), [superseded(9), superseded(2), superseded(7)], "{name}");
        cursor.fetched(id(0, 7), entries(7, 9));
        cursor.fetched(id(0, 2), entries(2, 7));
        assert_eq!(outputs(&mut cursor), [], "{name}");
        assert_eq!(cursor.read_position(), offset(at), "{name}");

        let (next, to) = (ReadId { from: offset(at), ..id(1, 0) }, (at + 5).min(9));
        assert_eq!(cursor.read_or_wait(LIMITS), Ok(ReadStart::Dispatched(next)), "{name}");
        // Again, now that storage reads what may be the same entries for another read.
        let failed = ReadFailed { message: "an answer that came late".into() };
        cursor.fetched(id(0, at), Err(failed));
        cursor.fetched(next, entries(at, to));
        let delivered = completed(next, ReadOutcome::Entries((at..to).collect()));
        assert_eq!(outputs(&mut cursor), [fetch(next, to), delivered], "{name}");
    }
}

type Move = fn(&mut Cursor);

fn drop_it(_: Rewound) {}

#[test]
fn answer_of_a_read_that_was_taken_back_leaves_the_waiting_one_alone() {
    let mut cursor = Cursor::new(offset(0), offset(5));
    cursor.read(LIMITS).unwrap();
    cursor.seek(offset(5));
    assert_eq!(cursor.read_or_wait(LIMITS), Ok(ReadStart::Waiting(id(1, 5))));
    outputs(&mut cursor);
    cursor.fetched(id(0, 0), entries(0, 5));
    assert_eq!((cursor.waiting_read(), cursor.reads_in_flight()), (Some(id(1, 5)), 0));
    assert_eq!(outputs(&mut cursor), []);

    assert!(cursor.cancel_pending_read());
    assert_eq!(cursor.read_or_wait(LIMITS), Ok(ReadStart::Waiting(id(1, 5))));
    outputs(&mut cursor);
    cursor.appended(offset(6));
    assert_eq!(outputs(&mut cursor), [fetch(id(1, 5), 6)]);
}

#[test]
fn acknowledged_entries_are_passed_over_in_one_step_however_many_there_are() {
    let mut acked = Acked::default();
    acked.insert_range(offset(1)..offset(1_000_001));
    let mut cursor = Cursor::restored(offset(0), acked, Progress::default(), offset(1_000_002));
    assert_eq!(cursor.backlog(), 2);
    cursor.read_or_wait(LIMITS).unwrap();
    cursor.read_or_wait(LIMITS).unwrap();
    let behind = id(0, 1_000_001);
    assert_eq!(outputs(&mut cursor), [fetch(id(0, 0), 1), fetch(behind, 1_000_002)]);
    cursor.mark_delete(offset(1), None).unwrap();
    assert_eq!((cursor.mark_delete_offset(), cursor.backlog()), (offset(1_000_001), 1));
}
