//! POSIX semantics over pool trees.
