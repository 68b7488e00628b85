use std::fs;
use std::path::PathBuf;

use proptest::prelude::*;

use super::*;

/// What the recording's index says of one entry.
struct Recorded {
    bytes: Bytes,
    password: Password,
    master_key: String,
    ledger: LedgerId,
    entry: EntryId,
    lac: Option<EntryId>,
    length: u64,
    payload: Vec<u8>,
}

fn recordings() -> Vec<Recorded> {
    let folder =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/bookkeeper/entries");
    let index = fs::read_to_string(folder.join("index.tsv")).expect("the index is there");
    let recorded = |line: &str| {
        let fields: Vec<_> = line.split('\t').collect();
        let number = |at: usize| fields[at].parse::<i64>().expect("a number");
        let id = |at: usize| u64::try_from(number(at)).expect("not negative");
        Recorded {
            bytes: fs::read(folder.join(fields[0])).expect("the recording is there").into(),
            password: Password::from(fields[1].trim_matches('-')),
            master_key: fields[2].into(),
            ledger: LedgerId(id(3)),
            entry: EntryId(id(4)),
            lac: u64::try_from(number(5)).ok().map(EntryId),
            length: id(6),
            payload: split_mix(id(8).wrapping_add(id(4)), id(7) as usize),
        }
    };
    index.lines().skip(1).map(recorded).collect()
}

fn split_mix(mut state: u64, bytes: usize) -> Vec<u8> {
    let mut payload = Vec::new();
    while payload.len() < bytes {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = state;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        payload.extend((word ^ (word >> 31)).to_le_bytes());
    }
    payload.truncate(bytes);
    payload
}

#[test]
fn recorded_entries_decode_to_what_was_written() {
    let recordings = recordings();
    assert_eq!(recordings.len(), 15);
    for recorded in recordings {
        let entry = Entry::from_bytes(recorded.bytes).expect("a recorded entry");
        assert_eq!(entry.verify(recorded.ledger, recorded.entry), Ok(()));
        assert_eq!(entry.lac(), recorded.lac);
        assert_eq!(entry.length(), recorded.length);
        assert_eq!(entry.payload(), &recorded.payload);
    }
}

#[test]
fn sealed_entries_have_the_recorded_bytes() {
    for recorded in recordings() {
        let Recorded { bytes, ledger, entry, lac, length, payload, .. } = recorded;
        let sealed = Entry::seal(ledger, entry, lac, length, payload.into());
        assert_eq!(sealed.to_bytes(), bytes);
    }
}

#[test]
fn master_keys_are_the_recorded_ones() {
    for recorded in recordings() {
        let key = MasterKey::of(&recorded.password);
        let hex: String = key.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, recorded.master_key);
    }
}

#[test]
fn every_flipped_bit_is_noticed() {
    let (ledger, id) = (LedgerId(7), EntryId(3));
    let good = Entry::seal(ledger, id, Some(EntryId(2)), 100, Bytes::from_static(b"payload"));
    let bytes = good.to_bytes();
    for bit in 0..bytes.len() * 8 {
        let mut damaged = bytes.to_vec();
        damaged[bit / 8] ^= 1 << (bit % 8);
        let noticed = match Entry::from_bytes(damaged.into()) {
            Ok(entry) => entry.verify(ledger, id).is_err(),
            Err(_) => true,
        };
        assert!(noticed, "bit {bit}");
    }
}

#[test]
fn an_entry_of_another_place_is_refused_by_name() {
    let entry = Entry::seal(LedgerId(7), EntryId(3), None, 0, Bytes::new());
    let misplaced = Err(EntryError::Misplaced { ledger: LedgerId(7), entry: EntryId(3) });
    assert_eq!(entry.verify(LedgerId(7), EntryId(4)), misplaced);
    assert_eq!(entry.verify(LedgerId(8), EntryId(3)), misplaced);
}

#[test]
fn secrets_are_not_shown() {
    let password = Password::from("secret");
    let shown = format!("{password:?} {:?}", MasterKey::of(&password));
    assert_eq!(shown, "Password(..) MasterKey(..)");
}

proptest! {
    #[test]
    fn arbitrary_bytes_decode_to_the_same_bytes_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
        if let Ok(entry) = Entry::from_bytes(bytes.clone().into()) {
            prop_assert_eq!(entry.to_bytes(), bytes);
            let _digest_is_checked_without_a_panic = entry.verify(entry.ledger(), entry.entry());
        }
    }

    #[test]
    fn arbitrary_damage_to_one_byte_is_noticed(
        payload in prop::collection::vec(any::<u8>(), 0..60),
        at: prop::sample::Index,
        other in 1..=u8::MAX,
    ) {
        let sealed = Entry::seal(LedgerId(7), EntryId(3), Some(EntryId(2)), 90, payload.into());
        let mut bytes = sealed.to_bytes().to_vec();
        let at = at.index(bytes.len());
        bytes[at] ^= other;
        let read = Entry::from_bytes(bytes.into());
        let verified = read.and_then(|damaged| damaged.verify(LedgerId(7), EntryId(3)));
        prop_assert!(verified.is_err(), "byte {at}");
    }

    #[test]
    fn an_entry_is_a_view_of_the_bytes_it_came_in(payload in prop::collection::vec(any::<u8>(), 1..200)) {
        let sealed = Entry::seal(LedgerId(7), EntryId(3), None, 0, payload.into());
        let bytes = sealed.to_bytes();
        let entry = Entry::from_bytes(bytes.clone()).expect("a sealed entry");
        prop_assert_eq!(entry.payload().as_ptr(), bytes[HEAD_BYTES..].as_ptr(), "nothing was copied");
    }

    #[test]
    fn a_sealed_entry_survives_the_way_to_a_bookie_and_back(
        ledger in 0..=i64::MAX as u64,
        entry in 0..=i64::MAX as u64,
        lac in prop::option::of(0..=i64::MAX as u64),
        length in 0..=i64::MAX as u64,
        payload in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let sealed = Entry::seal(LedgerId(ledger), EntryId(entry), lac.map(EntryId), length, payload.into());
        let back = Entry::from_bytes(sealed.to_bytes()).expect("a sealed entry");
        prop_assert_eq!(&back, &sealed);
        prop_assert_eq!(back.verify(LedgerId(ledger), EntryId(entry)), Ok(()));
        prop_assert_eq!((back.lac().map(EntryId::get), back.length()), (lac, length));
    }
}
