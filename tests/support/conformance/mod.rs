//! What every implementation of a seam must do. Each suite runs on those in memory, on disk and on real servers alike.

pub mod metadata;
