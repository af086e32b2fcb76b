//! The crash simulator: it drives a filesystem, cuts its power at any instant, and compares what comes back with a model.
//!
//! - [`model`] says what every verb must do; [`session`] makes calls on the filesystem and the model and notes, by place
//!   in the log, what must survive ([`timeline`]).
//! - [`workload`] draws the calls; [`trial`] runs one workload and its crashes; [`oracle`] judges each image.
//! - [`reads`] lets reads fail, while an image is opened and afterwards.
//! - [`concurrent`] does the same, more loosely, with many threads.
//! - [`crash_test`] runs any test of the filesystem as a crash test.
//! - [`soak`] runs trials for hours; [`mounted`] judges images of a real mounted daemon.
//!
//! A trial depends on its kind and seed alone, and every failure prints the one line that repeats it. The harness
//! must not learn from the engine: expected states come from the calls made.
#![forbid(unsafe_code)]

pub mod call;
pub mod compare;
pub mod concurrent;
pub mod crash_test;
pub mod disk;
pub mod model;
pub mod mounted;
pub mod oracle;
pub mod overlap;
pub mod reads;
pub mod session;
pub mod soak;
pub mod suite;
pub mod timeline;
pub mod trial;
pub mod tuned;
pub mod workload;
