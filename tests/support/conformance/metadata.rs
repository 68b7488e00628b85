//! What every kind of metadata store must do, run on each of them.

#![allow(missing_docs)] // Each function is named by what it checks.

use std::collections::BTreeSet;

use georepl_storage::{Expected, MetadataError, MetadataStore, Versioned};

/// A store of one kind, empty at first.
pub trait Kind {
    /// A session with it.
    type Store: MetadataStore;

    /// Begins a session, after the one before it has ended.
    fn session(&self) -> impl Future<Output = Self::Store>;

    /// Ends a session.
    fn end(&self, session: Self::Store) -> impl Future<Output = ()>;
}

/// Runs the suite on what the expression makes.
#[macro_export]
macro_rules! metadata_conformance {
    ($make:expr) => {
        $crate::metadata_conformance! { $make =>
            a_change_needs_the_version_that_was_read
            a_key_that_is_created_again_has_a_new_version
            a_deleted_key_is_not_there
            children_are_the_names_one_level_down
            ledger_ids_are_given_out_once
            of_changes_at_once_one_wins
            an_ephemeral_key_is_like_any_other_while_its_session_lasts
            an_ephemeral_key_ends_with_its_session_and_others_stay
        }
    };
    ($make:expr => $($name:ident)*) => {
        $(
            #[tokio::test]
            async fn $name() {
                $crate::conformance::metadata::$name(&$make).await;
            }
        )*
    };
}
pub async fn a_change_needs_the_version_that_was_read(kind: &impl Kind) {
    let store = kind.session().await;
    let first = store.put("a", "1".into(), Expected::Absent).await.expect("absent");
    let conflict = Err(MetadataError::VersionConflict { key: "a".into() });
    assert_eq!(store.put("a", "2".into(), Expected::Absent).await, conflict);
    let second = store.put("a", "2".into(), Expected::Version(first)).await;
    let second = second.expect("the version just written");
    assert!(second > first);
    assert_eq!(store.put("a", "3".into(), Expected::Version(first)).await, conflict);
    let found = Versioned { value: "2".into(), version: second };
    assert_eq!(store.get("a").await, Ok(Some(found)));
}

pub async fn a_key_that_is_created_again_has_a_new_version(kind: &impl Kind) {
    let store = kind.session().await;
    let first = store.put("a", "1".into(), Expected::Absent).await.expect("absent");
    store.delete("a", first).await.expect("the version just written");
    let second = store.put("a", "1".into(), Expected::Absent).await.expect("absent");
    assert!(second > first);
    let conflict = Err(MetadataError::VersionConflict { key: "a".into() });
    assert_eq!(store.delete("a", first).await, conflict);
}

pub async fn a_deleted_key_is_not_there(kind: &impl Kind) {
    let store = kind.session().await;
    let missing = MetadataError::NotFound { key: "a".into() };
    let version = store.put("a", "1".into(), Expected::Absent).await.expect("absent");
    store.delete("a", version).await.expect("the version just written");
    assert_eq!(store.get("a").await, Ok(None));
    assert_eq!(store.delete("a", version).await, Err(missing.clone()));
    let changed = store.put("a", "2".into(), Expected::Version(version)).await;
    assert_eq!(changed, Err(missing));
}

pub async fn children_are_the_names_one_level_down(kind: &impl Kind) {
    let store = kind.session().await;
    for key in ["a", "a/x/1", "a/x-y", "a/x/2", "ab/z"] {
        store.put(key, "1".into(), Expected::Absent).await.expect("absent");
    }
    assert_eq!(store.children("a").await, Ok(vec!["x".into(), "x-y".into()]));
    assert_eq!(store.children("a/x").await, Ok(vec!["1".into(), "2".into()]));
    assert_eq!(store.children("b").await, Ok(vec![]));
}

pub async fn ledger_ids_are_given_out_once(kind: &impl Kind) {
    let store = kind.session().await;
    let mut given = BTreeSet::new();
    for _ in 0..100 {
        assert!(given.insert(store.allocate_ledger_id().await.expect("a store that works")));
    }
}

pub async fn of_changes_at_once_one_wins(kind: &impl Kind) {
    let store = kind.session().await;
    let version = store.put("a", "0".into(), Expected::Absent).await.expect("absent");
    let put = |value: &'static str| store.put("a", value.into(), Expected::Version(version));
    let (one, other) = tokio::join!(put("1"), put("2"));
    let conflict = MetadataError::VersionConflict { key: "a".into() };
    let (value, version) = match (one, other) {
        (Ok(version), Err(error)) if error == conflict => ("1", version),
        (Err(error), Ok(version)) if error == conflict => ("2", version),
        both => panic!("{both:?}"),
    };
    assert_eq!(store.get("a").await, Ok(Some(Versioned { value: value.into(), version })));
}

pub async fn an_ephemeral_key_is_like_any_other_while_its_session_lasts(kind: &impl Kind) {
    let store = kind.session().await;
    store.put("a/x", "0".into(), Expected::Absent).await.expect("absent");
    let first = store.create_ephemeral("a/y", "1".into()).await.expect("absent");
    let found = Versioned { value: "1".into(), version: first };
    assert_eq!(store.get("a/y").await, Ok(Some(found)));
    assert_eq!(store.children("a").await, Ok(vec!["x".into(), "y".into()]));
    let conflict = |key: &str| Err(MetadataError::VersionConflict { key: key.into() });
    assert_eq!(store.put("a/y", "2".into(), Expected::Absent).await, conflict("a/y"));
    for key in ["a/x", "a/y"] {
        assert_eq!(store.create_ephemeral(key, "2".into()).await, conflict(key));
    }
    let second = store.put("a/y", "2".into(), Expected::Version(first)).await.expect("its version");
    assert!(second > first);
    assert_eq!(store.put("a/y", "3".into(), Expected::Version(first)).await, conflict("a/y"));
    let found = Versioned { value: "2".into(), version: second };
    assert_eq!(store.get("a/y").await, Ok(Some(found)));
    assert_eq!(store.delete("a/y", first).await.err(), conflict("a/y").err());
    store.delete("a/y", second).await.expect("its version");
    assert_eq!(store.get("a/y").await, Ok(None));
    assert_eq!(store.children("a").await, Ok(vec!["x".into()]));
    let missing = Err(MetadataError::NotFound { key: "a/y".into() });
    assert_eq!(store.put("a/y", "3".into(), Expected::Version(second)).await, missing);
}

pub async fn an_ephemeral_key_ends_with_its_session_and_others_stay(kind: &impl Kind) {
    let first = kind.session().await;
    let kept = first.put("a/x", "0".into(), Expected::Absent).await.expect("absent");
    let held = first.create_ephemeral("a/y", "1".into()).await.expect("absent");
    let held = first.put("a/y", "2".into(), Expected::Version(held)).await.expect("its version");
    // What takes the place of an ephemeral key that was deleted is none.
    let gone = first.create_ephemeral("a/z", "1".into()).await.expect("absent");
    first.delete("a/z", gone).await.expect("its version");
    first.put("a/z", "2".into(), Expected::Absent).await.expect("absent");
    kind.end(first).await;
    let second = kind.session().await;
    assert_eq!(second.get("a/y").await, Ok(None));
    assert_eq!(second.children("a").await, Ok(vec!["x".into(), "z".into()]));
    let found = Versioned { value: "0".into(), version: kept };
    assert_eq!(second.get("a/x").await, Ok(Some(found)));
    let next = second.create_ephemeral("a/y", "3".into()).await.expect("its holder is gone");
    assert!(next > held, "versions go on where they were");
}
