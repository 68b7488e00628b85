//! georepl-replicator
