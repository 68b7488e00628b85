//! The implementations of the seams that need no server.

mod metadata;
