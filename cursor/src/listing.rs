//! Which topics a metadata store has.

use georepl_storage::{MetadataError, MetadataStore};

use crate::managed_ledger::OpenError;
use crate::names::{name_of, persistence_path, topic_key};

/// The full names of all topics, sorted.
///
/// It reads every record, so it takes long where there are many topics. Cancel-safe.
///
/// # Errors
/// [`MetadataError`].
pub async fn topics(store: &dyn MetadataStore) -> Result<Vec<String>, MetadataError> {
    let mut names = Vec::new();
    let mut folders = vec![String::new()];
    while let Some(folder) = folders.pop() {
        for child in store.children(topic_key(&folder).trim_end_matches('/')).await? {
            let path = if folder.is_empty() { child } else { format!("{folder}/{child}") };
            match store.get(&topic_key(&path)).await? {
                // What lies below a topic is its cursors.
                Some(_) => names.push(name_of(&path)),
                None => folders.push(path),
            }
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// Whether there is a topic of this name. Cancel-safe.
///
/// # Errors
/// [`OpenError::Name`] and [`OpenError::Metadata`].
pub async fn topic_exists(store: &dyn MetadataStore, name: &str) -> Result<bool, OpenError> {
    let key = topic_key(&persistence_path(name)?);
    Ok(store.get(&key).await?.is_some())
}

#[cfg(test)]
mod tests {
    use georepl_storage::{Expected, MemoryMetadataStore};

    use super::*;

    #[tokio::test]
    async fn topics_are_listed_by_their_full_names_and_without_their_cursors() {
        let store = MemoryMetadataStore::new();
        assert_eq!(topics(&store).await, Ok(Vec::new()));
        let names = ["persistent://acme/eu/a b", "persistent://acme/eu/é", "acme/logs"];
        for name in names {
            let key = topic_key(&persistence_path(name).unwrap());
            store.put(&key, "".into(), Expected::Absent).await.unwrap();
            store.put(&format!("{key}/cursor"), "".into(), Expected::Absent).await.unwrap();
        }
        let mut sorted = names.to_vec();
        sorted.sort_unstable();
        assert_eq!(topics(&store).await.unwrap(), sorted);
        assert_eq!(topic_exists(&store, names[0]).await, Ok(true));
        assert_eq!(topic_exists(&store, "acme/logs/cursor/none").await, Ok(false));
        assert!(matches!(topic_exists(&store, "a//b").await, Err(OpenError::Name(_))));
    }
}
